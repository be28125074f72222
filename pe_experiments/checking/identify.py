"""Identify which encoding a candidate implementation is, or which known mistake it has."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

import torch

from pe_experiments.checking.channel_layouts import USUAL_LAYOUTS
from pe_experiments.checking.compare import (
    EncodingComparison,
    Reference,
    as_reference,
    common_forms,
    compare,
    compare_layouts,
    reference_of,
    untrained_difference,
)
from pe_experiments.checking.components import SizedComponent
from pe_experiments.checking.diagnosis import geometric_base, step_angles
from pe_experiments.checking.differences import SIZES, SMALL
from pe_experiments.checking.instances import build, perturbed
from pe_experiments.checking.known_mistakes import common_mistakes, mistakes_of
from pe_experiments.checking.known_mistakes.mistake import Mistake
from pe_experiments.checking.pair import DENSE, SAME, Pair, Sizes, model_shape
from pe_experiments.configuration.parts import shipped
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.encodings.rope_extension import ExtendedRope
from pe_experiments.terminal.errors import UserError

# Arguments of published models, by the choice under configs/pe.
PUBLISHED: dict[str, list[dict[str, Any]]] = {
    "t5": [{"num_buckets": 32, "max_distance": 128}],
    "shaw": [{"max_distance": 16}],
    "deberta": [{"key_index": "released"}],
    "learned": [{"beyond": beyond} for beyond in ("clamp", "wrap", "zero", "interpolate")],
    "rope": [{"base": base} for base in (500_000.0, 1_000_000.0)],
    **{
        choice: [{"factor": factor} for factor in (2.0, 4.0, 8.0, 16.0, 32.0)]
        for choice in ("rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn")
    },
}
ROUNDING = 1e-6  # smaller remaining differences are rounding
STARTS = 4  # mistakes to which a second one is added
MOST = 0.8  # share of a difference from which an incomplete explanation is reported
MOST_SIMILAR = 3  # encodings from which differences are described
OTHER_MODELS = {"rope"}  # encodings whose published arguments define other models, not conventions
ORIGINAL_LENGTHS = tuple(2**power for power in range(9, 18))


@dataclass(frozen=True)
class Match:
    """An encoding, possibly with a known mistake, that a candidate equals.

    Args:
        comparison: the comparison that found them equal.
        component: the encoding.
        mistake: the known mistake, if any.
        ignored: arguments by name that the candidate should have and ignores, as the only difference.
        published: whether the encoding has arguments of a published model or a fixed original length.
        in_small_models: whether they are known to be equal in small models only.
    """

    comparison: EncodingComparison
    component: SizedComponent
    mistake: Mistake | None = None
    ignored: Mapping[str, Any] = field(default_factory=dict)
    published: bool = False
    in_small_models: bool = False

    @property
    def convention(self) -> bool:
        """Return whether the candidate follows a convention of released models."""
        return self.published if self.mistake is None else self.mistake.change.convention

    @property
    def wrong(self) -> bool:
        """Return whether the candidate has a mistake that is not a convention."""
        return bool(self.ignored) or (self.mistake is not None and not self.convention)

    @property
    def residual(self) -> float:
        """Return the difference that remains, relative to the largest value."""
        far = self.comparison.far_difference
        return max(self.comparison.difference or 0.0, 0.0 if math.isnan(far) else far)


def closest(searches: Iterable[Callable[[], list[Match]]]) -> list[Match]:
    """Return the matches of the first search that explains a difference as completely as any other does.

    Matches that hold in small models only are left out.
    """
    groups = []
    for search in searches:
        groups.append([match for match in search() if not match.in_small_models])
        if any(match.residual <= ROUNDING for match in groups[-1]):
            break  # no other can leave less
    smallest = min((match.residual for group in groups for match in group), default=0.0)
    for group in groups:
        matches = [match for match in group if match.residual <= max(10 * smallest, ROUNDING)]
        if matches:
            return matches
    return []


def identify(component: SizedComponent, forms: Sequence[bool]) -> list[Match]:
    """Return the matches among all shipped encodings, see `all_encodings`."""
    candidate = component.build
    components = all_encodings(component) + rope_of_equal_base(component, forms[0])
    return closest(
        (
            lambda: _keeping_arguments(component, equal_encodings(candidate, components, forms)),
            lambda: published_variants(candidate, components, forms),
            lambda: known_mistakes(candidate, components, forms),
            lambda: known_mistakes(candidate, components, forms, common=True),
        )
    )


def _keeping_arguments(component: SizedComponent, matches: list[Match]) -> list[Match]:
    """Return the matches with the candidate's arguments; if there are none, all, with those it ignores."""
    checked = [replace(match, ignored=_lost_arguments(component, match.component)) for match in matches]
    return [match for match in checked if not match.ignored] or checked


