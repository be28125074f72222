"""Define `Mistake`, and functions that return the changes which introduce mistakes into encodings.

Every ``replacement`` of a method is called as ``replacement(encoding, original, *arguments)``, where
``original`` is the bound method that it replaces.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding

PositionIds = tuple[Tensor, Tensor]  # of the queries i and of the keys j, [B, T] and [B, S]
ChangeIds = Callable[[Tensor, Tensor], PositionIds]


@dataclass(frozen=True)
class Change:
    """A change that introduces a mistake into a correct encoding.

    Args:
        apply: function that changes an encoding in place.
        convention: whether released models do the same; it is then no mistake, but weights do not carry over.
        projects: public projects for which the mistake was reported.
    """

    apply: Callable[[Any], None]
    convention: bool = False
    projects: str = ""


@dataclass(frozen=True)
class Mistake:
    """A known mistake in an encoding under configs/pe: its description, and the change that introduces it."""

    encoding: str
    description: str
    change: Change

    @property
    def name(self) -> str:
        return f"{self.encoding}: {self.description}"

    def make_in(self, make: MakeEncoding) -> MakeEncoding:
        """Return a function that builds the encoding with ``make`` and introduces the mistake."""

        def make_wrong(shape: ModelShape) -> PositionalEncoding:
            encoding = make(shape)
            self.change.apply(encoding)
            return encoding

        return make_wrong


def as_convention(change: Change) -> Change:
    """Return the change marked as a convention of released models."""
    return replace(change, convention=True)


def reported_in(projects: str, change: Change) -> Change:
    """Return the change with the public projects for which it was reported."""
    return replace(change, projects=projects)


def change_attribute(name: str, value: Callable[[Any], Any]) -> Change:
    """Return a change that sets an attribute to ``value(encoding)``."""
    return Change(lambda encoding: setattr(encoding, name, value(encoding)))


def replace_method(encoding: PositionalEncoding, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a method of this instance only."""
    cls = type(encoding)
    original = getattr(cls, name)

    def new_method(self: Any, *arguments: Any) -> Any:
        return replacement(self, partial(original, self), *arguments)

    encoding.__class__ = type(cls.__name__, (cls,), {name: new_method})


def change_method(name: str, replacement: Callable[..., Any]) -> Change:
    """Return a change that replaces a method."""
    return Change(lambda encoding: replace_method(encoding, name, replacement))


def change_result(name: str, change: Callable[[Any], Any]) -> Change:
    """Return a change that applies ``change`` to the result of a method."""
    return change_method(name, lambda encoding, original, *arguments: change(original(*arguments)))


def scale_by_head_dim(name: str, power: float) -> Change:
    """Return a change that multiplies the result of a method by a power of ``head_dim``."""

    def scaled_method(encoding, original, *arguments):
        return original(*arguments) * encoding.shape.head_dim**power

    return change_method(name, scaled_method)


def change_parameters(name: str, values: Callable[[Any], dict[str, Tensor]]) -> Change:
    """Return a change that makes a method read ``values(encoding)`` in place of the parameters so named."""

    def with_changed_parameters(encoding, original, *arguments):
        shallow_copy = copy.copy(encoding)
        shallow_copy._parameters = encoding._parameters | values(encoding)
        return original.func(shallow_copy, *arguments)

    return change_method(name, with_changed_parameters)


def exchange_parameters(name: str, first: str, second: str) -> Change:
    """Return a change that makes a method read two parameters in exchange for each other."""
    return change_parameters(name, lambda e: {first: getattr(e, second), second: getattr(e, first)})


def zero_parameter(name: str, parameter: str) -> Change:
    """Return a change that makes a method read zeros in place of a parameter."""
    return change_parameters(name, lambda e: {parameter: 0 * getattr(e, parameter)})


def with_ids(at: AttentionContext, change_ids: ChangeIds) -> AttentionContext:
    """Return a copy of the context with changed position ids and without its cached results."""
    context = at.query_rows(0, at.q_positions_BT.shape[1])
    context.q_positions_BT, context.k_positions_BS = change_ids(at.q_positions_BT, at.k_positions_BS)
    return context


def change_positions(name: str, change_ids: ChangeIds) -> Change:
    """Return a change of the position ids in the context, which is the last argument of the method."""

    def with_changed_ids(encoding, original, *arguments):
        return original(*arguments[:-1], with_ids(arguments[-1], change_ids))

    return change_method(name, with_changed_ids)


def _count_tokens(i: Tensor, j: Tensor) -> PositionIds:
    """Return ids that count the keys from 0; the queries have the ids of the last keys."""
    key_ids = torch.arange(j.shape[1])[None]
    return key_ids[:, -i.shape[1] :], key_ids


# Functions from the correct ids of queries and keys to wrong ones, by the description of the mistake.
WRONG_IDS: dict[str, ChangeIds] = {
    "position ids are ignored, tokens counted": _count_tokens,
    "every token has the position of the last one": lambda i, j: (
        j.amax(1, keepdim=True).expand_as(i),
        j.amax(1, keepdim=True).expand_as(j),
    ),
    "every token has position 0": lambda i, j: (0 * i, 0 * j),
    "positions from 1": lambda i, j: (i + 1, j + 1),
    "ids are counted from the first one of each row (an offset is lost)": lambda i, j: (
        i - j.amin(1, keepdim=True),
        j - j.amin(1, keepdim=True),
    ),
    "positions run backwards": lambda i, j: (j.amax(1, keepdim=True) - i, j.amax(1, keepdim=True) - j),
    "positions are doubled": lambda i, j: (2 * i, 2 * j),
    "positions are halved and rounded down": lambda i, j: (i // 2, j // 2),
    "the ids of the first row serve all rows": lambda i, j: (i[:1], j[:1]),
    "queries are one position ahead": lambda i, j: (i + 1, j),
    "keys are one position ahead": lambda i, j: (i, j + 1),
    "the query of a cached step is counted from 0": lambda i, j: (j[:, : i.shape[1]], j),
    "the query of a cached step is one position behind": lambda i, j: (i - int(i.shape[1] < j.shape[1]), j),
    "the query of a cached step is one position ahead": lambda i, j: (i + int(i.shape[1] < j.shape[1]), j),
    "the offset of the first row serves all rows while decoding": lambda i, j: (
        i if i.shape[1] > 1 else i[:1],
        j,
    ),
    "positions in bfloat16": lambda i, j: (i.bfloat16(), j.bfloat16()),
    "positions in float16": lambda i, j: (i.half(), j.half()),
}


def wrong_ids(name: str, *descriptions: str) -> dict[str, Change]:
    """Return entries of `WRONG_IDS` as changes of the position ids that a method reads."""
    return {description: change_positions(name, WRONG_IDS[description]) for description in descriptions}
