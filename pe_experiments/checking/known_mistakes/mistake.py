"""Define changes that introduce mistakes into encodings.

Every ``replacement`` of a method is called as ``replacement(encoding, original, *arguments)``, where
``original`` is the bound method that it replaces. ``labels`` are the other arguments of `Change`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from pe_experiments.encodings import AttentionContext, PositionalEncoding

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

    def then(self, change: Change) -> Change:
        """Return this change followed by another."""

        def apply(encoding: PositionalEncoding) -> None:
            self.apply(encoding)
            change.apply(encoding)

        return Change(apply)


def change_attribute(name: str, value: Callable[[Any], Any], **labels: Any) -> Change:
    """Return a change that sets an attribute to ``value(encoding)``."""
    return Change(lambda encoding: setattr(encoding, name, value(encoding)), **labels)


def replace_method(encoding: PositionalEncoding, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a method of this instance only."""
    cls = type(encoding)
    original = getattr(cls, name)

    def new_method(self: Any, *arguments: Any) -> Any:
        return replacement(self, partial(original, self), *arguments)

    encoding.__class__ = type(cls.__name__, (cls,), {name: new_method})


def change_method(name: str, replacement: Callable[..., Any], **labels: Any) -> Change:
    """Return a change that replaces a method."""
    return Change(lambda encoding: replace_method(encoding, name, replacement), **labels)


def change_result(name: str, change: Callable[[Any], Any], **labels: Any) -> Change:
    """Return a change that applies ``change`` to the result of a method."""
    return change_method(name, lambda encoding, original, *arguments: change(original(*arguments)), **labels)


def with_ids(at: AttentionContext, change_ids: ChangeIds) -> AttentionContext:
    """Return a copy of the context with changed position ids and without its cached results."""
    context = at.query_rows(0, at.q_positions_BT.shape[1])
    context.q_positions_BT, context.k_positions_BS = change_ids(at.q_positions_BT, at.k_positions_BS)
    return context
