"""Two encodings side by side: the same parameters, the same inputs, and what they make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, islice, permutations, product
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pe_experiments.checking.contract import build, relative_difference, stirred, trainable
from pe_experiments.checking.lifecycle import draw_content, reordered
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import is_masked
from pe_experiments.models.attention import makes_weights
from pe_experiments.models.attention_scores import Inputs, attention_scores
from pe_experiments.models.backbone import MakeEncoding

SAME = 1e-4  # of the largest value; another order of float32 operations stays below it, mistakes do not
DENSE, NEAR, FAR = 24, 64, 4096  # positions; angles taken in float32 are right near, and off by some 1e-5 far
WAYS = 24  # ways of pairing parameters that are tried
MORE_ROWS = 8  # rows before the first position of a longer table (fairseq and RoBERTa have 2)

Layout = Callable[[int], list[int]]  # for each of so many channels, the number of ours
Sizes = tuple[int, int, int]  # width, heads, training length

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


def shape_of(sizes: Sizes, causal: bool, layers: int = 2) -> ModelShape:
    width, heads, train_length = sizes
    return ModelShape(width, heads, layers, causal, train_length, NEAR)


def build_both(
    reference: MakeEncoding, theirs: MakeEncoding, shape: ModelShape, noise: float = 0.3
) -> tuple[PositionalEncoding, PositionalEncoding]:
    """Ours, with noise on its parameters, and theirs, as they start."""
    return stirred(build(reference, shape), noise), build(theirs, shape)


def draw_inputs(shape: ModelShape, tokens: int, span: int, seed: int, key_heads: int | None = None) -> Inputs:
    """Random content at sorted distinct positions below ``span``, 0 among them."""
    positions = torch.randperm(span, generator=torch.Generator().manual_seed(seed))[:tokens].sort().values
    positions[0] = 0
    return draw_content(shape, positions[None], seed, key_heads)


def layout_of(steps: Sequence[str], ours: PositionalEncoding) -> Layout | None:
    """The order of channels after some of `STEPS`; None where there are none."""
    return partial(_order, steps, getattr(ours, "pairs", None)) if steps else None


def _order(steps: Sequence[str], pairs: int | None, channels: int) -> list[int]:
    """For each channel of another layout, the number of ours; ``pairs`` of them rotate, None: all."""
    rotating = 2 * (channels // 2 if pairs is None else pairs)
    order, rest = list(range(rotating)), list(range(rotating, channels))
    for step in steps:
        order = STEPS[step](order) if step in STEPS else order
    return rest + order if LAST in steps else order + rest


# Parameters.


@dataclass(frozen=True)
class Pairing:
    """A parameter of theirs, the one of ours whose values it takes, and the form in which it takes them."""

    theirs: nn.Parameter
    ours: nn.Parameter
    form: Callable[[Tensor], Tensor]
    table: str = ""  # how a longer table is read, in words


class Shared(NamedTuple):
    """Parameters shared in the way in which two encodings differ least."""

    difference: float
    pairings: list[Pairing]

    @property
    def table(self) -> str:
        return next((pairing.table for pairing in self.pairings if pairing.table), "")


def assignments(source: PositionalEncoding, target: PositionalEncoding) -> Iterator[list[Pairing]]:
    """Copy the trainable parameters of ``source`` to ``target``, in another way that fits at every step.

    By name where the names agree, else in any order, as independent implementations may have it.
    """
    theirs, ours = trainable(target), trainable(source)
    orders: Iterable[tuple[nn.Parameter, ...]] = ()
    if {name: p.shape for name, p in theirs.items()} == {name: p.shape for name, p in ours.items()}:
        orders = [tuple(ours[name] for name in theirs)]
    elif len(theirs) == len(ours):
        orders = permutations(ours.values())
    ways = (way for order in orders for way in product(*map(_pairings, theirs.values(), order)))
    for way in islice(ways, WAYS):
        with torch.no_grad():
            for pairing in way:
                pairing.theirs.copy_(pairing.form(pairing.ours))
        yield list(way)


def _pairings(theirs: nn.Parameter, ours: nn.Parameter) -> list[Pairing]:
    """The forms in which values fit: as they are, as a transposed matrix, or as rows of a longer table."""
    target, source = theirs.squeeze().shape, ours.squeeze().shape
    pairings = []
    if target == source:
        pairings.append(Pairing(theirs, ours, lambda value: value.squeeze().reshape(theirs.shape)))
    if len(source) == 2 and target == source[::-1]:
        pairings.append(Pairing(theirs, ours, lambda value: value.squeeze().T.reshape(theirs.shape)))
    if len(source) == len(target) == 2 and target[1] == source[1] and target[0] > source[0]:
        more = target[0] - source[0]
        rows = f"its table has {target[0]} rows instead of {source[0]}"
        for first in range(min(more, MORE_ROWS) + 1):
            padded = partial(_rows_from, theirs.detach().clone(), first)
            shifted = f"{rows}, equal with ids shifted by {first}" if first else rows
            # A decoder's table of distances may have rows for later keys too, which are never read.
            both_sides = first == 0 and target[0] == 2 * source[0] - 1
            pairings.append(Pairing(theirs, ours, padded, "" if both_sides else shifted))
    return pairings


def _rows_from(table: Tensor, first: int, value: Tensor) -> Tensor:
    """The table with the values in its rows from ``first`` on."""
    longer = table.squeeze().clone()
    longer[first : first + len(value.squeeze())] = value.squeeze()
    return longer.reshape(table.shape)


def share_parameters(
    source: PositionalEncoding, target: PositionalEncoding, layout: Layout | None = None
) -> Shared | None:
    """Give ``target`` the parameters of ``source`` in the way they differ least; None where no way fits."""
    best: Shared | None = None
    for pairings in assignments(source, target):
        difference = difference_of(target, source, layout=layout)
        if best is None or difference < best.difference:
            best = Shared(difference, pairings)
        if difference <= SAME:
            return best
    if best is not None:  # the best way again
        for pairing in best.pairings:
            with torch.no_grad():
                pairing.theirs.copy_(pairing.form(pairing.ours))
    return best


# Results.


def difference_of(
    theirs: PositionalEncoding, ours: PositionalEncoding, span: int = NEAR, layout: Layout | None = None
) -> float:
    """How far two encodings with shared parameters differ below ``span``, as a share of the largest value.

    ``layout``: the order in which ``theirs`` has the channels of a head, and the embedding's, of ``ours``.
    """
    worst = 0.0
    # Far from each other one draw is enough: a module may compute all pairs up to the last position.
    draws, layers = (((0, 24), (1, 7)), range(2)) if span < FAR else (((0, 24),), range(1))
    for seed, tokens in draws:
        inputs = draw_inputs(ours.shape, tokens, span, seed, getattr(theirs, "key_heads", None))
        for result, expected in results_of(theirs, ours, inputs, layers, layout):
            if result.shape != expected.shape or not torch.equal(result.isinf(), expected.isinf()):
                return torch.inf
            result, expected = (values.masked_fill(values.isinf(), 0.0) for values in (result, expected))
            worst = max(worst, relative_difference(result, expected))
    return worst


def defined_far(make: MakeEncoding, ours: PositionalEncoding) -> bool:
    """Whether the encoding says what untrained positions are: with equal parameters, no seed may matter."""
    if ours.invariant_to in ("shift", "ids") or not trainable(ours):
        return True
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        twin = make(ours.shape)
    share_parameters(ours, twin)
    return difference_of(twin, ours, span=FAR) <= SAME


def results_of(
    theirs: PositionalEncoding,
    ours: PositionalEncoding,
    inputs: Inputs,
    layers: Iterable[int],
    layout: Layout | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Results of the two: embeddings [1, T, D], then `scores_of` of some layers [H, T, S]."""
    yield embeddings_of(theirs, ours, inputs, layout)
    weights = compares_weights(theirs, ours)
    moved = reordered(inputs, layout and layout(ours.shape.head_dim))
    for layer in layers:
        yield scores_of(theirs, moved, weights, layer), scores_of(ours, inputs, weights, layer)