def _lost_arguments(component: SizedComponent, equal: SizedComponent) -> dict[str, Any]:
    """Return the numbers among the candidate's arguments that are others in an encoding equal to it."""
    kept = equal.with_arguments_of(component).arguments
    return {
        name: kept[name]
        for name, value in equal.arguments.items()
        if isinstance(value, int | float) and kept[name] != value
    }


def all_encodings(component: SizedComponent) -> list[SizedComponent]:
    """Return all shipped encodings, with those arguments that an encoding has too, and with the defaults."""
    components = []
    for choice in shipped("pe"):
        default = reference_of(choice, component.sizes)
        with_arguments = default.with_arguments_of(component)
        components.append(with_arguments)
        if with_arguments.arguments != default.arguments:
            components.append(default)
    return components


def rope_of_equal_base(component: SizedComponent, causal: bool) -> list[SizedComponent]:
    """Return RoPE with the base that follows from the frequencies of the candidate, if they are geometric."""
    step = step_angles(build(component.build, model_shape(SMALL, causal)))
    base = geometric_base(step[0]) if step else None
    if base is None or base <= 1:
        return []
    return [reference_of("rope", component.sizes, base=float(f"{base:.5g}"))]


def explain(
    component: SizedComponent, against: SizedComponent, forms: Sequence[bool], user_arguments: Sequence[str]
) -> list[Match]:
    """Return what the tested encoding equals instead of the reference, by the likeliest explanation.

    Args:
        component: the tested encoding.
        against: the reference.
        forms: the forms in which the tested encoding can be built.
        user_arguments: names of the reference's arguments that the user set.
    """
    candidate = component.build
    lengths = [value for value in component.arguments.values() if type(value) is int and value > 1]
    others = [other for other in all_encodings(component) if other.choice != against.choice]
    others += [other.with_arguments_of(against) for other in others]
    published = [] if against.choice in OTHER_MODELS else with_published_arguments(against)
    other_lengths = (*ORIGINAL_LENGTHS, *lengths)
    others.insert(0, reference_of(against.choice, against.sizes))
    return closest(
        (
            lambda: without_effect(candidate, against, forms),
            lambda: ignored_arguments(candidate, against, forms),
            lambda: known_mistakes(candidate, [against], forms),
            lambda: published_variants(candidate, [against], forms, user_arguments, other_lengths),
            lambda: equal_encodings(candidate, others, forms)[:1],
            lambda: known_mistakes(candidate, [against], forms, common=True),
            lambda: known_mistakes(candidate, published, forms),
        )
    )


def most_similar(component: SizedComponent, forms: Sequence[bool]) -> list[SizedComponent]:
    """Return the encodings with the same `Effect` that differ least from the candidate, nearest first."""
    effect = effect_of(component.build, forms[0])
    differences: list[tuple[float, SizedComponent]] = []
    for similar in all_encodings(component):
        reference = as_reference(similar, forms)
        if not reference.forms or effect_of(reference.make, reference.forms[0]) != effect:
            continue
        smallest = math.inf
        for layout in USUAL_LAYOUTS:
            comparison = compare(component.build, reference, layout, [SMALL], largest=True)
            if comparison.difference is not None:
                smallest = min(smallest, comparison.difference)
        if smallest == math.inf:  # parameters cannot be shared
            smallest = untrained_difference(component.build, reference)
        differences.append((smallest, similar))
    differences.sort(key=lambda pair: pair[0])
    return [similar for _, similar in differences[:MOST_SIMILAR]]


def without_effect(candidate: MakeEncoding, against: SizedComponent, forms: Sequence[bool]) -> list[Match]:
    """Return NoPE if the candidate has no effect and no known mistake says that it is never applied."""
    reference = as_reference(against, forms)
    if effect_of(candidate, forms[0]) != Effect(False, 0) or not reference.forms:
        return []
    if effect_of(against.build, reference.forms[0]).embeddings:
        return []
    return equal_encodings(candidate, [reference_of("none", against.sizes)], forms)


