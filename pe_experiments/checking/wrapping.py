"""Call modules that take no position ids but an offset, or whole sequences from position 0."""

from collections.abc import Callable

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext
from pe_experiments.terminal.errors import NotApplicable

LARGEST = 5_000  # most positions in a matrix of all pairs


def by_offset(rotate: Callable[[Tensor, int], Tensor], x_BHTK: Tensor, positions_BT: Tensor) -> Tensor:
    """Apply ``rotate(x_1HnK, offset)`` to queries or keys, in one call for each run of consecutive ids."""
    ids_BT = whole(positions_BT).expand(len(x_BHTK), -1)
    rows = []
    for x_HTK, ids_T in zip(x_BHTK, ids_BT, strict=True):
        starts = (ids_T.diff() != 1).nonzero().flatten() + 1
        runs = zip(x_HTK.tensor_split(starts, dim=1), ids_T.tensor_split(starts), strict=True)
        rows.append(torch.cat([rotate(x_HnK[None], int(ids[0])) for x_HnK, ids in runs], dim=2))
    return torch.cat(rows)


def from_start(
    rotate: Callable[[Tensor], Tensor], x_BHTK: Tensor, positions_BT: Tensor, length: int | None = None
) -> Tensor:
    """Apply ``rotate(x_1HnK)`` to whole sequences that hold queries or keys at their position ids.

    Other positions are zero. Tokens that share an id are rotated in separate calls.

    Args:
        rotate: function of a sequence whose first token is at position 0.
        x_BHTK: queries or keys.
        positions_BT: their position ids (B may be 1).
        length: number of tokens of a sequence; by default, as many as the largest id of the row requires.
    """
    result_BHTK = torch.empty_like(x_BHTK)
    for row, ids_T in enumerate(whole(positions_BT).expand(len(x_BHTK), -1)):
        call_T = (ids_T[:, None] == ids_T).tril(-1).sum(-1)  # number of earlier tokens with the same id
        for call in call_T.unique():
            tokens = torch.nonzero(call_T == call).flatten()
            sequence = x_BHTK.new_zeros(1, x_BHTK.shape[1], length or int(ids_T.max()) + 1, x_BHTK.shape[-1])
            sequence[:, :, ids_T[tokens]] = x_BHTK[row, :, tokens]
            result_BHTK[row, :, tokens] = rotate(sequence)[0, :, ids_T[tokens]].to(x_BHTK.dtype)
    return result_BHTK


def pairs(bias: Callable[[int], Tensor], at: AttentionContext) -> Tensor:
    """Return the bias [B, H, T, S] of the context's positions, read from ``bias(n)`` of shape [H, n, n].

    Raises:
        NotApplicable: for fractional positions and for positions from `LARGEST` on.
    """
    queries, keys = whole(at.q_positions_BT), whole(at.k_positions_BS)
    length = int(max(queries.max(), keys.max())) + 1
    if length > LARGEST:
        raise NotApplicable(f"a matrix of all pairs up to position {length - 1} does not fit")
    return bias(length)[:, queries[:, :, None], keys[:, None]].transpose(0, 1).float()


def attention_weights(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    q_BHTK: Tensor,
    k_BHSK: Tensor,
    key_heads: int | None = None,
) -> Tensor:
    """Return the weights [B, H, T, S] of an attention ``attend(q_BHTK, k_BGSK, v_BGSK)`` from its outputs.

    Args:
        attend: function that returns the outputs of attention, [B, H, T, K].
        q_BHTK: queries.
        k_BHSK: keys, equal within each group of heads.
        key_heads: number G of heads of keys and values, by default that of the queries. An encoding that
            passes it also sets it as its attribute ``key_heads``, so that the checker draws such keys.

    Raises:
        ValueError: the attention rotates or mixes the channels of the values.
    """
    heads = q_BHTK.shape[1]
    keys, channels = k_BHSK.shape[2:]
    k_BGSK = k_BHSK[:, :: heads // (key_heads or heads)]
    first_channel = torch.zeros_like(k_BGSK)
    first_channel[..., 0] = 1
    if attend(q_BHTK, k_BGSK, first_channel)[..., 1:].abs().max() > 1e-4:
        raise ValueError("values are rotated or mixed: one that is 0 in all channels but one gives others")
    units_SS = torch.eye(keys).to(k_BGSK)
    try:
        return attend(q_BHTK, k_BGSK, units_SS.expand(*k_BGSK.shape[:2], -1, -1))
    except RuntimeError:  # the attention takes only values as wide as a head
        weights = []
        for start in range(0, keys, channels):
            units_SC = units_SS[:, start : start + channels]
            values_SK = torch.nn.functional.pad(units_SC, (0, channels - units_SC.shape[1]))
            output = attend(q_BHTK, k_BGSK, values_SK.expand_as(k_BGSK))
            weights.append(output[..., : units_SC.shape[1]])
        return torch.cat(weights, dim=-1)


def whole(positions_BT: Tensor) -> Tensor:
    """Return the position ids as integers; raise `NotApplicable` if any is fractional."""
    if positions_BT.is_floating_point() and bool((positions_BT % 1).any()):
        raise NotApplicable("the module takes no fractional positions")
    return positions_BT.long()
