"""A formula as the reference: a scalar function of q, k, i, j and the head, as a paper prints it."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MASKED
from pe_experiments.errors import UserError
from pe_experiments.models.backbone import MakeEncoding

Scalar = Callable[[Tensor, Tensor, int, int, int], float]


class Formula(PositionalEncoding):
    """The scheme whose logit of query i and key j is ``function(q, k, i, j, head)``.

    Args:
        shape: the model it serves.
        function: of the query and the key [K] in float64 before any rotation, their positions and the head
            (from 0), to the logit that enters the softmax, scale included. A constant per query is ignored.
    """

    def __init__(self, shape: ModelShape, function: Scalar):
        super().__init__(shape)
        self.function = function

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        q, k = q_BHTK.double(), k_BHSK.double()
        logits_BHTS = torch.full((*q.shape[:3], k.shape[2]), MASKED, dtype=torch.float64)
        for b, t, s in at.visible_BTS.expand(len(q), -1, -1).nonzero().tolist():
            i, j = (int(ids[b % len(ids), n]) for ids, n in ((at.q_positions_BT, t), (at.k_positions_BS, s)))
            for head in range(q.shape[1]):
                logits_BHTS[b, head, t, s] = self._value(q[b, head, t], k[b, head, s], i, j, head)
        return (logits_BHTS - (q * self.shape.head_dim**-0.5) @ k.mT).float()

    def _value(self, q: Tensor, k: Tensor, i: int, j: int, head: int) -> float:
        try:
            return float(self.function(q, k, i, j, head))
        except Exception as error:
            raise UserError(
                f"formula(q, k, {i}, {j}, {head}) raises {type(error).__name__}: {error}"
            ) from error


def formula(name: str) -> Scalar:
    """The function of that name, ``module.function``.

    Raises:
        UserError: there is none.
    """
    module, _, function = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"formula={name}: expected module.function, and there is none ({error})") from error
    if not callable(found):
        raise UserError(f"formula={name} is no function; expected f(q, k, i, j, head)")
    return found


def frozen(make: MakeEncoding) -> MakeEncoding:
    """The scheme with its parameters as they start: a formula has none to share."""
    return lambda shape: make(shape).requires_grad_(False)
