"""An encoding in use: what a token reads in batches, caches and packed rows is what it reads alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from pe_experiments.checking.check import Measurement
from pe_experiments.checking.contract import Subject, apart, check, within
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.models.scores import Inputs
from pe_experiments.training.preflight import watch_inputs

ROWS, TOKENS = 3, 8
LATE = 2000  # bfloat16 holds no whole numbers above 256 exactly
PADDING = -1
CAST = 0.05  # of the largest; what bfloat16 itself rounds stays below it


class Scene(NamedTuple):
    """Rows of a batch: the position id of every token, and its document (`PADDING`: none), both [B, T]."""

    positions_BT: Tensor
    documents_BT: Tensor
    decoding: bool = False  # queries come in parts, the last ones singly, against the keys of the whole row


def draw_content(shape: ModelShape, positions_BT: Tensor, seed: int = 5) -> Inputs:
    generator, (rows, tokens) = torch.Generator().manual_seed(seed), positions_BT.shape
    heads = (rows, shape.num_heads, tokens, shape.head_dim)
    q, k = (torch.randn(heads, generator=generator) for _ in range(2))
    return Inputs(q, k, torch.randn(rows, tokens, shape.d_model, generator=generator), positions_BT)


def reordered(inputs: Inputs, channels: list[int] | None) -> Inputs:
    if channels is None:
        return inputs
    return replace(inputs, q_BHTK=inputs.q_BHTK[..., channels], k_BHTK=inputs.k_BHTK[..., channels])


def _scenes() -> dict[str, Scene]:
    here, one = torch.arange(TOKENS), torch.zeros(ROWS, TOKENS, dtype=torch.long)
    # A common shift of a row is invisible to relative schemes: rows differ in their steps too.
    own = torch.tensor([[1], [2], [3]]) * here + torch.tensor([[0], [5], [17]])
    padded, second = torch.tensor([[0], [2], [5]]), torch.tensor([[5], [3], [6]])
    left = (here - padded).clamp(min=0), torch.where(here < padded, PADDING, one)
    packed = torch.where(here < second, here, here - second), (here >= second).long()
    return {
        "rows at the same offset": Scene(here + 5 + one, one),
        "rows at ids of their own": Scene(own, one),
        "decoding with cached keys": Scene(own, one, decoding=True),
        "decoding after left padding": Scene(*left, decoding=True),
        "left padding": Scene(*left),
        "packed documents": Scene(*packed),
    }


SCENES = _scenes()
OWN_IDS = SCENES["rows at ids of their own"]


def read(scheme: PositionalEncoding, scene: Scene, inputs: Inputs) -> list[Tensor]:
    """Embeddings [B, T, D] and the attention weights [B, H, T, S] of two layers; 0 for queries of padding."""
    x_BTD, ids_BT = inputs.x_BTD[..., scheme.position_width :], scene.positions_BT
    documents_BT, tokens = scene.documents_BT, ids_BT.shape[1]
    real_BT = documents_BT != PADDING
    visible_BTS = (documents_BT[:, :, None] == documents_BT[:, None]) & real_BT[:, None]
    if scheme.shape.causal:
        visible_BTS = visible_BTS.tril()
    parts = list(pairwise([0, *range(tokens - 3, tokens), tokens] if scene.decoding else [0, tokens]))
    embedded = [scheme.embed_sequence(x_BTD[:, :stop], ids_BT, None)[:, start:] for start, stop in parts]
    results = [torch.cat(embedded, dim=1).masked_fill(~real_BT[..., None], 0.0)]
    for layer in range(2):
        at = AttentionContext(
            ids_BT, ids_BT, visible_BTS, None, inputs.x_BTD, layer, declared_B=torch.tensor([3 * TOKENS])
        )
        part = scheme.for_layer(layer)
        rows = [
            part.weights(inputs.q_BHTK[:, :, start:stop], inputs.k_BHTK, at.query_rows(start, stop))
            for start, stop in parts
        ]
        results.append(torch.cat(rows, dim=2).masked_fill(~real_BT[:, None, :, None], 0.0))
    return results


def company_apart(scheme: PositionalEncoding, scene: Scene) -> float:
    """How far what is read in a scene is from what every document reads by itself, at once."""
    inputs = draw_content(scheme.shape, scene.positions_BT)
    together = read(scheme, scene, inputs)
    alone = [torch.zeros_like(part) for part in together]
    for row, documents in enumerate(scene.documents_BT):
        for document in documents[documents != PADDING].unique():
            (index,) = (documents == document).nonzero(as_tuple=True)
            ids, one = scene.positions_BT[row, index][None], slice(row, row + 1)
            q, k, x = inputs.q_BHTK[one, :, index], inputs.k_BHTK[one, :, index], inputs.x_BTD[one, index]
            embedded, *weights = read(scheme, Scene(ids, torch.zeros_like(ids)), Inputs(q, k, x, ids))
            alone[0][row, index] = embedded[0].to(alone[0].dtype)
            for whole, part in zip(alone[1:], weights, strict=True):
                whole[row, :, index[:, None], index] = part[0].to(whole.dtype)
    return worst_apart(together, alone)


def worst_apart(got: list[Tensor], expected: list[Tensor]) -> float:
    """The largest `apart` of pairs of tensors; what neither of the two defines counts as equal."""
    pairs = [(one, two, one.isnan() & two.isnan()) for one, two in zip(got, expected, strict=True)]
    return max(apart(one.masked_fill(none, 0.0), two.masked_fill(none, 0.0)) for one, two, none in pairs)


def life_apart(
    first: PositionalEncoding, second: PositionalEncoding, channels: list[int] | None = None
) -> Iterator[tuple[str, float]]:
    """How far two schemes with shared parameters are apart in each scene, as a share of the largest value."""
    # ``channels``: of a head in ``first``, as numbers of those in ``second``; embeddings are left out then.
    skipped = int(channels is not None)
    for name, scene in SCENES.items():
        if not scene.decoding or second.shape.causal:
            inputs = draw_content(second.shape, scene.positions_BT)
            got, expected = read(first, scene, reordered(inputs, channels)), read(second, scene, inputs)
            yield name, worst_apart(got[skipped:], expected[skipped:])


def _in_use(subject: Subject) -> PositionalEncoding:
    """The scheme of a model's first layer, or of all, with noise on what training changes."""
    return subject.model(train_positions=64).encodings[0]  # type: ignore[return-value]