def ignored_arguments(candidate: MakeEncoding, against: SizedComponent, forms: Sequence[bool]) -> list[Match]:
    """Return the reference without one or all of its arguments, if the candidate equals that."""
    defaults = reference_of(against.choice, against.sizes).arguments
    given = [name for name, value in against.arguments.items() if defaults.get(name, value) != value]
    matches = []
    for names in [[name] for name in given] + ([given] if len(given) > 1 else []):
        try:
            variant = against.with_arguments(**{name: defaults[name] for name in names})
        except UserError:  # the other arguments need it
            continue
        comparison = compare_layouts(candidate, as_reference(variant, forms))
        if comparison.same:
            ignored = {name: against.arguments[name] for name in names}
            matches.append(Match(comparison, variant, ignored=ignored))
    return matches


def equal_encodings(
    candidate: MakeEncoding, components: Sequence[SizedComponent], forms: Sequence[bool]
) -> list[Match]:
    """Return the encodings that the candidate equals, possibly with reordered channels."""
    matches = []
    effect = effect_of(candidate, forms[0])
    for component in components:
        reference = as_reference(component, forms)
        if reference.forms and effect_of(reference.make, reference.forms[0]) == effect:
            matches.append(Match(compare_layouts(candidate, reference), component))
    return [match for match in matches if match.comparison.same]


def published_variants(
    candidate: MakeEncoding,
    components: Sequence[SizedComponent],
    forms: Sequence[bool],
    user_arguments: Sequence[str] = (),
    lengths: Sequence[int] = (),
) -> list[Match]:
    """Return the first encoding with published arguments or a fixed original length that is equal.

    Args:
        user_arguments: names of the arguments that the user set; other values of these are not conventions.
        lengths: original lengths of extended RoPE to try besides the default, the training length.
    """
    for component in components:
        for variant in _variants(component, lengths):
            reference = as_reference(variant, forms)
            for layout in USUAL_LAYOUTS:
                comparison = compare(candidate, reference, layout)
                if comparison.same:
                    changed_arguments = {
                        name
                        for name, value in variant.arguments.items()
                        if component.arguments.get(name) != value
                    }
                    contradicts_user = not changed_arguments.isdisjoint(user_arguments)
                    published = component.choice not in OTHER_MODELS and not contradicts_user
                    return [Match(comparison, variant, published=published)]
    return []


def _variants(component: SizedComponent, lengths: Sequence[int]) -> Iterator[SizedComponent]:
    """Yield the encoding with published arguments, then with these original lengths if it extends RoPE."""
    variants = with_published_arguments(component)
    yield from variants
    if issubclass(component.cls, ExtendedRope):
        for variant in (component, *variants):
            for length in lengths:
                yield variant.with_arguments(original_length=length)


def with_published_arguments(component: SizedComponent) -> list[SizedComponent]:
    """Return the encoding with the arguments of each published model."""
    return [component.with_arguments(**published) for published in PUBLISHED.get(component.choice, [])]


def with_equal_frequencies(
    candidate: MakeEncoding,
    component: SizedComponent,
    causal: bool,
    user_arguments: Sequence[str],
    lengths: Sequence[int],
) -> SizedComponent:
    """Return the variant of an extended RoPE that rotates as the candidate does, or else the encoding itself.

    Variants keep the arguments that the user set.
    """
    if not issubclass(component.cls, ExtendedRope):
        return component
    shape = model_shape(SMALL, causal)
    candidate_step = step_angles(build(candidate, shape))
    if candidate_step is None:
        return component
    for variant in (component, *_variants(component, lengths)):
        if any(variant.arguments[name] != component.arguments[name] for name in user_arguments):
            continue
        variant_step = step_angles(variant.build(shape))
        if variant_step and torch.allclose(variant_step[0], candidate_step[0], rtol=SAME, atol=0.0):
            return variant
    return component


def known_mistakes(
    candidate: MakeEncoding, components: Sequence[SizedComponent], forms: Sequence[bool], common: bool = False
) -> list[Match]:
    """Return the mistakes in these encodings that the candidate has, in one of the usual layouts.

    Args:
        common: whether to try the mistakes that any encoding can have instead of those listed for each.
    """
    effect = effect_of(candidate, forms[0])
    references: list[Reference] = []
    possible_mistakes: list[tuple[SizedComponent, Mistake]] = []
    for component in components:
        reference = as_reference(component, forms)
        if not reference.forms:
            continue
        reference_effect = effect_of(reference.make, reference.forms[0])
        if not effect.within(reference_effect):
            continue
        if common and len(components) > 1 and effect != reference_effect:
            continue
        references.append(reference)
        mistakes = common_mistakes(component.choice) if common else mistakes_of(component.choice)
        possible_mistakes += [(component, mistake) for mistake in mistakes]
    small_matches: list[Match] = []
    for layout in USUAL_LAYOUTS[:1] if common else USUAL_LAYOUTS:
        layout_matches = _equal_mistakes(candidate, possible_mistakes, forms, layout, [SMALL])
        remaining = [(match.component, match.mistake) for match in layout_matches if match.mistake]
        matches = _equal_mistakes(candidate, remaining, forms, layout, SIZES)
        if matches:
            return matches
        small_matches = small_matches or layout_matches
    if not small_matches:
        return []
    # If the candidate also equals a correct encoding in small models, the mistake is not the difference.
    for reference in references:
        if any(compare(candidate, reference, layout, [SMALL]).same for layout in USUAL_LAYOUTS):
            return []
    return [replace(match, in_small_models=True) for match in small_matches]


