"""Which encoding an implementation is, or which known mistake it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from pe_experiments.checking.channel_layouts import USUAL_LAYOUTS
from pe_experiments.checking.compare import (
    Comparison,
    Reference,
    as_reference,
    common_forms,
    compare,
    compare_layouts,
    reference_of,
)
from pe_experiments.checking.diagnosis import step_angles
from pe_experiments.checking.differences import SIZES, SMALL
from pe_experiments.checking.instances import build, perturbed
from pe_experiments.checking.known_mistakes import common_mistakes, mistakes_of
from pe_experiments.checking.known_mistakes.mistake import Mistake
from pe_experiments.checking.pair import SAME, Pair, Sizes, model_shape
from pe_experiments.configuration.parts import Component, shipped
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.rope_extension import ExtendedRope
from pe_experiments.models.backbone import MakeEncoding

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
OTHER_MODELS = {"rope"}  # whose published arguments are another model's, not conventions
ORIGINAL_LENGTHS = tuple(2**power for power in range(9, 18))


@dataclass(frozen=True)
class Match:
    """What an implementation equals: an encoding, or one with a known mistake.

    Args:
        published: it has arguments of a published model, or a fixed original length.
    """

    comparison: Comparison
    component: Component
    mistake: Mistake | None = None
    published: bool = False

    @property
    def convention(self) -> bool:
        """Whether it differs from a reference as released models do."""
        return self.published if self.mistake is None else self.mistake.change.convention

    @property
    def wrong(self) -> bool:
        return self.mistake is not None and not self.convention


def identify(theirs: MakeEncoding, forms: Sequence[bool]) -> list[Match]:
    """What it equals among all encodings: right, with published arguments, or with a known mistake."""
    components = [reference_of(choice) for choice in shipped("pe")]
    return (
        equal_encodings(theirs, components, forms)
        or published_variants(theirs, components, forms)
        or known_mistakes(theirs, components, forms)
        or known_mistakes(theirs, components, forms, common=True)
    )


def equal_encodings(
    theirs: MakeEncoding, components: Sequence[Component], forms: Sequence[bool]
) -> list[Match]:
    """The encodings it equals, channels reordered or not."""
    matches = []
    effect = effect_of(theirs, forms[0])
    for component in components:
        reference = as_reference(component, forms)
        if reference.forms and effect_of(reference.make, reference.forms[0]) == effect:
            matches.append(Match(compare_layouts(theirs, reference), component))
    return [match for match in matches if match.comparison.same]


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
        lengths: original lengths of extended RoPE to try, which by default is the training length.
    """
    for component in components:
        for variant in _variants(component, lengths):
            reference = as_reference(variant, forms)
            for steps in USUAL_LAYOUTS:
                comparison = compare(theirs, reference, steps)
                if comparison.same:
                    changed = {k for k, v in variant.arguments.items() if component.arguments.get(k) != v}
                    published = component.choice not in OTHER_MODELS and not changed.intersection(stated)
                    return [Match(comparison, variant, published=published)]
    return []


def _variants(component: Component, lengths: Sequence[int]) -> Iterator[Component]:
    """The encoding with published arguments, and each with other original lengths where it has one."""

    def with_arguments(**arguments: Any) -> Component:
        return reference_of(component.choice, **{**component.arguments, **arguments})

    published = PUBLISHED.get(component.choice, [])
    for arguments in published:
        yield with_arguments(**arguments)
    if issubclass(component.cls, ExtendedRope):
        for arguments in ({}, *published):
            for length in lengths:
                yield with_arguments(**arguments, original_length=length)


def with_equal_frequencies(
    theirs: MakeEncoding, component: Component, causal: bool, lengths: Sequence[int]
) -> Component:
    """The encoding, or its variant whose channels rotate as theirs do."""
    shape = model_shape(SMALL, causal)
    expected = step_angles(build(theirs, shape)) if issubclass(component.cls, ExtendedRope) else None
    if expected is None:
        return component
    for variant in _variants(component, lengths):
        angles = step_angles(variant.build(shape))
        if angles and torch.allclose(angles[0], expected[0], atol=1e-3):
            return variant
    return component


