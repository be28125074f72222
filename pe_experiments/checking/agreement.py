"""How far two implementations are apart, and where: the same parameters, inputs and positions in both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, permutations, product

import torch
from torch import Tensor

from pe_experiments.checking.contract import apart, trainable
from pe_experiments.checking.lifecycle import draw_content, reordered
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import is_masked
from pe_experiments.models.attention import makes_weights
from pe_experiments.models.scores import Inputs, attention_scores

SAME = 1e-4  # of the largest value; another order of float32 operations stays below it, mistakes do not
DENSE, NEAR, FAR = 24, 64, 4096  # positions; angles taken in float32 are right near, and off by some 1e-5 far
WAYS = 24  # ways of pairing parameters that are tried

Layout = Callable[[int], list[int]]  # for each of so many channels, the number of ours


def draw_inputs(shape: ModelShape, tokens: int, span: int, seed: int) -> Inputs:
    """Random content at sorted distinct positions below ``span``."""
    positions = torch.randperm(span, generator=torch.Generator().manual_seed(seed))[:tokens].sort().values
    return draw_content(shape, positions[None], seed)


def assignments(source: PositionalEncoding, target: PositionalEncoding) -> Iterator[None]:
    """Copy the trainable parameters of ``source`` to ``target``, in every way the shapes allow, one per step.

    By name where the names agree. Otherwise in any order: an independent implementation may name and order
    its parameters differently. Matrices also transposed, where that fits. Yields nothing where no way fits.
    """
    theirs, ours = trainable(target), trainable(source)
    if {name: p.shape for name, p in theirs.items()} == {name: p.shape for name, p in ours.items()}:
        orders: Iterable[tuple[Tensor, ...]] = [tuple(ours[name] for name in theirs)]
    elif len(theirs) != len(ours):
        return
    else:
        orders = permutations(ours.values())
    ways = (way for order in orders for way in product(*map(_stored, theirs.values(), order)))
    for way in islice(ways, WAYS):
        with torch.no_grad():
            for into, value in zip(theirs.values(), way, strict=True):
                into.copy_(value)
        yield


def _stored(into: Tensor, value: Tensor) -> list[Tensor]:
    """The forms in which the value fits: as it is, and as a transposed matrix; sizes of 1 aside.

    A table of distances in a decoder may have rows for later keys too, which are never read.
    """
    squeezed = value.squeeze()
    forms = [squeezed, squeezed.T] if squeezed.ndim == 2 else [squeezed]
    if squeezed.ndim == 2 and into.shape == (2 * len(squeezed) - 1, squeezed.shape[1]):
        forms = [torch.cat([squeezed, torch.zeros_like(squeezed[1:])])]
    return [form.reshape(into.shape) for form in forms if form.shape == into.squeeze().shape]


def share_parameters(
    source: PositionalEncoding, target: PositionalEncoding, layout: Layout | None = None
) -> float | None:
    """Give ``target`` the parameters of ``source`` in the way in which they differ least.

    Returns:
        Their `difference` then; None where no way fits.
    """
    found = []
    for _ in assignments(source, target):
        found.append(difference(target, source, layout=layout))
        if found[-1] <= SAME:
            return found[-1]
    for _ in islice(assignments(source, target), found.index(min(found)) + 1 if found else 0):
        pass  # up to the best way
    return min(found, default=None)


def difference(
    first: PositionalEncoding, second: PositionalEncoding, span: int = NEAR, layout: Layout | None = None
) -> float:
    """How far two schemes are apart at positions below ``span``, as a share of the largest value.

    Logits are compared up to a constant per query, which a softmax ignores.

    Args:
        first, second: of one shape, with shared parameters.
        span: positions are drawn below it.
        layout: the order in which ``first`` has the channels of a head, and the columns of the embedding, of
            ``second``, by their number.
    """
    found, weights = [], compares_weights(first, second)
    for seed, tokens in ((0, 24), (1, 7)):
        inputs = draw_inputs(first.shape, tokens, span, seed)
        found.append(_embeddings_apart(first, second, inputs, layout))
        moved = reordered(inputs, layout and layout(first.shape.head_dim))
        for layer in range(2):
            one, two = _scores(first, moved, weights, layer), _scores(second, inputs, weights, layer)
            if one.shape != two.shape or not torch.equal(one.isinf(), two.isinf()):
                return torch.inf
            found.append(apart(*(scores.masked_fill(scores.isinf(), 0.0) for scores in (one, two))))
    return max(found)


def compares_weights(first: PositionalEncoding, second: PositionalEncoding) -> bool:
    """Whether one of the two computes weights of its own, which then are what both are compared by."""
    return any(makes_weights(scheme.for_layer(layer)) for scheme in (first, second) for layer in range(2))


def _scores(scheme: PositionalEncoding, inputs: Inputs, weights: bool, layer: int = 0) -> Tensor:
    """Weights [H, T, S], or logits relative to that of the query's own key; minus infinity where masked."""
    scores = attention_scores(scheme, inputs, layer, weights=weights)[0].double()
    scores = scores.masked_fill(scores.isnan() | is_masked(scores), -torch.inf)
    own = scores.diagonal(dim1=-2, dim2=-1)[..., None]
    return scores if weights else scores - own.where(own.isfinite(), 0.0)


