"""Which encoding an implementation is, or which known mistake it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from pe_experiments.checking.contract import build
from pe_experiments.checking.deviations import angles_of_a_step
from pe_experiments.checking.likeness import (
    SHAPES,
    USUAL,
    Likeness,
    Reference,
    as_reference,
    compare,
    likeness_of,
    reference_of,
)
from pe_experiments.checking.mistakes import MISTAKES, Mistake, common_mistakes
from pe_experiments.checking.side_by_side import effect_of, shape_of
from pe_experiments.configuration.parts import Component, shipped
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.rope_extension import ExtendedRope
from pe_experiments.models.backbone import MakeEncoding

# Arguments of published models, by the choice under configs/pe.
PUBLISHED: dict[str, list[dict[str, Any]]] = {
    "t5": [{"num_buckets": 32, "max_distance": 128}],
    "shaw": [{"max_distance": 16}],
    "deberta": [{"key_index": "released"}],
    "learned": [{"beyond": how} for how in ("clamp", "wrap", "zero", "interpolate")],
    "rope": [{"base": base} for base in (500_000.0, 1_000_000.0)],
    **{
        choice: [{"factor": factor} for factor in (2.0, 4.0, 8.0, 16.0, 32.0)]
        for choice in ("rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn")
    },
}
OTHER_VALUES = {"rope"}  # whose published arguments are another model's, not conventions
ORIGINAL_LENGTHS = tuple(2**power for power in range(9, 18))


@dataclass(frozen=True)
class Match:
    """What an implementation equals: an encoding, or one with a known mistake.

    Args:
        published: it has arguments of a published model, or a fixed original length.
    """

    likeness: Likeness
    component: Component
    mistake: Mistake | None = None
    published: bool = False
    original_length: int | None = None

    @property
    def wrong(self) -> bool:
        return self.mistake is not None and not self.mistake.convention

    @property
    def convention(self) -> bool:
        """Whether it differs from a reference as released models do."""
        return self.published if self.mistake is None else self.mistake.convention


def equal_encodings(
    theirs: MakeEncoding, components: Sequence[Component], forms: Sequence[bool]
) -> list[Match]:
    """The encodings it equals, channels reordered or not."""
    matches = []
    effect = effect_of(theirs, forms[0])
    for component in components:
        reference = as_reference(component, forms)
        if reference.forms and effect_of(reference.make, reference.forms[0]) == effect:
            likeness = likeness_of(theirs, reference)
            if likeness.same:
                matches.append(Match(likeness, component))
    return matches


def published_variants(
    theirs: MakeEncoding,
    components: Sequence[Component],
    forms: Sequence[bool],
    stated: Sequence[str] = (),
    lengths: Sequence[int] = (),
) -> list[Match]:
    """The first encoding with arguments of a published model, or a fixed original length, that it equals.

    Args:
        stated: arguments that the user gave: another value of theirs is no convention.
        lengths: original lengths of extended RoPE to try, which in ours is the training length.
    """
    for component in components:
        for variant, length in _variants(component, lengths):
            reference = as_reference(variant, forms)
            if length is not None:
                reference = reference._replace(make=_with_original_length(variant, length))
            for layout in USUAL:
                likeness = compare(theirs, reference, layout)
                if likeness.same:
                    changed = {k for k, v in variant.arguments.items() if component.arguments.get(k) != v}
                    other_value = component.choice in OTHER_VALUES or changed.intersection(stated)
                    return [Match(likeness, variant, None, not other_value, length)]
    return []


def _variants(component: Component, lengths: Sequence[int]) -> Iterator[tuple[Component, int | None]]:
    """The encoding with other arguments, and each with other original lengths where it has one."""
    published = PUBLISHED.get(component.choice, [])
    others = [
        reference_of(component.choice, **{**component.arguments, **arguments}) for arguments in published
    ]
    for variant in others:
        yield variant, None
    if issubclass(component.cls, ExtendedRope):
        for variant in (component, *others):
            for length in lengths:
                yield variant, length


def _with_original_length(component: Component, length: int) -> MakeEncoding:
    def build(shape: ModelShape) -> PositionalEncoding:
        return component.build(replace(shape, train_length=length))

    return build


def known_mistakes(
    theirs: MakeEncoding, components: Sequence[Component], forms: Sequence[bool], common: bool = False
) -> list[Match]:
    """The mistakes of these encodings that it has, in one of the usual layouts.

    Args:
        common: look for those that any encoding can have, not for those of its own.
    """
    effect = effect_of(theirs, forms[0])
    references = []
    for component in components:
        right = as_reference(component, forms)
        if not right.forms:
            continue
        right_effect = effect_of(right.make, right.forms[0])
        if effect.within(right_effect) and not (common and len(components) > 1 and effect != right_effect):
            references.append((component, right))
    broken: list[tuple[Component, Mistake, Reference]] = []
    for component, right in references:
        mistakes = [mistake for mistake in MISTAKES.values() if mistake.encoding == component.choice]
        for mistake in common_mistakes(component.choice) if common else mistakes:
            reference = Reference(mistake.name, mistake.broken(right.make), right.forms)
            broken.append((component, mistake, reference))
    layouts = USUAL[:1] if common else USUAL
    near = []
    for layout, (component, mistake, reference) in product(layouts, broken):
        try:
            likeness = compare(theirs, reference, layout, SHAPES[:1])
        except Exception:  # of the mistake, such as positions that the encoding refuses
            continue
        if likeness.same:
            near.append((layout, component, mistake, reference, likeness))
    for layout in layouts:
        matches = []
        for _, component, mistake, reference, _ in (row for row in near if row[0] == layout):
            likeness = compare(theirs, reference, layout)
            if likeness.same:
                matches.append(Match(likeness, component, mistake))
        if matches:
            return matches
    # A second mistake may show at other sizes only; but there our encoding may be equal too.
    rights = (compare(theirs, right, layout, SHAPES[:1]) for _, right in references for layout in USUAL)
    if any(likeness.same for likeness in rights):
        return []
    in_first_layout = [row for row in near if row[0] == near[0][0]]
    return [Match(likeness, component, mistake) for _, component, mistake, _, likeness in in_first_layout]


def with_equal_frequencies(
    theirs: MakeEncoding, component: Component, causal: bool, lengths: Sequence[int]
) -> tuple[str, MakeEncoding] | None:
    """The extension of RoPE that rotates as theirs does, with other arguments or a fixed original length."""
    if not issubclass(component.cls, ExtendedRope):
        return None
    shape = shape_of(SHAPES[0], causal)
    expected = angles_of_a_step(build(theirs, shape), 0)
    for variant, length in _variants(component, lengths):
        make = variant.build if length is None else _with_original_length(variant, length)
        angles = angles_of_a_step(make(shape), 0)
        if expected and angles and torch.allclose(angles[0], expected[0], atol=1e-3):
            fixed = "" if length is None else f" with a fixed original length of {length:,} tokens"
            return variant.label + fixed, make
    return None


def identify(
    theirs: MakeEncoding, forms: Sequence[bool], components: Sequence[Component] = ()
) -> list[Match]:
    """What it equals among all encodings, or these: right, published, or with a known mistake."""
    components = components or [reference_of(choice) for choice in shipped("pe")]
    return (
        equal_encodings(theirs, components, forms)
        or published_variants(theirs, components, forms)
        or known_mistakes(theirs, components, forms)
        or known_mistakes(theirs, components, forms, common=True)
    )
