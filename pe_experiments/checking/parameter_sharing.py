"""Copy the parameters of a reference to a candidate whose parameters have other names or shapes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, permutations, product

import torch
from torch import Tensor, nn

from pe_experiments.checking.random_inputs import trainable
from pe_experiments.encodings import PositionalEncoding

MOST_ASSIGNMENTS = 24
MOST_EXTRA_ROWS = 8  # rows of a longer table before the first position (fairseq and RoBERTa have 2)


@dataclass(frozen=True)
class Pairing:
    """A parameter of the candidate and the parameter of the reference from which its values come.

    Args:
        convert: function from values of the reference's parameter to values of the candidate's.
        table: description of how the candidate reads a longer table, or an empty string.
    """

    candidate: nn.Parameter
    reference: nn.Parameter
    convert: Callable[[Tensor], Tensor]
    table: str = ""

    @torch.no_grad()
    def copy(self) -> None:
        """Copy the values of the reference's parameter to the candidate's."""
        self.candidate.copy_(self.convert(self.reference))


def assignments(source: PositionalEncoding, target: PositionalEncoding) -> Iterator[list[Pairing]]:
    """Yield the ways to copy the trainable parameters of ``source`` to ``target``, each after copying them.

    Parameters are paired by name if names and shapes agree, else in every order.
    """
    candidate, reference = trainable(target), trainable(source)
    candidate_shapes = {name: parameter.shape for name, parameter in candidate.items()}
    reference_shapes = {name: parameter.shape for name, parameter in reference.items()}
    orders: Iterable[tuple[nn.Parameter, ...]] = ()
    if candidate_shapes == reference_shapes:
        orders = [tuple(reference[name] for name in candidate)]
    elif len(candidate) == len(reference):
        orders = permutations(reference.values())
    all_pairings = (
        pairings for order in orders for pairings in product(*map(_pairings, candidate.values(), order))
    )
    for pairings in islice(all_pairings, MOST_ASSIGNMENTS):
        for pairing in pairings:
            pairing.copy()
        yield list(pairings)


def _pairings(candidate: nn.Parameter, reference: nn.Parameter) -> list[Pairing]:
    """Return the ways in which values fit: unchanged, transposed, or as rows of a longer table."""
    target = candidate.squeeze().shape
    source = reference.squeeze().shape
    pairings = []
    if target == source:
        pairings.append(Pairing(candidate, reference, lambda value: value.squeeze().reshape(candidate.shape)))
    if len(source) == 2 and target == source[::-1]:
        pairings.append(
            Pairing(candidate, reference, lambda value: value.squeeze().T.reshape(candidate.shape))
        )
    if len(source) == len(target) == 2 and target[1] == source[1] and target[0] > source[0]:
        extra_rows = target[0] - source[0]
        for first_row in range(min(extra_rows, MOST_EXTRA_ROWS) + 1):
            convert = partial(_fill_rows, candidate.detach().clone(), first_row)
            description = f"its table has {target[0]} rows instead of {source[0]}"
            if first_row:
                description += f", equal with ids shifted by {first_row}"
            elif target[0] == 2 * source[0] - 1:
                # A decoder's table of distances may have rows for later keys, which are never read.
                description = ""
            pairings.append(Pairing(candidate, reference, convert, description))
    return pairings


def _fill_rows(table: Tensor, first_row: int, values: Tensor) -> Tensor:
    """Return the table with the values in its rows from ``first_row`` on."""
    filled = table.squeeze().clone()
    filled[first_row : first_row + len(values.squeeze())] = values.squeeze()
    return filled.reshape(table.shape)