def _embeddings(scheme: PositionalEncoding, inputs: Inputs) -> Tensor:
    return scheme.embed(inputs.x_BTD[..., scheme.position_width :], inputs.positions_BT)


def _embeddings_apart(
    first: PositionalEncoding, second: PositionalEncoding, inputs: Inputs, layout: Layout | None = None
) -> float:
    one, two = _embeddings(first, inputs), _embeddings(second, inputs)
    if first.position_width != second.position_width or one.shape != two.shape:
        return torch.inf
    if layout is not None:
        x_BTD = inputs.x_BTD[..., first.position_width :]
        one, two = _added(one, x_BTD), _added(two, x_BTD)
        two = two[..., layout(two.shape[-1])]
    return apart(one, two)


def _added(embedded_BTD: Tensor, x_BTD: Tensor) -> Tensor:
    """What encodes positions: the columns beside the tokens, before or after them, or what was added."""
    width = x_BTD.shape[-1]
    if embedded_BTD.shape[-1] == width:
        return embedded_BTD - x_BTD
    before = torch.equal(embedded_BTD[..., -width:], x_BTD)
    return embedded_BTD[..., :-width] if before else embedded_BTD[..., width:]


def where_apart(first: PositionalEncoding, second: PositionalEncoding, span: int = DENSE) -> str:
    """Where two schemes with shared parameters differ, in words; empty where they do not.

    In their embeddings, or else in their logits. Positions lie below ``span``, without gaps if it is `DENSE`.
    """
    inputs, weights = draw_inputs(first.shape, DENSE, span, 0), compares_weights(first, second)
    ids_T = inputs.positions_BT[0]
    if _embeddings_apart(first, second, inputs) > SAME:
        one, two = _embeddings(first, inputs), _embeddings(second, inputs)
        if one.shape != two.shape:
            return f"embeddings have the shape {list(one.shape)} instead of {list(two.shape)}"
        apart_TD = (one - two).abs().amax(dim=0)
        position = int(ids_T[(apart_TD > SAME * two.abs().max()).any(dim=-1)][0])
        return (
            f"embeddings differ from position {position} on, most in column {int(apart_TD.amax(0).argmax())}"
        )
    one, two = (_scores(scheme, inputs, weights) for scheme in (first, second))
    if one.shape != two.shape:
        return ""
    apart_HTS = (one - two).abs().nan_to_num(0.0, torch.inf)  # nan: masked in both
    differs_HTS = apart_HTS > SAME * two[two.isfinite()].abs().max()
    if not differs_HTS.any():
        return ""
    heads = differs_HTS.flatten(1).any(dim=1).nonzero().flatten().tolist()
    queries, keys = (ids_T[indices] for indices in differs_HTS.any(0).nonzero(as_tuple=True))
    head, query, key = (int(index) for index in torch.unravel_index(apart_HTS.argmax(), apart_HTS.shape))
    return (
        f"{'attention weights' if weights else 'logits'} differ in {len(heads)} of {len(one)} heads "
        f"({', '.join(map(str, heads))}), from distance {int((queries - keys).abs().min())} on; most in head "
        f"{head} for the query at position {ids_T[query]} and the key at {ids_T[key]}: "
        f"{one[head, query, key]:.6g} instead of {two[head, query, key]:.6g}"
    )
