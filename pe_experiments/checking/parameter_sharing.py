"""Copy the parameters of a reference to an implementation with other names or forms of them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, permutations, product

import torch
from torch import Tensor, nn

from pe_experiments.checking.instances import trainable
from pe_experiments.encodings import PositionalEncoding

WAYS = 24  # most tried pairings of parameters
MORE_ROWS = 8  # rows before the first position of a longer table (fairseq and RoBERTa have 2)


@dataclass(frozen=True)
class Pairing:
    """A parameter of theirs, its source among ours, and the form of its values."""

    theirs: nn.Parameter
    ours: nn.Parameter
    form: Callable[[Tensor], Tensor]
    table: str = ""  # description of how a longer table is read

    @torch.no_grad()
    def copy(self) -> None:
        self.theirs.copy_(self.form(self.ours))


def assignments(source: PositionalEncoding, target: PositionalEncoding) -> Iterator[list[Pairing]]:
    """Copy the trainable parameters of ``source`` to ``target`` in every way that fits, one per step.

    Parameters are paired by name if the names agree, else in any order.
    """
    theirs, ours = trainable(target), trainable(source)
    orders: Iterable[tuple[nn.Parameter, ...]] = ()
    if {name: p.shape for name, p in theirs.items()} == {name: p.shape for name, p in ours.items()}:
        orders = [tuple(ours[name] for name in theirs)]
    elif len(theirs) == len(ours):
        orders = permutations(ours.values())
    ways = (way for order in orders for way in product(*map(_pairings, theirs.values(), order)))
    for way in islice(ways, WAYS):
        for pairing in way:
            pairing.copy()
        yield list(way)


def _pairings(theirs: nn.Parameter, ours: nn.Parameter) -> list[Pairing]:
    """Return the forms in which values fit: unchanged, transposed, or as rows of a longer table."""
    target, source = theirs.squeeze().shape, ours.squeeze().shape
    pairings = []
    if target == source:
        pairings.append(Pairing(theirs, ours, lambda value: value.squeeze().reshape(theirs.shape)))
    if len(source) == 2 and target == source[::-1]:
        pairings.append(Pairing(theirs, ours, lambda value: value.squeeze().T.reshape(theirs.shape)))
    if len(source) == len(target) == 2 and target[1] == source[1] and target[0] > source[0]:
        more = target[0] - source[0]
        rows = f"its table has {target[0]} rows instead of {source[0]}"
        for first in range(min(more, MORE_ROWS) + 1):
            padded = partial(_rows_from, theirs.detach().clone(), first)
            shifted = f"{rows}, equal with ids shifted by {first}" if first else rows
            # A decoder's table of distances may have rows for later keys, which are never read.
            both_sides = first == 0 and target[0] == 2 * source[0] - 1
            pairings.append(Pairing(theirs, ours, padded, "" if both_sides else shifted))
    return pairings


def _rows_from(table: Tensor, first: int, values: Tensor) -> Tensor:
    """Return the table with the values in its rows from ``first`` on."""
    longer = table.squeeze().clone()
    longer[first : first + len(values.squeeze())] = values.squeeze()
    return longer.reshape(table.shape)
