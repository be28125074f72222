"""The inputs of an encoding besides queries and keys: positions, mask, lengths and hidden states.

Names of tensors end in their shapes, as in `base`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from torch import Tensor


def _once_property(fn: Callable[[AttentionContext], Tensor]) -> property:
    """Return a property whose value is computed and cached by `AttentionContext.once`."""
    return property(lambda at: at.once(fn), doc=fn.__doc__)


class AttentionContext:
    """The inputs of a hook (a method of an encoding that attention calls) besides q and k.

    Attributes can be added without breaking encodings outside the package.

    Attributes:
        q_positions_BT, k_positions_BS: position ids of the queries and of the keys (B may be 1).
        visible_BTS: True where a query may see a key (causality and padding). It is computed on first use: at
            long lengths it is large, and most encodings never read it.
        lengths_B: tokens of each row without padding.
        declared_B: the declared length of each row: its tokens with the longest possible answer. It is known
            before the first token of the answer and stays the same during decoding. An encoding that depends
            on the length must therefore read it (through `tokens_B`), never the number of tokens so far.
        x_BSD: the hidden states from which the layer computes queries and keys (after its norm), for gates.
            They are computed on first use, too.
        layer: index of the layer, from 0.
        first_query: index of the first query in the sequence; not 0 in a block of queries.
        queries: the indices of the queries in the sequence, as a slice.
    """

    def __init__(
        self,
        q_positions_BT: Tensor,
        k_positions_BS: Tensor,
        visible_BTS: Tensor | Callable[[int, int], Tensor],
        lengths_B: Tensor | None = None,
        x_BSD: Tensor | Callable[[], Tensor] | None = None,
        layer: int = 0,
        first_query: int = 0,
        declared_B: Tensor | None = None,
    ):
        """Store the inputs; ``visible_BTS`` and ``x_BSD`` may be functions that compute them.

        ``visible_BTS(start, stop)`` returns rows start .. stop-1 of the mask. ``x_BSD()`` is called when an
        encoding reads the hidden states.
        """
        self.q_positions_BT = q_positions_BT
        self.k_positions_BS = k_positions_BS
        self.lengths_B = lengths_B
        self.declared_B = lengths_B if declared_B is None else declared_B
        self._x_BSD = x_BSD
        self.layer = layer
        self.first_query = first_query
        self._visible = visible_BTS
        self._cache: dict[Any, Any] = {}

    @property
    def x_BSD(self) -> Tensor:
        if callable(self._x_BSD):
            self._x_BSD = self._x_BSD()
        assert self._x_BSD is not None, "the encoding reads the hidden states of the layer"
        return self._x_BSD

    @property
    def queries(self) -> slice:
        return slice(self.first_query, self.first_query + self.q_positions_BT.shape[1])

    @_once_property
    def visible_BTS(self) -> Tensor:
        return self._visible_rows(0, self.q_positions_BT.shape[1])

    @_once_property
    def relative_positions_BTS(self) -> Tensor:
        """Return key position minus query position, j - i: negative where the key comes before the query."""
        return self.k_positions_BS[:, None, :] - self.q_positions_BT[:, :, None]

    @_once_property
    def visible_keys_BT(self) -> Tensor:
        """Return the number of keys that each query may see."""
        # Count in blocks of queries, because the whole mask is large at long lengths.
        block_size = 1024
        queries = self.q_positions_BT.shape[1]
        counts = []
        for start in range(0, queries, block_size):
            visible_BRS = self._visible_rows(start, min(start + block_size, queries))
            counts.append(visible_BRS.sum(-1))
        return torch.cat(counts, dim=1)

    @property
    def tokens_B(self) -> Tensor:
        """Return the declared lengths, or the number of keys if no lengths are given (B is 1 then)."""
        if self.declared_B is not None:
            return self.declared_B
        return torch.tensor([self.k_positions_BS.shape[1]], device=self.k_positions_BS.device)

    def once(self, fn: Callable[[AttentionContext], Any]) -> Any:
        """Return ``fn(self)``, computed once per forward pass and shared by the layers.

        ``fn`` is the key of the cache: pass a function or a bound method, not a fresh lambda. Its result must
        not depend on ``layer`` or ``x_BSD``.
        """
        if fn not in self._cache:
            self._cache[fn] = fn(self)
        return self._cache[fn]

    def at_layer(self, layer: int, x_BSD: Tensor | Callable[[], Tensor]) -> AttentionContext:
        """Return a copy of the context for another layer, which shares the results of ``once``."""
        context = copy(self)
        context.layer, context._x_BSD = layer, x_BSD
        return context

    def query_rows(self, start: int, stop: int, keys: int | None = None) -> AttentionContext:
        """Return a copy for the queries start .. stop-1, without the results of ``once``.

        With ``keys`` it has only that many keys, of which the queries may see no others. The declared lengths
        stay the same.
        """
        block = copy(self)
        block.q_positions_BT = self.q_positions_BT[:, start:stop]
        block.first_query = self.first_query + start
        block._visible = self._visible_rows(start, stop)
        block._cache = {}
        if keys is not None and keys < self.k_positions_BS.shape[1]:
            block.declared_B = self.tokens_B
            block.k_positions_BS = self.k_positions_BS[:, :keys]
            block._visible = block._visible[:, :, :keys]
            if self._x_BSD is not None:
                block._x_BSD = lambda: self.x_BSD[:, :keys]
        return block

    def _visible_rows(self, start: int, stop: int) -> Tensor:
        """Return rows start .. stop-1 of the mask."""
        if isinstance(self._visible, Tensor):
            return self._visible[:, start:stop]
        return self._visible(start, stop)
