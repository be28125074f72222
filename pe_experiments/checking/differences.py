"""Describe where a candidate differs from a reference: layers, heads, distances, rows of tables."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pe_experiments.checking.half_precision import describe_loss, half_precision_losses
from pe_experiments.checking.instances import (
    build,
    masked_difference,
    relative_difference,
    trainable,
    unmasked,
)
from pe_experiments.checking.pair import (
    DENSE,
    FAR,
    NEAR,
    SAME,
    Pair,
    Sizes,
    defined_far,
    logits_of_one_query,
    make_pair,
    model_shape,
    scores_of,
)
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding, acts_at_embedding
from pe_experiments.encodings.rope_extension import ExtendedRope
from pe_experiments.models.attention_scores import Inputs
from pe_experiments.terminal.errors import sentence

# Width, heads, training length. The number of heads is a power of two in the first only.
SMALL: Sizes = (64, 4, 12)
LARGE: Sizes = (144, 6, 1024)  # long enough for wide buckets in T5 and a gradual ramp in YaRN
SIZES = (SMALL, LARGE)
HEADS = (1, 2, 3, 5, 8, 12, 16, 32)
LAYERS = 12  # a multiple of 2, 3, 4 and 6
LONG_TRAINING = 131_072  # tokens
LONGEST_TRAINING = 2**22
FARTHEST = 131_072
FAR_TOLERANCE = 0.1  # angles in float32 are off by 0.01 at the farthest ids, those of wrapped ids by 1
TABLE_ENDS = (1_000, 1_024, 2_048, 4_096, 5_000, 8_192, 10_000, 16_384, 20_000, 32_768, 65_536, 100_000)
MOST_NUMBERS = 8  # in a message

MakePair = Callable[[ModelShape], Pair | None]


def ids_around_table_ends() -> Tensor:
    """Return the ids next to the usual ends of tables, sorted."""
    ends = torch.tensor(TABLE_ENDS)
    return torch.cat([ends - 1, ends, ends + 1]).unique()


def spread_ids(number: int) -> Tensor:
    """Return random ids below `FARTHEST`, sorted."""
    ids = torch.randperm(FARTHEST, generator=torch.Generator().manual_seed(0))[:number]
    return ids.sort().values


def format_numbers(word: str, numbers: Sequence[int]) -> str:
    """Return a text such as ``layer 3`` or ``layers 3, 7 and 11``."""
    if len(numbers) == 1:
        return f"{word} {numbers[0]:,}"
    shown = [f"{number:,}" for number in numbers[:MOST_NUMBERS]]
    if len(numbers) > MOST_NUMBERS:
        return f"{word}s {', '.join(shown)} and {len(numbers) - MOST_NUMBERS} more"
    return f"{word}s {', '.join(shown[:-1])} and {shown[-1]}"


# Differences between two tensors.


def place_in_embeddings(result: Tensor, expected: Tensor, ids_T: Tensor, tolerance: float = SAME) -> str:
    """Describe the first position and the column of a difference; return "" if there is none."""
    if result.shape != expected.shape:
        return f"embeddings have the shape {list(result.shape)} instead of {list(expected.shape)}"
    if relative_difference(result, expected) <= tolerance:
        return ""
    difference_TD = (result - expected).abs().nan_to_num(torch.inf).amax(dim=0)
    differs_T = (difference_TD > tolerance * expected.abs().max()).any(dim=-1)
    column = int(difference_TD.amax(0).argmax())
    return f"embeddings differ from position {int(ids_T[differs_T].min()):,} on, most in column {column}"


def place_in_scores(result: Tensor, expected: Tensor, ids_T: Tensor, what: str) -> str:
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
    differs_HTS = difference_HTS > SAME * expected[expected.isfinite()].abs().max()
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


# Differences in models of the usual sizes.


def place_in_pair(pair: Pair, span: int = DENSE) -> str:
    """Describe the place of a difference at random positions below ``span``; return "" if there is none.

    With `DENSE` the positions are 0, 1, 2, ... without gaps.
    """
    inputs = pair.inputs_below(span)
    ids_T = inputs.positions_BT[0]
    what = "attention weights" if pair.compares_weights else "logits"
    return place_in_embeddings(*pair.embeddings(inputs), ids_T) or place_in_scores(
        *pair.scores(inputs), ids_T, what
    )


@torch.no_grad()
def where_they_differ(
    candidate: MakeEncoding, reference: MakeEncoding, causal: bool, span: int = DENSE
) -> str:
    """Describe where embeddings or logits differ with equal parameters; return "" if nowhere."""
    for size in SIZES:
        pair = make_pair(candidate, reference, model_shape(size, causal))
        try:
            place = place_in_pair(pair, span) if pair else ""
        except Exception:  # one of both rejects these positions
            continue
        if place:
            return place if size == SMALL else f"equal with {SMALL[1]} heads; with {size[1]}, {place}"
    return ""


@torch.no_grad()
def untrained_pairs(candidate: MakeEncoding, reference: MakeEncoding, causal: bool) -> list[Pair]:
    """Return pairs with initial parameters, in models of the usual sizes."""
    shapes = [model_shape(size, causal) for size in SIZES]
    return [Pair(build(candidate, shape), build(reference, shape)) for shape in shapes]


# Differences that models of the usual sizes do not show.


def difference_in_other_models(
    candidate: MakeEncoding, reference: MakeEncoding, forms: Sequence[bool], layout: Sequence[str] = ()
) -> str:
    """Describe the first difference in other models, at other positions or in tables; return "" if none."""
    make_pair_for = partial(make_pair, candidate, reference, layout=layout)
    comparisons: tuple[Callable[[MakePair, bool], str], ...] = (
        _difference_across_sizes,
        partial(_difference_around_lengths, reference),
        _difference_of_long_training,
        _difference_at_distances,
        partial(_difference_at_far_ids, reference),
        partial(_difference_in_half_precision, reference),
        _untrained_table_rows,
        _difference_of_sharing,
    )
    for causal in forms:
        for describe_difference in comparisons:
            try:
                place = describe_difference(make_pair_for, causal)
            except Exception:  # the encoding or its module rejects these sizes or positions
                continue
            if place:
                return place if causal else f"in an encoder, {place}"
    return ""


def _difference_across_sizes(make_pair_for: MakePair, causal: bool) -> str:
    """Describe the first difference with twelve layers and other numbers of heads."""
    compared = set()
    for size in (SMALL, *((8 * heads, heads, 12) for heads in HEADS)):
        try:
            pair = make_pair_for(model_shape(size, causal, LAYERS))
        except Exception:  # the encoding rejects these sizes
            continue
        if pair is None or pair.shape in compared:
            continue
        compared.add(pair.shape)
        where = "" if size == SMALL else f"with {pair.shape.num_heads} heads, "
        if pair.difference > SAME:
            place = "" if pair.layout else place_in_pair(pair)
            return f"{where}{place or 'logits or embeddings differ'}"
        inputs = pair.inputs_below(NEAR)
        all_layers = range(pair.shape.num_layers)
        layers = [layer for layer in all_layers if masked_difference(*pair.scores(inputs, layer)) > SAME]
        if layers:
            named = format_numbers("layer", layers)
            return f"{where}in {named} of {len(all_layers)}, logits differ; in the others they are equal"
    return ""


def _difference_around_lengths(reference: MakeEncoding, make_pair_for: MakePair, causal: bool) -> str:
    """Describe a difference in rows of an original length of the reference, or just below or above it."""
    for size in SIZES:
        pair = make_pair_for(model_shape(size, causal))
        if pair is None:
            continue
        for length in _original_lengths(pair.reference):
            if length >= NEAR and not defined_far(reference, pair.reference):
                continue
            for tokens in (length - 1, length, length + 1):
                inputs = _row_of_length(pair, tokens)
                expected = scores_of(pair.reference, inputs, pair.compares_weights, 0)
                try:
                    candidate_inputs = pair.candidate_inputs(inputs)
                    result = scores_of(pair.candidate, candidate_inputs, pair.compares_weights, 0)
                except Exception as error:
                    return f"in a row of {tokens:,} tokens it raises {sentence(error)}"
                if masked_difference(result, expected) > SAME:
                    where = {-1: "one below", 0: "exactly", 1: "one above"}[tokens - length]
                    return f"in a row of {tokens:,} tokens, {where} the original length, logits differ"
    return ""


def _original_lengths(encoding: PositionalEncoding) -> list[int]:
    """Return the lengths to which an encoding or its parts compare that of a row, smallest first."""
    lengths = {getattr(part, "original_length", None) for part in encoding.modules()}
    return sorted({encoding.shape.train_length, *(length for length in lengths if isinstance(length, int))})


def _row_of_length(pair: Pair, tokens: int) -> Inputs:
    """Return inputs of a row of this declared length; of a long row the last token and a few others."""
    ids_T = torch.arange(tokens)
    if tokens > NEAR:
        order_T = torch.randperm(tokens - 1, generator=torch.Generator().manual_seed(0))
        ids_T = torch.cat([order_T[: DENSE - 1].sort().values, ids_T[-1:]])
    return replace(pair.inputs_at(ids_T[None]), declared_B=torch.tensor([tokens]))


def _difference_of_long_training(make_pair_for: MakePair, causal: bool) -> str:
    """Describe a difference in models trained on long sequences."""
    width, heads, _ = SMALL
    lengths = {LONG_TRAINING}
    pair = make_pair_for(model_shape(SMALL, causal))
    if pair is not None and isinstance(pair.reference, ExtendedRope):
        # The slowest pair makes a whole rotation over more than 2 pi times the base.
        lengths.add(min(int(10 * pair.reference.base), LONGEST_TRAINING))
    for length in sorted(lengths):
        pair = make_pair_for(model_shape((width, heads, length), causal))
        if pair is not None and pair.difference > SAME:
            place = "" if pair.layout else place_in_pair(pair, NEAR)
            return f"trained on {length:,} tokens, {place or 'logits or embeddings differ'}"
    return ""


def _difference_at_distances(make_pair_for: MakePair, causal: bool) -> str:
    """Describe the distances up to 4,095 at which the logits of a shift-invariant encoding differ."""
    ids_S = torch.arange(FAR)
    # The last query sees all keys before it; in an encoder, the first query sees all keys after it.
    sizes_and_queries = [(SMALL, FAR - 1), (LARGE, FAR - 1)]
    if not causal:
        sizes_and_queries.append((LARGE, 0))
    for size, query in sizes_and_queries:
        pair = make_pair_for(model_shape(size, causal))
        if pair is None or pair.layout or pair.reference.invariant_to != "shift" or pair.compares_weights:
            continue
        try:
            result = logits_of_one_query(pair.candidate, ids_S, query)
            expected = logits_of_one_query(pair.reference, ids_S, query)
        except Exception:  # a table that ends is reported where far positions are compared
            continue
        if masked_difference(result, expected) <= 2 * SAME:
            continue
        # Both minus infinity: a difference of NaN, which is not larger.
        differs_S = ((result - expected).abs() > 2 * SAME * unmasked(expected).abs().max()).any(0)
        distances = (ids_S - ids_S[query]).abs()[differs_S].unique().tolist()
        if len(distances) <= MOST_NUMBERS:
            return f"logits differ at {format_numbers('distance', distances)} only"
        return f"logits differ at {len(distances):,} distances, the nearest {distances[0]:,}"
    return ""


def _difference_at_far_ids(reference: MakeEncoding, make_pair_for: MakePair, causal: bool) -> str:
    """Describe a difference at ids up to `FARTHEST`, where tables may end or wrap."""
    pair = make_pair_for(model_shape(SMALL, causal))
    if pair is None or not defined_far(reference, pair.reference):
        return ""
    for ids_T in (ids_around_table_ends(), spread_ids(DENSE)):
        embeddings, scores = pair.results(pair.inputs_at(ids_T[None]))  # a table that ends raises
        place = "" if pair.layout else place_in_embeddings(*embeddings, ids_T, FAR_TOLERANCE)
        if place:
            return f"at ids up to {FARTHEST:,}, {place}"
        if max(masked_difference(*embeddings), masked_difference(*scores)) > FAR_TOLERANCE:
            return f"at ids from {TABLE_ENDS[0]:,} to {FARTHEST:,}, logits or embeddings differ"
    return ""


def _difference_in_half_precision(reference: MakeEncoding, make_pair_for: MakePair, causal: bool) -> str:
    """Describe a difference on inputs in half precision that is larger than their rounding."""
    pair = make_pair_for(model_shape(SMALL, causal))
    if pair is None or pair.layout or not defined_far(reference, pair.reference):
        return ""
    holds, measured = describe_loss(half_precision_losses(pair.candidate, pair.reference))
    return "" if holds else f"on inputs in half precision, {measured}"


def _difference_of_sharing(make_pair_for: MakePair, causal: bool) -> str:
    """Describe layers that have parameters of their own although those of the reference share them."""
    growths: list[list[float]] = [[], []]
    for layers in (1, 3):
        pair = make_pair_for(model_shape(SMALL, causal, layers))
        if pair is None or pair.shape.num_layers != layers:  # the user gives the number of layers
            return ""
        for growth, encoding in zip(growths, (pair.candidate, pair.reference), strict=True):
            copies = layers if encoding.per_layer else 1
            growth.append(copies * sum(parameter.numel() for parameter in trainable(encoding).values()))
    candidate, reference = (bool(three > one) for one, three in growths)
    if candidate == reference:
        return ""
    if candidate:
        return "every layer has parameters of its own (per_layer = True), where ours share one set"
    return "the layers share one set of parameters, where each of ours has its own (per_layer = True)"


def _untrained_table_rows(make_pair_for: MakePair, causal: bool) -> str:
    """Describe rows of a table that lack a gradient although the reference's have one (padding_idx)."""
    pair = make_pair_for(model_shape(SMALL, causal))
    tables = [pairing for pairing in pair.pairings if pairing.candidate.squeeze().ndim == 2] if pair else []
    if pair is None or pair.layout or not tables:
        return ""
    _backward(pair)
    names = {id(parameter): name for name, parameter in pair.candidate.named_parameters()}
    for pairing in tables:
        if pairing.candidate.grad is None or pairing.reference.grad is None:
            continue
        # The difference is 0 in rows of a longer table that have no source in the reference's table.
        zeros = torch.zeros_like(pairing.reference)
        expected_grad = pairing.convert(pairing.reference.grad) - pairing.convert(zeros)
        has_grad = pairing.candidate.grad.squeeze().abs().sum(-1) > 0
        expects_grad = expected_grad.squeeze().abs().sum(-1) > 0
        if has_grad.shape == expects_grad.shape and has_grad.any():
            untrained = (expects_grad & ~has_grad).nonzero().flatten().tolist()
            if untrained:
                rows = format_numbers("row", untrained)
                return f"no gradient reaches {rows} of {names[id(pairing.candidate)]}"
    return ""


@torch.enable_grad()
def _backward(pair: Pair) -> None:
    """Compute the gradients of a weighted sum of embeddings and logits at all near positions, in both."""
    inputs = pair.inputs_at(torch.arange(NEAR)[None])
    results = [pair.embeddings(inputs)]
    if not acts_at_embedding(pair.reference) and not pair.compares_weights:
        results.append(pair.scores(inputs))
    for outputs in zip(*results, strict=True):  # those of the candidate, then those of the reference
        total = torch.zeros(())
        for values in outputs:
            finite = values[values.isfinite()]
            weights = torch.randn(finite.shape, generator=torch.Generator().manual_seed(0))
            total = total + (finite * weights).sum()
        if total.requires_grad:
            total.backward()
