"""The interface of a positional encoding, and the encoding that does nothing.

Names of tensors end in their shapes: B batch, T queries, S keys, H heads, K head_dim, D d_model. A dimension
of size 1 broadcasts; B is 1 wherever all rows share their positions. An encoding raises a ValueError for an
argument outside the range or the choices that its docstring gives.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from pe_experiments.encodings.attention_context import AttentionContext
from pe_experiments.encodings.softmax import biased_mask
from pe_experiments.encodings.tensors import at_least_float32
from pe_experiments.terminal.errors import NotApplicable, allowed, at_least

Invariance = Literal["nothing", "shift", "ids"]


@dataclass(frozen=True)
class ModelShape:
    """The sizes from which an encoding is built, each at least 1 and independent of the evaluated lengths.

    Args:
        d_model: width of the hidden states.
        num_heads: attention heads; divides ``d_model``.
        num_layers: transformer layers.
        causal: True in a decoder, where a query sees only itself and earlier tokens.
        train_length: tokens of the longest training sequence.
        train_positions: number of position ids that can occur in training (rows of a learned table); larger
            than ``train_length`` under random offsets.
        parent_length: ``original_length`` of the parent if the run continues another run; None otherwise.
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
        """The number of tokens from which encodings derive lengths such as T5's buckets or YaRN's factor.

        It is ``train_length``, or the parent's length in a run that continues another run. A distance thus
        stays in its bucket, and a rescaling knows how much longer the sequences have become.
        """
        return self.train_length if self.parent_length is None else self.parent_length


