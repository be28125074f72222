"""Identify an implementation: one of our schemes, also with reordered channels, or a known mistake."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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
    SHAPES,
    Layout,
    assignments,
    build,
    difference,
    stirred,
    where_apart,
    where_embeddings_apart,
)
from pe_experiments.checking.contract import trainable
from pe_experiments.checking.lifecycle import life_apart
from pe_experiments.checking.mutants import MUTANTS, broken, scheme_of
from pe_experiments.components import Component, load_component, shipped
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import acts_at_embedding
from pe_experiments.models.backbone import MakeEncoding

Shapes = Sequence[tuple[int, int, int]]
Step = Callable[[int, int], list[int]]  # of the number of channels and of those that rotate


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
        if self.apart is None or self.apart > SAME:
            return False
        return (
            not self.apart_far > 2 * SAME
        )  # float32 angles are off by less, what is half as precise by more


def likeness_of(
    theirs: MakeEncoding, reference: MakeEncoding, name: str, forms: Sequence[bool], shapes: Shapes = SHAPES
) -> Likeness:
    """Compare both with the same parameters, on the same inputs, in models of some shapes.

    Args:
        theirs, reference: build the schemes from a shape.
        name: of the reference.
        forms: causal (True) or not; they must agree in each.
        shapes: width, number of heads and training length of the models.
    """
    unchanged = _compared(theirs, reference, name, forms, "", shapes)
    if unchanged.same or unchanged.apart is None or not _has_layout(reference, forms):
        return unchanged
    others = (_compared(theirs, reference, name, forms, layout, shapes) for layout in LAYOUTS)
    return next((likeness for likeness in others if likeness.same), unchanged)


@torch.no_grad()
def _compared(
    theirs: MakeEncoding,
    reference: MakeEncoding,
    name: str,
    forms: Sequence[bool],
    layout: str,
    shapes: Shapes = SHAPES,
) -> Likeness:
    """The comparison with the channels of ``theirs`` in one order, under the best way to share parameters."""
    apart, far = [], []
    for causal, (width, heads, train_length) in product(forms, shapes):
        shape = ModelShape(width, heads, 2, causal, train_length, NEAR)
        ours, other = stirred(build(reference, shape)), build(theirs, shape)
        order = partial(_order, LAYOUTS[layout], getattr(ours, "pairs", None)) if layout else None
        best = None
        for _ in assignments(ours, other):
            near = difference(other, ours, layout=order)
            best = near if best is None else min(best, near)
            if near <= SAME:
                break
        if best is None:
            return Likeness(name, None)
        apart.append(best)
        if best > SAME:
            return Likeness(name, max(apart))
        life = life_apart(other, ours, order(shape.head_dim) if order else None)
        if scene := next((scene for scene, far_apart in life.items() if far_apart > SAME), ""):
            return Likeness(name, life[scene], scene=scene)
        far.append(_far(other, ours, order))  # with the parameters that agree
    reasons = [reason for _, reason in far if reason]
    compared = [off for off, _ in far if not math.isnan(off)]
    return Likeness(name, max(apart), max(compared, default=torch.nan), layout, far="; ".join(reasons[:1]))


@torch.no_grad()
def where_they_differ(theirs: MakeEncoding, reference: MakeEncoding, causal: bool, span: int = DENSE) -> str:
    """How their embeddings differ, or at which heads and distances their logits; empty where they do not."""
    for width, heads, train_length in SHAPES:
        shape = ModelShape(width, heads, 2, causal, train_length, NEAR)
        ours, other = stirred(build(reference, shape)), build(theirs, shape)
        ways = {
            difference(other, ours): where_embeddings_apart(other, ours, span)
            or where_apart(other, ours, span)
            for _ in assignments(ours, other)
        }
        if ways and (words := ways[min(ways)]):
            return words
    return ""


def _has_layout(reference: MakeEncoding, forms: Sequence[bool]) -> bool:
    """Whether the order of channels can matter: the scheme rotates, or adds to the embedding."""
    made = build(reference, ModelShape(64, 4, 2, forms[0], 12, NEAR))
    rotates = type(made).rotate is not PositionalEncoding.rotate
    return rotates or acts_at_embedding(made)


def identify(
    theirs: MakeEncoding, choices: Iterable[str], forms: Sequence[bool], **arguments: Any
) -> list[Likeness]:
    """The references it equals: our schemes, and only if it is none of these, their mutants.

    Args:
        theirs: builds the implementation from a shape.
        choices: schemes under configs/pe to compare with.
        forms: the forms in which it can be built, causal (True) or not.
        arguments: of the schemes, instead of those of their YAML.
    """
    references = {choice: reference_of(choice, **arguments) for choice in choices}
    common = {choice: common_forms(part, forms) for choice, part in references.items()}
    references = {choice: part for choice, part in references.items() if common[choice]}
    found = [likeness_of(theirs, part.build, choice, common[choice]) for choice, part in references.items()]
    if any(likeness.same for likeness in found):
        return [likeness for likeness in found if likeness.same]
    mutants = [name for name in MUTANTS if scheme_of(name) in references]
    makers = {name: broken(name, references[scheme_of(name)].build) for name in mutants}
    laid_out = {c for c, part in references.items() if _has_layout(part.build, common[c])}
    for shapes in (SHAPES, SHAPES[:1]):  # a second mistake may show at other numbers of heads only
        for layout in ("", NEIGHBOURS, HALVES):
            compared = (
                _compared(theirs, make, name, common[scheme_of(name)], layout, shapes)
                for name, make in makers.items()
                if not layout or scheme_of(name) in laid_out
            )
            if found := [likeness for likeness in compared if likeness.same]:
                return found
        if any(
            likeness_of(theirs, part.build, "", common[c], SHAPES[:1]).same for c, part in references.items()
        ):
            break
    return []


def common_forms(reference: Component, forms: Sequence[bool]) -> list[bool]:
    """The forms in which the reference exists too."""
    causal_only = reference.cls.causal_only  # type: ignore[attr-defined]
    return [causal for causal in forms if causal or not causal_only]


def reference_of(choice: str, **arguments: Any) -> Component:
    """One of our schemes with some of its arguments changed.

    Raises:
        UserError: an argument it does not have.
    """
    return load_component("pe", {**shipped("pe")[choice], **arguments})


def _far(first: PositionalEncoding, second: PositionalEncoding, layout: Layout | None) -> tuple[float, str]:
    """The difference at positions up to 4,095; where they cannot be compared nan, and why."""
    if second.invariant_to not in ("shift", "ids") and trainable(second):
        return torch.nan, "what is trained decides there"
    try:
        return difference(first, second, span=FAR, layout=layout), ""
    except Exception as error:
        return torch.nan, f"it raises {type(error).__name__}: {' '.join(str(error).split())}"


def _order(steps: Sequence[Step], pairs: int | None, channels: int) -> list[int]:
    """For each channel of another layout, the number of ours; ``pairs`` of them rotate, None: all."""
    order, rotating = list(range(channels)), 2 * (channels // 2 if pairs is None else pairs)
    for step in steps:
        order = [order[index] for index in step(channels, rotating)]
    return order


def _neighbours(channels: int, rotating: int) -> list[int]:
    half = rotating // 2
    return [index for m in range(half) for index in (m, m + half)] + list(range(rotating, channels))


def _halves(channels: int, rotating: int) -> list[int]:
    return [*range(0, rotating, 2), *range(1, rotating, 2), *range(rotating, channels)]


def _exchanged(channels: int, rotating: int) -> list[int]:
    half = rotating // 2
    return [*range(half, rotating), *range(half), *range(rotating, channels)]


def _last(channels: int, rotating: int) -> list[int]:
    return [*range(rotating, channels), *range(rotating)]


NEIGHBOURS = "pairs of neighbouring channels (m, m + 1) where ours are halves apart"
HALVES = "pairs of channels halves apart where ours are neighbours"
EXCHANGED = "the two channels of each pair exchanged (it rotates the other way)"
LAST = "the last channels rotate where ours are the first"
STEPS: dict[str, Step] = {EXCHANGED: _exchanged, NEIGHBOURS: _neighbours, HALVES: _halves, LAST: _last}
LAYOUTS = {"; ".join(w): [STEPS[word] for word in w] for n in (1, 2, 3) for w in combinations(STEPS, n)}
