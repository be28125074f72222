"""How close an implementation is to a reference: one of our encodings, or one with a known mistake."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import torch

from pe_experiments.checking.elsewhere import first_difference_elsewhere
from pe_experiments.checking.lifecycle import scene_differences
from pe_experiments.checking.side_by_side import (
    FAR,
    HALVES,
    LAYOUTS,
    NEIGHBOURS,
    SAME,
    Sizes,
    assignments,
    build_both,
    defined_far,
    difference_of,
    draw_inputs,
    layout_of,
    shape_of,
    share_parameters,
)
from pe_experiments.configuration.parts import Component, load_component, shipped
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.base import acts_at_embedding
from pe_experiments.models.backbone import MakeEncoding
from pe_experiments.terminal.errors import sentence

__all__ = ["SAME", "Likeness", "Reference", "assignments", "common_forms", "draw_inputs", "reference_of"]

# Width, heads (a power of two and not) and training length. The second head is 24 wide, so that no constant
# of the first fits it; long training makes T5's buckets wide and YaRN's ramp gradual.
SHAPES: tuple[Sizes, ...] = ((64, 4, 12), (144, 6, 1024))

USUAL: tuple[tuple[str, ...], ...] = ((), (NEIGHBOURS,), (HALVES,))  # in which mistakes are looked for


class Reference(NamedTuple):
    """An encoding, right or with a known mistake, to compare with, and the forms to do it in."""

    name: str
    make: MakeEncoding
    forms: Sequence[bool]


class Likeness(NamedTuple):
    """How close an implementation is to a reference."""

    reference: str
    difference: float | None  # at positions below 64, of the largest value; None: parameters do not fit
    far_difference: float = 0.0  # the same at positions up to 4,095; nan where it is not defined there
    layout: str = ""  # how the channels are reordered, in words; empty where they are not
    scene: str = ""  # of `lifecycle.SCENES`, in which they differ where single sequences agree
    elsewhere: str = ""  # where they differ though all of that agrees, in words
    not_compared: str = ""  # why far positions were not compared, in some model at least
    table: str = ""  # how a longer table is read, in words

    @property
    def same(self) -> bool:
        # Angles in float32 are off by less than 2 * SAME far out, what is half as precise by more.
        if self.difference is None or self.difference > SAME or self.elsewhere:
            return False
        return not self.far_difference > 2 * SAME


def reference_of(choice: str, **arguments: Any) -> Component:
    return load_component("pe", {**shipped("pe")[choice], **arguments})


def common_forms(reference: Component, forms: Sequence[bool]) -> list[bool]:
    """The forms, causal (True) or not, in which the reference exists too."""
    causal_only = reference.cls.causal_only  # type: ignore[attr-defined]
    return [causal for causal in forms if causal or not causal_only]


def as_reference(component: Component, forms: Sequence[bool], name: str = "") -> Reference:
    return Reference(name or component.label, component.build, common_forms(component, forms))


def likeness_of(theirs: MakeEncoding, reference: Reference) -> Likeness:
    """Compare both with the same parameters, on the same inputs, in models of all shapes and forms."""
    unchanged = compare(theirs, reference)
    if unchanged.same or unchanged.difference is None or unchanged.elsewhere:
        return unchanged
    reordered = (compare(theirs, reference, layout) for layout in LAYOUTS)
    return next((likeness for likeness in reordered if likeness.same), unchanged)


@torch.no_grad()
def compare(
    theirs: MakeEncoding, reference: Reference, steps: Sequence[str] = (), shapes: Sequence[Sizes] = SHAPES
) -> Likeness:
    """The comparison with the channels of ``theirs`` reordered, under the best way to share parameters."""
    name, make, forms = reference
    worst, reason, table, far = 0.0, "", "", list[float]()
    for causal, sizes in product(forms, shapes):
        ours, other = build_both(make, theirs, shape_of(sizes, causal))
        rotates = type(ours).rotate is not PositionalEncoding.rotate
        if steps and not rotates and not acts_at_embedding(ours):  # no order of channels can matter
            return Likeness(name, None)
        order = layout_of(steps, ours)
        shared = share_parameters(ours, other, order)
        if shared is None:
            return Likeness(name, None)
        worst = max(worst, shared.difference)
        if shared.difference > SAME:
            return Likeness(name, worst)
        table = table or shared.table
        for scene, difference in scene_differences(
            other, ours, order(ours.shape.head_dim) if order else None
        ):
            if difference > SAME:
                return Likeness(name, difference, scene=scene)
        if not defined_far(make, ours):
            reason = "what is trained decides there"
            continue
        if not steps and _adds_a_bias_of_distances(ours):
            far.append(0.0)  # of these, every distance is compared in `elsewhere`
            continue
        try:
            far.append(difference_of(other, ours, span=FAR, layout=order))
        except Exception as error:  # of the implementation: a table that ends, a matrix that does not fit
            reason = f"it raises {sentence(error)}"
    agreed = Likeness(
        name, worst, max(far, default=torch.nan), "; ".join(steps), not_compared=reason, table=table
    )
    if not agreed.same or shapes != SHAPES:
        return agreed
    place = first_difference_elsewhere(theirs, reference.make, reference.forms, steps)
    return agreed._replace(elsewhere=place)


def _adds_a_bias_of_distances(ours: PositionalEncoding) -> bool:
    """Whether it does nothing but add a bias to the logits that follows from distances."""
    base, kind = PositionalEncoding, type(ours)
    hooks = (kind.rotate is base.rotate, kind.weights is base.weights, kind.for_layer is base.for_layer)
    return ours.invariant_to == "shift" and all(hooks) and not acts_at_embedding(ours)


@torch.no_grad()
def untrained_difference(theirs: MakeEncoding, reference: Reference) -> float:
    """How far the two differ with the parameters that each starts with, at positions below 64."""
    differences = []
    for causal, sizes in product(reference.forms, SHAPES):
        ours, other = build_both(reference.make, theirs, shape_of(sizes, causal), noise=0.0)
        differences.append(difference_of(other, ours))
    return max(differences)
