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
from pe_experiments.checking.contract import Subject, check, relative_difference, within
from pe_experiments.checking.side_effects import refuse_changed_inputs
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import acts_at_embedding
from pe_experiments.models.attention_scores import Inputs

ROWS, TOKENS = 3, 8
LATE = 2000  # bfloat16 holds no whole numbers above 256 exactly
PADDING = -1
CAST = 0.05  # of the largest; what bfloat16 itself rounds stays below it


class Scene(NamedTuple):
    """Rows of a batch: the position id of every token, and its document (`PADDING`: none), both [B, T]."""

    positions_BT: Tensor
    documents_BT: Tensor
    decoding: bool = False  # queries come in parts, the last ones singly, against the keys of the whole row


def draw_content(
    shape: ModelShape, positions_BT: Tensor, seed: int = 5, key_heads: int | None = None
) -> Inputs:
    """Random queries, keys and hidden states; with ``key_heads`` each key serves a group of heads."""
    generator = torch.Generator().manual_seed(seed)
    rows, tokens = positions_BT.shape
    heads = (rows, shape.num_heads, tokens, shape.head_dim)
    q, k = (torch.randn(heads, generator=generator) for _ in range(2))
    if key_heads and shape.num_heads % key_heads == 0:
        group = shape.num_heads // key_heads
        k = k[:, ::group].repeat_interleave(group, dim=1)
    return Inputs(q, k, torch.randn(rows, tokens, shape.d_model, generator=generator), positions_BT)


def reordered(inputs: Inputs, channels: list[int] | None) -> Inputs:
    if channels is None:
        return inputs
    return replace(inputs, q_BHTK=inputs.q_BHTK[..., channels], k_BHTK=inputs.k_BHTK[..., channels])


def _scenes() -> dict[str, Scene]:
    here, same = torch.arange(TOKENS), torch.zeros(ROWS, TOKENS, dtype=torch.long)
    # A common shift of a row is invisible to relative encodings: rows differ in their steps too.
    own = torch.tensor([[3], [2], [1]]) * here + torch.tensor([[0], [5], [17]])
    padded, second = torch.tensor([[0], [2], [5]]), torch.tensor([[5], [3], [6]])
    left = (here - padded).clamp(min=0), torch.where(here < padded, PADDING, same)
    packed = torch.where(here < second, here, here - second), (here >= second).long()
    return {
        "rows at the same offset": Scene(here + 5 + same, same),
        "rows at ids of their own": Scene(own, same),
        "decoding with cached keys": Scene(own, same, decoding=True),
        "decoding after left padding": Scene(*left, decoding=True),
        "left padding": Scene(*left),
        "packed documents": Scene(*packed),
    }


SCENES = _scenes()
OWN_IDS = SCENES["rows at ids of their own"]


def read(encoding: PositionalEncoding, scene: Scene, inputs: Inputs) -> list[Tensor]:
    """Embeddings [B, T, D] and the attention weights [B, H, T, S] of two layers; 0 for queries of padding."""
    x_BTD, ids_BT = inputs.x_BTD[..., encoding.position_width :], scene.positions_BT
    documents_BT, tokens = scene.documents_BT, ids_BT.shape[1]
    real_BT = documents_BT != PADDING
    visible_BTS = (documents_BT[:, :, None] == documents_BT[:, None]) & real_BT[:, None]
    if encoding.shape.causal:
        visible_BTS = visible_BTS.tril()
    parts = list(pairwise([0, *range(tokens - 3, tokens), tokens] if scene.decoding else [0, tokens]))
    embedded = [encoding.embed_sequence(x_BTD[:, :stop], ids_BT, None)[:, start:] for start, stop in parts]
    results = [torch.cat(embedded, dim=1).masked_fill(~real_BT[..., None], 0.0)]
    for layer in range(2):
        at = AttentionContext(
            ids_BT, ids_BT, visible_BTS, None, inputs.x_BTD, layer, declared_B=torch.tensor([3 * TOKENS])
        )
        part = encoding.for_layer(layer)
        rows = [
            part.weights(inputs.q_BHTK[:, :, start:stop], inputs.k_BHTK, at.query_rows(start, stop))
            for start, stop in parts
        ]
        results.append(torch.cat(rows, dim=2).masked_fill(~real_BT[:, None, :, None], 0.0))
    return results


def difference_alone(encoding: PositionalEncoding, scene: Scene) -> float:
    """How far what is read in a scene is from what every document reads by itself, at once."""
    inputs = draw_content(encoding.shape, scene.positions_BT)
    together = read(encoding, scene, inputs)
    alone = [torch.zeros_like(part) for part in together]
    for row, documents in enumerate(scene.documents_BT):
        for document in documents[documents != PADDING].unique():
            (index,) = (documents == document).nonzero(as_tuple=True)
            ids, one = scene.positions_BT[row, index][None], slice(row, row + 1)
            q, k, x = inputs.q_BHTK[one, :, index], inputs.k_BHTK[one, :, index], inputs.x_BTD[one, index]
            embedded, *weights = read(encoding, Scene(ids, torch.zeros_like(ids)), Inputs(q, k, x, ids))
            alone[0][row, index] = embedded[0].to(alone[0].dtype)
            for whole, part in zip(alone[1:], weights, strict=True):
                whole[row, :, index[:, None], index] = part[0].to(whole.dtype)
    return worst_difference(together, alone)


