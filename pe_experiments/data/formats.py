"""Arrange (input, target) pairs of a task as token sequences, and mark the tokens that are scored.

Shapes: B examples, N input symbols, M target symbols, T tokens of the sequence. The marks BOS, SEP, EOS and
SLOT are ``vocab_size``, ``+1``, ``+2`` and ``+3``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pe_experiments.tasks import IGNORE, PositionIds, Task
from pe_experiments.terminal.errors import NotApplicable

MOST_SYMBOLS = 1 << 18  # the size of the largest vocabularies of language models


class Sequences(NamedTuple):
    """The tokens a model reads and the labels its output is scored on, int64.

    The declared length of a row is its length with the longest possible answer at its input length. Encodings
    and position policies that depend on the length read it.
    """

    tokens_BT: Tensor  # right-padded
    labels_BT: Tensor  # the expected output at each token, -100 where it is not scored
    lengths_B: Tensor  # tokens of each row without padding
    declared_B: Tensor
    ids_BT: Tensor | None = None  # the task's position ids, 0 at tokens without an id; None if not used


class Format:
    """The interface of a format, which arranges examples of one input length as sequences; its marks."""

    prefix_is_known = False  # True if the model has read, in order, all tokens before the one it predicts
    feeds_back = False  # True if greedy decoding appends the model's answers to the tokens it reads

    def __init__(self, symbols: int, causal: bool):
        self.bos, self.sep, self.eos, self.slot = range(symbols, symbols + 4)
        self.vocab_size = symbols + 4
        self.causal = causal

    def tokens(self, inputs: int, targets: int) -> int:
        """Return the number of tokens for ``inputs`` input symbols and ``targets`` target symbols."""
        raise TypeError(f"{type(self).__name__} does not define tokens()")

    def lay_out(self, inputs_BN: Tensor, targets_BM: Tensor) -> Sequences:
        """Return the sequences of these examples."""
        raise TypeError(f"{type(self).__name__} does not define lay_out()")

    def first_target(self, inputs: int) -> int:
        """Return the index of the token at which the first target is predicted; the others follow it."""
        raise TypeError(f"{type(self).__name__} does not define first_target()")

    def inputs(self, tokens_BT: Tensor, length: int) -> Tensor:
        """Return the first ``length`` symbols [B, N] of each sequence, after BOS if causal: its input."""
        return tokens_BT[:, self.causal : self.causal + length]

    def lay_out_ids(self, ids: PositionIds, rows: int) -> Tensor:
        """Return the task's ids [rows, T] at the tokens where `lay_out` puts their symbols."""
        raise TypeError(f"{type(self).__name__} does not define lay_out_ids()")


class CausalFormat(Format):
    """A decoder reads ``BOS x SEP y`` and predicts each next token; ``y EOS`` is scored."""

    prefix_is_known = True
    feeds_back = True

    def tokens(self, inputs: int, targets: int) -> int:
        return inputs + targets + 2

    def first_target(self, inputs: int) -> int:
        return inputs + 1

    def lay_out(self, inputs_BN: Tensor, targets_BM: Tensor) -> Sequences:
        rows, inputs = inputs_BN.shape
        target_lengths_B = (targets_BM != IGNORE).sum(-1)
        tokens_BT = torch.full((rows, self.tokens(inputs, targets_BM.shape[1])), self.eos)
        labels_BT = torch.full_like(tokens_BT, IGNORE)
        tokens_BT[:, 0] = self.bos
        tokens_BT[:, 1 : inputs + 1] = inputs_BN
        tokens_BT[:, inputs + 1] = self.sep
        tokens_BT[:, inputs + 2 :] = targets_BM.where(targets_BM != IGNORE, self.eos)
        labels_BT[:, inputs + 1 : -1] = targets_BM
        labels_BT[torch.arange(rows), inputs + 1 + target_lengths_B] = self.eos
        declared_B = torch.full((rows,), tokens_BT.shape[1])
        return Sequences(tokens_BT, labels_BT, inputs + 2 + target_lengths_B, declared_B)

    def lay_out_ids(self, ids: PositionIds, rows: int) -> Tensor:
        parts = [torch.tensor([[0]]), ids.inputs_BN, torch.tensor([[ids.separator]]), ids.targets_BM]
        return torch.cat([part.expand(rows, -1) for part in parts], dim=1)


