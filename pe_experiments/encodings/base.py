"""The interface of a positional encoding, and the encoding that does nothing.

Names of tensors end in their shapes: B batch, T queries, S keys, H heads, K head_dim, D d_model. A dimension
of size 1 broadcasts; B is 1 wherever all rows share their positions. An encoding raises a ValueError for an
argument outside the range or the choices that its docstring gives.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pe_experiments.terminal.argument_checks import at_least
from pe_experiments.terminal.errors import NotApplicable, allowed

Invariance = Literal["nothing", "shift", "ids"]
# The bias of a key that an encoding masks. The key gets weight 0 if any other key is unmasked. Unlike minus
# infinity, the value keeps the softmax finite in a row whose keys are all masked (padding with a window).
MASKED = -1e9
WITHOUT_FLOAT64 = ("mps",)  # device types; their float64 tensors are computed on the CPU


@dataclass(frozen=True)
class ModelShape:
    """The sizes from which an encoding is built, each at least 1. They do not depend on the evaluation.

    Args:
        d_model: width of the hidden states.
        num_heads: attention heads; divides ``d_model``.
        num_layers: transformer layers.
        causal: True in a decoder, where a query sees only itself and earlier tokens.
        train_length: tokens of the longest training sequence.
        train_positions: number of position ids that can occur in training (rows of a learned table); larger
            than ``train_length`` under random offsets.
        parent_length: of a run that continues another, ``original_length`` of that run; None otherwise.
    """

    d_model: int
    num_heads: int
    num_layers: int
    causal: bool
    train_length: int
    train_positions: int
    parent_length: int | None = None

    def __post_init__(self) -> None:
        for name in ("d_model", "num_heads", "num_layers", "train_length", "train_positions"):
            at_least(1, name, getattr(self, name))
        if self.d_model % self.num_heads:
            raise ValueError(f"d_model={self.d_model} is not divisible by num_heads={self.num_heads}")

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

    @property
    def original_length(self) -> int:
        """Tokens from which an encoding derives its lengths, such as T5's buckets or the factor of YaRN.

        It is ``train_length``, or the parent's in a run that continues another: the same distance stays in
        the same bucket, and a rescaling knows how much longer the sequences have become.
        """
        return self.train_length if self.parent_length is None else self.parent_length


def _once_property(fn: Callable[[AttentionContext], Tensor]) -> property:
    """Return a property that is computed by `AttentionContext.once`."""
    return property(lambda at: at.once(fn), doc=fn.__doc__)


class AttentionContext:
    """The inputs of a hook (a method that attention calls) besides q and k.

    Attributes can be added without breaking encodings outside the package.

    Attributes:
        q_positions_BT, k_positions_BS: position ids of the queries and of the keys (B may be 1).
        visible_BTS: True where a query may see a key (causality and padding). It is computed on first use: at
            long lengths it is large, and most encodings never read it.
        lengths_B: tokens of each row without padding.
        declared_B: the declared length of each row: its tokens with the longest possible answer. It is known
            before the first token of the answer and stays the same during decoding. An encoding that depends
            on the length must therefore read it (through `tokens_B`), never the number of tokens so far.
        x_BSD: the hidden states from which the layer computes queries and keys (after its norm), for gates.
        layer: index of the layer, from 0.
        first_query: index of the first query in the sequence; not 0 in a block of queries.
    """

    def __init__(
        self,
        q_positions_BT: Tensor,
        k_positions_BS: Tensor,
        visible_BTS: Tensor | Callable[[int, int], Tensor],
        lengths_B: Tensor | None = None,
        x_BSD: Tensor | Callable[[], Tensor] | None = None,
        layer: int = 0,
        first_query: int = 0,
        declared_B: Tensor | None = None,
    ):
        """Store the inputs; ``visible_BTS`` and ``x_BSD`` may be functions that compute them.

        ``visible_BTS(start, stop)`` returns rows start .. stop-1 of the mask. ``x_BSD()`` is called when an
        encoding reads the hidden states.
        """
        self.q_positions_BT = q_positions_BT
        self.k_positions_BS = k_positions_BS
        self.lengths_B = lengths_B
        self.declared_B = lengths_B if declared_B is None else declared_B
        self._hidden = x_BSD
        self.layer = layer
        self.first_query = first_query
        self._visible = visible_BTS
        self._shared: dict[Any, Any] = {}

    @property
    def x_BSD(self) -> Tensor | None:
        if callable(self._hidden):
            self._hidden = self._hidden()
        return self._hidden

    @_once_property
    def visible_BTS(self) -> Tensor:
        return self._rows_visible(0, self.q_positions_BT.shape[1])

    @_once_property
    def relative_positions_BTS(self) -> Tensor:
        """Return key position minus query position, j - i: negative where the key comes before the query."""
        return self.k_positions_BS[:, None, :] - self.q_positions_BT[:, :, None]

    @_once_property
    def visible_keys_BT(self) -> Tensor:
        """Return the number of keys that each query may see."""
        # In blocks of rows, because the whole mask is large at long lengths.
        rows, queries = 1024, self.q_positions_BT.shape[1]
        blocks = (self._rows_visible(i, min(i + rows, queries)).sum(-1) for i in range(0, queries, rows))
        return torch.cat([*blocks], dim=1)

    @property
    def tokens_B(self) -> Tensor:
        """Return ``declared_B`` if given, else ``lengths_B``, else the number of keys (B is 1 then)."""
        if self.declared_B is not None:
            return self.declared_B
        return torch.tensor([self.k_positions_BS.shape[1]], device=self.k_positions_BS.device)

    def once(self, fn: Callable[[AttentionContext], Any]) -> Any:
        """Return ``fn(self)``, computed once per forward pass and shared by the layers.

        ``fn`` is the key of the cache: pass a function or a bound method, not a fresh lambda. Its result must
        not depend on ``layer`` or ``x_BSD``.
        """
        if fn not in self._shared:
            self._shared[fn] = fn(self)
        return self._shared[fn]

    def at_layer(self, layer: int, x_BSD: Tensor | Callable[[], Tensor]) -> AttentionContext:
        """Return the same context for another layer; the results of ``once`` are shared."""
        here = object.__new__(AttentionContext)  # `copy.copy` is slower than the norm of a small layer
        here.__dict__ |= self.__dict__ | {"layer": layer, "_hidden": x_BSD}
        return here

    def query_rows(self, start: int, stop: int) -> AttentionContext:
        """Return the context of queries start .. stop-1, without the results of ``once``."""
        rows = copy(self)
        rows.q_positions_BT = self.q_positions_BT[:, start:stop]
        rows.first_query = self.first_query + start
        rows._visible, rows._shared = self._rows_visible(start, stop), {}
        return rows

    def _rows_visible(self, start: int, stop: int) -> Tensor:
        if isinstance(self._visible, Tensor):
            return self._visible[:, start:stop]
        return self._visible(start, stop)


class PositionalEncoding(nn.Module):
    """No positional encoding (NoPE): the identity at every hook.

    Subclasses override the hooks that they change.

    With two layers or more a causal mask alone lets a model recover the order (Kazemnejad et al. 2023,
    arXiv:2305.19466, theorem 1); without a mask the model is order-blind. Parameters: none. Beyond training:
    defined everywhere.

    Class attributes:
        per_layer: True when every layer needs its own instance; the transformer then builds ``num_layers``.
        causal_only: True when the encoding is defined under a causal mask only; an encoder refuses it.
        position_width: columns of ``d_model`` that the encoding fills by itself (concatenation instead of
            addition); tokens are embedded in the remaining columns.
        looks_ahead: True when a query may depend on later tokens even in a causal model. Runs of encodings
            that look ahead without declaring it are refused.
        invariant_to: the changes of position ids that leave every output unchanged: ``nothing``, a common
            ``shift`` of all ids, or ``ids``, any change (the encoding does not read them; order enters
            through the mask or the content). The contract tests check it; None makes no statement.
        remark: a warning about the encoding in this model, printed when a run starts.
    """

    per_layer = False
    causal_only = False
    position_width = 0
    looks_ahead = False
    remark = ""
    invariant_to: Invariance | None = None

    def __init__(self, shape: ModelShape):
        super().__init__()
        if self.causal_only and not shape.causal:
            raise NotApplicable(
                f"pe: {type(self).__name__} is defined for causal models only; take model=decoder"
            )
        self.shape = shape

    def for_layer(self, layer: int) -> PositionalEncoding:
        """Return the encoding of this layer: ``self``, except in a mixture of encodings."""
        return self

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        """Return token embeddings with positions added or concatenated. Called once, before the first layer.

        Args:
            x_BTD: token embeddings, ``d_model - position_width`` columns.
            positions_BT: position ids of these tokens (B may be 1). An encoding that depends on the length of
                the row overrides `embed_sequence` instead.

        Returns:
            Hidden states with ``d_model`` columns.
        """
        return x_BTD

    def embed_sequence(self, x_BTD: Tensor, positions_BP: Tensor, declared_B: Tensor | None) -> Tensor:
        """Return the result of `embed` when it depends on the length of the row. The transformer calls this.

        Args:
            x_BTD: token embeddings, as in `embed`.
            positions_BP: position ids of the declared tokens (B may be 1); the first T belong to ``x_BTD``.
            declared_B: as in `AttentionContext`; None means P.
        """
        return self.embed(x_BTD, positions_BP[:, : x_BTD.shape[1]])

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        """Return queries and keys after a map that depends on positions (a rotation, a scale, ...)."""
        return q_BHTK, k_BHSK

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor | None:
        """Return the term added to the scaled logits, from rotated q and k; None adds nothing.

        The term broadcasts to BHTS and is at least float32. ``at`` may cover only a block of the queries, so
        compute the bias from ``at`` and ``q_BHTK``, never from a stored length.
        """
        return None

    def weights(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        """Return attention weights BHTS: the masked softmax of the scaled logits plus bias.

        An encoding that overrides it (stick-breaking) cannot use the fused kernel. The scale is always
        ``head_dim**-0.5``, whatever width ``rotate`` returns.
        """
        q_BHTK, k_BHSK = self.rotate(q_BHTK, k_BHSK, at)
        return self.softmax_weights(q_BHTK, k_BHSK, at)

    def scaled_logits(self, q_BHTK: Tensor, k_BHSK: Tensor) -> Tensor:
        """Return q . k / sqrt(head_dim), BHTS in float32 or better. This is not a hook."""
        return at_least_float32((q_BHTK * self.shape.head_dim**-0.5) @ k_BHSK.mT)

    def softmax_weights(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        """Return the masked softmax of rotated q and k. This is not a hook; override `weights`."""
        logits_BHTS = self.scaled_logits(q_BHTK, k_BHSK)
        mask = at.once(additive_mask)
        bias = self.bias(q_BHTK, k_BHSK, at)
        return torch.softmax(logits_BHTS + (mask if bias is None else mask + bias), dim=-1)


class PositionBias(PositionalEncoding):
    """Base class of encodings whose bias depends on positions alone and is the same in all layers."""

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return at.once(self._bias)

    def _bias(self, at: AttentionContext) -> Tensor:
        raise NotImplementedError


HOOKS = ("embed", "embed_sequence", "rotate", "bias", "weights", "for_layer")


def overridden_hooks(encoding: PositionalEncoding) -> tuple[list[str], str]:
    """Return the overridden hooks, and an error message if the class has methods but overrides no hook."""
    classes = [cls for cls in type(encoding).__mro__ if cls not in PositionalEncoding.__mro__]
    members = {name: value for cls in classes for name, value in vars(cls).items()}
    methods = sorted(name for name, value in members.items() if callable(value) and name[:2] != "__")
    overridden = [name for name in methods if name in HOOKS]
    if overridden or not methods:
        return overridden, ""
    for name in methods:
        for hook in difflib.get_close_matches(name, HOOKS, n=1, cutoff=0.7):
            return [], f"{name} overrides no hook; did you mean {hook}?"
    return [], f"{allowed(methods)} overrides no hook; hooks are {allowed(HOOKS)}"


def acts_at_embedding(encoding: PositionalEncoding) -> bool:
    """Return whether the encoding changes token embeddings."""
    base = PositionalEncoding
    return type(encoding).embed is not base.embed or type(encoding).embed_sequence is not base.embed_sequence


def largest_ids(positions_BP: Tensor, declared_B: Tensor | None) -> Tensor:
    """Return the largest id among the declared tokens of each row, [B or 1, 1] (see `embed_sequence`)."""
    if declared_B is None:
        return positions_BP.amax(dim=-1, keepdim=True)
    so_far_BP = positions_BP.cummax(dim=-1).values.expand(len(declared_B), -1)
    return so_far_BP.gather(1, declared_B[:, None] - 1)


def at_least_float32(x: Tensor) -> Tensor:
    """Return ``x``, cast to float32 if autocast has made it narrower; float64 stays float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def in_float64(x: Tensor) -> Tensor:
    """Return ``x`` cast to float64, on the CPU if its device has no float64.

    Cast results before moving them back: ``result.float().to(x.device)``.
    """
    return x.to(float64_device(x.device)).double()


