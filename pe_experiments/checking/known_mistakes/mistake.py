"""Define a known mistake: its encoding, a description, and a change that introduces it.

The functions here return changes. A replacement of a method is called with the encoding, the original method
and the arguments of the call.
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
    """A change that introduces a mistake into a correct instance in place.

    Args:
        convention: whether released models do it, so that it is not a mistake, but weights do not carry over.
        reported: public projects with this mistake.
    """

    apply: Callable[[Any], None]
    convention: bool = False
    reported: str = ""


@dataclass(frozen=True)
class Mistake:
    """A known mistake: a change of an encoding under configs/pe and its description."""

    encoding: str
    description: str
    change: Change

    @property
    def name(self) -> str:
        return f"{self.encoding}: {self.description}"

    def make_in(self, make: MakeEncoding) -> MakeEncoding:
        """Return the builder of the wrong encoding from the builder of the correct one."""

        def make_wrong(shape: ModelShape) -> PositionalEncoding:
            encoding = make(shape)
            self.change.apply(encoding)
            return encoding

        return make_wrong


def convention(change: Change) -> Change:
    return replace(change, convention=True)


def reported(projects: str, change: Change) -> Change:
    return replace(change, reported=projects)


def attribute(name: str, value: Callable[[Any], Any]) -> Change:
    """Return a change of an attribute to a value computed from the encoding."""
    return Change(lambda encoding: setattr(encoding, name, value(encoding)))


def replace_method(encoding: PositionalEncoding, name: str, replacement: Callable[..., Any]) -> None:
    """Give an instance another method, ``replacement(encoding, original, *arguments)``."""
    cls = type(encoding)
    original = getattr(cls, name)

    def replaced(self: Any, *arguments: Any) -> Any:
        return replacement(self, partial(original, self), *arguments)

    encoding.__class__ = type(cls.__name__, (cls,), {name: replaced})


def method(name: str, replacement: Callable[..., Any]) -> Change:
    """Return a change of a method to ``replacement(encoding, original, *arguments)``."""
    return Change(lambda encoding: replace_method(encoding, name, replacement))


def result(name: str, changed: Callable[[Any], Any]) -> Change:
    """Return a change of the result of a method."""
    return method(name, lambda encoding, original, *arguments: changed(original(*arguments)))


def times_head_dim(name: str, power: float) -> Change:
    """Return a change that multiplies the result of a method by a power of ``head_dim``."""

    def multiplied(encoding, original, *arguments):
        return original(*arguments) * encoding.shape.head_dim**power

    return method(name, multiplied)


def parameters(name: str, values: Callable[[Any], dict[str, Tensor]]) -> Change:
    """Return a change of the values of parameters that a method reads."""

    def with_other_values(encoding, original, *arguments):
        twin = copy.copy(encoding)
        twin._parameters = encoding._parameters | values(encoding)
        return original.func(twin, *arguments)

    return method(name, with_other_values)


def exchanged(name: str, first: str, second: str) -> Change:
    """Return a change that exchanges two parameters in a method."""
    return parameters(name, lambda e: {first: getattr(e, second), second: getattr(e, first)})


def unused(name: str, parameter: str) -> Change:
    """Return a change that replaces a parameter by zeros in a method."""
    return parameters(name, lambda e: {parameter: 0 * getattr(e, parameter)})


def with_ids(at: AttentionContext, change_ids: ChangeIds) -> AttentionContext:
    """Return the context with other position ids; it shares no results with the original."""
    context = at.query_rows(0, at.q_positions_BT.shape[1])
    context.q_positions_BT, context.k_positions_BS = change_ids(at.q_positions_BT, at.k_positions_BS)
    return context


def positions(name: str, change_ids: ChangeIds) -> Change:
    """Return a change of the position ids that a method reads from its last argument, the context."""

    def at_other_ids(encoding, original, *arguments):
        return original(*arguments[:-1], with_ids(arguments[-1], change_ids))

    return method(name, at_other_ids)


def _counted(i: Tensor, j: Tensor) -> PositionIds:
    """Return ids that count tokens from 0; the queries are the last tokens."""
    keys = torch.arange(j.shape[1])[None]
    return keys[:, -i.shape[1] :], keys


# Descriptions of wrong position ids, with functions from correct ids of queries and keys to wrong ones.
WRONG_IDS: dict[str, ChangeIds] = {
    "position ids are ignored, tokens counted": _counted,
    "every token has the position of the last one": lambda i, j: (
        j.amax(1, keepdim=True).expand_as(i),
        j.amax(1, keepdim=True).expand_as(j),
    ),
    "every token has position 0": lambda i, j: (0 * i, 0 * j),
    "positions from 1": lambda i, j: (i + 1, j + 1),
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
    """Return entries of `WRONG_IDS` as changes of one method."""
    return {description: positions(name, WRONG_IDS[description]) for description in descriptions}
