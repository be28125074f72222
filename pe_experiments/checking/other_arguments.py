"""Arguments with which an implementation may equal one of our encodings: published, fitted, or ignored."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from pe_experiments.checking.comparison import Comparison
from pe_experiments.checking.components import SizedComponent, reference_of
from pe_experiments.checking.pair import MODEL_SIZES, SMALL, TOLERANCE, model_shape
from pe_experiments.checking.random_inputs import build
from pe_experiments.checking.relations import geometric_base, step_angles
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


def published_variants(
    reference: SizedComponent, component: SizedComponent | None = None
) -> Iterator[SizedComponent]:
    """Yield the encoding with arguments of published models, then with other original lengths.

    Args:
        reference: the encoding.
        component: the implementation under test, whose whole numbers may be lengths; None: no lengths.
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
def rotates_equally(comparison: Comparison) -> bool:
    """Return whether both rotate by the same angles in a step, in any layout of channels."""
    for size in MODEL_SIZES:
        shape = model_shape(size, comparison.forms[0])
        theirs = step_angles(build(comparison.candidate, shape))
        ours = step_angles(build(comparison.make_reference, shape))
        if theirs is None or ours is None or theirs.shape != ours.shape:
            return False
        if not torch.allclose(theirs, ours, rtol=TOLERANCE, atol=0.0):
            return False
    return True


def with_equal_frequencies(comparison: Comparison) -> list[Comparison]:
    """Return the comparison with the first variant of an extended RoPE that rotates as the implementation."""
    reference = comparison.reference
    if not issubclass(reference.cls, ExtendedRope) or rotates_equally(comparison):
        return []
    fixed = {name: reference.arguments[name] for name in comparison.user_arguments}
    for variant in published_variants(reference, comparison.component):
        other = comparison.against(variant)
        if fixed.items() <= variant.arguments.items() and rotates_equally(other):
            return [other]
    return []


@torch.no_grad()
def fitted_base(comparison: Comparison) -> SizedComponent | None:
    """Return our RoPE with the base of the implementation's frequencies, if they are geometric."""
    if comparison.reference.cls is not Rope:
        return None
    angles = step_angles(build(comparison.candidate, model_shape(SMALL, comparison.forms[0])))
    base = geometric_base(angles) if angles is not None else None
    if base is None or base <= 1:
        return None
    return comparison.reference.with_arguments(base=float(f"{base:.5g}"))
