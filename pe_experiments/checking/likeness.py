"""Which scheme an implementation is: one of ours, also with reordered channels, or a known mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations, islice, permutations, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pe_experiments.checking.contract import apart, build, stirred, trainable
from pe_experiments.checking.lifecycle import draw_content, life_apart, reordered
from pe_experiments.checking.mutants import MUTANTS, broken, scheme_of
from pe_experiments.configuration.parts import Component, load_component, shipped
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import acts_at_embedding, is_masked
from pe_experiments.models.attention import makes_weights
from pe_experiments.models.backbone import MakeEncoding
from pe_experiments.models.scores import Inputs, attention_scores
from pe_experiments.terminal.errors import sentence

SAME = 1e-4  # of the largest value; another order of float32 operations stays below it, mistakes do not
DENSE, NEAR, FAR = 24, 64, 4096  # positions; angles taken in float32 are right near, and off by some 1e-5 far
WAYS = 24  # ways of pairing parameters that are tried

Layout = Callable[[int], list[int]]  # for each of so many channels, the number of ours
Sizes = tuple[int, int, int]
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


class Likeness(NamedTuple):
    """How close an implementation is to a reference."""

    reference: str  # the choice under configs/pe, or the name of a mutant
    apart: float | None  # at positions below 64, of the largest value; None: parameters differ in shape
    apart_far: float = 0.0  # the same at positions up to 4,095; nan where one of them is not defined there
    layout: str = ""  # how the channels are reordered, in words; empty where they are not
    scene: str = ""  # of `lifecycle.SCENES`, in which they are apart where single sequences agree
    far: str = ""  # why far positions were not compared, in some model at least

    @property
    def same(self) -> bool:
        # Angles in float32 are off by less than 2 * SAME far out, what is half as precise by more.
        return self.apart is not None and self.apart <= SAME and not self.apart_far > 2 * SAME


def reference_of(choice: str, **arguments: Any) -> Component:
    return load_component("pe", {**shipped("pe")[choice], **arguments})


def common_forms(reference: Component, forms: Sequence[bool]) -> list[bool]:
    """The forms, causal (True) or not, in which the reference exists too."""
    causal_only = reference.cls.causal_only  # type: ignore[attr-defined]
    return [causal for causal in forms if causal or not causal_only]


class Reference(NamedTuple):
    """A scheme or a mutant to compare with, and the forms to do it in."""

    name: str
    make: MakeEncoding
    forms: Sequence[bool]


def matches(
    theirs: MakeEncoding, choices: Iterable[str], forms: Sequence[bool], **arguments: Any
) -> list[Likeness]:
    """The references it equals: our schemes (with these arguments), and only if it is none, their mutants."""
    parts = {choice: reference_of(choice, **arguments) for choice in choices}
    ours = [Reference(name, part.build, common_forms(part, forms)) for name, part in parts.items()]
    ours = [reference for reference in ours if reference.forms]
    found = [likeness_of(theirs, make, name, both) for name, make, both in ours]
    if same := [likeness for likeness in found if likeness.same]:
        return same
    pairs = ((name, one) for one in ours for name in MUTANTS if scheme_of(name) == one.name)
    mutants = [Reference(name, broken(name, one.make), one.forms) for name, one in pairs]

    def alike(references: list[Reference], layout: Sequence[str], shapes: Sequence[Sizes]) -> list[Likeness]:
        compared = (_compared(theirs, reference, layout, shapes) for reference in references)
        return [likeness for likeness in compared if likeness.same]

    for shapes in (SHAPES, SHAPES[:1]):  # a second mistake may show at other numbers of heads only
        for layout in USUAL:
            if same := alike(mutants, layout, shapes):
                return same
        if any(alike(ours, layout, SHAPES[:1]) for layout in USUAL):  # our scheme there, as some mutants are
            break
    return []


def likeness_of(theirs: MakeEncoding, reference: MakeEncoding, name: str, forms: Sequence[bool]) -> Likeness:
    """Compare both with the same parameters, on the same inputs, in models of all shapes and forms."""
    unchanged = _compared(theirs, Reference(name, reference, forms))
    if unchanged.same or unchanged.apart is None:
        return unchanged
    others = (_compared(theirs, Reference(name, reference, forms), layout) for layout in LAYOUTS)
    return next((likeness for likeness in others if likeness.same), unchanged)


@torch.no_grad()
def _compared(
    theirs: MakeEncoding, reference: Reference, steps: Sequence[str] = (), shapes: Sequence[Sizes] = SHAPES
) -> Likeness:
    """The comparison with the channels of ``theirs`` reordered, under the best way to share parameters."""
    name, make, forms = reference
    worst, reason, far = 0.0, "", list[float]()
    for causal, sizes in product(forms, shapes):
        ours, other = _built(make, theirs, causal, sizes)
        rotates = type(ours).rotate is not PositionalEncoding.rotate
        if steps and not rotates and not acts_at_embedding(ours):  # no order of channels can matter
            return Likeness(name, None)
        order = partial(_order, steps, getattr(ours, "pairs", None)) if steps else None
        apart = share_parameters(ours, other, order)
        if apart is None:
            return Likeness(name, None)
        worst = max(worst, apart)
        if apart > SAME:
            return Likeness(name, worst)
        for scene, by in life_apart(other, ours, order(ours.shape.head_dim) if order else None):
            if by > SAME:
                return Likeness(name, by, scene=scene)
        if ours.invariant_to not in ("shift", "ids") and trainable(ours):
            reason = "what is trained decides there"
            continue
        try:
            far.append(difference(other, ours, span=FAR, layout=order))
        except Exception as error:  # of the implementation: a table that ends, a matrix that does not fit
            reason = f"it raises {sentence(error)}"
    return Likeness(name, worst, max(far, default=torch.nan), "; ".join(steps), far=reason)


def _built(
    reference: MakeEncoding, theirs: MakeEncoding, causal: bool, sizes: Sizes, by: float = 0.3
) -> tuple[PositionalEncoding, PositionalEncoding]:
    width, heads, train_length = sizes
    shape = ModelShape(width, heads, 2, causal, train_length, NEAR)
    return stirred(build(reference, shape), by), build(theirs, shape)


@torch.no_grad()
def apart_untrained(theirs: MakeEncoding, reference: MakeEncoding, forms: Sequence[bool]) -> float:
    """How far the two are apart with the parameters that each starts with, at positions below 64."""
    pairs = (_built(reference, theirs, *model, by=0.0) for model in product(forms, SHAPES))
    return max(difference(other, ours) for ours, other in pairs)


def _order(steps: Sequence[str], pairs: int | None, channels: int) -> list[int]:
    """For each channel of another layout, the number of ours; ``pairs`` of them rotate, None: all."""
    rotating = 2 * (channels // 2 if pairs is None else pairs)
    order, rest = list(range(rotating)), list(range(rotating, channels))
    for step in steps:
        order = STEPS[step](order) if step in STEPS else order
    return rest + order if LAST in steps else order + rest


@torch.no_grad()
def where_they_differ(
    theirs: MakeEncoding, reference: MakeEncoding, causal: bool, span: int = DENSE, by: float = 0.3
) -> str:
    """How their embeddings or logits differ, with equal parameters; ``by`` 0: with those each starts with."""
    for sizes in SHAPES:
        ours, other = _built(reference, theirs, causal, sizes, by)
        shared = not by or share_parameters(ours, other) is not None
        if shared and (words := where_apart(other, ours, span)):
            same = f"equal with {SHAPES[0][1]} heads; with {sizes[1]}, " if sizes != SHAPES[0] else ""
            return same + words
    return ""


def where_apart(first: PositionalEncoding, second: PositionalEncoding, span: int = DENSE) -> str:
    """The same of two with shared parameters, below position ``span``; without gaps if it is `DENSE`."""
    inputs = draw_inputs(first.shape, DENSE, span, 0)
    ids_T, both = inputs.positions_BT[0], _both(first, second, inputs)
    one, two = next(both)
    if one.shape != two.shape:
        return f"embeddings have the shape {list(one.shape)} instead of {list(two.shape)}"
    if apart(one, two) > SAME:
        apart_TD = (one - two).abs().amax(dim=0)
        position = int(ids_T[(apart_TD > SAME * two.abs().max()).any(dim=-1)][0])
        column = int(apart_TD.amax(0).argmax())
        return f"embeddings differ from position {position} on, most in column {column}"
    one, two = next(both)
    if one.shape != two.shape:
        return ""
    apart_HTS = (one - two).abs().nan_to_num(0.0, torch.inf)  # nan: masked in both
    differs_HTS = apart_HTS > SAME * two[two.isfinite()].abs().max()
    if not differs_HTS.any():
        return ""
    what = "attention weights" if compares_weights(first, second) else "logits"
    heads = differs_HTS.flatten(1).any(dim=1).nonzero().flatten().tolist()
    queries, keys = (ids_T[indices] for indices in differs_HTS.any(0).nonzero(as_tuple=True))
    head, query, key = (int(index) for index in torch.unravel_index(apart_HTS.argmax(), apart_HTS.shape))
    return (
        f"{what} differ in {len(heads)} of {len(one)} heads ({', '.join(map(str, heads))}), from distance "
        f"{int((queries - keys).abs().min())} on; most in head {head} for the query at position "
        f"{ids_T[query]} and the key at {ids_T[key]}: "
        f"{one[head, query, key]:.6g} instead of {two[head, query, key]:.6g}"
    )


def draw_inputs(shape: ModelShape, tokens: int, span: int, seed: int) -> Inputs:
    """Random content at sorted distinct positions below ``span``."""
    positions = torch.randperm(span, generator=torch.Generator().manual_seed(seed))[:tokens].sort().values
    return draw_content(shape, positions[None], seed)


def assignments(source: PositionalEncoding, target: PositionalEncoding) -> Iterator[None]:
    """Copy the trainable parameters of ``source`` to ``target``, in another way that fits at every step.

    By name where the names agree, else in any order, as independent implementations may have it.
    """
    theirs, ours = trainable(target), trainable(source)
    orders: Iterable[tuple[Tensor, ...]] = permutations(ours.values()) if len(theirs) == len(ours) else ()
    if {name: p.shape for name, p in theirs.items()} == {name: p.shape for name, p in ours.items()}:
        orders = [tuple(ours[name] for name in theirs)]
    ways = (way for order in orders for way in product(*map(_stored, theirs.values(), order)))
    for way in islice(ways, WAYS):
        with torch.no_grad():
            for into, value in zip(theirs.values(), way, strict=True):
                into.copy_(value)
        yield


def _stored(into: Tensor, value: Tensor) -> list[Tensor]:
    """The forms in which the value fits: as it is, and as a transposed matrix; sizes of 1 aside."""
    squeezed = value.squeeze()
    forms = [squeezed, squeezed.T] if squeezed.ndim == 2 else [squeezed]
    if squeezed.ndim == 2 and into.shape == (2 * len(squeezed) - 1, squeezed.shape[1]):
        # A decoder's table of distances may have rows for later keys too, which are never read.
        forms = [torch.cat([squeezed, torch.zeros_like(squeezed[1:])])]
    return [form.reshape(into.shape) for form in forms if form.shape == into.squeeze().shape]


def share_parameters(
    source: PositionalEncoding, target: PositionalEncoding, layout: Layout | None = None
) -> float | None:
    """Give ``target`` the parameters of ``source`` in the way they differ least; None where no way fits."""
    found = []
    for _ in assignments(source, target):
        found.append(difference(target, source, layout=layout))
        if found[-1] <= SAME:
            return found[-1]
    if found:  # the best way again
        next(islice(assignments(source, target), found.index(min(found)), None))
    return min(found, default=None)


def difference(
    first: PositionalEncoding, second: PositionalEncoding, span: int = NEAR, layout: Layout | None = None
) -> float:
    """How far two schemes with shared parameters are apart below ``span``, as a share of the largest value.

    ``layout``: the order in which ``first`` has the channels of a head, and the embedding's, of ``second``.
    """
    found = []
    for seed, tokens in ((0, 24), (1, 7)):
        for one, two in _both(first, second, draw_inputs(first.shape, tokens, span, seed), layout):
            if one.shape != two.shape or not torch.equal(one.isinf(), two.isinf()):
                return torch.inf
            found.append(apart(*(values.masked_fill(values.isinf(), 0.0) for values in (one, two))))
    return max(found)


def _both(
    first: PositionalEncoding, second: PositionalEncoding, inputs: Inputs, layout: Layout | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Results of the two: embeddings [1, T, D], then `_scores` of two layers."""
    tokens = [inputs.x_BTD[..., scheme.position_width :] for scheme in (first, second)]
    one, two = first.embed(tokens[0], inputs.positions_BT), second.embed(tokens[1], inputs.positions_BT)
    if layout is not None:
        one, two = _added(one, tokens[0]), _added(two, tokens[1])
        two = two[..., layout(two.shape[-1])]
    yield one, two
    weights = compares_weights(first, second)
    moved = reordered(inputs, layout and layout(first.shape.head_dim))
    for layer in range(2):
        yield _scores(first, moved, weights, layer), _scores(second, inputs, weights, layer)


def _added(embedded_BTD: Tensor, x_BTD: Tensor) -> Tensor:
    """The part that encodes positions: the columns before or after the tokens, or the vectors added."""
    width = x_BTD.shape[-1]
    if embedded_BTD.shape[-1] == width:
        return embedded_BTD - x_BTD
    before = torch.equal(embedded_BTD[..., -width:], x_BTD)
    return embedded_BTD[..., :-width] if before else embedded_BTD[..., width:]


def compares_weights(first: PositionalEncoding, second: PositionalEncoding) -> bool:
    """Whether one of the two computes weights of its own, which then are what both are compared by."""
    return any(makes_weights(scheme.for_layer(layer)) for scheme in (first, second) for layer in range(2))


def _scores(scheme: PositionalEncoding, inputs: Inputs, weights: bool, layer: int) -> Tensor:
    """Weights [H, T, S], or logits relative to that of the query's own key; minus infinity where masked."""
    scores = attention_scores(scheme, inputs, layer, weights=weights)[0].double()
    scores = scores.masked_fill(scores.isnan() | is_masked(scores), -torch.inf)
    own = scores.diagonal(dim1=-2, dim2=-1)[..., None]
    return scores if weights else scores - own.where(own.isfinite(), 0.0)