@torch.no_grad()
def _alike(subject: Subject, *names: str) -> Measurement:
    scheme = _in_use(subject)
    return within(max(company_apart(scheme, SCENES[name]) for name in names))


@check("rows of a batch keep their own positions", "the ids or the offset of one row serve all rows")
def _(subject: Subject) -> Measurement:
    return _alike(subject, "rows at the same offset", "rows at ids of their own")


@check("decoding with cached keys agrees with the whole row", "a query's index in the call is its position")
def _(subject: Subject) -> Measurement:
    if not subject.causal:
        return None, "an encoder does not decode"
    return _alike(subject, "decoding with cached keys", "decoding after left padding")


@check("left padding changes nothing", "indices are read instead of ids, or padding stays uninitialised")
def _(subject: Subject) -> Measurement:
    return _alike(subject, "left padding")


@check("packed documents change nothing", "positions or neighbours are counted across documents")
def _(subject: Subject) -> Measurement:
    return _alike(subject, "packed documents")


def _late() -> Scene:
    ids = torch.arange(LATE, LATE + TOKENS).repeat(ROWS, 1)
    return Scene(ids, torch.zeros_like(ids))


@check(
    "phases survive a cast to bfloat16",
    "frequencies or tables in a buffer, which model.bfloat16() rounds; compute them in the call",
)
@torch.no_grad()
def _(subject: Subject) -> Measurement:
    scheme, scene = _in_use(subject), _late()
    inputs, cast = draw_content(scheme.shape, scene.positions_BT), copy.deepcopy(scheme)
    for constant in (*cast.buffers(), *(p for p in cast.parameters() if not p.requires_grad)):
        if constant.is_floating_point():
            constant.data = constant.data.bfloat16()
    exact = read(scheme, scene, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return within(worst_apart(read(cast, scene, inputs), exact), CAST)


@check(
    "inputs keep their values and their gradient",
    "queries, keys or embeddings are changed in place (+=, copy_), detached, or used under no_grad",
)
def _(subject: Subject) -> Measurement:
    scheme = _in_use(subject)
    watch_inputs(scheme)  # raises where q, k or positions change
    inputs, again = (draw_content(scheme.shape, OWN_IDS.positions_BT) for _ in range(2))
    with torch.no_grad():
        read(scheme, OWN_IDS, inputs)
    if not torch.equal(inputs.x_BTD, again.x_BTD):
        return False, "changed: x"
    given = {"q": inputs.q_BHTK, "k": inputs.k_BHTK, "x": inputs.x_BTD}
    for tensor in given.values():
        tensor.requires_grad_()
    sum(part.square().sum() for part in read(scheme, OWN_IDS, inputs)).backward()  # type: ignore[union-attr]
    cut = [name for name, tensor in given.items() if tensor.grad is None or not tensor.grad.any()]
    return not cut, f"no gradient reaches {', '.join(cut)}" if cut else "they do"


@check("earlier calls change nothing", "a cache keeps the dtype, length or offset of an earlier call")
@torch.no_grad()
def _(subject: Subject) -> Measurement:
    scheme = _in_use(subject)
    used, late = copy.deepcopy(scheme), _late()
    one = Scene(late.positions_BT[:1, :1], late.documents_BT[:1, :1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for scene in (one, late, OWN_IDS):
            q, k, x, ids = vars(draw_content(scheme.shape, scene.positions_BT)).values()
            read(used, scene, Inputs(q.bfloat16(), k.bfloat16(), x.bfloat16(), ids))
    inputs = draw_content(scheme.shape, OWN_IDS.positions_BT)
    return within(worst_apart(read(used, OWN_IDS, inputs), read(scheme, OWN_IDS, inputs)))
