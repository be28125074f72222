"""How an encoding is broken: small classes that change one attribute or one method of an instance."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.encodings.base import acts_at_embedding
from pe_experiments.models.attention import makes_weights

Pair = tuple[Tensor, Tensor]
Ids = Callable[[Tensor, Tensor], Pair]  # from the ids of queries and keys to other ones
Replacement = Callable[..., Any]  # of a method: (encoding, the method as it was, its arguments)


class Change(Protocol):
    """Changes an instance of an encoding in place."""

    def __call__(self, encoding: Any) -> None: ...


def replace_method(encoding: PositionalEncoding, name: str, replacement: Replacement) -> None:
    """Give an instance ``replacement`` as its method; the method as it was is its second argument."""
    right = getattr(type(encoding), name)

    def replaced(self: Any, *arguments: Any) -> Any:
        return replacement(self, partial(right, self), *arguments)

    encoding.__class__ = type(type(encoding).__name__, (type(encoding),), {name: replaced})


def with_ids(at: AttentionContext, ids: Ids) -> AttentionContext:
    """The context with other position ids; it shares no results with the original."""
    changed = at.query_rows(0, at.q_positions_BT.shape[1])
    changed.q_positions_BT, changed.k_positions_BS = ids(at.q_positions_BT, at.k_positions_BS)
    return changed


@dataclass(frozen=True)
class Attribute:
    """Another value of an attribute."""

    name: str
    value: Callable[[Any], Any]

    def __call__(self, encoding: Any) -> None:
        setattr(encoding, self.name, self.value(encoding))


@dataclass(frozen=True)
class Method:
    """Another method, ``replacement(encoding, right, *arguments)``."""

    name: str
    replacement: Replacement

    def __call__(self, encoding: Any) -> None:
        replace_method(encoding, self.name, self.replacement)


@dataclass(frozen=True)
class Result:
    """A method whose result is changed."""

    name: str
    change: Callable[[Any], Any]

    def __call__(self, encoding: Any) -> None:
        replace_method(encoding, self.name, self._changed)

    def _changed(self, encoding: Any, right: Replacement, *arguments: Any) -> Any:
        return self.change(right(*arguments))


@dataclass(frozen=True)
class TimesHeadDim:
    """A method whose result is multiplied by a power of ``head_dim``."""

    name: str
    power: float

    def __call__(self, encoding: Any) -> None:
        replace_method(encoding, self.name, self._changed)

    def _changed(self, encoding: Any, right: Replacement, *arguments: Any) -> Any:
        return right(*arguments) * encoding.shape.head_dim**self.power


@dataclass(frozen=True)
class Positions:
    """A method whose last argument, the context, has other position ids."""

    name: str
    ids: Ids

    def __call__(self, encoding: Any) -> None:
        replace_method(encoding, self.name, self._changed)

    def _changed(self, encoding: Any, right: Replacement, *arguments: Any) -> Any:
        return right(*arguments[:-1], with_ids(arguments[-1], self.ids))


@dataclass(frozen=True)
class Exchanged:
    """A method that reads each of two parameters in place of the other."""

    method: str
    first: str
    second: str

    def __call__(self, encoding: Any) -> None:
        replace_method(encoding, self.method, self._changed)

    def _changed(self, encoding: Any, right: Any, *arguments: Any) -> Any:
        twin = copy.copy(encoding)
        swapped = {
            self.first: getattr(encoding, self.second),
            self.second: getattr(encoding, self.first),
        }
        twin._parameters = encoding._parameters | swapped
        return right.func(twin, *arguments)


@dataclass(frozen=True)
class Unused:
    """A method that reads zeros in place of a parameter."""

    method: str
    parameter: str

    def __call__(self, encoding: Any) -> None:
        replace_method(encoding, self.method, self._changed)

    def _changed(self, encoding: Any, right: Any, *arguments: Any) -> Any:
        twin = copy.copy(encoding)
        zeros = 0 * getattr(encoding, self.parameter)
        twin._parameters = encoding._parameters | {self.parameter: zeros}
        return right.func(twin, *arguments)


@dataclass(frozen=True)
class EveryHook:
    """Other position ids at every hook of an encoding.

    Args:
        ids: those of the queries and of the keys.
        embedded: those of the embeddings; None where the mistake is one of attention.
    """

    ids: Ids
    embedded: Callable[[Tensor], Tensor] | None = None

    def __call__(self, encoding: Any) -> None:
        if self.embedded is not None and acts_at_embedding(encoding):
            replace_method(encoding, "embed_sequence", self._embed)
        for part in attention_parts(encoding):
            for name in attention_hooks(part):
                replace_method(part, name, self._attend)

    def _embed(self, encoding: Any, right: Replacement, x: Tensor, ids: Tensor, declared: Any) -> Any:
        assert self.embedded is not None
        return right(x, self.embedded(ids), declared)

    def _attend(self, encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Any:
        return right(q, k, with_ids(at, self.ids))


@dataclass(frozen=True)
class NothingWhileDecoding:
    """The encoding has no effect where a query comes with keys of earlier calls."""

    def __call__(self, encoding: Any) -> None:
        for part in attention_parts(encoding):
            for name in attention_hooks(part):
                if name != "weights":
                    replace_method(part, name, getattr(self, f"_{name}"))

    @staticmethod
    def _bias(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Any:
        bias = right(q, k, at)
        return torch.zeros_like(bias) if q.shape[2] < k.shape[2] else bias

    @staticmethod
    def _rotate(encoding: Any, right: Replacement, q: Tensor, k: Tensor, at: AttentionContext) -> Any:
        return (q, k) if q.shape[2] < k.shape[2] else right(q, k, at)


def attention_parts(encoding: PositionalEncoding) -> list[PositionalEncoding]:
    """The encodings of the layers, each once."""
    parts = [encoding.for_layer(layer) for layer in range(encoding.shape.num_layers)]
    return list({id(part): part for part in parts}.values())


def attention_hooks(encoding: PositionalEncoding) -> list[str]:
    """The hooks of attention that the encoding overrides and that its callers call."""
    if makes_weights(encoding):
        return ["weights"]
    base = PositionalEncoding
    return [name for name in ("rotate", "bias") if getattr(type(encoding), name) is not getattr(base, name)]