def known_mistakes(
    theirs: MakeEncoding, components: Sequence[Component], forms: Sequence[bool], common: bool = False
) -> list[Match]:
    """The mistakes of these encodings that it has, in one of the usual layouts.

    Args:
        common: look for those that any encoding can have, not for those of its own.
    """
    effect = effect_of(theirs, forms[0])
    right, candidates = [], []
    for component in components:
        reference = as_reference(component, forms)
        if not reference.forms:
            continue
        right_effect = effect_of(reference.make, reference.forms[0])
        if not effect.within(right_effect) or (common and len(components) > 1 and effect != right_effect):
            continue
        right.append(reference)
        listed = common_mistakes(component.choice) if common else mistakes_of(component.choice)
        candidates += [(component, mistake) for mistake in listed]
    in_small_models: list[Match] = []
    for steps in USUAL_LAYOUTS[:1] if common else USUAL_LAYOUTS:
        small = _equal_mistakes(theirs, candidates, forms, steps, [SMALL])
        named = [(match.component, match.mistake) for match in small if match.mistake]
        matches = _equal_mistakes(theirs, named, forms, steps, SIZES)
        if matches:
            return matches
        in_small_models = in_small_models or small
    # A second mistake may show at other sizes only; but there our encoding may be equal too.
    for reference in right if in_small_models else ():
        if any(compare(theirs, reference, steps, [SMALL]).same for steps in USUAL_LAYOUTS):
            return []
    return in_small_models


def _equal_mistakes(
    theirs: MakeEncoding,
    candidates: Sequence[tuple[Component, Mistake]],
    forms: Sequence[bool],
    steps: Sequence[str],
    sizes: Sequence[Sizes],
) -> list[Match]:
    """Those of these mistakes that it has, in models of these sizes and in this layout of channels."""
    matches = []
    for component, mistake in candidates:
        wrong = Reference(mistake.name, mistake.make_in(component.build), common_forms(component, forms))
        try:
            comparison = compare(theirs, wrong, steps, sizes)
        except Exception:  # of the mistake, such as positions that the encoding refuses
            continue
        if comparison.same:
            matches.append(Match(comparison, component, mistake))
    return matches


class Effect(NamedTuple):
    """What an encoding changes; encodings with different effects need not be compared."""

    embeddings: bool
    logits: int  # 0: none, 1: by what follows from positions alone, 2: by what depends on the content

    def within(self, other: Effect) -> bool:
        """Whether the other changes all that this one does."""
        return self.embeddings <= other.embeddings and self.logits <= other.logits


@torch.no_grad()
def effect_of(make: MakeEncoding, causal: bool) -> Effect:
    """The effect of an encoding whose parameters are not at their start, where they may be 0."""
    encoding = perturbed(build(make, model_shape(SMALL, causal)))
    if encoding.position_width:
        return Effect(True, 2)
    pair = Pair(encoding, PositionalEncoding(encoding.shape))
    changes, embeddings = [], False
    for seed in (0, 1):
        inputs = pair.inputs_at(torch.arange(12)[None], seed)
        embeddings |= not torch.equal(*pair.embeddings(inputs))
        if pair.compares_weights:
            return Effect(embeddings, 2)
        results = [pair.scores(inputs, layer) for layer in (0, 1)]
        added = torch.stack([theirs - plain for theirs, plain in results])
        changes.append(added.nan_to_num(0.0, neginf=-100.0))
    if not any(change.abs().max() > SAME for change in changes):
        return Effect(embeddings, 0)
    return Effect(embeddings, 1 if torch.allclose(changes[0], changes[1], atol=1e-3) else 2)