def worst_difference(results: list[Tensor], expected: list[Tensor]) -> float:
    """The largest `relative_difference` of pairs of tensors; NaN in both counts as equal."""
    differences = []
    for result, right in zip(results, expected, strict=True):
        undefined = result.isnan() & right.isnan()
        cleared = result.masked_fill(undefined, 0.0), right.masked_fill(undefined, 0.0)
        differences.append(relative_difference(*cleared))
    return max(differences)


def scene_differences(
    theirs: PositionalEncoding, ours: PositionalEncoding, channels: list[int] | None = None
) -> Iterator[tuple[str, float]]:
    """In each scene, how far two encodings with shared parameters differ, as a share of the largest value.

    ``channels``: those of a head of theirs, as numbers of ours; vectors at the embedding are left out then.
    """
    skipped = 0 if channels is None or not acts_at_embedding(ours) else 1
    key_heads = getattr(theirs, "key_heads", None)
    for name, scene in SCENES.items():
        if scene.decoding and not ours.shape.causal:
            continue
        inputs = draw_content(ours.shape, scene.positions_BT, key_heads=key_heads)
        results = read(theirs, scene, reordered(inputs, channels))
        expected = read(ours, scene, inputs)
        yield name, worst_difference(results[skipped:], expected[skipped:])


def _in_use(subject: Subject) -> PositionalEncoding:
    """The encoding of a model's first layer, or of all, with noise on what training changes."""
    return subject.model(train_positions=64).encodings[0]  # type: ignore[return-value]


@torch.no_grad()
def _scenes_agree(subject: Subject, *names: str) -> Measurement:
    encoding = _in_use(subject)
    return within(max(difference_alone(encoding, SCENES[name]) for name in names))


@check("rows of a batch keep their own positions", "the ids or the offset of one row serve all rows")
def rows_keep_positions(subject: Subject) -> Measurement:
    return _scenes_agree(subject, "rows at the same offset", "rows at ids of their own")


@check("decoding with cached keys agrees with the whole row", "a query's index in the call is its position")
def cached_keys_agree(subject: Subject) -> Measurement:
    if not subject.causal:
        return None, "an encoder does not decode"
    return _scenes_agree(subject, "decoding with cached keys", "decoding after left padding")


@check("left padding changes nothing", "indices are read instead of ids, or padding stays uninitialised")
def left_padding(subject: Subject) -> Measurement:
    return _scenes_agree(subject, "left padding")


@check("packed documents change nothing", "positions or neighbours are counted across documents")
def packed_documents(subject: Subject) -> Measurement:
    return _scenes_agree(subject, "packed documents")


def _late(tokens: int = TOKENS) -> Scene:
    ids = torch.arange(LATE, LATE + tokens).repeat(ROWS, 1)
    return Scene(ids, torch.zeros_like(ids))


@check(
    "phases survive a cast to bfloat16",
    "frequencies or tables in a buffer, which model.bfloat16() rounds; compute them in the call",
)
@torch.no_grad()
def phases_survive_cast(subject: Subject) -> Measurement:
    encoding, scene = _in_use(subject), _late()
    inputs, cast = draw_content(encoding.shape, scene.positions_BT), copy.deepcopy(encoding)
    for constant in (*cast.buffers(), *(p for p in cast.parameters() if not p.requires_grad)):
        if constant.is_floating_point():
            constant.data = constant.data.bfloat16()
    exact = read(encoding, scene, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return within(worst_difference(read(cast, scene, inputs), exact), CAST)


@check(
    "inputs keep their values and their gradient",
    "queries, keys or embeddings are changed in place (+=, copy_), detached, or used under no_grad",
)
def inputs_keep_values(subject: Subject) -> Measurement:
    encoding = _in_use(subject)
    refuse_changed_inputs(encoding)  # raises where q, k or positions change
    inputs, again = (draw_content(encoding.shape, OWN_IDS.positions_BT) for _ in range(2))
    with torch.no_grad():
        read(encoding, OWN_IDS, inputs)
    if not torch.equal(inputs.x_BTD, again.x_BTD):
        return False, "changed: x"
    given = {"q": inputs.q_BHTK, "k": inputs.k_BHTK, "x": inputs.x_BTD}
    for tensor in given.values():
        tensor.requires_grad_()
    sum(part.square().sum() for part in read(encoding, OWN_IDS, inputs)).backward()  # type: ignore[union-attr]
    cut = [name for name, tensor in given.items() if tensor.grad is None or not tensor.grad.any()]
    return not cut, f"no gradient reaches {', '.join(cut)}" if cut else "they do"


@check("earlier calls change nothing", "a cache keeps the dtype, length or offset of an earlier call")
@torch.no_grad()
def earlier_calls(subject: Subject) -> Measurement:
    encoding = _in_use(subject)
    used, late = copy.deepcopy(encoding), _late()
    single = Scene(late.positions_BT[:1, :1], late.documents_BT[:1, :1])
    for dtype, scenes in ((torch.bfloat16, (single, late, OWN_IDS)), (torch.float32, (_late(40), late))):
        for scene in scenes:
            q, k, x, ids = vars(draw_content(encoding.shape, scene.positions_BT)).values()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
                read(used, scene, Inputs(q.to(dtype), k.to(dtype), x.to(dtype), ids))
    inputs = draw_content(encoding.shape, OWN_IDS.positions_BT)
    return within(worst_difference(read(used, OWN_IDS, inputs), read(encoding, OWN_IDS, inputs)))