def embeddings_of(
    theirs: PositionalEncoding, ours: PositionalEncoding, inputs: Inputs, layout: Layout | None = None
) -> tuple[Tensor, Tensor]:
    """Embeddings [1, T, D] of the two; of another layout, only what encodes positions."""
    tokens = [inputs.x_BTD[..., encoding.position_width :] for encoding in (theirs, ours)]
    result = theirs.embed_sequence(tokens[0], inputs.positions_BT, None)
    expected = ours.embed_sequence(tokens[1], inputs.positions_BT, None)
    if layout is None:
        return result, expected
    result, expected = _added(result, tokens[0]), _added(expected, tokens[1])
    return result, expected[..., layout(expected.shape[-1])]


def _added(embedded_BTD: Tensor, x_BTD: Tensor) -> Tensor:
    """The part that encodes positions: the columns before or after the tokens, or the vectors added."""
    width = x_BTD.shape[-1]
    if embedded_BTD.shape[-1] == width:
        return embedded_BTD - x_BTD
    before = torch.equal(embedded_BTD[..., -width:], x_BTD)
    return embedded_BTD[..., :-width] if before else embedded_BTD[..., width:]


class Effect(NamedTuple):
    """What an encoding changes."""

    embeddings: bool
    logits: int  # 0: none, 1: by what follows from positions alone, 2: by what depends on the content

    def within(self, other: Effect) -> bool:
        """Whether the other changes all that this one does."""
        return self.embeddings <= other.embeddings and self.logits <= other.logits


