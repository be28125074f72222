"""Orders of a head's channels in which correct implementations of a rotation may differ."""

from collections.abc import Callable, Sequence
from itertools import combinations

EXCHANGED = "the two channels of each pair exchanged (it rotates the other way)"
NEIGHBOURS = "pairs of neighbouring channels (m, m + 1) where ours are halves apart"
HALVES = "pairs of channels halves apart where ours are neighbours"
LAST = "the last channels rotate where ours are the first"
# Orders of the rotating channels.
STEPS: dict[str, Callable[[list[int]], list[int]]] = {
    EXCHANGED: lambda order: order[len(order) // 2 :] + order[: len(order) // 2],
    NEIGHBOURS: lambda order: [order[m // 2 + m % 2 * len(order) // 2] for m in range(len(order))],
    HALVES: lambda order: order[::2] + order[1::2],
}
LAYOUTS = [steps for number in (1, 2, 3) for steps in combinations((*STEPS, LAST), number)]
USUAL_LAYOUTS: tuple[tuple[str, ...], ...] = ((), (NEIGHBOURS,), (HALVES,))


def channel_order(steps: Sequence[str], channels: int, pairs: int | None) -> list[int]:
    """Return the index of our channel for each channel of a layout; ``pairs`` of them rotate (None: all)."""
    rotating = 2 * (channels // 2 if pairs is None else pairs)
    order = list(range(rotating))
    unrotated = list(range(rotating, channels))
    for step in steps:
        order = STEPS[step](order) if step in STEPS else order
    return unrotated + order if LAST in steps else order + unrotated
