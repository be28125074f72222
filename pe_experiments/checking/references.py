"""Choose the encodings of ours with which an implementation is compared, and their arguments.

Without a name these are all encodings, the most similar first. Arguments are those of the implementation, of
released models, or fitted to its rotation.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch

from pe_experiments.checking.comparison import EncodingComparison, common_forms
from pe_experiments.checking.pair import (
    SMALL,
    TOLERANCE,
    USUAL_LAYOUTS,
    ParametersDiffer,
)
from pe_experiments.checking.relations import geometric_base, pair_angles
from pe_experiments.checking.subject import SizedComponent, reference_of
from pe_experiments.configuration.choices import shipped
from pe_experiments.encodings.mixtures import ByHead, ByLayer
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.rope_extension import ExtendedRope
from pe_experiments.terminal.errors import UserError

# Arguments of published models, by the choice under configs/pe.
PUBLISHED: dict[str, list[dict[str, Any]]] = {
    "t5": [{"num_buckets": 32, "max_distance": 128}, {"max_distance": 128}],
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


# Encodings by their similarity to the implementation.


def all_encodings(component: SizedComponent, named: SizedComponent | None = None) -> list[SizedComponent]:
    """Return all shipped encodings, with those arguments that the implementation has, too, or the named one.

    Mixtures of others come last, since some of them equal one of their parts.
    """
    mixtures = (ByLayer, ByHead)
    choices = sorted(shipped("pe"), key=lambda choice: issubclass(reference_of(choice).cls, mixtures))
    components: list[SizedComponent] = []
    for choice in choices:
        default = reference_of(choice, component.sizes)
        variants = [default.with_arguments_of(component)]
        if named is not None:
            variants = [default, *variants, default.with_arguments_of(named)]
        components += [variant for variant in variants if variant not in components and variant != named]
    return components


@torch.no_grad()
def by_similarity(component: SizedComponent, forms: list[bool]) -> list[EncodingComparison]:
    """Return the comparisons with all encodings, nearest first.

    The nearness is the smallest difference in the usual layouts; it is infinite if the parameters do not fit.
    """
    comparisons: list[tuple[float, EncodingComparison]] = []
    for reference in all_encodings(component):
        common = common_forms(reference, forms)
        if not common:
            continue
        comparison = EncodingComparison(component.build, reference, common, component=component)
        difference = torch.inf
        with suppress(ParametersDiffer):
            for ours in (comparison, *comparison.layouts(USUAL_LAYOUTS[1:])):
                difference = min(difference, ours.pair(SMALL, ours.forms[0]).difference)
        comparisons.append((max(difference, TOLERANCE), comparison))
    comparisons.sort(key=lambda entry: entry[0])
    return [comparison for _, comparison in comparisons]


# Arguments: published, ignored, or fitted.


def published_variants(
    reference: SizedComponent, component: SizedComponent | None
) -> Iterator[SizedComponent]:
    """Yield the encoding with arguments of published models, then with other original lengths.

    These lengths are usual ones and the whole numbers among the arguments of the implementation.
    """
    variants = [reference.with_arguments(**published) for published in PUBLISHED.get(reference.choice, [])]
    yield from variants
    if component is not None and issubclass(reference.cls, ExtendedRope):
        lengths = [value for value in component.arguments.values() if type(value) is int and value > 1]
        for variant in (reference, *variants):
            for length in (*ORIGINAL_LENGTHS, *lengths):
                yield variant.with_arguments(original_length=length)


def ignored_variants(reference: SizedComponent) -> Iterator[tuple[SizedComponent, Mapping[str, Any]]]:
    """Yield the encoding without each of its arguments that is not the default, and without all of them.

    Each comes with the arguments that it lacks.
    """
    defaults = reference_of(reference.choice, reference.sizes).arguments
    given = [name for name, value in reference.arguments.items() if defaults.get(name, value) != value]
    for names in [[name] for name in given] + ([given] if len(given) > 1 else []):
        try:
            variant = reference.with_arguments(**{name: defaults[name] for name in names})
        except UserError:  # the other arguments need it
            continue
        yield variant, {name: reference.arguments[name] for name in names}


@torch.no_grad()
def fitted_base(comparison: EncodingComparison) -> SizedComponent | None:
    """Return our RoPE with the base of the implementation's frequencies, if they are geometric."""
    if comparison.reference.cls is not Rope or not comparison.shares_parameters:
        return None
    for ours in comparison.layouts(USUAL_LAYOUTS):
        pair = ours.pair(SMALL, ours.forms[0])
        angles_R = pair_angles(pair, pair.candidate)
        base = None if angles_R is None else geometric_base(angles_R.abs())
        if base is not None and base > 1:
            return comparison.reference.with_arguments(base=float(f"{base:.5g}"))
    return None