@torch.no_grad()
def effect_of(make: MakeEncoding, causal: bool) -> Effect:
    """The effect of an encoding whose parameters are not at their start, where they may be 0."""
    encoding = stirred(build(make, shape_of((64, 4, 12), causal)))
    if encoding.position_width:
        return Effect(True, 2)
    changes, embeddings = [], False
    for seed in (0, 1):
        positions_BT = torch.arange(12)[None]
        inputs = draw_content(encoding.shape, positions_BT, seed)
        embedded = encoding.embed_sequence(inputs.x_BTD, positions_BT, None)
        embeddings |= not torch.equal(embedded, inputs.x_BTD)
        if makes_weights(encoding.for_layer(0)) or makes_weights(encoding.for_layer(1)):
            return Effect(embeddings, 2)
        plain = scores_of(PositionalEncoding(encoding.shape), inputs, False, 0)
        both = torch.stack([scores_of(encoding, inputs, False, layer) for layer in (0, 1)])
        changes.append((both - plain).nan_to_num(0.0, neginf=-100.0))
    if not any(change.abs().max() > SAME for change in changes):
        return Effect(embeddings, 0)
    return Effect(embeddings, 1 if torch.allclose(changes[0], changes[1], atol=1e-3) else 2)


def compares_weights(theirs: PositionalEncoding, ours: PositionalEncoding) -> bool:
    """Whether one of the two computes weights of its own, which then are what both are compared by."""
    return any(makes_weights(part.for_layer(layer)) for part in (theirs, ours) for layer in range(2))


def scores_of(encoding: PositionalEncoding, inputs: Inputs, weights: bool, layer: int) -> Tensor:
    """Weights [H, T, S], or logits relative to that of the query's own key; minus infinity where masked."""
    scores = attention_scores(encoding, inputs, layer, weights=weights)[0].double()
    scores = scores.masked_fill(scores.isnan() | is_masked(scores), -torch.inf)
    own = scores.diagonal(dim1=-2, dim2=-1)[..., None]
    return scores if weights else scores - own.where(own.isfinite(), 0.0)
