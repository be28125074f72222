"""Compare a candidate implementation with a reference: a shipped encoding, or one with a known mistake."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch

from pe_experiments.checking.channel_layouts import LAYOUTS
from pe_experiments.checking.components import SizedComponent, sized
from pe_experiments.checking.differences import SIZES, difference_in_other_models, untrained_pairs
from pe_experiments.checking.instances import build
from pe_experiments.checking.pair import (
    FAR,
    NEAR,
    SAME,
    Pair,
    Sizes,
    defined_far,
    make_pair,
    model_shape,
    scores_of,
)
from pe_experiments.checking.scenarios import scenario_differences
from pe_experiments.configuration.parts import Component, shipped
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding, acts_at_embedding
from pe_experiments.terminal.errors import sentence


class Reference(NamedTuple):
    """An encoding to compare with, correct or with a known mistake, and the forms in which to compare."""

    name: str
    make: MakeEncoding
    forms: Sequence[bool]  # values of `causal`: True for a decoder, False for an encoder


class EncodingComparison(NamedTuple):
    """The result of comparing a candidate with a reference.

    Differences are relative to the largest value. Descriptions are empty where there is nothing to report.

    Args:
        reference: name of the reference.
        difference: difference at positions below 64; None if the parameters cannot be shared.
        far_difference: difference at positions up to 4,095; NaN if it was measured in no model.
        layout: description of the reordered channels.
        scenario: key of `scenarios.SCENARIOS` in which both differ although single sequences agree.
        other_models: description of differences in other models.
        not_compared: reason why far positions were not compared in some model.
        table: description of how the candidate reads a longer table.
    """

    reference: str
    difference: float | None
    far_difference: float = 0.0
    layout: str = ""
    scenario: str = ""
    other_models: str = ""
    not_compared: str = ""
    table: str = ""

    @property
    def equal_nearby(self) -> bool:
        """Return whether single sequences at positions below 64 are equal and something else differs."""
        if self.difference is None or self.same:
            return False
        return self.difference <= SAME or bool(self.scenario)

    @property
    def same(self) -> bool:
        """Return whether the two are equal within tolerances, up to a layout or a longer table."""
        # Far errors of angles in float32 are below 2 * SAME, errors of half precision are larger. NaN passes.
        if self.difference is None or self.difference > SAME or self.other_models:
            return False
        return not self.far_difference > 2 * SAME


def reference_of(choice: str, sizes: Mapping[str, int] | None = None, **arguments: Any) -> SizedComponent:
    """Return the encoding of a choice under configs/pe; ``arguments`` override those of its YAML file.

    ``sizes`` are those of the model that the user gives, see `SizedComponent`.
    """
    return sized({**shipped("pe")[choice], **arguments}, sizes or {})


def common_forms(reference: Component, forms: Sequence[bool]) -> list[bool]:
    """Return those ``forms`` (True: causal) in which the reference exists."""
    causal_only = reference.cls.causal_only  # type: ignore[attr-defined]
    return [causal for causal in forms if causal or not causal_only]


def as_reference(component: Component, forms: Sequence[bool]) -> Reference:
    """Return the encoding as a reference, compared in those forms in which it exists."""
    return Reference(component.label, component.build, common_forms(component, forms))


def compare_layouts(
    candidate: MakeEncoding, reference: Reference, largest: bool = False
) -> EncodingComparison:
    """Compare in the reference's channel layout, and if that differs, in all others.

    The comparison ends at the first difference; with ``largest`` it measures the largest difference.

    Returns:
        The first comparison in which both are equal, or else the one in the reference's layout.
    """
    same_layout = compare(candidate, reference, largest=largest)
    if same_layout.same or same_layout.difference is None or same_layout.other_models:
        return same_layout
    for layout in LAYOUTS:
        comparison = compare(candidate, reference, layout)
        if comparison.same:
            return comparison
    return same_layout


@torch.no_grad()
def compare(
    candidate: MakeEncoding,
    reference: Reference,
    layout: Sequence[str] = (),
    sizes: Sequence[Sizes] = SIZES,
    largest: bool = False,
) -> EncodingComparison:
    """Compare in models of these sizes, with the candidate's channels in a layout of `channel_layouts`.

    The comparison ends at the first difference; with ``largest`` it measures the largest difference.
    """
    name, make, forms = reference
    if layout and not _has_channels(build(make, model_shape(sizes[0], forms[0]))):
        return EncodingComparison(name, None)
    worst = 0.0
    not_compared = ""
    table = ""
    far_differences: list[float] = []
    stop_above = torch.inf if largest else SAME
    for causal, size in product(forms, sizes):
        pair = make_pair(candidate, make, model_shape(size, causal), layout, stop_above)
        if pair is None:
            return EncodingComparison(name, None)
        worst = max(worst, pair.difference)
        if pair.difference > SAME:
            return EncodingComparison(name, worst)
        table = table or pair.table
        for scenario, difference in scenario_differences(pair):
            if difference > SAME:
                return EncodingComparison(name, difference, scenario=scenario)
        if not defined_far(make, pair.reference):
            not_compared = "what is trained decides there"
        elif not layout and _only_adds_distance_bias(pair.reference):
            far_differences.append(0.0)  # `difference_in_other_models` compares every distance
        else:
            try:
                far_differences.append(pair.difference_below(FAR))
            except Exception as error:  # raised by the implementation, e.g. for the end of a table
                not_compared = _describe_far_error(pair, error)
    comparison = EncodingComparison(
        name,
        worst,
        far_difference=max(far_differences, default=torch.nan),
        layout="; ".join(layout),
        not_compared=not_compared,
        table=table,
    )
    if not comparison.same or sizes != SIZES:
        return comparison
    return comparison._replace(other_models=difference_in_other_models(candidate, make, forms, layout))


def _describe_far_error(pair: Pair, error: Exception) -> str:
    """Return which of both encodings rejects far positions, and its error."""
    try:
        scores_of(pair.reference, pair.inputs_below(FAR), pair.compares_weights, 0)
    except Exception as reference_error:
        return f"ours raises {sentence(reference_error)}"
    return f"it raises {sentence(error)}"


def _has_channels(encoding: PositionalEncoding) -> bool:
    """Return whether the order of channels can affect the encoding."""
    return type(encoding).rotate is not PositionalEncoding.rotate or acts_at_embedding(encoding)


def _only_adds_distance_bias(encoding: PositionalEncoding) -> bool:
    """Return whether the encoding does nothing but add a bias that depends on distances."""
    cls = type(encoding)
    overrides_other_hooks = acts_at_embedding(encoding) or any(
        getattr(cls, hook) is not getattr(PositionalEncoding, hook)
        for hook in ("rotate", "weights", "for_layer")
    )
    return encoding.invariant_to == "shift" and not overrides_other_hooks


def untrained_difference(candidate: MakeEncoding, reference: Reference) -> float:
    """Return the relative difference at positions below 64 if both keep their initial parameters."""
    pairs = (
        pair for causal in reference.forms for pair in untrained_pairs(candidate, reference.make, causal)
    )
    return max(pair.difference_below(NEAR) for pair in pairs)


def difference_with_other_arguments(
    component: SizedComponent, reference: SizedComponent, forms: Sequence[bool]
) -> str:
    """Describe a difference that shows with another value of a shared argument; return "" if none."""
    for name, value in component.arguments.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or reference.arguments.get(name) != value:
            continue
        other_value = value * 2 if value > 1 else value / 2
        try:
            variants = [encoding.with_arguments(**{name: other_value}) for encoding in (component, reference)]
            other_reference = as_reference(variants[1], forms)
            comparisons = [
                compare(variants[0].build, other_reference, layout, SIZES[:1]) for layout in ((), *LAYOUTS)
            ]
        except Exception:  # one of both rejects the value
            continue
        if not any(comparison.same for comparison in comparisons):
            return f"with {name}={other_value:g} in both, logits or embeddings differ"
    return ""
