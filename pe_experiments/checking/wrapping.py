"""Wrap modules without position ids, which take an offset or whole sequences from position 0."""

from collections.abc import Callable

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext
from pe_experiments.terminal.errors import NotApplicable

LARGEST = 5_000  # most positions of a square matrix


def by_offset(rotate: Callable[[Tensor, int], Tensor], x_BHTK: Tensor, positions_BT: Tensor) -> Tensor:
    """Apply ``rotate(x_1HnK, offset)`` to queries or keys, once per run of consecutive ids in a row."""
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
    """Apply ``rotate(x_1HnK)`` to whole sequences, with queries or keys at their ids among zeros.

    Tokens that share an id are rotated in separate calls. Sequences have ``length`` tokens, or as many as the
    row needs.
    """
    result_BHTK = torch.empty_like(x_BHTK)
    for row, ids in enumerate(whole(positions_BT).expand(len(x_BHTK), -1)):
        earlier = (ids[:, None] == ids).tril(-1).sum(-1)  # tokens of the same id
        for tokens in (torch.nonzero(earlier == call).flatten() for call in earlier.unique()):
            line = x_BHTK.new_zeros(1, x_BHTK.shape[1], length or int(ids.max()) + 1, x_BHTK.shape[-1])
            line[:, :, ids[tokens]] = x_BHTK[row, :, tokens]
            result_BHTK[row, :, tokens] = rotate(line)[0, :, ids[tokens]].to(x_BHTK.dtype)
    return result_BHTK


def pairs(bias: Callable[[int], Tensor], at: AttentionContext) -> Tensor:
    """Return the bias [B, H, T, S] from ``bias(n)`` [H, n, n] of whole positions up to `LARGEST`."""
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

    Keys and values have ``key_heads`` G heads, by default as many as the queries. If a class sets the
    attribute ``key_heads``, the checker gives it keys that serve groups of heads.

    Raises:
        ValueError: values reach other channels, as when they are rotated.
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
    except RuntimeError:  # it only takes values of a head's width
        weights = []
        for start in range(0, keys, channels):
            units_SC = units_SS[:, start : start + channels]
            values_SK = torch.nn.functional.pad(units_SC, (0, channels - units_SC.shape[1]))
            output = attend(q_BHTK, k_BGSK, values_SK.expand_as(k_BGSK))
            weights.append(output[..., : units_SC.shape[1]])
        return torch.cat(weights, dim=-1)


def whole(positions_BT: Tensor) -> Tensor:
    if positions_BT.is_floating_point() and bool((positions_BT % 1).any()):
        raise NotApplicable("the module takes no fractional positions")
    return positions_BT.long()
