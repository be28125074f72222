"""For modules of other libraries that take no position ids: an offset, or whole sequences from position 0."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext
from pe_experiments.terminal.errors import NotApplicable

LARGEST = 5_000  # positions of a square matrix


def by_offset(rotate: Callable[[Tensor, int], Tensor], x_BHTK: Tensor, positions_BT: Tensor) -> Tensor:
    """Queries or keys rotated by a module that takes the position of the first token.

    ``rotate(x_1HnK, offset)`` is called for every row and every run of consecutive ids.
    """
    ids_BT = whole(positions_BT).expand(len(x_BHTK), -1)
    rows = []
    for x_HTK, ids in zip(x_BHTK, ids_BT.tolist(), strict=True):
        starts = [t for t, p in enumerate(ids) if t == 0 or p != ids[t - 1] + 1]
        runs = zip(starts, [*starts[1:], len(ids)], strict=True)
        rows.append(torch.cat([rotate(x_HTK[None, :, one:end], ids[one]) for one, end in runs], dim=2))
    return torch.cat(rows)


def from_start(
    rotate: Callable[[Tensor], Tensor], x_BHTK: Tensor, positions_BT: Tensor, length: int | None = None
) -> Tensor:
    """Queries or keys rotated by a module that takes whole sequences: ``rotate(x_1HnK)``, from position 0.

    Tokens are laid at their positions among zeros; of tokens that share an id each has a call of its own. The
    sequence has ``length`` tokens, or as many as the row needs.
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
    """The bias [B, H, T, S] of a module that computes it for a length, ``bias(n)`` [H, n, n] from position 0.

    Raises:
        NotApplicable: fractional positions, or positions too far for a matrix of all pairs.
    """
    queries, keys = whole(at.q_positions_BT), whole(at.k_positions_BS)
    length = int(max(queries.max(), keys.max())) + 1
    if length > LARGEST:
        raise NotApplicable(f"a matrix of all pairs up to position {length - 1} does not fit")
    return bias(length)[:, queries[:, :, None], keys[:, None]].transpose(0, 1).float()


def whole(positions_BT: Tensor) -> Tensor:
    """The ids as int64.

    Raises:
        NotApplicable: fractional ones.
    """
    if positions_BT.is_floating_point() and bool((positions_BT % 1).any()):
        raise NotApplicable("the module takes no fractional positions")
    return positions_BT.long()
