"""Whether two implementations are the same scheme: the same parameters, inputs and positions in both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice, permutations, product

import torch
from torch import Tensor

from pe_experiments.checking.contract import apart, trainable
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import is_masked
from pe_experiments.models.attention import makes_weights
from pe_experiments.models.backbone import MakeEncoding
from pe_experiments.models.scores import Inputs, attention_scores

SAME = 1e-4  # of the largest value; another order of float32 operations stays below it, mistakes do not
DENSE, NEAR, FAR = 24, 64, 4096  # positions; angles taken in float32 are right near, and off by some 1e-5 far
WAYS = 24  # ways of pairing parameters that are tried
# Width, heads (a power of two and not) and training length. The second head is 24 wide, so that no constant
# of the first fits it; long training makes T5's buckets wide and YaRN's ramp gradual.
SHAPES = ((64, 4, 12), (144, 6, 1024))

Layout = Callable[[int], list[int]]


def draw_inputs(shape: ModelShape, tokens: int, span: int, seed: int) -> Inputs:
    """Random content at sorted distinct positions below ``span``."""
    generator = torch.Generator().manual_seed(seed)
    heads = (1, shape.num_heads, tokens, shape.head_dim)
    q, k = (torch.randn(heads, generator=generator) for _ in range(2))
    x = torch.randn(1, tokens, shape.d_model, generator=generator)
    positions = torch.randperm(span, generator=generator)[:tokens].sort().values
    return Inputs(q, k, x, positions[None])


def build(make: MakeEncoding, shape: ModelShape) -> PositionalEncoding:
    """An instance, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(shape)