def _equal_mistakes(
    candidate: MakeEncoding,
    possible_mistakes: Sequence[tuple[SizedComponent, Mistake]],
    forms: Sequence[bool],
    layout: Sequence[str],
    sizes: Sequence[Sizes],
) -> list[Match]:
    """Return the mistakes that the candidate equals in models of these sizes and in this channel layout."""
    matches = []
    for component, mistake in possible_mistakes:
        wrong = Reference(mistake.name, mistake.make_in(component.build), common_forms(component, forms))
        try:
            comparison = compare(candidate, wrong, layout, sizes)
        except Exception:  # raised by the mistake, e.g. for positions that the encoding rejects
            continue
        if comparison.same:
            matches.append(Match(comparison, component, mistake))
    return matches


class Combination(NamedTuple):
    """Known mistakes that together explain a share of a difference, from 0 to 1."""

    mistakes: tuple[Mistake, ...]
    explained: float


def combined_mistakes(
    candidate: MakeEncoding, against: SizedComponent, forms: Sequence[bool]
) -> Combination | None:
    """Return the one or two known mistakes that explain most of the difference in small models, if any do."""
    possible = [*mistakes_of(against.choice), *common_mistakes(against.choice)]

    def remaining(*mistakes: Mistake) -> float:
        make = against.build
        for mistake in mistakes:
            make = mistake.make_in(make)
        reference = Reference("", make, common_forms(against, forms))
        try:
            difference = compare(candidate, reference, sizes=[SMALL], largest=True).difference
        except Exception:  # raised by the mistake, e.g. for positions that the encoding rejects
            return math.inf
        return math.inf if difference is None else difference

    everything = remaining()
    if not 0 < everything < math.inf:
        return None
    combinations = sorted(((mistake,) for mistake in possible), key=lambda mistakes: remaining(*mistakes))
    pairs = product(combinations[:STARTS], possible)
    combinations = [*combinations[:1], *((*first, second) for first, second in pairs)]
    best = min(combinations, key=lambda mistakes: remaining(*mistakes), default=())
    explained = 1 - remaining(*best) / everything
    return Combination(best, explained) if explained > MOST else None


class Effect(NamedTuple):
    """The effect of an encoding; encodings with different effects need not be compared."""

    embeddings: bool
    logits: int  # 0: unchanged, 1: changed by positions only, 2: changed depending on content

    def within(self, effect: "Effect") -> bool:
        """Return whether the given effect includes this one."""
        return self.embeddings <= effect.embeddings and self.logits <= effect.logits


@torch.no_grad()
def effect_of(make: MakeEncoding, causal: bool) -> Effect:
    """Measure the effect of an encoding on embeddings and logits.

    Its parameters are perturbed, since initial ones may be 0.
    """
    encoding = perturbed(build(make, model_shape(SMALL, causal)))
    if encoding.position_width:
        return Effect(True, 2)
    pair = Pair(encoding, PositionalEncoding(encoding.shape))
    changes = []
    embeddings = False
    for seed in (0, 1):
        inputs = pair.inputs_at(torch.arange(DENSE)[None], seed)  # longer than in training
        embeddings |= not torch.equal(*pair.embeddings(inputs))
        if pair.compares_weights:
            return Effect(embeddings, 2)
        layer_scores = [pair.scores(inputs, layer) for layer in pair.first_layers]
        change = torch.stack([scores - content_scores for scores, content_scores in layer_scores])
        changes.append(change.nan_to_num(0.0, neginf=-100.0))
    if not any(change.abs().max() > SAME for change in changes):
        return Effect(embeddings, 0)
    return Effect(embeddings, 1 if torch.allclose(changes[0], changes[1], atol=1e-3) else 2)
