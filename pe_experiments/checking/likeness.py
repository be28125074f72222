"""Which scheme an implementation is: one of ours, also with reordered channels, or a known mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import Any

import torch

from pe_experiments.checking.agreement import (
    DENSE,
    FAR,
    NEAR,
    SAME,
    difference,
    share_parameters,
    where_apart,
)
from pe_experiments.checking.check import in_a_line
from pe_experiments.checking.contract import build, stirred, trainable
from pe_experiments.checking.lifecycle import life_apart
from pe_experiments.checking.mutants import MUTANTS, broken, scheme_of
from pe_experiments.configuration.parts import Component, load_component, shipped
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import acts_at_embedding
from pe_experiments.models.backbone import MakeEncoding

Sizes = tuple[int, int, int]
Reference = tuple[MakeEncoding, list[bool]]  # and the forms to compare in
# Width, heads (a power of two and not) and training length. The second head is 24 wide, so that no constant
# of the first fits it; long training makes T5's buckets wide and YaRN's ramp gradual.
SHAPES: tuple[Sizes, ...] = ((64, 4, 12), (144, 6, 1024))

EXCHANGED = "the two channels of each pair exchanged (it rotates the other way)"
NEIGHBOURS = "pairs of neighbouring channels (m, m + 1) where ours are halves apart"
HALVES = "pairs of channels halves apart where ours are neighbours"
LAST = "the last channels rotate where ours are the first"
# Of the channels that rotate.
STEPS: dict[str, Callable[[list[int]], list[int]]] = {
    EXCHANGED: lambda order: order[len(order) // 2 :] + order[: len(order) // 2],
    NEIGHBOURS: lambda order: [order[m // 2 + m % 2 * len(order) // 2] for m in range(len(order))],
    HALVES: lambda order: order[::2] + order[1::2],
}
LAYOUTS = [steps for number in (1, 2, 3) for steps in combinations((*STEPS, LAST), number)]
USUAL: tuple[tuple[str, ...], ...] = ((), (NEIGHBOURS,), (HALVES,))  # in which mistakes are looked for


@dataclass(frozen=True)
class Likeness:
    """How close an implementation is to a reference.

    Attributes:
        reference: the choice under configs/pe, or the name of a mutant.
        apart: largest difference at positions below 64, as a share of the largest value; None where their
            parameters differ in shape.
        apart_far: the same at positions up to 4,095; nan where one of them is not defined there.
        layout: how the channels are reordered, in words; empty where they are not.
        scene: of `lifecycle.SCENES`, the one in which they are apart, where single sequences agree.
        far: why far positions were not compared, in some model at least.
    """

    reference: str
    apart: float | None
    apart_far: float = 0.0
    layout: str = ""
    scene: str = ""
    far: str = ""

    @property
    def same(self) -> bool:
        # Angles in float32 are off by less than 2 * SAME far out, what is half as precise by more.
        return self.apart is not None and self.apart <= SAME and not self.apart_far > 2 * SAME


def reference_of(choice: str, **arguments: Any) -> Component:
    """One of our schemes with some of its arguments changed.

    Raises:
        UserError: an argument it does not have.
    """
    return load_component("pe", {**shipped("pe")[choice], **arguments})


def common_forms(reference: Component, forms: Sequence[bool]) -> list[bool]:
    """The forms in which the reference exists too."""
    causal_only = reference.cls.causal_only  # type: ignore[attr-defined]
    return [causal for causal in forms if causal or not causal_only]


def matches(
    theirs: MakeEncoding, choices: Iterable[str], forms: Sequence[bool], **arguments: Any
) -> list[Likeness]:
    """The references it equals: our schemes, and only if it is none of these, their mutants.

    Args:
        theirs: builds the implementation from a shape.
        choices: schemes under configs/pe to compare with.
        forms: the forms in which it can be built, causal (True) or not.
        arguments: of the schemes, instead of those of their YAML.
    """
    parts = {choice: reference_of(choice, **arguments) for choice in choices}
    ours = {name: (part.build, both) for name, part in parts.items() if (both := common_forms(part, forms))}
    found = [likeness_of(theirs, make, name, both) for name, (make, both) in ours.items()]
    if same := [likeness for likeness in found if likeness.same]:
        return same
    mutants = {name: ours[scheme_of(name)] for name in MUTANTS if scheme_of(name) in ours}
    mutants = {name: (broken(name, make), both) for name, (make, both) in mutants.items()}

    def alike(
        references: Mapping[str, Reference], layout: Sequence[str], shapes: Sequence[Sizes]
    ) -> list[Likeness]:
        compared = (
            _compared(theirs, make, name, both, layout, shapes) for name, (make, both) in references.items()
        )
        return [likeness for likeness in compared if likeness.same]

    for shapes in (SHAPES, SHAPES[:1]):  # a second mistake may show at other numbers of heads only
        for layout in USUAL:
            if same := alike(mutants, layout, shapes):
                return same
        if any(alike(ours, layout, SHAPES[:1]) for layout in USUAL):  # our scheme there, as some mutants are
            break
    return []


def likeness_of(theirs: MakeEncoding, reference: MakeEncoding, name: str, forms: Sequence[bool]) -> Likeness:
    """Compare both with the same parameters, on the same inputs, in models of some shapes.

    Args:
        theirs, reference: build the schemes from a shape.
        name: of the reference.
        forms: causal (True) or not; they must agree in each.
    """
    unchanged = _compared(theirs, reference, name, forms)
    if unchanged.same or unchanged.apart is None:
        return unchanged
    others = (_compared(theirs, reference, name, forms, layout) for layout in LAYOUTS)
    return next((likeness for likeness in others if likeness.same), unchanged)


@torch.no_grad()
def _compared(
    theirs: MakeEncoding,
    reference: MakeEncoding,
    name: str,
    forms: Sequence[bool],
    steps: Sequence[str] = (),
    shapes: Sequence[Sizes] = SHAPES,
) -> Likeness:
    """The comparison with the channels of ``theirs`` reordered, under the best way to share parameters."""
    worst, reason, far = 0.0, "", list[float]()
    for causal, sizes in product(forms, shapes):
        ours, other = _built(reference, theirs, causal, sizes)
        if steps and not _has_layout(ours):
            return Likeness(name, None)
        order = partial(_order, steps, getattr(ours, "pairs", None)) if steps else None
        apart = share_parameters(ours, other, order)
        if apart is None:
            return Likeness(name, None)
        worst = max(worst, apart)
        if apart > SAME:
            return Likeness(name, worst)
        life = life_apart(other, ours, order(ours.shape.head_dim) if order else None)
        if scene := next((scene for scene, by in life.items() if by > SAME), ""):
            return Likeness(name, life[scene], scene=scene)
        if ours.invariant_to not in ("shift", "ids") and trainable(ours):
            reason = "what is trained decides there"
            continue
        try:
            far.append(difference(other, ours, span=FAR, layout=order))
        except Exception as error:  # of the implementation: a table that ends, a matrix that does not fit
            reason = f"it raises {in_a_line(error)}"
    return Likeness(name, worst, max(far, default=torch.nan), "; ".join(steps), far=reason)


def _built(
    reference: MakeEncoding, theirs: MakeEncoding, causal: bool, sizes: Sizes
) -> tuple[PositionalEncoding, PositionalEncoding]:
    width, heads, train_length = sizes
    shape = ModelShape(width, heads, 2, causal, train_length, NEAR)
    return stirred(build(reference, shape)), build(theirs, shape)


def _has_layout(scheme: PositionalEncoding) -> bool:
    """Whether the order of channels can matter: the scheme rotates, or adds to the embedding."""
    return type(scheme).rotate is not PositionalEncoding.rotate or acts_at_embedding(scheme)


def _order(steps: Sequence[str], pairs: int | None, channels: int) -> list[int]:
    """For each channel of another layout, the number of ours; ``pairs`` of them rotate, None: all."""
    rotating = 2 * (channels // 2 if pairs is None else pairs)
    order, rest = list(range(rotating)), list(range(rotating, channels))
    for step in steps:
        order = STEPS[step](order) if step in STEPS else order
    return rest + order if LAST in steps else order + rest


@torch.no_grad()
def where_they_differ(theirs: MakeEncoding, reference: MakeEncoding, causal: bool, span: int = DENSE) -> str:
    """How their embeddings differ, or at which heads and distances their logits; empty where they do not."""
    for sizes in SHAPES:
        ours, other = _built(reference, theirs, causal, sizes)
        if share_parameters(ours, other) is not None and (words := where_apart(other, ours, span)):
            return words
    return ""
