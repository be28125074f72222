"""Define the channel layouts in which correct implementations of a rotation may differ."""

from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

EXCHANGED = "the two channels of each pair exchanged (it rotates the other way)"
NEIGHBOURS = "pairs of neighbouring channels (m, m + 1) where ours are halves apart"
COSINES_FIRST = "the two channels of each pair exchanged (cosines before sines)"
HALVES = "pairs of channels halves apart where ours are neighbours"
LAST = "the last channels rotate where ours are the first"

# Permutations of the rotating channels, of pairs that are halves apart in ours or are neighbours.
OF_HALVES: dict[str, Callable[[Tensor], Tensor]] = {
    EXCHANGED: lambda order: order.roll(len(order) // 2),
    NEIGHBOURS: lambda order: order.view(2, -1).T.flatten(),
}
OF_NEIGHBOURS: dict[str, Callable[[Tensor], Tensor]] = {
    COSINES_FIRST: lambda order: order.view(-1, 2).flip(1).flatten(),
    HALVES: lambda order: order.view(-1, 2).T.flatten(),
}
PERMUTATIONS = {**OF_HALVES, **OF_NEIGHBOURS}
# A layout is a sequence of permutations of one of the two, and of `LAST`.
LAYOUTS = [
    layout
    for permutations in (OF_HALVES, OF_NEIGHBOURS)
    for number in (1, 2, 3)
    for layout in combinations((*permutations, LAST), number)
]
USUAL_LAYOUTS: tuple[tuple[str, ...], ...] = ((), (NEIGHBOURS,), (HALVES,))


def channel_order(layout: Sequence[str], channels: int, pairs: int | None) -> list[int]:
    """Return the index of the reference's channel for each channel of a candidate in this layout.

    Args:
        layout: keys of `PERMUTATIONS`, applied in this order, and `LAST`.
        channels: channels of a head.
        pairs: number of pairs of channels that rotate; None if all do.
    """
    num_rotating = 2 * (channels // 2 if pairs is None else pairs)
    rotating = torch.arange(num_rotating)
    unrotated = torch.arange(num_rotating, channels)
    for name in layout:
        if name != LAST:
            rotating = PERMUTATIONS[name](rotating)
    parts = (unrotated, rotating) if LAST in layout else (rotating, unrotated)
    return torch.cat(parts).tolist()
