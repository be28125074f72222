"""Export encodings as a ``score_mod`` of FlexAttention or as an attention function of transformers."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.models.attention import makes_weights
from pe_experiments.terminal.errors import UserError

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@torch.no_grad()
def score_mod(encoding: PositionalEncoding, length: int) -> ScoreMod:
    """Return the bias of an encoding as a ``score_mod`` of ``torch.nn.attention.flex_attention``.

    The bias is read from a table with a row per head and a column per distance. A causal mask must be applied
    with ``block_mask``.

    Args:
        encoding: encoding of a layer, on the device of the queries.
        length: longest sequence, with positions 0 .. length - 1.

    Raises:
        UserError: the encoding does more than add a bias that depends only on distance.
    """
    cls = type(encoding)
    name = cls.__name__
    base = PositionalEncoding
    acts_elsewhere = encoding.acts_at_embedding or makes_weights(encoding) or encoding.acts_on_values
    if acts_elsewhere or cls.rotate is not base.rotate:
        raise UserError(f"export: {name} does more than add to the logits, so it is no score_mod")
    if cls.bias is base.bias or encoding.invariant_to != "shift":
        raise UserError(f"export: {name} adds no bias that depends on the distance of query and key alone")
    heads, width = encoding.shape.num_heads, encoding.shape.head_dim
    device = _device(encoding)
    keys = torch.arange(2 * length - 1, device=device)
    visible = torch.ones(1, 1, len(keys), dtype=torch.bool, device=device)
    at = AttentionContext(keys[None, length - 1 : length], keys[None], visible)
    q_BHTK = torch.zeros(1, heads, 1, width, device=device)
    k_BHSK = torch.zeros(1, heads, len(keys), width, device=device)
    bias = encoding.bias(q_BHTK, k_BHSK, at)
    bias_of_ones = encoding.bias(q_BHTK + 1, k_BHSK + 1, at)
    if bias is None or bias_of_ones is None or not torch.equal(bias, bias_of_ones):
        raise UserError(f"export: the bias of {name} depends on content, so it is no score_mod")
    table_HN = bias.expand(1, heads, 1, -1)[0, :, 0].contiguous()

    def add_bias(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score + table_HN[head, key - query + length - 1]

    return add_bias


def register_with_transformers(name: str, encodings: Sequence[PositionalEncoding]) -> None:
    """Register encodings, one per layer and causal for a decoder, as an attention function of transformers.

    Select it with ``model.set_attn_implementation(name)``. The model must have no other positional encoding,
    or have it switched off (GPT-2 with ``wpe`` set to 0). Padding can be on either side. Positions count the
    tokens of a row without padding. For an encoding that scales by length, the length is the number of keys
    so far.

    Raises:
        UserError: transformers is missing, or an encoding acts at the embedding or reads hidden states.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask
    except ImportError as error:
        raise UserError("export: transformers is not installed; pip install transformers") from error
    for encoding in encodings:
        if encoding.acts_at_embedding:
            raise UserError(f"export: {type(encoding).__name__} acts at the embedding, not in attention")
        try:
            heads, width = encoding.shape.num_heads, encoding.shape.head_dim
            token = torch.zeros(1, heads, 1, width, device=_device(encoding))
            encoding.weights(token, token, _context(encoding, token, token, None))
        except AssertionError as error:
            raise UserError(f"export: {error}, which transformers does not pass on") from error

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        scaling: float | None = None, dropout: float = 0.0, **_: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        encoding = encodings[int(module.layer_idx)]  # type: ignore[arg-type]
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        default_scaling = encoding.shape.head_dim**-0.5
        scale = 1.0 if scaling is None else scaling / default_scaling
        at = _context(encoding, query, key, attention_mask)
        used = at.k_positions_BS.shape[1]
        weights_BHTS = encoding.weights(query * scale, key[:, :, :used], at)
        weights_BHTS = F.dropout(weights_BHTS.to(value.dtype), dropout)
        read_BHTK = encoding.read(weights_BHTS, encoding.values(value[:, :, :used], at), at)
        outputs_BTHK = encoding.outputs(read_BHTK, at).transpose(1, 2).contiguous()
        return outputs_BTHK, F.pad(weights_BHTS, (0, key.shape[2] - used))

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, eager_mask)


def _device(encoding: PositionalEncoding) -> torch.device | None:
    return next((parameter.device for parameter in encoding.parameters()), None)


def _context(
    encoding: PositionalEncoding, q_BHTK: Tensor, k_BHSK: Tensor, mask_B1TS: Tensor | None
) -> AttentionContext:
    """Return the context of the last T of S tokens, with the keys that are in use.

    The mask comes from transformers: True or 0 where a query sees a key.
    """
    queries, keys = q_BHTK.shape[2], k_BHSK.shape[2]
    if mask_B1TS is None:
        visible_BTS = torch.ones(1, queries, keys, dtype=torch.bool, device=q_BHTK.device)
        if encoding.shape.causal:
            visible_BTS = visible_BTS.tril(keys - queries)
    else:
        mask_BTS = mask_B1TS[:, 0, :, :keys]
        visible_BTS = mask_BTS if mask_BTS.dtype == torch.bool else mask_BTS == 0
        # Leave out the unused end of a static cache, after the key of the last query.
        if encoding.shape.causal:
            last_T = (visible_BTS.any(0) * torch.arange(keys, device=q_BHTK.device)).amax(-1)
            # Take the largest offset, because queries that are padding see fewer keys.
            offset = int((last_T - torch.arange(queries, device=q_BHTK.device)).max())
            keys = min(keys, max(offset, 0) + queries)
            visible_BTS = visible_BTS[:, :, :keys]
    ids_BS = (visible_BTS.any(1).long().cumsum(-1) - 1).clamp(min=0)
    visible_BTS = visible_BTS | ~visible_BTS.any(-1, keepdim=True)  # a query that sees no key would give NaN
    first = keys - queries
    return AttentionContext(ids_BS[:, first:], ids_BS, visible_BTS, first_query=first)
