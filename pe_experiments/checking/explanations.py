"""Explain what a candidate implementation is: an encoding, one with a known mistake, or similar to one."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from pe_experiments.checking.channel_layouts import USUAL_LAYOUTS
from pe_experiments.checking.compare import (
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
from pe_experiments.checking.differences import SMALL
from pe_experiments.checking.identify import (
    ORIGINAL_LENGTHS,
    OTHER_MODELS,
    Effect,
    Match,
    effect_of,
    equal_encodings,
    known_mistakes,
    published_variants,
    with_equal_frequencies,
    with_published_arguments,
)
from pe_experiments.checking.instances import build
from pe_experiments.checking.known_mistakes import common_mistakes, mistakes_of
from pe_experiments.checking.known_mistakes.mistake import Mistake
from pe_experiments.checking.pair import SAME, model_shape
from pe_experiments.configuration.parts import shipped
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.terminal.errors import UserError

ROUNDING = 1e-6  # smaller remaining differences are rounding
STARTS = 4  # mistakes to which a second one is added
MOST = 0.8  # share of a difference from which an incomplete explanation is reported
MOST_SIMILAR = 3  # encodings from which differences are described


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
    components = all_encodings(component)
    fitted = fitted_encodings(candidate, components, forms[0])
    published = [
        variant
        for other in components
        if other.choice not in OTHER_MODELS
        for variant in with_published_arguments(other)
    ]
    return closest(
        (
            lambda: _keeping_arguments(component, equal_encodings(candidate, components, forms)),
            lambda: [match for other in components for match in ignored_arguments(candidate, other, forms)],
            lambda: equal_encodings(candidate, fitted, forms)[:1],
            lambda: published_variants(candidate, components, forms),
            lambda: known_mistakes(candidate, components, forms),
            lambda: known_mistakes(candidate, components, forms, common=True),
            lambda: known_mistakes(candidate, [*fitted, *published], forms),
        )
    )


def _keeping_arguments(component: SizedComponent, matches: list[Match]) -> list[Match]:
    """Return the matches without those that have default arguments beside the same with the candidate's.

    If the candidate equals an encoding only without its own arguments, it ignores these; such matches are
    returned alone.
    """
    checked = [replace(match, ignored=_lost_arguments(component, match.component)) for match in matches]
    keeping = {match.component.choice for match in checked if not match.ignored}
    ignoring = [match for match in checked if match.ignored and match.component.choice not in keeping]
    return ignoring or [match for match in checked if not match.ignored]


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
    components: list[SizedComponent] = []
    for choice in shipped("pe"):
        default = reference_of(choice, component.sizes)
        for variant in (default.with_arguments_of(component), default):
            if variant not in components:
                components.append(variant)
    return components


def fitted_encodings(
    candidate: MakeEncoding, components: Sequence[SizedComponent], causal: bool
) -> list[SizedComponent]:
    """Return RoPE and its extensions with arguments that give the candidate's frequencies."""
    fitted = []
    for component in components:
        fitted += with_equal_frequencies(candidate, component, causal)
    step = step_angles(build(candidate, model_shape(SMALL, causal)))
    base = geometric_base(step[0]) if step else None
    if base is not None and base > 1:
        rope = next(component for component in components if component.choice == "rope")
        fitted.append(rope.with_arguments(base=float(f"{base:.5g}")))
    return [component for component in fitted if component not in components]


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
    with_its_arguments = [other.with_arguments_of(against) for other in others]
    others += [other for other in with_its_arguments if other not in others]
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
    """Return the encodings with the same `Effect` that differ least from the candidate, nearest first.

    Encodings whose parameters the candidate can share come before others.
    """
    effect = effect_of(component.build, forms[0])
    if effect == Effect(False, 0):  # similar to NoPE, as all that acts on long rows alone
        return []
    differences: list[tuple[bool, float, SizedComponent]] = []
    for similar in all_encodings(component):
        reference = as_reference(similar, forms)
        if not reference.forms or effect_of(reference.make, reference.forms[0]) != effect:
            continue
        smallest = math.inf
        for layout in USUAL_LAYOUTS:
            comparison = compare(component.build, reference, layout, [SMALL], largest=True)
            if comparison.difference is not None:
                smallest = min(smallest, comparison.difference)
        shares_no_parameters = smallest == math.inf
        if shares_no_parameters:
            smallest = untrained_difference(component.build, reference)
        differences.append((shares_no_parameters, smallest, similar))
    differences.sort(key=lambda entry: entry[:2])
    return [similar for _, _, similar in differences[:MOST_SIMILAR]]


def equals_in_small_models(candidate: MakeEncoding, reference: Reference) -> bool:
    """Return whether the candidate equals a reference in small models, in one of the usual layouts."""
    return any(compare(candidate, reference, layout, [SMALL]).same for layout in USUAL_LAYOUTS)


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


class Combination(NamedTuple):
    """Known mistakes that together explain a share of a difference, from 0 to 1."""

    mistakes: tuple[Mistake, ...]
    explained: float

    @property
    def complete(self) -> bool:
        return self.explained > 1 - SAME


def combined_mistakes(
    candidate: MakeEncoding, against: SizedComponent, forms: Sequence[bool]
) -> Combination | None:
    """Return the one or two known mistakes that explain most of the difference in small models, if any do."""
    possible = [*mistakes_of(against.choice), *common_mistakes(against.choice)]

    def remaining(mistakes: Sequence[Mistake]) -> float:
        make: MakeEncoding = against.build
        for mistake in mistakes:
            make = mistake.make_in(make)
        reference = Reference("", make, common_forms(against, forms))
        try:
            difference = compare(candidate, reference, sizes=[SMALL], largest=True).difference
        except Exception:  # raised by the mistake, e.g. for positions that the encoding rejects
            return math.inf
        return math.inf if difference is None else difference

    everything = remaining(())
    if not 0 < everything < math.inf:
        return None
    singles = sorted([(mistake,) for mistake in possible], key=remaining)
    pairs = [(*first, second) for first, second in product(singles[:STARTS], possible)]
    best = min([*singles[:1], *pairs], key=remaining)
    explained = 1 - remaining(best) / everything
    return Combination(best, explained) if explained > MOST else None
