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

    checked: nn.Parameter
    reference: nn.Parameter
    form: Callable[[Tensor], Tensor]
    table: str = ""  # description of how a longer table is read

    @torch.no_grad()
    def copy(self) -> None:
        self.checked.copy_(self.form(self.reference))


def assignments(source: PositionalEncoding, target: PositionalEncoding) -> Iterator[list[Pairing]]:
    """Copy the trainable parameters of ``source`` to ``target`` in every way that fits, one per step.

    Parameters are paired by name if the names agree, else in any order.
    """
    checked, reference = trainable(target), trainable(source)
    orders: Iterable[tuple[nn.Parameter, ...]] = ()
    if {name: p.shape for name, p in checked.items()} == {name: p.shape for name, p in reference.items()}:
        orders = [tuple(reference[name] for name in checked)]
    elif len(checked) == len(reference):
        orders = permutations(reference.values())
    ways = (way for order in orders for way in product(*map(_pairings, checked.values(), order)))
    for way in islice(ways, WAYS):
        for pairing in way:
            pairing.copy()
        yield list(way)


def _pairings(checked: nn.Parameter, reference: nn.Parameter) -> list[Pairing]:
    """Return the forms in which values fit: unchanged, transposed, or as rows of a longer table."""
    target, source = checked.squeeze().shape, reference.squeeze().shape
    pairings = []
    if target == source:
        pairings.append(Pairing(checked, reference, lambda value: value.squeeze().reshape(checked.shape)))
    if len(source) == 2 and target == source[::-1]:
        pairings.append(Pairing(checked, reference, lambda value: value.squeeze().T.reshape(checked.shape)))
    if len(source) == len(target) == 2 and target[1] == source[1] and target[0] > source[0]:
        more = target[0] - source[0]
        rows = f"its table has {target[0]} rows instead of {source[0]}"
        for first in range(min(more, MORE_ROWS) + 1):
            padded = partial(_rows_from, checked.detach().clone(), first)
            shifted = f"{rows}, equal with ids shifted by {first}" if first else rows
            # A decoder's table of distances may have rows for later keys, which are never read.
            both_sides = first == 0 and target[0] == 2 * source[0] - 1
            pairings.append(Pairing(checked, reference, padded, "" if both_sides else shifted))
    return pairings


def _rows_from(table: Tensor, first: int, values: Tensor) -> Tensor:
    """Return the table with the values in its rows from ``first`` on."""
    longer = table.squeeze().clone()
    longer[first : first + len(values.squeeze())] = values.squeeze()
    return longer.reshape(table.shape)
