"""Identify which encoding a candidate implementation is, or which known mistake it has."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
)
from pe_experiments.checking.components import SizedComponent
from pe_experiments.checking.diagnosis import step_angles
from pe_experiments.checking.differences import SIZES, SMALL
from pe_experiments.checking.instances import build, perturbed
from pe_experiments.checking.known_mistakes import common_mistakes, mistakes_of
from pe_experiments.checking.known_mistakes.mistake import Mistake
from pe_experiments.checking.pair import DENSE, SAME, Pair, Sizes, model_shape
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
    "rope_llama3": [
        {"base": 500_000.0, "factor": factor, "original_length": 8_192} for factor in (8.0, 32.0)
    ],
    **{
        choice: [{"factor": factor} for factor in (2.0, 4.0, 8.0, 16.0, 32.0)]
        for choice in ("rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn")
    },
}
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
        """Return the relative difference that remains, at least `SAME` if far positions are not compared."""
        far = self.comparison.far_difference
        unknown = SAME if self.comparison.not_compared else 0.0
        return max(self.comparison.difference or 0.0, 0.0 if math.isnan(far) else far, unknown)


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
    candidate: MakeEncoding, component: SizedComponent, causal: bool, user_arguments: Sequence[str] = ()
) -> list[SizedComponent]:
    """Return the variants of an extended RoPE that rotate as the candidate does.

    Variants keep the arguments that the user set.
    """
    if not issubclass(component.cls, ExtendedRope):
        return []
    shapes = [model_shape(size, causal) for size in SIZES]
    candidate_steps = [step_angles(build(candidate, shape)) for shape in shapes]

    def rotates_equally(variant: SizedComponent) -> bool:
        for shape, step in zip(shapes, candidate_steps, strict=True):
            variant_step = step_angles(variant.build(shape))
            if step is None or variant_step is None or step[0].shape != variant_step[0].shape:
                return False
            if not torch.allclose(variant_step[0], step[0], rtol=SAME, atol=0.0):
                return False
        return True

    return [
        variant
        for variant in (component, *_variants(component, ORIGINAL_LENGTHS))
        if all(variant.arguments[name] == component.arguments[name] for name in user_arguments)
        and rotates_equally(variant)
    ]


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