def float64_device(device: torch.device | None) -> torch.device | None:
    """Return the device for float64 computations: ``device``, or the CPU if it has no float64."""
    return torch.device("cpu") if device is not None and device.type in WITHOUT_FLOAT64 else device


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Return ``x`` on ``device``; float64 becomes float32 on a device without float64."""
    if x.dtype == torch.float64 and device.type in WITHOUT_FLOAT64:
        x = x.float()
    return x.to(device)


def require_whole(positions: Tensor, without: str) -> None:
    """Raise `NotApplicable` for fractional positions; ``without`` says what has nothing for them."""
    if positions.is_floating_point():
        raise NotApplicable(f"pe: {without} for fractional positions; use whole ones")


def by_distance(scores_BHTR: Tensor, row_BTS: Tensor) -> Tensor:
    """Return the score of each query and key, BHTS, from the scores of the query with R rows of a table."""
    return scores_BHTR.gather(-1, row_BTS[:, None].expand(*scores_BHTR.shape[:3], -1))


def clamped(parameter: Tensor, low: float, high: float = math.inf) -> Tensor:
    """Return a parameter clamped to a range, with the gradient of the identity so that it can move back."""
    return parameter + (parameter.clamp(low, high) - parameter).detach()


def additive_mask(at: AttentionContext) -> Tensor:
    """Return 0 where a query may see a key and minus infinity where not, [B, 1, T, S] in float32."""
    masked_B1TS = ~at.visible_BTS[:, None]
    return torch.zeros(masked_B1TS.shape, device=masked_B1TS.device).masked_fill_(masked_B1TS, -torch.inf)


def is_masked(logits: Tensor) -> Tensor:
    """Return whether a logit belongs to a masked key: `MASKED` or minus infinity, plus a content term."""
    return logits <= MASKED / 2
