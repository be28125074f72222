"""Compare an implementation with one of our encodings in every stage: the ways to call an encoding.

Each stage yields a `StageOutcome` that says whether the two agree, and where they differ if they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from pe_experiments.checking.known_mistakes import TABLE_ENDS, Change
from pe_experiments.checking.pair import (
    CHECKED_SIZES,
    DENSE,
    FAR,
    LARGE,
    NEAR,
    SMALL,
    TOLERANCE,
    Pair,
    ParametersDiffer,
    Sizes,
    logits_of_one_query,
    model_shape,
    scores_of,
    share_parameters,
)
from pe_experiments.checking.scenarios import half_precision_loss, scenario_results, worst_difference
from pe_experiments.checking.subject import (
    SizedComponent,
    build,
    masked_difference,
    perturbed,
    trainable,
    unmasked,
)
from pe_experiments.configuration.component import Component
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.encodings.rope_extension import ExtendedRope
from pe_experiments.models.attention_scores import Inputs
from pe_experiments.terminal.errors import join_names, sentence, shown

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
OTHER_ARGUMENTS = "models with other arguments"
WITH_GAPS = "equal at positions 0, 1, 2, ...; with gaps between positions"
DIFFER = "logits or embeddings differ"
READ = "the values that are read"


class StageOutcome(NamedTuple):
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


@dataclass(eq=False)
class EncodingComparison:
    """An implementation under test beside one of our encodings, perhaps changed by a known mistake.

    Args:
        candidate: builds the implementation under test.
        reference: our encoding.
        forms: the forms in which both exist: True for decoders, False for encoders.
        change: a change of our encoding, such as a known mistake.
        layout: the layout of the candidate's channels, see `pair.LAYOUTS`.
        component: the implementation with its arguments, if they are known.
        user_arguments: names of arguments of our encoding that the user set.
        named: whether the user says that it should be this encoding.
    """

    candidate: MakeEncoding
    reference: SizedComponent
    forms: Sequence[bool]
    change: Change | None = None
    layout: Sequence[str] = ()
    component: SizedComponent | None = None
    user_arguments: Sequence[str] = ()
    named: bool = False
    _pairs: dict[ModelShape, Pair] = field(default_factory=dict, init=False)
    _computed: list[StageOutcome] = field(default_factory=list, init=False)

    @property
    def label(self) -> str:
        return self.reference.label

    def make_reference(self, shape: ModelShape) -> PositionalEncoding:
        """Build our encoding for a model of this shape, with the change."""
        encoding = self.reference.build(shape)
        if self.change is not None:
            self.change.apply(encoding)
        return encoding

    def changed(self, change: Change) -> EncodingComparison:
        return replace(self, change=change if self.change is None else self.change.then(change))

    def against(self, reference: SizedComponent) -> EncodingComparison:
        """Return the comparison with another of our encodings, in the forms in which it exists."""
        return replace(self, reference=reference, forms=common_forms(reference, self.forms))

    def layouts(self, layouts: Sequence[Sequence[str]]) -> Iterator[EncodingComparison]:
        """Yield the comparison in each layout of channels; none if the order of channels has no effect."""
        encoding = build(self.reference.build, model_shape(SMALL, self.forms[0]))
        if type(encoding).rotate is not PositionalEncoding.rotate or encoding.acts_at_embedding:
            for layout in layouts:
                yield replace(self, layout=layout)

    def pair(self, sizes: Sizes, causal: bool, layers: int = 2) -> Pair:
        """Return the two in a model of these sizes with equal parameters, built once.

        Raises:
            ParametersDiffer: they cannot have equal parameters.
        """
        shape = model_shape(sizes, causal, layers)
        if shape not in self._pairs:
            source, target = perturbed(build(self.make_reference, shape)), build(self.candidate, shape)
            self._pairs[shape] = share_parameters(source, target, self.layout)
        return self._pairs[shape]

    def defined_far(self, pair: Pair) -> bool:
        """Return whether results at far positions depend on the shared parameters only, not on the seed."""
        if pair.reference.invariant_to in ("shift", "ids") or not trainable(pair.reference):
            return True
        other = share_parameters(pair.reference, build(self.make_reference, pair.shape, seed=1))
        return other.difference_below(FAR) <= TOLERANCE

    @property
    def outcomes(self) -> Iterator[StageOutcome]:
        """The outcomes of all stages in their order; a stage is computed once, when it is first asked for."""
        yield from self._computed
        for outcome in self._to_come:
            self._computed.append(outcome)
            yield outcome

    @cached_property
    def _to_come(self) -> Iterator[StageOutcome]:
        return compare(self)

    @property
    def first_difference(self) -> StageOutcome | None:
        """The first stage that differs; None if both are equal, up to the layout or a longer table."""
        return next((outcome for outcome in self.outcomes if outcome.place), None)

    @property
    def differing_outcomes(self) -> list[StageOutcome]:
        return [outcome for outcome in self.outcomes if outcome.place]

    @property
    def same(self) -> bool:
        """Whether both are equal in all stages. Near positions come first, since most mistakes show there."""
        return self.same_nearby and self.first_difference is None

    @property
    def same_nearby(self) -> bool:
        """Whether single sequences at positions below 64 are equal in small models."""
        return self._first_pair is not None and not self._first_pair.differs

    @property
    def shares_parameters(self) -> bool:
        return self._first_pair is not None

    @cached_property
    def _first_pair(self) -> Pair | None:
        with suppress(ParametersDiffer), torch.no_grad():
            return self.pair(SMALL, self.forms[0])
        return None


def common_forms(reference: Component, forms: Sequence[bool]) -> list[bool]:
    """Return those ``forms`` (True: causal) in which the reference exists."""
    causal_only = reference.cls.causal_only  # type: ignore[attr-defined]
    return [causal for causal in forms if causal or not causal_only]


@torch.no_grad()
def compare(comparison: EncodingComparison) -> Iterator[StageOutcome]:
    """Yield the outcomes of all stages, those of single sequences first."""
    for causal in comparison.forms:
        for size in CHECKED_SIZES:
            try:
                pair = comparison.pair(size, causal)
            except ParametersDiffer:
                yield StageOutcome(PARAMETERS, causal, torch.inf, "they differ in number or shape")
                return
            near = _near(pair, size)
            yield near
            if near.place:
                continue
            for name, scenario, results, expected in scenario_results(pair):
                difference = worst_difference(results, expected)
                place = ""
                if difference > TOLERANCE:
                    names = ("embeddings", *("attention weights", READ) * 2)
                    for what, result, target in zip(names, results, expected, strict=False):
                        place = place or _place(what, result, target, scenario.positions_BT)
                    place = place or DIFFER
                yield StageOutcome(name, causal, difference, place)
            yield _far(comparison, pair)
    for causal in comparison.forms:
        for stage, find_place in OTHER_STAGES.items():
            try:
                place = find_place(comparison, causal)
            except Exception:  # it rejects these sizes or positions, or its parameters differ in these sizes
                continue
            yield StageOutcome(stage, causal, torch.inf if place else 0.0, place)


# Single sequences.


def _near(pair: Pair, size: Sizes) -> StageOutcome:
    """Compare at random positions below `NEAR`."""
    causal = pair.shape.causal
    width, heads, train_length = size
    stage = NEAR_STAGE
    if size != SMALL:
        stage = f"models with {heads} heads of {width // heads} channels, trained on {train_length:,} tokens"
    if not pair.differs:
        return StageOutcome(stage, causal, pair.difference)
    place = place_in_pair(pair)
    if not place and (place := place_in_pair(pair, NEAR)):
        place = f"{WITH_GAPS}, {place}"
    return StageOutcome(stage, causal, pair.difference, place or DIFFER)


def _far(comparison: EncodingComparison, pair: Pair) -> StageOutcome:
    """Compare at random positions below `FAR`."""
    causal = pair.shape.causal
    if not comparison.defined_far(pair):
        return StageOutcome(FAR_STAGE, causal, torch.nan, remark="what is trained decides there")
    try:
        difference = pair.difference_below(FAR)
    except Exception as error:  # raised by one of both, e.g. for the end of a table
        return StageOutcome(FAR_STAGE, causal, torch.nan, remark=f"one of the two raises {sentence(error)}")
    # Angles in float32 are off by less than 2 * TOLERANCE, angles in half precision by more.
    place = (place_in_pair(pair, FAR) or DIFFER) if difference > 2 * TOLERANCE else ""
    return StageOutcome(FAR_STAGE, causal, difference, place)


def place_in_pair(pair: Pair, span: int = DENSE) -> str:
    """Describe the place of a difference at random positions below ``span``; return "" if there is none.

    With `DENSE` the positions are 0, 1, 2, ... without gaps.
    """
    if pair.layout:
        return ""
    inputs = pair.inputs_below(span)
    in_embeddings = _place("embeddings", *pair.embeddings(inputs), inputs.positions_BT)
    scores, expected = pair.scores(inputs)
    what = "attention weights" if pair.compares_weights else "logits"
    return in_embeddings or _place(what, scores[None], expected[None], inputs.positions_BT)


def _place(what: str, result: Tensor, expected: Tensor, ids_BT: Tensor) -> str:
    """Describe where two results differ: the row, the heads, the nearest distance, the largest difference.

    Args:
        what: ``embeddings`` [B, T, D], `READ` [B, H, T, K], or the name of scores [B, H, T, S].
        result: the candidate's.
        expected: the reference's.
        ids_BT: position ids.

    Returns:
        An empty string if there is no difference.
    """
    if result.shape != expected.shape:
        return f"{what} have the shape {list(result.shape)} instead of {list(expected.shape)}"
    difference = (result - expected).abs().nan_to_num(0.0)  # infinity minus infinity: masked in both
    difference = difference.masked_fill(result.isnan() != expected.isnan(), torch.inf)
    differs = difference > TOLERANCE * expected.masked_fill(~expected.isfinite(), 0.0).abs().max()
    if not differs.any():
        return ""
    row, *index = (int(i) for i in torch.unravel_index(difference.argmax(), difference.shape))
    ids_T = ids_BT[row]
    in_row = f"in row {row} of the batch, " if len(ids_BT) > 1 else ""
    if what == "embeddings":
        first = int(ids_T[differs[row].any(-1)].min())
        return f"{in_row}{what} differ from position {first:,} on, most in column {index[1]}"
    head, query, key = index
    heads = differs[row].flatten(1).any(dim=1).nonzero().flatten().tolist()
    text = f"{in_row}{what} differ in {len(heads)} of {result.shape[1]} heads ({', '.join(map(str, heads))})"
    if what == READ:
        return f"{text}, most in head {head} at position {ids_T[query]}"
    queries, keys = (ids_T[indices] for indices in differs[row].any(0).nonzero(as_tuple=True))
    return (
        f"{text}, from distance {int((queries - keys).abs().min())} on; most in head {head} for the query at "
        f"position {ids_T[query]} and the key at {ids_T[key]}: "
        f"{result[row, head, query, key]:.6g} instead of {expected[row, head, query, key]:.6g}"
    )


# Models of other sizes, long rows, every distance, far ids, half precision, training.


def _difference_across_sizes(comparison: EncodingComparison, causal: bool) -> str:
    """Describe the first difference with twelve layers and other numbers of heads."""
    compared = set()
    for size in (SMALL, *((8 * heads, heads, 12) for heads in HEADS)):
        try:
            pair = comparison.pair(size, causal, LAYERS)
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


def _difference_around_lengths(comparison: EncodingComparison, causal: bool) -> str:
    """Describe a difference in rows of an original length of the reference, next to it, or twice as long."""
    for size in CHECKED_SIZES:
        pair = comparison.pair(size, causal)
        # The lengths to which an encoding or its parts compare that of a row.
        original_lengths = {getattr(part, "original_length", None) for part in pair.reference.modules()}
        lengths = {length for length in original_lengths if isinstance(length, int)}
        for length in sorted({pair.shape.train_length, *lengths}):
            if length >= NEAR and not comparison.defined_far(pair):
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


def _difference_of_long_training(comparison: EncodingComparison, causal: bool) -> str:
    """Describe a difference in models trained on long sequences."""
    width, heads, _ = SMALL
    lengths = {LONG_TRAINING}
    reference = comparison.pair(SMALL, causal).reference
    if isinstance(reference, ExtendedRope):
        # The slowest pair makes a whole rotation over more than 2 pi times the base.
        lengths.add(min(int(10 * reference.base), LONGEST_TRAINING))
    for length in sorted(lengths):
        pair = comparison.pair((width, heads, length), causal)
        if pair.differs:
            return f"trained on {length:,} tokens, {place_in_pair(pair, NEAR) or DIFFER}"
    return ""


def _difference_at_distances(comparison: EncodingComparison, causal: bool) -> str:
    """Describe the distances up to 4,095 at which the logits of a shift-invariant encoding differ."""
    ids_S = torch.arange(FAR)
    # The last query sees all keys before it; in an encoder, the first query sees all keys after it.
    sizes_and_queries = [(SMALL, FAR - 1), (LARGE, FAR - 1)]
    if not causal:
        sizes_and_queries.append((LARGE, 0))
    for size, query in sizes_and_queries:
        pair = comparison.pair(size, causal)
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


def _difference_at_far_ids(comparison: EncodingComparison, causal: bool) -> str:
    """Describe a difference at ids up to `FARTHEST`, where tables may end or wrap."""
    pair = comparison.pair(SMALL, causal)
    if not comparison.defined_far(pair):
        return ""
    ends = torch.tensor(TABLE_ENDS)
    around_ends = torch.cat([ends - 1, ends, ends + 1]).unique()
    spread = torch.randperm(FARTHEST, generator=torch.Generator().manual_seed(0))[:DENSE].sort().values
    for ids_T in (around_ends, spread):
        results = pair.results(pair.inputs_at(ids_T[None]))  # a table that ends raises
        if max(masked_difference(*both) for both in results) > FAR_TOLERANCE:
            return f"{DIFFER} at ids from {TABLE_ENDS[0]:,} on"
    return ""


def _difference_in_half_precision(comparison: EncodingComparison, causal: bool) -> str:
    """Describe a difference on inputs in half precision that is larger than their rounding."""
    pair = comparison.pair(SMALL, causal)
    if pair.layout or not comparison.defined_far(pair):
        return ""
    holds, measured = half_precision_loss(pair.candidate, pair.reference)
    return "" if holds else measured


def _difference_of_sharing(comparison: EncodingComparison, causal: bool) -> str:
    """Describe layers that have parameters of their own although those of the reference share them."""
    pair = comparison.pair(SMALL, causal)
    if not trainable(pair.candidate) or pair.candidate.per_layer == pair.reference.per_layer:
        return ""
    if pair.candidate.per_layer:
        return "every layer has parameters of its own (per_layer = True), where ours share one set"
    return "the layers share one set of parameters, where each of ours has its own (per_layer = True)"


def _difference_with_other_arguments(comparison: EncodingComparison, causal: bool) -> str:
    """Describe a difference that shows with another value of a shared argument, in the first form."""
    if comparison.component is None or causal != comparison.forms[0]:
        return ""
    for name, value in comparison.component.arguments.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or comparison.reference.arguments.get(name) != value:
            continue
        other_value = value * 2 if value > 1 else value / 2
        try:
            candidate = comparison.component.with_arguments(**{name: other_value}).build
            reference = comparison.reference.with_arguments(**{name: other_value})
            differs = not replace(comparison, candidate=candidate, reference=reference).same_nearby
            ignores = differs and replace(comparison, candidate=candidate).same_nearby
        except Exception:  # one of both rejects the value
            continue
        if differs:
            what = "it does not change" if ignores else DIFFER
            return f"with {name}={shown(other_value)} in both, {what}"
    return ""


OTHER_STAGES: dict[str, Callable[[EncodingComparison, bool], str]] = {
    "models with twelve layers or other numbers of heads": _difference_across_sizes,
    LENGTHS: _difference_around_lengths,
    LONG_TRAINED: _difference_of_long_training,
    DISTANCES: _difference_at_distances,
    FAR_IDS: _difference_at_far_ids,
    HALF_PRECISION: _difference_in_half_precision,
    SHARING: _difference_of_sharing,
    OTHER_ARGUMENTS: _difference_with_other_arguments,
}
# A new encoding may equal one of ours everywhere but in these.
DIFFER_IF_NEW = {FAR_STAGE, LENGTHS, LONG_TRAINED, DISTANCES, FAR_IDS, SHARING}


@torch.no_grad()
def differs_in(outcome: StageOutcome, comparison: EncodingComparison) -> bool:
    """Return whether both differ in the stage of an outcome, if it is a late one, which is compared alone."""
    if outcome.stage == FAR_STAGE:
        return bool(_far(comparison, comparison.pair(SMALL, outcome.causal)).place)
    return outcome.stage in OTHER_STAGES and bool(OTHER_STAGES[outcome.stage](comparison, outcome.causal))


def format_numbers(word: str, numbers: Sequence[int]) -> str:
    """Return a text such as ``layer 3`` or ``layers 3, 7 and 11``."""
    shown = [f"{number:,}" for number in numbers[:MOST_NUMBERS]]
    if len(numbers) > MOST_NUMBERS:
        shown.append(f"{len(numbers) - MOST_NUMBERS} more")
    return f"{word if len(numbers) == 1 else f'{word}s'} {join_names(shown)}"
