"""Compare an implementation with a reference: a shipped encoding, or one with a known mistake."""

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import torch

from pe_experiments.checking.channel_layouts import LAYOUTS
from pe_experiments.checking.differences import SIZES, difference_in_other_models, untrained_pairs
from pe_experiments.checking.instances import build
from pe_experiments.checking.pair import FAR, NEAR, SAME, Sizes, defined_far, make_pair, model_shape
from pe_experiments.checking.scenarios import scenario_differences
from pe_experiments.configuration.parts import Component, load_component, shipped
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding, acts_at_embedding
from pe_experiments.terminal.errors import sentence


class Reference(NamedTuple):
    """An encoding to compare with, correct or with a known mistake, and the forms of the comparison."""

    name: str
    make: MakeEncoding
    forms: Sequence[bool]  # causal or not


class Comparison(NamedTuple):
    """The result of comparing an implementation with a reference."""

    reference: str
    difference: float | None  # at positions below 64, of the largest value; None: parameters do not fit
    far_difference: float = 0.0  # the same at positions up to 4,095; nan where it is not defined there
    layout: str = ""  # description of the reordered channels; empty if they are not
    scenario: str = ""  # of `scenarios.SCENARIOS`, in which both differ although single sequences agree
    other_models: str = ""  # description of differences in other models
    not_compared: str = ""  # why far positions were not compared in some model
    table: str = ""  # description of how a longer table is read

    @property
    def same(self) -> bool:
        # Far errors of angles in float32 are below 2 * SAME, errors of half precision are larger.
        if self.difference is None or self.difference > SAME or self.other_models:
            return False
        return not self.far_difference > 2 * SAME


def reference_of(choice: str, **arguments: Any) -> Component:
    """Return the encoding of a choice under configs/pe, with changed arguments if given."""
    return load_component("pe", {**shipped("pe")[choice], **arguments})


def common_forms(reference: Component, forms: Sequence[bool]) -> list[bool]:
    """Return the forms, causal (True) or not, in which the reference also exists."""
    causal_only = reference.cls.causal_only  # type: ignore[attr-defined]
    return [causal for causal in forms if causal or not causal_only]


def as_reference(component: Component, forms: Sequence[bool]) -> Reference:
    return Reference(component.label, component.build, common_forms(component, forms))


def compare_layouts(checked: MakeEncoding, reference: Reference, largest: bool = False) -> Comparison:
    """Compare in models of all sizes and forms, in the layout of channels in which both agree.

    A comparison ends at the first difference unless the ``largest`` is asked for.
    """
    unchanged = compare(checked, reference, largest=largest)
    if unchanged.same or unchanged.difference is None or unchanged.other_models:
        return unchanged
    others = (compare(checked, reference, steps) for steps in LAYOUTS)
    return next((comparison for comparison in others if comparison.same), unchanged)


@torch.no_grad()
def compare(
    checked: MakeEncoding,
    reference: Reference,
    steps: Sequence[str] = (),
    sizes: Sequence[Sizes] = SIZES,
    largest: bool = False,
) -> Comparison:
    """Compare with the channels of ``checked`` laid out by ``steps``, see `channel_layouts`.

    A comparison ends at the first difference unless the ``largest`` is asked for.
    """
    name, make, forms = reference
    if steps and not _has_channels(build(make, model_shape(sizes[0], forms[0]))):
        return Comparison(name, None)
    worst = 0.0
    not_compared = ""
    table = ""
    far: list[float] = []
    enough = torch.inf if largest else SAME
    for causal, size in product(forms, sizes):
        pair = make_pair(checked, make, model_shape(size, causal), steps, enough)
        if pair is None:
            return Comparison(name, None)
        worst = max(worst, pair.difference)
        if pair.difference > SAME:
            return Comparison(name, worst)
        table = table or pair.table
        for scenario, difference in scenario_differences(pair):
            if difference > SAME:
                return Comparison(name, difference, scenario=scenario)
        if not defined_far(make, pair.reference):
            not_compared = "what is trained decides there"
        elif not steps and _adds_a_bias_of_distances(pair.reference):
            far.append(0.0)  # `difference_in_other_models` compares every distance of these
        else:
            try:
                far.append(pair.difference_below(FAR))
            except Exception as error:  # raised by the implementation, e.g. for the end of a table
                not_compared = f"it raises {sentence(error)}"
    far_difference = max(far, default=torch.nan)
    equal = Comparison(name, worst, far_difference, "; ".join(steps), not_compared=not_compared, table=table)
    if not equal.same or sizes != SIZES:
        return equal
    return equal._replace(other_models=difference_in_other_models(checked, make, forms, steps))


def _has_channels(encoding: PositionalEncoding) -> bool:
    """Return whether an order of channels can matter to it."""
    return type(encoding).rotate is not PositionalEncoding.rotate or acts_at_embedding(encoding)


def _adds_a_bias_of_distances(encoding: PositionalEncoding) -> bool:
    """Return whether it only adds a bias that depends on distances to the logits."""
    base = PositionalEncoding
    kind = type(encoding)
    hooks = (kind.rotate is base.rotate, kind.weights is base.weights, kind.for_layer is base.for_layer)
    return encoding.invariant_to == "shift" and all(hooks) and not acts_at_embedding(encoding)


def untrained_difference(checked: MakeEncoding, reference: Reference) -> float:
    """Return the difference with initial parameters at positions below 64."""
    pairs = (pair for causal in reference.forms for pair in untrained_pairs(checked, reference.make, causal))
    return max(pair.difference_below(NEAR) for pair in pairs)