class PositionalEncoding(nn.Module):
    """No positional encoding (NoPE): the identity at every hook.

    Subclasses override the hooks that they change.

    With two layers or more a causal mask alone lets a model recover the order (Kazemnejad et al. 2023,
    arXiv:2305.19466, theorem 1); without a mask the model is order-blind. Parameters: none. Beyond training:
    defined everywhere.

    Class attributes:
        per_layer: True when every layer needs its own instance; the transformer then builds ``num_layers``.
        causal_only: True when the encoding is defined under a causal mask only; encoders refuse to use it.
        position_width: columns of ``d_model`` that the encoding fills by itself (concatenation instead of
            addition); tokens are embedded in the remaining columns.
        looks_ahead: True when a query may depend on later tokens even in a causal model. Runs of encodings
            that look ahead without declaring it are refused.
        reads_row: True when the result at a token depends on more than the keys that it sees and the declared
            length: on its neighbours in memory (a convolution), or on the largest id of the row. Left padding
            and packed documents then change results.
        invariant_to: the changes of position ids that leave every output unchanged: ``nothing``, a common
            ``shift`` of all ids, or ``ids``, any change (the encoding does not read them; order enters
            through the mask or the content). The contract tests check it; None claims nothing.
        remark: a warning about the encoding in this model, printed when a run starts.
        inherits_length: whether a run that continues another takes the length of the first training from it,
            as buckets of distance or rescaled frequencies need. A subclass does unless it says False itself.
        grown_tables: names of parameters whose first rows are taken from a parent's shorter table.
        trained_arguments: arguments that fix what training has shown, such as frequencies; an encoding chosen
            for a trained run keeps the run's values, unless its own differ from the defaults.
    """

    per_layer = False
    causal_only = False
    position_width = 0
    looks_ahead = False
    reads_row = False
    remark = ""
    invariant_to: Invariance | None = None
    inherits_length = False
    grown_tables: tuple[str, ...] = ()
    trained_arguments: tuple[str, ...] = ()

    def __init__(self, shape: ModelShape):
        super().__init__()
        if self.causal_only and not shape.causal:
            raise NotApplicable(
                f"pe: {type(self).__name__} is defined for causal models only; take model=decoder"
            )
        self.shape = shape

    def overrides(self, *hooks: str) -> bool:
        """Return whether the class overrides any of these hooks."""
        return any(getattr(type(self), hook) is not getattr(PositionalEncoding, hook) for hook in hooks)

    @property
    def reads_weights(self) -> bool:
        """Return whether `read` is needed: if a subclass overrides it, unless an option switches it off."""
        return self.overrides("read")

    @property
    def acts_at_embedding(self) -> bool:
        """Return whether the encoding changes token embeddings."""
        return self.overrides("embed", "embed_sequence")

    @property
    def acts_on_values(self) -> bool:
        """Return whether the encoding changes the values or how they are summed."""
        return self.overrides("values", "outputs") or self.reads_weights

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
        """Return token embeddings with positions added or concatenated. The transformer calls this method.

        By default it calls `embed`. Override it instead of `embed` if vectors depend on the row's length.

        Args:
            x_BTD: token embeddings, as in `embed`.
            positions_BP: position ids of the declared tokens (B may be 1); the first T belong to ``x_BTD``.
            declared_B: declared length of each row, as in `AttentionContext`; None means P.
        """
        return self.embed(x_BTD, positions_BP[:, : x_BTD.shape[1]])

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        """Return the queries and keys, changed according to their positions (rotated, scaled, ...)."""
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

    def values(self, v_BHSK: Tensor, at: AttentionContext) -> Tensor:
        """Return the values that the attention weights will sum, changed according to the keys' positions."""
        return v_BHSK

    def outputs(self, o_BHTK: Tensor, at: AttentionContext) -> Tensor:
        """Return the weighted sums of the values, changed according to the queries' positions.

        DeepSeek-V4 rotates values in `values` and rotates their sum back here.
        """
        return o_BHTK

    def read(self, weights_BHTS: Tensor, v_BHSK: Tensor, at: AttentionContext) -> Tensor:
        """Return the weighted sum of the values, BHTK, from weights and the result of `values`.

        An encoding that overrides it (Shaw et al.'s relative values) cannot use the fused kernel. ``at`` may
        cover only a block of the queries.
        """
        return weights_BHTS.to(v_BHSK.dtype) @ v_BHSK

    def scaled_logits(self, q_BHTK: Tensor, k_BHSK: Tensor) -> Tensor:
        """Return q . k / sqrt(head_dim), BHTS in float32 or better. This is not a hook."""
        return at_least_float32((q_BHTK * self.shape.head_dim**-0.5) @ k_BHSK.mT)

    def softmax_weights(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        """Return the masked softmax of rotated q and k. This is not a hook; override `weights`."""
        logits_BHTS = self.scaled_logits(q_BHTK, k_BHSK) + biased_mask(self.bias(q_BHTK, k_BHSK, at), at)
        return torch.softmax(logits_BHTS, dim=-1)


MakeEncoding = Callable[[ModelShape], PositionalEncoding]


class PositionBias(PositionalEncoding):
    """Base class of encodings whose bias depends on positions alone and is the same in all layers."""

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return at.once(self._bias)

    def _bias(self, at: AttentionContext) -> Tensor:
        """Return the bias, which broadcasts to [B, H, T, S], in float32 or better."""
        raise NotImplementedError


HOOKS = ("embed", "embed_sequence", "rotate", "bias", "weights", "values", "outputs", "read", "for_layer")


def overridden_hooks(encoding: PositionalEncoding) -> tuple[list[str], str]:
    """Return the overridden hooks, and an error message if the class has methods but overrides no hook."""
    overridden = sorted(hook for hook in HOOKS if encoding.overrides(hook))
    classes = [cls for cls in type(encoding).__mro__ if cls not in PositionalEncoding.__mro__]
    members = {name: value for cls in classes for name, value in vars(cls).items()}
    methods = sorted(name for name, value in members.items() if callable(value) and name[:2] != "__")
    if overridden or not methods:
        return overridden, ""
    for name in methods:
        similar_hooks = difflib.get_close_matches(name, HOOKS, n=1, cutoff=0.7)
        if similar_hooks:
            return [], f"{name} overrides no hook; did you mean {similar_hooks[0]}?"
    return [], f"{allowed(methods)} overrides no hook; hooks are {allowed(HOOKS)}"


def largest_ids(positions_BP: Tensor, declared_B: Tensor | None) -> Tensor:
    """Return the largest id among the declared tokens of each row, [B or 1, 1] (see `embed_sequence`)."""
    if declared_B is None:
        return positions_BP.amax(dim=-1, keepdim=True)
    running_max_BP = positions_BP.cummax(dim=-1).values.expand(len(declared_B), -1)
    return running_max_BP.gather(1, declared_B[:, None] - 1)


def remarks_of(encodings: nn.Module) -> list[str]:
    """Return the remarks of encodings and their parts, such as on a misspelt hook."""
    remarks: dict[str, None] = {}
    for encoding in encodings.modules():
        if isinstance(encoding, PositionalEncoding):
            remark = encoding.remark
            if not type(encoding).__module__.startswith("pe_experiments."):
                remark = remark or overridden_hooks(encoding)[1]
            if remark:
                remarks[f"{type(encoding).__name__}: {remark}"] = None
    return list(remarks)