def stirred(scheme: PositionalEncoding, by: float = 0.3) -> PositionalEncoding:
    """The scheme with normal noise of that standard deviation added to every trainable parameter."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trainable(scheme).values():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return scheme


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
        moved = inputs
        if layout is not None:
            channels = layout(first.shape.head_dim)
            moved = replace(inputs, q_BHTK=inputs.q_BHTK[..., channels], k_BHTK=inputs.k_BHTK[..., channels])
        for layer in range(2):
            one = attention_scores(first, moved, layer, weights=weights)
            found.append(_scores_apart(one, attention_scores(second, inputs, layer, weights=weights)))
    return max(found)


def compares_weights(first: PositionalEncoding, second: PositionalEncoding) -> bool:
    """Whether one of the two computes weights of its own, which then are what both are compared by."""
    return any(makes_weights(scheme.for_layer(layer)) for scheme in (first, second) for layer in range(2))


def where_apart(first: PositionalEncoding, second: PositionalEncoding, span: int = DENSE) -> str:
    """Where the logits of two schemes with shared parameters differ, in words; empty where they do not.

    Logits are taken relative to that of the query's own key, which a softmax allows; of schemes with weights
    of their own, the weights. Positions lie below ``span``, without gaps if it is `DENSE`.
    """
    inputs = draw_inputs(first.shape, DENSE, span, 0)
    weights = compares_weights(first, second)
    one, two = (attention_scores(scheme, inputs, weights=weights) for scheme in (first, second))
    if not weights:
        one, two = _from_own_key(one), _from_own_key(two)
    seen = ~(one.isnan() & two.isnan()) if one.shape == two.shape else torch.zeros(0, dtype=torch.bool)
    if not seen.any():
        return ""
    gaps_HTS = (one - two).abs().nan_to_num(torch.inf, torch.inf).masked_fill(~seen, 0.0)[0]
    differs = gaps_HTS > SAME * two[seen & two.isfinite()].abs().max()
    if not differs.any():
        return ""
    heads = differs.any(-1).any(-1).nonzero().flatten().tolist()
    ids = inputs.positions_BT[0]
    queries, keys = (ids[indices] for indices in differs.any(0).nonzero(as_tuple=True))
    nearest = int((queries - keys).abs().min())
    head, *pair = (int(index) for index in torch.unravel_index(gaps_HTS.argmax(), gaps_HTS.shape))
    got, right = (float(scores[0, head, *pair]) for scores in (one, two))
    query, key = ids[pair].tolist()
    what = "attention weights" if weights else "logits"
    several = f"head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))} of {len(gaps_HTS)}"
    which = "all heads" if len(heads) == len(gaps_HTS) else several
    digits = 3 if f"{got:.3g}" != f"{right:.3g}" else 6
    return (
        f"{what} differ in {which} (from 0), from distance {nearest} on; most in head {head} for the query "
        f"at position {query} and the key at {key} (distance {query - key}): {got:.{digits}g} instead of "
        f"{right:.{digits}g}"
    )


def _from_own_key(scores: Tensor) -> Tensor:
    own = scores.diagonal(dim1=-2, dim2=-1)[..., None]
    shifted = scores.masked_fill(is_masked(scores), -torch.inf) - own.where(
        own.isfinite() & ~is_masked(own), 0.0
    )
    return shifted.double()


def where_embeddings_apart(first: PositionalEncoding, second: PositionalEncoding, span: int = DENSE) -> str:
    """How the embeddings of two schemes with shared parameters differ, in words; empty where they do not."""
    inputs = draw_inputs(first.shape, DENSE, span, 0)
    if _embeddings_apart(first, second, inputs, None) <= SAME:
        return ""
    x_BTD = inputs.x_BTD[..., first.position_width :]
    one, two = (scheme.embed(x_BTD, inputs.positions_BT) for scheme in (first, second))
    if one.shape != two.shape:
        return f"embeddings have the shape {list(one.shape)} instead of {list(two.shape)}"
    alone = [scheme.embed(0 * x_BTD, inputs.positions_BT) for scheme in (first, second)]
    for what, (got, right) in {
        "what is added to the tokens is": alone,
        "the tokens are": (one - alone[0], two - alone[1]),
    }.items():
        times = float((got * right).sum() / right.square().sum())
        if apart(got, times * right) <= SAME < abs(times - 1):
            return f"{what} {times:.3g} times ours"
    apart_TD = (one - two).abs().amax(dim=0)
    differs_T = (apart_TD > SAME * two.abs().max()).any(dim=-1)
    position, column = int(inputs.positions_BT[0, differs_T][0]), int(apart_TD.amax(dim=0).argmax())
    return f"embeddings differ from position {position} on, most in column {column}"


def _embeddings_apart(
    first: PositionalEncoding, second: PositionalEncoding, inputs: Inputs, layout: Layout | None
) -> float:
    if first.position_width != second.position_width:
        return torch.inf
    x_BTD = inputs.x_BTD[..., first.position_width :]
    one, two = (scheme.embed(x_BTD, inputs.positions_BT) for scheme in (first, second))
    if layout is not None and one.shape == two.shape:
        one, two = _added(one, x_BTD), _added(two, x_BTD)
        two = two[..., layout(two.shape[-1])]
    return apart(one, two) if one.shape == two.shape else torch.inf


def _added(embedded_BTD: Tensor, x_BTD: Tensor) -> Tensor:
    """What encodes positions: the columns beside the tokens, before or after them, or what was added."""
    width = x_BTD.shape[-1]
    if embedded_BTD.shape[-1] == width:
        return embedded_BTD - x_BTD
    before = torch.equal(embedded_BTD[..., -width:], x_BTD)
    return embedded_BTD[..., :-width] if before else embedded_BTD[..., width:]


def _scores_apart(one: Tensor, two: Tensor) -> float:
    masked_one, masked_two = (scores.isnan() | is_masked(scores) for scores in (one, two))
    if one.shape != two.shape or not torch.equal(masked_one, masked_two):
        return torch.inf
    return apart(_centred(one, masked_one), _centred(two, masked_two))


def _centred(scores: Tensor, masked: Tensor) -> Tensor:
    kept = scores.double().masked_fill(masked, 0.0)
    mean = kept.sum(-1, keepdim=True) / (~masked).sum(-1, keepdim=True).clamp(min=1)
    return (kept - mean).masked_fill(masked, 0.0)
