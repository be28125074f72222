"""The interface of a task: random examples, their rule, and the accuracy of trivial predictors.

Shapes: B examples, N input symbols, M target symbols.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Split = Literal["training", "validation", "evaluation"]
IGNORE = -100  # a target that is not scored; the default of torch's cross entropy
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)  # centres of the bins in which `Task.depth` is reported


class PositionIds(NamedTuple):
    """Position ids, from 1, that related symbols share; 0 means no id. B may be 1.

    The model reads ids before it answers, so they may depend on the inputs and on the number of targets, but
    not on the values of the targets.
    """

    inputs_BN: Tensor
    targets_BM: Tensor
    separator: int = 0  # id of the mark between inputs and targets


class Task(ABC):
    """A rule that maps input symbols to target symbols, with a sampler of examples of a given length.

    Attributes:
        vocab_size: content symbols are ``0 .. vocab_size - 1``, answers included. Formats add their own marks
            (BOS, SEP, EOS, SLOT) after them.
        answers: number of symbols that a target can take; None means all.
        mark: the symbol that marks a place of the input, as between two numbers; None if there is none.
        order_sensitive: False when the answer does not depend on the order of the input (a control).
        shortest, longest, step: lengths are ``shortest``, ``shortest + step``, ... up to ``longest``. They
            count input symbols unless `input_length` says otherwise.
        formats: token layouts (see `formats`): ``causal`` and ``slots`` (the answer after the input), or
            ``aligned`` (target t is predicted at input t).
        decoder_only: the reason why the task needs a decoder; None if an encoder can be used.
        exact: whether exact match is meaningful; it is not for text.
        data_files: files from which examples are drawn; their content is part of a run's identity. A file
            that an argument names need not be listed.
        data_arguments: arguments that only say where ``data_files`` are. Two runs are the same if the content
            of their files is, wherever they are.
        vocabulary: identifies what the symbols stand for if that was learned from data. A model is evaluated
            and continued only on a task with the vocabulary it was trained with.
    """

    vocab_size: int
    answers: int | None = None
    mark: int | None = None
    data_files: tuple[str | Path, ...] = ()
    data_arguments: tuple[str, ...] = ()
    vocabulary: str = ""
    order_sensitive: bool = True
    shortest: int = 1
    longest: int = sys.maxsize
    step: int = 1
    decoder_only: str | None = None
    exact: bool = True
    formats: tuple[str, ...] = ("causal", "slots")

    @abstractmethod
    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return random examples: inputs [B, N] with N = ``input_length(length)`` and targets [B, M], int64.

        Targets of -100 are not scored; under ``causal`` and ``slots`` they may only stand at the end.
        """

    def for_split(self, split: Split) -> Task:
        """Return the task from which this split is sampled: ``self``, unless it reads data files.

        A task that reads data files returns a copy that samples only this split's share of the data.
        """
        return self

    def solve(self, inputs_BN: Tensor) -> Tensor:
        """Return the targets [B, M] of these inputs by a simple rule; tests compare it with `sample`."""
        width = self.target_length(inputs_BN.shape[1])
        answers = [self.solve_row(row) for row in inputs_BN.tolist()]
        return torch.tensor([answer + [IGNORE] * (width - len(answer)) for answer in answers])

    def solve_row(self, row: list[int]) -> list[int]:
        """Return the answer to one input, which `solve` pads with -100. A task overrides this or `solve`."""
        raise NotImplementedError(f"{type(self).__name__} states its rule neither in solve nor in solve_row")

    def nearest_length(self, length: int) -> int | None:
        """Return the largest possible length of at most ``length``; None if there is none."""
        length = min(length, self.longest)
        return length - (length - self.shortest) % self.step if length >= self.shortest else None

    def input_length(self, length: int) -> int:
        """Return N at this length: ``length`` itself, unless a task's length does not count its inputs."""
        return length

    def target_length(self, length: int) -> int:
        """Return M at this length, the maximum if it varies, so that slots do not reveal it."""
        return length

    def num_inputs(self, length: int) -> float:
        """Return the number of different inputs of this length if a list holds them, infinity otherwise."""
        return math.inf

    def chance(self, length: int) -> float:
        """Return the token accuracy of a uniform guess over the possible target symbols."""
        return 1 / (self.answers or self.vocab_size)

    def sizes(self, symbols: Tensor) -> Tensor:
        """Return the weight of each symbol in a mean loss: 1, or its bytes in a text."""
        return torch.ones_like(symbols)

    def depth(self, inputs_BN: Tensor) -> Tensor | None:
        """Return the relative position [B] of the evidence: 0 at the start, 1 next to the question.

        Exact match is then also reported by depth. None means that the evidence is not at a single place.
        """
        return None

    def needed_indices(self, inputs_BN: Tensor) -> Tensor | None:
        """Return the index [B, M] of the input symbol that each target repeats; None if it is not one symbol.

        Accuracy can then be shown by the distance to this symbol. Where a target is not scored, any index
        may stand.
        """
        return None

    def symbol_name(self, symbol: int) -> str:
        """Return how a symbol is printed."""
        return str(symbol)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float | None:
        """Return the best token accuracy of an order-blind predictor, 1 for a control; None if unknown.

        The predictor sees the input as a multiset. It knows the index of the target it predicts and, in the
        aligned format, the input symbol there.

        Args:
            length: input length.
            prefix: whether the predictor is a decoder, which also sees earlier targets or, in the aligned
                format, only the inputs so far.
        """
        return None if self.order_sensitive else 1.0

    def input_blind(self, length: int) -> float | None:
        """Return the best token accuracy of a guess that ignores the input; None if it is near chance."""
        return None

    def position_ids(self, inputs_BN: Tensor, targets_BM: Tensor) -> dict[str, PositionIds]:
        """Return ids for ``positions=task`` by kind (``coupling``, ``abacus``); empty if there are none.

        No id exceeds max(N, M) + 1.
        """
        return {}


class OneAnswer(Task):
    """A task whose answer is one symbol."""

    def target_length(self, length: int) -> int:
        return 1


def distinct_symbols(symbols: int, count: int, rows: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` distinct symbols below ``symbols`` per row in random order, [rows, count]."""
    keys_RS = torch.rand(rows, symbols, generator=generator, dtype=torch.float64)
    return keys_RS.argsort(dim=-1)[:, :count].contiguous()
