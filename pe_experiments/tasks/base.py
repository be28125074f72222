"""The contract of a task: examples, the rule behind them, and the scores of trivial predictors.

Shapes: B examples, N input symbols, M target symbols.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Split = Literal["training", "validation", "evaluation"]
IGNORE = -100  # a target that is not scored; the default of torch's cross entropy


class PositionIds(NamedTuple):
    """Ids from 1 on that related symbols share; 0 means "has none". B may be 1.

    The model reads them before it answers, so they may depend on the inputs and on the number of targets, but
    not on the targets' values.
    """

    inputs_BN: Tensor
    targets_BM: Tensor
    separator: int = 0  # id of the mark between inputs and targets


class Task(ABC):
    """A rule from input to target symbols, sampled at any length at which it exists.

    Attributes:
        vocab_size: content symbols are ``0 .. vocab_size - 1``, answers included. Formats add their own marks
            (BOS, SEP, EOS, SLOT) after them.
        answers: how many symbols a target can hold; None: all of them.
        order_sensitive: False when the answer does not depend on the order of the input (a control).
        shortest, longest, step: inputs have ``shortest``, ``shortest + step``, ... up to ``longest`` symbols.
        formats: token layouts (see `formats`): ``causal`` and ``slots`` (the answer after the input), or
            ``aligned`` (target t is predicted at input t).
        decoder_only: why a model that reads both ways cannot learn it, if that is so.
        exact: whether a whole answer can be right; of a text of any length none is.
        data_files: files that examples are made from, besides those an argument or the source code names;
            their content is part of a run's identity.
    """

    vocab_size: int
    answers: int | None = None
    data_files: tuple[str | Path, ...] = ()
    order_sensitive: bool = True
    shortest: int = 1
    longest: int = sys.maxsize
    step: int = 1
    decoder_only: str | None = None
    exact: bool = True
    formats: tuple[str, ...] = ("causal", "slots")

    @abstractmethod
    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random examples: inputs [B, N] with N = ``length`` and targets [B, M], int64.

        Targets of -100 are not scored; under ``causal`` and ``slots`` they may only stand at the end.
        """

    def for_split(self, split: Split) -> Task:
        """The task to sample from for this split: itself, unless it draws from data files.

        A task over data returns one that draws only from that split's share of the data.
        """
        return self

    def solve(self, inputs_BN: Tensor) -> Tensor:
        """The targets [B, M] of these inputs by the slow and obvious rule; tests compare `sample` with it."""
        width = self.target_length(inputs_BN.shape[1])
        answers = [self.solve_row(row) for row in inputs_BN.tolist()]
        return torch.tensor([answer + [IGNORE] * (width - len(answer)) for answer in answers])

    def solve_row(self, row: list[int]) -> list[int]:
        """The rule for one input, which a task states here or in `solve`; -100 is added up to the width M."""
        raise NotImplementedError(f"{type(self).__name__} states its rule neither in solve nor in solve_row")

    def nearest_length(self, length: int) -> int | None:
        """The largest length, at most ``length``, that the task can make; None when there is none."""
        length = min(length, self.longest)
        return length - (length - self.shortest) % self.step if length >= self.shortest else None

    def target_length(self, length: int) -> int:
        """M at this input length; the maximum if it varies, so that slots do not reveal a length."""
        return length

    def chance(self, length: int) -> float:
        """Token accuracy of a uniform guess over the possible target symbols, `answers` at any length."""
        return 1 / (self.answers or self.vocab_size)

    def depth(self, inputs_BN: Tensor) -> Tensor | None:
        """Where the evidence for each answer stands, [B]: 0 at the start, 1 next to the question.

        Exact match is then also measured by depth. None: the evidence stands at no one place.
        """
        return None

    def bag_ceiling(self, length: int, prefix: bool = False) -> float | None:
        """The best token accuracy an order-blind predictor can reach: 1 for a control, None where unknown.

        The predictor sees the input as a multiset. It knows the index of the target it predicts and, in the
        aligned format, the input symbol there.

        Args:
            length: of the input.
            prefix: the predictor is a decoder: it also sees the targets before the one it predicts; in the
                aligned format, only the inputs so far.
        """
        return None if self.order_sensitive else 1.0

    def input_blind(self, length: int) -> float | None:
        """Best token accuracy without reading the input, if far above chance; else None."""
        return None

    def position_ids(self, inputs_BN: Tensor, targets_BM: Tensor) -> dict[str, PositionIds]:
        """Ids for ``positions=task`` by kind (``coupling``, ``abacus``); empty if no symbols are related.

        No id exceeds max(N, M) + 1.
        """
        return {}


class OneAnswer(Task):
    """A task whose answer is one symbol."""

    def target_length(self, length: int) -> int:
        return 1


def distinct_symbols(symbols: int, count: int, rows: int, generator: torch.Generator) -> Tensor:
    """``count`` distinct symbols below ``symbols`` per row, in random order."""
    keys_RS = torch.rand(rows, symbols, generator=generator, dtype=torch.float64)
    return keys_RS.argsort(dim=-1)[:, :count].contiguous()
