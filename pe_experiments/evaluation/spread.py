"""Spread work over the processes (ranks) of a run on several devices; a single process does all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import distributed

Item = TypeVar("Item")


def rank() -> int:
    """Return the index of this process among the processes of the run, from 0."""
    return distributed.get_rank() if _is_distributed() else 0


def world_size() -> int:
    """Return the number of processes of the run."""
    return distributed.get_world_size() if _is_distributed() else 1


def belongs_to_this_rank(index: int) -> bool:
    """Return whether this process does item ``index``. Items are assigned to the processes in turn."""
    return index % world_size() == rank()


def gather(of_this_rank: Sequence[tuple[int, Item]]) -> list[Item]:
    """Return the items of all ranks in the order of their indices, the same on every rank.

    Sums over the items are therefore bit-identical for any number of ranks.

    Args:
        of_this_rank: pairs of index and item.
    """
    pairs = list(of_this_rank)
    if _is_distributed():
        of_all_ranks: list[Any] = [None] * world_size()
        distributed.all_gather_object(of_all_ranks, pairs)
        pairs = [pair for of_rank in of_all_ranks for pair in of_rank]
    return [item for _, item in sorted(pairs, key=lambda pair: pair[0])]


def _is_distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized()
