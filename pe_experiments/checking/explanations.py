"""Explain how an implementation differs from one of our encodings: one list, whose first match is printed.

Every entry of `EXPLANATIONS` takes a comparison. It either explains the outcomes of all stages, which it
verifies by comparing once more with the encoding so changed, or it returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import product

import torch

from pe_experiments.checking import relations
from pe_experiments.checking.comparison import (
    DIFFER_IF_NEW,
    DISTANCES,
    FAR_IDS,
    FAR_STAGE,
    HALF_PRECISION,
    LAYERS,
    OTHER_ARGUMENTS,
    READ,
    EncodingComparison,
    differs_in,
)
from pe_experiments.checking.known_mistakes import REPORTED, Change, generic_mistakes
from pe_experiments.checking.pair import (
    LARGE,
    LAYOUTS,
    OF_NEIGHBOURS,
    SMALL,
    USUAL_LAYOUTS,
    Pair,
    assignments,
    model_shape,
)
from pe_experiments.checking.references import (
    OTHER_MODELS,
    all_encodings,
    fitted_base,
    ignored_variants,
    published_variants,
)
from pe_experiments.checking.relations import Relation
from pe_experiments.checking.scenarios import SCENARIOS
from pe_experiments.checking.subject import build, perturbed, reference_of, trainable
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.rope_extension import ExtendedRope
from pe_experiments.encodings.sinusoidal import Sinusoidal
from pe_experiments.terminal.errors import join_names, shown

EXACT = 1e-5  # larger differences at positions up to 4,095 are reported; relative to the largest logit
MOST_STAGES = 4  # in a message
# Models in which a relation shows if there is one: of two layers or more, of several numbers of heads.
MEASURED = ((SMALL, 2), (LARGE, 2), (SMALL, LAYERS), ((96, 12, 12), 2))


class Verdict(IntEnum):
    """What an explanation or a whole check says; the value is the exit code of the command."""

    RIGHT = 0  # it is one of our encodings, up to conventions
    WRONG = 1  # no encoding is meant so
    UNKNOWN = 3  # another encoding, of which we have no reference, or an unknown mistake


@dataclass(frozen=True)
class Explanation:
    """What an implementation computes, in all stages."""

    verdict: Verdict
    text: str
    comparison: EncodingComparison


Rule = Callable[[EncodingComparison], Explanation | None]


def equal(comparison: EncodingComparison) -> Explanation | None:
    """It is our encoding."""
    if comparison.same:
        return Explanation(Verdict.RIGHT, describe_equality(comparison), comparison)
    return None


def channel_layout(
    comparison: EncodingComparison, layouts: Sequence[Sequence[str]] = LAYOUTS
) -> Explanation | None:
    """It is our encoding with channels in another order."""
    if comparison.same_nearby or not comparison.shares_parameters:
        return None
    return next(filter(None, map(equal, comparison.layouts(layouts))), None)


def one_stage(comparison: EncodingComparison) -> Explanation | None:
    """It is our encoding except in one stage that no change explains: half precision, or other arguments."""
    first = comparison.first_difference if comparison.same_nearby else None
    if first is None or first.stage not in (HALF_PRECISION, OTHER_ARGUMENTS):
        return None
    return Explanation(Verdict.WRONG, describe_difference(comparison), comparison)


def other_arguments(comparison: EncodingComparison) -> Explanation | None:
    """It is our encoding with other arguments: those of released models, or some that it ignores."""
    reference = comparison.reference
    for variant, ignored in ignored_variants(reference):
        other = comparison.against(variant)
        same = equal(other)
        # Where ours refuses far positions, an encoding with other arguments may explain them, too.
        if same is not None and not any(outcome.remark for outcome in other.outcomes):
            values = ", ".join(f"{name}={shown(value)}" for name, value in ignored.items())
            return replace(same, verdict=Verdict.WRONG, text=f"It ignores {values}: it is {variant.label}.")
    if comparison.named and issubclass(reference.cls, ExtendedRope):
        plain = reference_of("rope", reference.sizes).with_arguments_of(reference)
        # An extension of a very long original length would equal it, too.
        if equal(comparison.against(plain)) is not None:
            return None
    for variant in published_variants(reference, comparison.component):
        other = comparison.against(variant)
        same = _equal_in_usual_layout(other)
        if same is not None:
            return _as_other_encoding(comparison, same, convention=_is_convention(comparison, other))
    base = fitted_base(comparison)
    same = _equal_in_usual_layout(comparison.against(base)) if base else None
    return _as_other_encoding(comparison, same) if same is not None else None


def _equal_in_usual_layout(comparison: EncodingComparison) -> Explanation | None:
    return equal(comparison) or channel_layout(comparison, USUAL_LAYOUTS[1:])


def _is_convention(comparison: EncodingComparison, variant: EncodingComparison) -> bool:
    """Return whether a variant with published arguments is no other model, and not what the user excluded.

    The user excludes it by arguments of the reference, or by an argument that both have.
    """
    changed = {
        name
        for name, value in variant.reference.arguments.items()
        if comparison.reference.arguments.get(name) != value
    }
    arguments = comparison.component.arguments if comparison.component is not None else {}
    given = {name for name, value in arguments.items() if value is not None} | {*comparison.user_arguments}
    return comparison.reference.choice not in OTHER_MODELS and changed.isdisjoint(given)


def _as_other_encoding(
    comparison: EncodingComparison, same: Explanation, convention: bool = False
) -> Explanation:
    """Return the explanation, as a mistake if the user named another encoding."""
    if convention or not comparison.named:
        return same
    ours, theirs = comparison.reference, same.comparison.reference
    text = f"It is not {ours.label}."
    if ours.cls is not theirs.cls and issubclass(ours.cls, theirs.cls):
        text = f"It is not {ours.label}: what {ours.choice} adds has no effect."
    return replace(same, verdict=Verdict.WRONG, text=f"{same.text}\n{text}")


def known_mistake(comparison: EncodingComparison) -> Explanation | None:
    """It is our encoding with a known mistake, or follows a convention of released models."""
    if not comparison.shares_parameters:
        return None
    reference = comparison.reference
    first = comparison.first_difference
    is_far = first is not None and first.stage in (FAR_STAGE, DISTANCES, FAR_IDS)
    reported = REPORTED.get(reference.choice, {})
    generic = generic_mistakes(reference, comparison.forms[0], at_table_ends=is_far)
    layouts = _plausible_layouts(comparison)
    for (name, change), layout in product([*reported.items(), *generic], layouts):
        changed = replace(comparison, layout=layout).changed(change)
        if not _explains(changed, comparison):
            continue
        if change.convention:
            verdict = Verdict.RIGHT
            lines = [f"It follows another convention, which is no mistake. {comparison.label}: {name}"]
        else:
            verdict = Verdict.WRONG
            projects = f" (reported: {change.projects})" if change.projects else ""
            lines = [
                *_exceptions(comparison),
                f"It matches a known mistake. {reference.choice}: {name}{projects}",
            ]
        if layout:
            lines.append(f"  channels laid out differently: {'; '.join(layout)}")
        if change.convention:
            lines.append("Weights do not carry over between the two.")
        return Explanation(verdict, "\n".join(lines), changed)
    return None


def _plausible_layouts(comparison: EncodingComparison) -> list[Sequence[str]]:
    """Return the usual layouts in which pairs of channels do not mix; for biases ours alone."""
    layouts: list[Sequence[str]] = []
    if comparison.same_nearby:
        return [()]
    if issubclass(comparison.reference.cls, Sinusoidal):
        return [(), *(layout for layout in LAYOUTS if OF_NEIGHBOURS.keys() >= set(layout))]
    if issubclass(comparison.reference.cls, Rope):
        for ours in comparison.layouts(USUAL_LAYOUTS):
            pair = ours.pair(SMALL, ours.forms[0])
            if relations.pair_angles(pair, pair.candidate) is not None:
                layouts.append(ours.layout)
    return layouts or [()]


def _explains(changed: EncodingComparison, comparison: EncodingComparison) -> bool:
    """Return whether the two are equal in all stages once our encoding is changed.

    The stage that differs without the change is tried first. False if the changed encoding raises, e.g. for
    ids that it rejects.
    """
    first = comparison.first_difference
    try:
        if not changed.same_nearby or (first is not None and differs_in(first, changed)):
            return False
        return changed.same
    except Exception:
        return False


def _exceptions(comparison: EncodingComparison) -> list[str]:
    """Return the line that names the stages that differ, if single sequences agree."""
    return describe_difference(comparison).splitlines()[:1] if comparison.same_nearby else []


def relation(measure: Callable[[Pair], Relation | None]) -> Rule:
    """Return the rule that our encoding, changed by what ``measure`` finds in each model, is equal."""

    def rule(comparison: EncodingComparison) -> Explanation | None:
        if not comparison.shares_parameters:
            return None
        relations_by_shape: dict[ModelShape, Relation] = {}

        @torch.no_grad()
        def measure_in(shape: ModelShape) -> Relation | None:
            # If the two differ, the assignment of parameters with the least difference need not be right.
            source = perturbed(build(comparison.make_reference, shape))
            target = build(comparison.candidate, shape)
            pairs = (Pair(target, source, comparison.layout, each) for each in assignments(source, target))
            return next(filter(None, map(measure, pairs)), None)

        def change(encoding: PositionalEncoding) -> None:
            measured = measure_in(encoding.shape)
            if measured is not None:
                relations_by_shape[encoding.shape] = measured
                measured.change.apply(encoding)

        shapes = [model_shape(size, comparison.forms[0], number) for size, number in MEASURED]
        if not any(map(measure_in, shapes)):
            return None
        # What is measured in the implementation follows its arguments by itself.
        changed = replace(comparison, component=None).changed(Change(change))
        if not _explains(changed, comparison) or not relations_by_shape:
            return None
        # Patterns of layers show in the model with most layers.
        shape = max(relations_by_shape, key=lambda shape: (shape.num_heads == SMALL[1], shape.num_layers))
        where = "" if shape.num_heads == SMALL[1] else f"with {shape.num_heads} heads, "
        # A reason from the sizes of one model is a coincidence if it is none in the others.
        reasons = [
            reason
            for reason in relations_by_shape[shape].reasons
            if all(reason in measured.reasons for measured in relations_by_shape.values())
        ]
        text = ": ".join([relations_by_shape[shape].text, *reasons[:1]])
        lines = [*_exceptions(comparison), f"Against {comparison.label}: {where}{text}"]
        verdict = Verdict.WRONG if relations_by_shape[shape].mistake or reasons else Verdict.UNKNOWN
        return Explanation(verdict, "\n".join(lines), changed)

    return rule


def frequencies(comparison: EncodingComparison) -> Explanation | None:
    """It is our encoding with other frequencies, in one of the usual layouts."""
    if comparison.same_nearby:
        return None
    in_layouts = (comparison, *comparison.layouts(USUAL_LAYOUTS[1:]))
    return next(filter(None, map(relation(relations.frequencies), in_layouts)), None)


def other_encoding(comparison: EncodingComparison) -> Explanation | None:
    """It is another of our encodings than the one that the user names."""
    if not comparison.named or comparison.component is None:
        return None
    for other in all_encodings(comparison.component, comparison.reference):
        against = comparison.against(other)
        same = _equal_in_usual_layout(against) if against.forms else None
        if same is not None:
            return _as_other_encoding(comparison, same)
    return None


def decoder_alone(comparison: EncodingComparison) -> Explanation | None:
    """It is our encoding in a decoder, and not in an encoder."""
    if len(comparison.forms) < 2:
        return None
    decoder = replace(comparison, forms=[True], named=False)
    same = explain([decoder], (equal, channel_layout, other_arguments))
    if same is None or same.verdict is not Verdict.RIGHT:
        return None
    encoder = replace(same.comparison, forms=[False], named=True)
    explained = explain([encoder], [rule for rule in EXPLANATIONS if rule is not decoder_alone])
    text = explained.text if explained else describe_difference(encoder)
    hint = "If it is meant for decoders alone, say so: causal_only = True in its class."
    lines = [f"In a decoder alone: {same.text}", f"In an encoder: {text}", hint]
    return Explanation(Verdict.WRONG, "\n".join(lines), same.comparison)


def stages(comparison: EncodingComparison) -> Explanation | None:
    """Single sequences at near positions agree, and some stages differ."""
    if not comparison.shares_parameters or not comparison.same_nearby:
        return None
    differing = {outcome.stage for outcome in comparison.differing_outcomes}
    verdict = Verdict.UNKNOWN if differing <= DIFFER_IF_NEW else Verdict.WRONG
    return Explanation(verdict, describe_difference(comparison), comparison)


# Texts.


def describe_equality(comparison: EncodingComparison) -> str:
    """Return the text that the implementation is our encoding, and up to which convention."""
    results = list(comparison.outcomes)
    near = max(outcome.difference for outcome in results if outcome.stage != FAR_STAGE)
    far = max((outcome.difference for outcome in results if outcome.stage == FAR_STAGE), default=0.0)
    where = format_forms(comparison.forms)
    size = f"{near:.1e} of the largest value"
    lines = [f"It is {comparison.label}, compared in {where}: the largest difference is {size}."]
    if comparison.layout:
        lines.append(f"Its channels are laid out differently: {'; '.join(comparison.layout)}.")
        lines.append("That is no mistake, but weights do not carry over between the two.")
    pairings = [pairing for causal in comparison.forms for pairing in comparison.pair(SMALL, causal).pairings]
    tables = [pairing.table for pairing in pairings if pairing.table]
    if tables:
        lines.append(f"That is no mistake: {tables[0]}.")
    remarks = [outcome.remark for outcome in results if outcome.remark]
    if remarks:
        lines.append(f"Far positions were not compared in every model: {remarks[0]}.")
    if far > EXACT:
        lines.append(
            f"At positions up to 4,095 it differs by {far:.1e}: as a rule, angles or distances in float32."
        )
    return "\n".join(lines)


def describe_difference(comparison: EncodingComparison) -> str:
    """Return the text that says in which stages and where the two differ."""
    label = comparison.label
    if not comparison.shares_parameters:
        shape = model_shape(SMALL, comparison.forms[0])
        theirs, ours = (
            ", ".join(str(list(parameter.shape)) for parameter in trainable(build(make, shape)).values())
            for make in (comparison.candidate, comparison.make_reference)
        )
        text = (
            f"It cannot be {label}: its trainable parameters have the shapes {theirs or 'of none'}, "
            f"ours {ours or 'none'}."
        )
        if comparison.reference.arguments:
            names = ", ".join(comparison.reference.arguments)
            text += f"\nOther arguments of ours ({names}): +against_arguments.NAME=VALUE."
        return text
    first = comparison.first_difference
    assert first is not None
    if comparison.same_nearby and READ in first.place and first.stage == next(iter(SCENARIOS)):
        text = f"Its attention weights are those of {label}, but the values that it reads differ."
    elif comparison.same_nearby:
        stages = list(dict.fromkeys(outcome.stage for outcome in comparison.differing_outcomes))
        more = [f"{len(stages) - MOST_STAGES} more"] if len(stages) > MOST_STAGES else []
        text = f"It equals {label}, except in {join_names(stages[:MOST_STAGES] + more)}."
    else:
        size = f" by {first.difference:.2g} of the largest" if first.difference < torch.inf else ""
        text = f"It is not {label}: logits or embeddings differ{size}."
    in_form = "" if first.causal or len(comparison.forms) == 1 else "in an encoder, "
    return f"{text}\n  {in_form}{first.place}"


def format_forms(forms: Sequence[bool]) -> str:
    return " and ".join("a decoder" if causal else "an encoder" for causal in forms)


# Tried on all encodings if the user names none.
IDENTITIES: tuple[Rule, ...] = (equal, channel_layout, one_stage, other_arguments, known_mistake)
EXPLANATIONS: tuple[Rule, ...] = (
    *IDENTITIES,
    other_encoding,
    decoder_alone,
    relation(relations.layers),
    relation(relations.factor),
    relation(relations.heads),
    relation(relations.shifted_ids),
    frequencies,
    relation(relations.mask),
    stages,
)
MOST_SIMILAR = 3  # encodings on which the entries after `IDENTITIES` are tried


def explain(
    comparisons: Sequence[EncodingComparison], rules: Sequence[Rule] = EXPLANATIONS
) -> Explanation | None:
    """Return the first explanation that holds in every stage.

    Args:
        comparisons: with the encoding that the user names, or with all encodings, the most similar first.
        rules: the entries to try, in this order.
    """
    for rule in rules:
        tried = comparisons if rule in IDENTITIES else comparisons[:MOST_SIMILAR]
        for comparison in tried:
            explanation = rule(comparison)
            if explanation is not None:
                return explanation
    return None
