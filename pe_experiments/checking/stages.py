"""Define the stages of a comparison: the ways to call an encoding in which two implementations may differ.

Each stage yields an `Outcome` that says whether the two agree, and where they differ if they do not.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pe_experiments.checking.known_mistakes import TABLE_ENDS
from pe_experiments.checking.pair import (
    DENSE,
    FAR,
    LARGE,
    MODEL_SIZES,
    NEAR,
    SMALL,
    TOLERANCE,
    Pair,
    Pairs,
    ParametersDiffer,
    Sizes,
    logits_of_one_query,
    scores_of,
)
from pe_experiments.checking.scenarios import (
    Scenario,
    half_precision_loss,
    scenario_results,
    worst_difference,
)
from pe_experiments.checking.subject import masked_difference, relative_difference, trainable, unmasked
from pe_experiments.encodings.rope_extension import ExtendedRope
from pe_experiments.models.attention_scores import Inputs
from pe_experiments.terminal.errors import join_names, sentence

HEADS = (1, 2, 3, 5, 8, 12, 16, 32)
LAYERS = 12  # a multiple of 2, 3, 4 and 6
LONG_TRAINING = 131_072  # tokens
LONGEST_TRAINING = 2**22
FARTHEST = 131_072
FAR_TOLERANCE = 0.1  # angles in float32 are off by 0.01 at the farthest ids, those of wrapped ids by 1
MOST_NUMBERS = 8  # in a message
NEAR_STAGE = "single sequences at positions below 64"
FAR_STAGE = "sequences at positions up to 4,095"
LENGTHS = "rows of about the original length"
LONG_TRAINED = "models trained on long sequences"
DISTANCES = "keys at distances up to 4,095"
FAR_IDS = "sequences at ids up to 131,072"
PARAMETERS = "trainable parameters"
HALF_PRECISION = "inputs in half precision"
SHARING = "the parameters of layers"
WITH_GAPS = "equal at positions 0, 1, 2, ...; with gaps between positions"
DIFFER = "logits or embeddings differ"
READ = "the values that are read"


class Outcome(NamedTuple):
    """The result of one stage.

    Args:
        stage: name of the stage.
        causal: whether the models are decoders.
        difference: relative to the largest value; infinite if shapes or masks differ, or if not measured.
        place: where the two differ; empty if they are equal within the tolerance of the stage.
        remark: why something was not compared, if so.
    """

    stage: str
    causal: bool
    difference: float = 0.0
    place: str = ""
    remark: str = ""


@torch.no_grad()
def outcomes(pairs: Pairs) -> Iterator[Outcome]:
    """Yield the outcomes of all stages, those of single sequences first."""
    for causal in pairs.forms:
        for size in MODEL_SIZES:
            try:
                pair = pairs.pair(size, causal)
            except ParametersDiffer:
                yield Outcome(PARAMETERS, causal, torch.inf, "they differ in number or shape")
                return
            near = _near(pair, size)
            yield near
            if near.place:
                continue
            for name, scenario, results, expected in scenario_results(pair):
                difference = worst_difference(results, expected)
                differs = difference > TOLERANCE
                place = _place_in_scenario(scenario, results, expected) if differs else ""
                yield Outcome(name, causal, difference, place)
            yield _far(pairs, pair)
    for causal in pairs.forms:
        for stage, describe_difference in OTHER_STAGES.items():
            try:
                place = describe_difference(pairs, causal)
            except Exception:  # it rejects these sizes or positions, or its parameters differ in these sizes
                continue
            yield Outcome(stage, causal, torch.inf if place else 0.0, place)


# Single sequences.


def _near(pair: Pair, size: Sizes) -> Outcome:
    """Compare at random positions below `NEAR`."""
    causal = pair.shape.causal
    width, heads, train_length = size
    stage = NEAR_STAGE
    if size != SMALL:
        stage = f"models with {heads} heads of {width // heads} channels, trained on {train_length:,} tokens"
    if not pair.differs:
        return Outcome(stage, causal, pair.difference)
    place = place_in_pair(pair)
    if not place and (place := place_in_pair(pair, NEAR)):
        place = f"{WITH_GAPS}, {place}"
    return Outcome(stage, causal, pair.difference, place or DIFFER)


def _far(pairs: Pairs, pair: Pair) -> Outcome:
    """Compare at random positions below `FAR`."""
    causal = pair.shape.causal
    if not pairs.defined_far(pair):
        return Outcome(FAR_STAGE, causal, torch.nan, remark="what is trained decides there")
    try:
        difference = pair.difference_below(FAR)
    except Exception as error:  # raised by one of both, e.g. for the end of a table
        remark = f"it raises {sentence(error)}"
        try:
            scores_of(pair.reference, pair.inputs_below(FAR), pair.compares_weights, 0)
        except Exception as reference_error:
            remark = f"ours raises {sentence(reference_error)}"
        return Outcome(FAR_STAGE, causal, torch.nan, remark=remark)
    # Angles in float32 are off by less than 2 * TOLERANCE, angles in half precision by more.
    place = (place_in_pair(pair, FAR) or DIFFER) if difference > 2 * TOLERANCE else ""
    return Outcome(FAR_STAGE, causal, difference, place)


def place_in_pair(pair: Pair, span: int = DENSE) -> str:
    """Describe the place of a difference at random positions below ``span``; return "" if there is none.

    With `DENSE` the positions are 0, 1, 2, ... without gaps.
    """
    if pair.layout:
        return ""
    inputs = pair.inputs_below(span)
    ids_T = inputs.positions_BT[0]
    what = "attention weights" if pair.compares_weights else "logits"
    return _place_in_embeddings(*pair.embeddings(inputs), ids_T) or _place_in_scores(
        *pair.scores(inputs), ids_T, what
    )


def _place_in_embeddings(result: Tensor, expected: Tensor, ids_T: Tensor) -> str:
    """Describe the first position and the column of a difference; return "" if there is none."""
    if result.shape != expected.shape:
        return f"embeddings have the shape {list(result.shape)} instead of {list(expected.shape)}"
    if relative_difference(result, expected) <= TOLERANCE:
        return ""
    difference_TD = (result - expected).abs().nan_to_num(torch.inf).amax(dim=0)
    differs_T = (difference_TD > TOLERANCE * expected.abs().max()).any(dim=-1)
    column = int(difference_TD.amax(0).argmax())
    return f"embeddings differ from position {int(ids_T[differs_T].min()):,} on, most in column {column}"


def _place_in_scores(result: Tensor, expected: Tensor, ids_T: Tensor, what: str) -> str:
    """Describe the heads, the nearest distance and the largest difference; return "" if there is none.

    Args:
        result: scores of the candidate, [H, T, S].
        expected: scores of the reference.
        ids_T: position ids of queries and keys.
        what: name of the scores in the text.
    """
    if result.shape != expected.shape:
        return f"{what} have the shape {list(result.shape)} instead of {list(expected.shape)}"
    difference_HTS = (result - expected).abs().nan_to_num(0.0, torch.inf)  # nan: masked in both
    differs_HTS = difference_HTS > TOLERANCE * expected[expected.isfinite()].abs().max()
    if not differs_HTS.any():
        return ""
    heads = differs_HTS.flatten(1).any(dim=1).nonzero().flatten().tolist()
    queries, keys = (ids_T[indices] for indices in differs_HTS.any(0).nonzero(as_tuple=True))
    largest = torch.unravel_index(difference_HTS.argmax(), difference_HTS.shape)
    head, query, key = (int(index) for index in largest)
    return (
        f"{what} differ in {len(heads)} of {len(result)} heads ({', '.join(map(str, heads))}), from distance "
        f"{int((queries - keys).abs().min())} on; most in head {head} for the query at position "
        f"{ids_T[query]} and the key at {ids_T[key]}: "
        f"{result[head, query, key]:.6g} instead of {expected[head, query, key]:.6g}"
    )


# Batches, caches, padding, packed documents.


def _place_in_scenario(scenario: Scenario, results: list[Tensor], expected: list[Tensor]) -> str:
    """Describe the row, and the query and key or the position, of the largest difference."""
    names = ["embeddings", *["attention weights", READ] * 2]
    for what, result, target in zip(names, results, expected, strict=False):
        if result.shape != target.shape:
            return f"{what}: the shape is {list(result.shape)} instead of {list(target.shape)}"
        difference = (result - target).abs().nan_to_num(0.0, torch.inf)
        if not difference.max() > TOLERANCE * target.nan_to_num(0.0).abs().max():
            continue
        row, *index = (int(i) for i in torch.unravel_index(difference.argmax(), difference.shape))
        ids = scenario.positions_BT[row].tolist()
        query = index[0] if what == "embeddings" else index[1]
        text = (
            f"in row {row} of the batch, {what} differ most at the token with id {ids[query]} (index {query})"
        )
        if what == "attention weights":
            text += f" and the key with id {ids[index[2]]} (index {index[2]}), in head {index[0]}"
        return text
    return "embeddings or attention weights differ"


# Models of other sizes, long rows, every distance, far ids, half precision, training.


def _difference_across_sizes(pairs: Pairs, causal: bool) -> str:
    """Describe the first difference with twelve layers and other numbers of heads."""
    compared = set()
    for size in (SMALL, *((8 * heads, heads, 12) for heads in HEADS)):
        try:
            pair = pairs.pair(size, causal, LAYERS)
        except Exception:  # the encoding rejects these sizes, or its parameters differ
            continue
        if pair.shape in compared:
            continue
        compared.add(pair.shape)
        where = "" if size == SMALL else f"with {pair.shape.num_heads} heads, "
        if pair.differs:
            return f"{where}{place_in_pair(pair) or DIFFER}"
        inputs = pair.inputs_below(NEAR)
        all_layers = range(pair.shape.num_layers)
        layers = [layer for layer in all_layers if masked_difference(*pair.scores(inputs, layer)) > TOLERANCE]
        if layers:
            named = format_numbers("layer", layers)
            return f"{where}in {named} of {len(all_layers)}, logits differ; in the others they are equal"
    return ""


def _difference_around_lengths(pairs: Pairs, causal: bool) -> str:
    """Describe a difference in rows of an original length of the reference, next to it, or twice as long."""
    for size in MODEL_SIZES:
        pair = pairs.pair(size, causal)
        # The lengths to which an encoding or its parts compare that of a row.
        original_lengths = {getattr(part, "original_length", None) for part in pair.reference.modules()}
        lengths = {length for length in original_lengths if isinstance(length, int)}
        for length in sorted({pair.shape.train_length, *lengths}):
            if length >= NEAR and not pairs.defined_far(pair):
                continue
            for where, tokens in {
                "one below": length - 1,
                "exactly": length,
                "one above": length + 1,
                "twice": 2 * length,
            }.items():
                inputs = _row_of_length(pair, tokens)
                expected = scores_of(pair.reference, inputs, pair.compares_weights, 0)
                try:
                    candidate_inputs = pair.candidate_inputs(inputs)
                    result = scores_of(pair.candidate, candidate_inputs, pair.compares_weights, 0)
                except Exception as error:
                    return f"in a row of {tokens:,} tokens it raises {sentence(error)}"
                if masked_difference(result, expected) > TOLERANCE:
                    return f"in a row of {tokens:,} tokens, {where} the original length, logits differ"
    return ""


def _row_of_length(pair: Pair, tokens: int) -> Inputs:
    """Return inputs of a row of this declared length; of a long row the last token and a few others."""
    ids_T = torch.arange(tokens)
    if tokens > NEAR:
        order_T = torch.randperm(tokens - 1, generator=torch.Generator().manual_seed(0))
        ids_T = torch.cat([order_T[: DENSE - 1].sort().values, ids_T[-1:]])
    return replace(pair.inputs_at(ids_T[None]), declared_B=torch.tensor([tokens]))


def _difference_of_long_training(pairs: Pairs, causal: bool) -> str:
    """Describe a difference in models trained on long sequences."""
    width, heads, _ = SMALL
    lengths = {LONG_TRAINING}
    reference = pairs.pair(SMALL, causal).reference
    if isinstance(reference, ExtendedRope):
        # The slowest pair makes a whole rotation over more than 2 pi times the base.
        lengths.add(min(int(10 * reference.base), LONGEST_TRAINING))
    for length in sorted(lengths):
        pair = pairs.pair((width, heads, length), causal)
        if pair.differs:
            return f"trained on {length:,} tokens, {place_in_pair(pair, NEAR) or DIFFER}"
    return ""


def _difference_at_distances(pairs: Pairs, causal: bool) -> str:
    """Describe the distances up to 4,095 at which the logits of a shift-invariant encoding differ."""
    ids_S = torch.arange(FAR)
    # The last query sees all keys before it; in an encoder, the first query sees all keys after it.
    sizes_and_queries = [(SMALL, FAR - 1), (LARGE, FAR - 1)]
    if not causal:
        sizes_and_queries.append((LARGE, 0))
    for size, query in sizes_and_queries:
        pair = pairs.pair(size, causal)
        if pair.layout or pair.reference.invariant_to != "shift" or pair.compares_weights:
            continue
        try:
            result = logits_of_one_query(pair.candidate, ids_S, query)
            expected = logits_of_one_query(pair.reference, ids_S, query)
        except Exception:  # a table that ends is reported where far positions are compared
            continue
        if masked_difference(result, expected) <= 2 * TOLERANCE:
            continue
        # Both minus infinity: a difference of NaN, which is not larger.
        differs_S = ((result - expected).abs() > 2 * TOLERANCE * unmasked(expected).abs().max()).any(0)
        distances = (ids_S - ids_S[query]).abs()[differs_S].unique().tolist()
        if len(distances) <= MOST_NUMBERS:
            return f"logits differ at {format_numbers('distance', distances)} only"
        return f"logits differ at {len(distances):,} distances, the nearest {distances[0]:,}"
    return ""


def _difference_at_far_ids(pairs: Pairs, causal: bool) -> str:
    """Describe a difference at ids up to `FARTHEST`, where tables may end or wrap."""
    pair = pairs.pair(SMALL, causal)
    if not pairs.defined_far(pair):
        return ""
    ends = torch.tensor(TABLE_ENDS)
    around_ends = torch.cat([ends - 1, ends, ends + 1]).unique()
    spread = torch.randperm(FARTHEST, generator=torch.Generator().manual_seed(0))[:DENSE].sort().values
    for ids_T in (around_ends, spread):
        results = pair.results(pair.inputs_at(ids_T[None]))  # a table that ends raises
        if max(masked_difference(*both) for both in results) > FAR_TOLERANCE:
            return f"{DIFFER} at ids from {TABLE_ENDS[0]:,} on"
    return ""


def _difference_in_half_precision(pairs: Pairs, causal: bool) -> str:
    """Describe a difference on inputs in half precision that is larger than their rounding."""
    pair = pairs.pair(SMALL, causal)
    if pair.layout or not pairs.defined_far(pair):
        return ""
    holds, measured = half_precision_loss(pair.candidate, pair.reference)
    return "" if holds else measured


def _difference_of_sharing(pairs: Pairs, causal: bool) -> str:
    """Describe layers that have parameters of their own although those of the reference share them."""
    pair = pairs.pair(SMALL, causal)
    if not trainable(pair.candidate) or pair.candidate.per_layer == pair.reference.per_layer:
        return ""
    if pair.candidate.per_layer:
        return "every layer has parameters of its own (per_layer = True), where ours share one set"
    return "the layers share one set of parameters, where each of ours has its own (per_layer = True)"


OTHER_STAGES: dict[str, Callable[[Pairs, bool], str]] = {
    "models with twelve layers or other numbers of heads": _difference_across_sizes,
    LENGTHS: _difference_around_lengths,
    LONG_TRAINED: _difference_of_long_training,
    DISTANCES: _difference_at_distances,
    FAR_IDS: _difference_at_far_ids,
    HALF_PRECISION: _difference_in_half_precision,
    SHARING: _difference_of_sharing,
}
# A new encoding may equal one of ours everywhere but in these.
LENGTH_STAGES = {FAR_STAGE, LENGTHS, LONG_TRAINED, DISTANCES, FAR_IDS}


@torch.no_grad()
def differs_in(outcome: Outcome, pairs: Pairs) -> bool:
    """Return whether both differ in the stage of an outcome, if it is a late one, which is compared alone."""
    if outcome.stage == FAR_STAGE:
        return bool(_far(pairs, pairs.pair(SMALL, outcome.causal)).place)
    return outcome.stage in OTHER_STAGES and bool(OTHER_STAGES[outcome.stage](pairs, outcome.causal))


def format_numbers(word: str, numbers: Sequence[int]) -> str:
    """Return a text such as ``layer 3`` or ``layers 3, 7 and 11``."""
    shown = [f"{number:,}" for number in numbers[:MOST_NUMBERS]]
    if len(numbers) > MOST_NUMBERS:
        shown.append(f"{len(numbers) - MOST_NUMBERS} more")
    return f"{word if len(numbers) == 1 else f'{word}s'} {join_names(shown)}"