class SlotsFormat(Format):
    """An encoder reads ``x`` and one SLOT per target symbol, and is scored on the slots.

    There are as many slots as the longest answer of that input length has symbols, so that their number does
    not reveal the answer's length. The slot after a shorter answer expects EOS.
    """

    def tokens(self, inputs: int, targets: int) -> int:
        return inputs + targets

    def first_target(self, inputs: int) -> int:
        return inputs

    def lay_out(self, inputs_BN: Tensor, targets_BM: Tensor) -> Sequences:
        rows, inputs = inputs_BN.shape
        target_lengths_B = (targets_BM != IGNORE).sum(-1)
        slots_BM = torch.full_like(targets_BM, self.slot)
        labels_BM = targets_BM.clone()
        short_B = target_lengths_B < targets_BM.shape[1]
        labels_BM[short_B, target_lengths_B[short_B]] = self.eos
        tokens_BT = torch.cat([inputs_BN, slots_BM], dim=1)
        labels_BT = torch.cat([torch.full_like(inputs_BN, IGNORE), labels_BM], dim=1)
        lengths_B = torch.full((rows,), inputs + targets_BM.shape[1])
        return Sequences(tokens_BT, labels_BT, lengths_B, lengths_B)

    def lay_out_ids(self, ids: PositionIds, rows: int) -> Tensor:
        return torch.cat([ids.inputs_BN.expand(rows, -1), ids.targets_BM.expand(rows, -1)], dim=1)


class AlignedFormat(Format):
    """A model reads ``BOS x`` (decoder) or ``x`` (encoder) and predicts target t at input token t."""

    @property
    def prefix_is_known(self) -> bool:  # type: ignore[override]
        return self.causal

    def tokens(self, inputs: int, targets: int) -> int:
        return inputs + self.causal

    def first_target(self, inputs: int) -> int:
        return int(self.causal)

    def lay_out(self, inputs_BN: Tensor, targets_BM: Tensor) -> Sequences:
        tokens_BT, labels_BT = inputs_BN, targets_BM
        if self.causal:
            first_B1 = inputs_BN.new_full((len(inputs_BN), 1), self.bos)
            tokens_BT = torch.cat([first_B1, inputs_BN], dim=1)
            labels_BT = torch.cat([torch.full_like(first_B1, IGNORE), targets_BM], dim=1)
        lengths_B = torch.full((len(tokens_BT),), tokens_BT.shape[1])
        return Sequences(tokens_BT, labels_BT, lengths_B, lengths_B)

    def lay_out_ids(self, ids: PositionIds, rows: int) -> Tensor:
        ids_BN = ids.inputs_BN.expand(rows, -1)
        return torch.cat([ids_BN.new_zeros(rows, 1), ids_BN], dim=1) if self.causal else ids_BN


FORMATS = {"aligned": AlignedFormat, "causal": CausalFormat, "slots": SlotsFormat}


def refuse_misfit(evaluated: Format, trained: Format) -> None:
    """Raise an error if a model cannot read a task's format because of other marks or another layout."""
    properties = {
        "symbols are": (evaluated.bos, trained.bos),
        "format is": (_name(evaluated), _name(trained)),
    }
    for what, (has, needs) in properties.items():
        if has != needs:
            raise ValueError(
                f"its {what} {has}, those of the task the run was trained on {needs}; a run can be evaluated "
                f"on tasks with as many symbols and the same format"
            )


def _name(task_format: Format) -> str:
    return type(task_format).__name__.removesuffix("Format").lower()


def format_for(task: Task, causal: bool) -> Format:
    """Return the format in which a decoder (``causal``) or an encoder reads this task."""
    if task.vocab_size > MOST_SYMBOLS:
        raise ValueError(
            f"vocab_size={task.vocab_size} of {type(task).__name__}: expected at most {MOST_SYMBOLS}"
        )
    for name in ("aligned", "causal" if causal else "slots"):
        if name in task.formats:
            return FORMATS[name](task.vocab_size, causal)
    kind, suitable = ("decoder", "encoder") if causal else ("encoder", "decoder")
    raise NotApplicable(
        f"task: {type(task).__name__} has no form for model={kind} (formats: {', '.join(task.formats)}); "
        f"take model={suitable}"
    )
