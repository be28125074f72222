"""The life of an encoding after one forward pass: cached decoding, batches, padding, packing, casts, reuse.

What a token reads in a batch must be what it reads where its document is alone. Compared are embeddings and
attention weights, of the hooks alone.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from pe_experiments.checking.contract import ROUNDING, Outcome, Subject, apart, check, within
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding

ROWS, TOKENS = 3, 8
LATE = 2000  # bfloat16 holds no whole numbers above 256 exactly
PADDING = -1
CAST = 0.05  # of the largest; what bfloat16 itself rounds stays below it


@dataclass(frozen=True)
class Scene:
    """Rows of a batch: the position id of every token, and its document (`PADDING`: none), both [B, T].

    ``decoding``: queries come in parts, the last ones singly, against the keys of the whole row.
    """

    positions_BT: Tensor
    documents_BT: Tensor
    decoding: bool = False

    def visible_BTS(self, causal: bool) -> Tensor:
        keys = self.documents_BT[:, None]
        visible_BTS = (self.documents_BT[:, :, None] == keys) & (keys != PADDING)
        return visible_BTS.tril() if causal else visible_BTS


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


@dataclass(frozen=True)
class Content:
    """Random queries, keys and hidden states of a batch."""

    q_BHTK: Tensor
    k_BHTK: Tensor
    x_BTD: Tensor

    @staticmethod
    def drawn(shape: ModelShape) -> Content:
        generator = torch.Generator().manual_seed(5)
        heads = (ROWS, shape.num_heads, TOKENS, shape.head_dim)
        q, k = (torch.randn(heads, generator=generator) for _ in range(2))
        return Content(q, k, torch.randn(ROWS, TOKENS, shape.d_model, generator=generator))

    def only(self, row: int, tokens: Tensor) -> Content:
        one = slice(row, row + 1)
        return Content(self.q_BHTK[one, :, tokens], self.k_BHTK[one, :, tokens], self.x_BTD[one, tokens])

    def channels(self, order: list[int]) -> Content:
        return Content(self.q_BHTK[..., order], self.k_BHTK[..., order], self.x_BTD)


def read(scheme: PositionalEncoding, scene: Scene, content: Content) -> list[Tensor]:
    """Embeddings [B, T, D] and the attention weights [B, H, T, S] of two layers; 0 for queries of padding."""
    x_BTD, ids_BT = content.x_BTD[..., scheme.position_width :], scene.positions_BT
    visible_BTS = scene.visible_BTS(scheme.shape.causal)
    declared_B = torch.tensor([3 * TOKENS])
    tokens = ids_BT.shape[1]
    if scene.decoding:
        parts = [(0, tokens - 3), *((i, i + 1) for i in range(tokens - 3, tokens))]
        embedded = [scheme.embed_sequence(x_BTD[:, :stop], ids_BT, None)[:, start:] for start, stop in parts]
    else:
        parts, embedded = [(0, tokens)], [scheme.embed_sequence(x_BTD, ids_BT, None)]
    real_BT = scene.documents_BT != PADDING
    results = [torch.cat(embedded, dim=1).masked_fill(~real_BT[..., None], 0.0)]
    for layer in range(2):
        at = AttentionContext(ids_BT, ids_BT, visible_BTS, None, content.x_BTD, layer, declared_B=declared_B)
        rows = [
            scheme.for_layer(layer).weights(
                content.q_BHTK[:, :, start:stop],
                content.k_BHTK,
                at.query_rows(start, stop) if scene.decoding else at,
            )
            for start, stop in parts
        ]
        results.append(torch.cat(rows, dim=2).masked_fill(~real_BT[:, None, :, None], 0.0))
    return results


def read_alone(scheme: PositionalEncoding, scene: Scene, content: Content) -> list[Tensor]:
    """The same, where every document is read by itself, at once."""
    rows, tokens = scene.positions_BT.shape
    heads = (rows, scheme.shape.num_heads, tokens, tokens)
    results = [torch.zeros(rows, tokens, scheme.shape.d_model), torch.zeros(heads), torch.zeros(heads)]
    for row in range(rows):
        for document in scene.documents_BT[row].unique():
            if document == PADDING:
                continue
            (index,) = (scene.documents_BT[row] == document).nonzero(as_tuple=True)
            ids = scene.positions_BT[row, index][None]
            embedded, *weights = read(scheme, Scene(ids, torch.zeros_like(ids)), content.only(row, index))
            results[0][row, index] = embedded[0].to(results[0].dtype)
            for whole, part in zip(results[1:], weights, strict=True):
                whole[row, :, index[:, None], index] = part[0].to(whole.dtype)
    return results


def life_apart(
    first: PositionalEncoding, second: PositionalEncoding, order: list[int] | None = None
) -> dict[str, float]:
    """How far two schemes with shared parameters are apart in each scene, as a share of the largest value.

    Args:
        first, second: of one shape.
        order: of the channels of a head in ``first``, as numbers of those in ``second``; embeddings are left
            out then.
    """
    content, skipped = Content.drawn(second.shape), 0 if order is None else 1
    moved = content if order is None else content.channels(order)
    found = {}
    for name, scene in SCENES.items():
        if scene.decoding and not second.shape.causal:
            continue
        pairs = zip(read(first, scene, moved)[skipped:], read(second, scene, content)[skipped:], strict=True)
        found[name] = max(_apart(one, two) for one, two in pairs)
    return found


def _apart(one: Tensor, two: Tensor) -> float:
    """`apart`, where what neither of the two defines counts as equal."""
    undefined = two.isnan()
    if not torch.equal(one.isnan(), undefined):
        return torch.inf
    return apart(one.masked_fill(undefined, 0.0), two.masked_fill(undefined, 0.0))


def _alike(subject: Subject, *names: str) -> Outcome:
    scheme = subject.model(train_positions=64).encodings[0]
    content, worst = Content.drawn(scheme.shape), 0.0  # type: ignore[arg-type]
    with torch.no_grad():
        for name in names:
            got, expected = (reader(scheme, SCENES[name], content) for reader in (read, read_alone))  # type: ignore[arg-type]
            worst = max(worst, *(apart(one, two) for one, two in zip(got, expected, strict=True)))
    return within(worst)


@check("rows of a batch keep their own positions", usually="the ids or the offset of one row serve all rows")
def _(subject: Subject) -> Outcome:
    return _alike(subject, "rows at the same offset", "rows at ids of their own")


@check(
    "decoding with cached keys agrees with the whole row",
    usually="the index of the query within the call is taken for its position",
)
def _(subject: Subject) -> Outcome:
    if not subject.causal:
        return None, "an encoder does not decode"
    return _alike(subject, "decoding with cached keys", "decoding after left padding")


@check(
    "left padding changes nothing",
    usually="indices in memory are read instead of position ids, or rows of padding stay uninitialised",
)
def _(subject: Subject) -> Outcome:
    return _alike(subject, "left padding")


@check(
    "packed documents change nothing",
    usually="positions or lengths are counted, or neighbours read, across documents",
)
def _(subject: Subject) -> Outcome:
    return _alike(subject, "packed documents")


def _late(
    scheme: PositionalEncoding, content: Content, tokens: int = TOKENS, before: int = 0
) -> list[Tensor]:
    """What tokens read at late positions, the first half of them ``before`` positions ahead of the rest."""
    ids = torch.arange(LATE, LATE + tokens).expand(ROWS, -1).clone()
    ids[:, : tokens // 2] -= before
    part = content if tokens == TOKENS else content.only(0, torch.arange(tokens))
    return read(scheme, Scene(ids[: len(part.x_BTD)], torch.zeros_like(ids)[: len(part.x_BTD)]), part)


def cast_apart(subject: Subject, distance: int = 0) -> float:
    """How far a cast of its constants to bfloat16, as ``model.bfloat16()`` does it, moves late positions.

    Its parameters are left alone. ``distance``: how many positions the first half of the tokens lies
    before the rest.
    """
    scheme: PositionalEncoding = subject.model(train_positions=64).encodings[0]  # type: ignore[assignment]
    content, cast = Content.drawn(scheme.shape), copy.deepcopy(scheme)
    for module in cast.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.bfloat16() if buffer.is_floating_point() else buffer)
    for parameter in cast.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.bfloat16()
    with torch.no_grad():
        exact = _late(scheme, content, before=distance)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = _late(cast, content, before=distance)
    return max(apart(one, two) for one, two in zip(rounded, exact, strict=True))


@check(
    "phases survive a cast to bfloat16",
    usually="frequencies or tables in a buffer, which model.bfloat16() rounds; compute them in the call",
)
def _(subject: Subject) -> Outcome:
    return within(cast_apart(subject), CAST)


@check(
    "inputs keep their values and their gradient",
    usually="queries, keys or embeddings are changed in place (+=, copy_), detached, or used under no_grad",
)
def _(subject: Subject) -> Outcome:
    scheme: PositionalEncoding = subject.model(train_positions=64).encodings[0]  # type: ignore[assignment]
    scene, used, drawn = SCENES["rows at ids of their own"], *(Content.drawn(scheme.shape) for _ in range(2))
    with torch.no_grad():
        read(scheme, scene, used)
    changed = [name[0] for name, was in vars(drawn).items() if not torch.equal(getattr(used, name), was)]
    if changed:
        return False, f"changed: {', '.join(changed)}"
    inputs = {name[0]: given.requires_grad_() for name, given in vars(drawn).items()}
    sum(part.square().sum() for part in read(scheme, scene, drawn)).backward()  # type: ignore[union-attr]
    cut = [name for name, given in inputs.items() if given.grad is None or not given.grad.any()]
    return not cut, f"no gradient reaches {', '.join(cut)}" if cut else "they do"


@check("earlier calls change nothing", usually="a cache keeps the dtype, length or offset of an earlier call")
def _(subject: Subject) -> Outcome:
    scheme: PositionalEncoding = subject.model(train_positions=64).encodings[0]  # type: ignore[assignment]
    content, used = Content.drawn(scheme.shape), copy.deepcopy(scheme)
    scene = SCENES["rows at ids of their own"]
    half = Content(content.q_BHTK.bfloat16(), content.k_BHTK.bfloat16(), content.x_BTD.bfloat16())
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _late(used, half, tokens=1)
            _late(used, half)
            read(used, scene, half)
        got, expected = read(used, scene, content), read(scheme, scene, content)
    return within(max(apart(one, two) for one, two in zip(got, expected, strict=True)), ROUNDING)
