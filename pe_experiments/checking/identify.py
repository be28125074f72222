"""Identify which encoding an implementation is, or which known mistake it has."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.encodings.rope_extension import ExtendedRope

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
OTHER_MODELS = {"rope"}  # whose published arguments define other models and are not conventions
ORIGINAL_LENGTHS = tuple(2**power for power in range(9, 18))


@dataclass(frozen=True)
class Match:
    """An encoding, possibly with a known mistake, that an implementation equals.

    Args:
        published: whether it has arguments of a published model or a fixed original length.
        in_small_models: whether they are equal in small models only.
    """

    comparison: Comparison
    component: Component
    mistake: Mistake | None = None
    published: bool = False
    in_small_models: bool = False

    @property
    def convention(self) -> bool:
        """Return whether it differs from a reference in the same way as released models."""
        return self.published if self.mistake is None else self.mistake.change.convention

    @property
    def wrong(self) -> bool:
        return self.mistake is not None and not self.convention


def identify(checked: MakeEncoding, forms: Sequence[bool]) -> list[Match]:
    """Return all matching encodings: correct, with published arguments, or with a known mistake."""
    components = [reference_of(choice) for choice in shipped("pe")]
    return (
        equal_encodings(checked, components, forms)
        or published_variants(checked, components, forms)
        or known_mistakes(checked, components, forms)
        or known_mistakes(checked, components, forms, common=True)
    )


def equal_encodings(
    checked: MakeEncoding, components: Sequence[Component], forms: Sequence[bool]
) -> list[Match]:
    """Return the equal encodings, possibly with reordered channels."""
    matches = []
    effect = effect_of(checked, forms[0])
    for component in components:
        reference = as_reference(component, forms)
        if reference.forms and effect_of(reference.make, reference.forms[0]) == effect:
            matches.append(Match(compare_layouts(checked, reference), component))
    return [match for match in matches if match.comparison.same]


def published_variants(
    checked: MakeEncoding,
    components: Sequence[Component],
    forms: Sequence[bool],
    stated: Sequence[str] = (),
    lengths: Sequence[int] = (),
) -> list[Match]:
    """Return the first equal encoding with published arguments or a fixed original length.

    Args:
        stated: arguments given by the user, for which other values are not conventions.
        lengths: original lengths of extended RoPE to try; the default is the training length.
    """
    for component in components:
        for variant in _variants(component, lengths):
            reference = as_reference(variant, forms)
            for steps in USUAL_LAYOUTS:
                comparison = compare(checked, reference, steps)
                if comparison.same:
                    changed = {k for k, v in variant.arguments.items() if component.arguments.get(k) != v}
                    published = component.choice not in OTHER_MODELS and not changed.intersection(stated)
                    return [Match(comparison, variant, published=published)]
    return []


def _variants(component: Component, lengths: Sequence[int]) -> Iterator[Component]:
    """Return the encoding with published arguments, each also with other original lengths if it has one."""

    variants = with_published_arguments(component)
    yield from variants
    if issubclass(component.cls, ExtendedRope):
        for variant in (component, *variants):
            for length in lengths:
                yield reference_of(component.choice, **{**variant.arguments, "original_length": length})


def with_published_arguments(component: Component) -> list[Component]:
    """Return the encoding with the arguments of each published model."""
    published = PUBLISHED.get(component.choice, [])
    return [reference_of(component.choice, **{**component.arguments, **given}) for given in published]


def with_equal_frequencies(
    checked: MakeEncoding, component: Component, causal: bool, lengths: Sequence[int]
) -> Component:
    """Return the encoding or its variant whose channels rotate like theirs."""
    shape = model_shape(SMALL, causal)
    expected = step_angles(build(checked, shape)) if issubclass(component.cls, ExtendedRope) else None
    if expected is None:
        return component
    for variant in _variants(component, lengths):
        angles = step_angles(variant.build(shape))
        if angles and torch.allclose(angles[0], expected[0], atol=1e-3):
            return variant
    return component


def known_mistakes(
    checked: MakeEncoding, components: Sequence[Component], forms: Sequence[bool], common: bool = False
) -> list[Match]:
    """Return the mistakes of these encodings that it has, in one of the usual layouts.

    Args:
        common: test mistakes that any encoding can have, not those of the encoding.
    """
    effect = effect_of(checked, forms[0])
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
        small = _equal_mistakes(checked, candidates, forms, steps, [SMALL])
        named = [(match.component, match.mistake) for match in small if match.mistake]
        matches = _equal_mistakes(checked, named, forms, steps, SIZES)
        if matches:
            return matches
        in_small_models = in_small_models or [replace(match, in_small_models=True) for match in small]
    # A second mistake may appear only at other sizes, where our encoding may be equal, too.
    for reference in right if in_small_models else ():
        if any(compare(checked, reference, steps, [SMALL]).same for steps in USUAL_LAYOUTS):
            return []
    return in_small_models


def _equal_mistakes(
    checked: MakeEncoding,
    candidates: Sequence[tuple[Component, Mistake]],
    forms: Sequence[bool],
    steps: Sequence[str],
    sizes: Sequence[Sizes],
) -> list[Match]:
    """Return the matching mistakes in models of these sizes and in this layout of channels."""
    matches = []
    for component, mistake in candidates:
        wrong = Reference(mistake.name, mistake.make_in(component.build), common_forms(component, forms))
        try:
            comparison = compare(checked, wrong, steps, sizes)
        except Exception:  # raised by the mistake, e.g. for positions that the encoding rejects
            continue
        if comparison.same:
            matches.append(Match(comparison, component, mistake))
    return matches


class Effect(NamedTuple):
    """The effect of an encoding; encodings with different effects need not be compared."""

    embeddings: bool
    logits: int  # 0: unchanged, 1: changed by positions only, 2: changed depending on content

    def within(self, effect: "Effect") -> bool:
        """Return whether the other effect includes this one."""
        return self.embeddings <= effect.embeddings and self.logits <= effect.logits


@torch.no_grad()
def effect_of(make: MakeEncoding, causal: bool) -> Effect:
    """Return the effect of an encoding with perturbed parameters, since initial ones may be 0."""
    encoding = perturbed(build(make, model_shape(SMALL, causal)))
    if encoding.position_width:
        return Effect(True, 2)
    pair = Pair(encoding, PositionalEncoding(encoding.shape))
    changes = []
    embeddings = False
    for seed in (0, 1):
        inputs = pair.inputs_at(torch.arange(12)[None], seed)
        embeddings |= not torch.equal(*pair.embeddings(inputs))
        if pair.compares_weights:
            return Effect(embeddings, 2)
        results = [pair.scores(inputs, layer) for layer in (0, 1)]
        added = torch.stack([scores - plain for scores, plain in results])
        changes.append(added.nan_to_num(0.0, neginf=-100.0))
    if not any(change.abs().max() > SAME for change in changes):
        return Effect(embeddings, 0)
    return Effect(embeddings, 1 if torch.allclose(changes[0], changes[1], atol=1e-3) else 2)
