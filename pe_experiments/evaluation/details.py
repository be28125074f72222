"""Collect what an evaluation keeps beside the curve: predictions, the user's metrics, accuracy by index.

Shapes: B rows, T tokens, M targets.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.data.batches import Batch, Source
from pe_experiments.data.formats import Format
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.console import Row
from pe_experiments.terminal.errors import UserError

Metric = Callable[[Batch, Tensor], Any]  # of a batch and its answers [B, T]; one number per row
END, NOTHING = "E", "-"  # the end mark and a missing symbol in ``predictions.csv``


class Details:
    """Collect tables and metrics over the examples of each length, for `extrapolation_curve`.

    Args:
        source: of the examples.
        metrics: functions of a batch and its answers by the name of their column. They return a number for
            each row; the mean leaves out NaN.
        save: whether to keep inputs, targets and answers.
        indexed: lengths at which accuracy by index in the answer is kept.

    Attributes:
        tables: rows by the name of their CSV file: ``depth``, ``index``, ``predictions``.
    """

    def __init__(
        self,
        source: Source,
        metrics: Mapping[str, Metric] | None = None,
        save: bool = False,
        indexed: Collection[int] = (),
    ):
        self.source = source
        self.metrics = metrics or {}
        self.save = save
        self.indexed = indexed
        self.tables: defaultdict[str, list[Row]] = defaultdict(list)

    def begin(self, length: int) -> None:
        """Begin with the examples of a length."""
        self._length = length
        self._values: dict[str, list[Tensor]] = {name: [] for name in self.metrics}
        self._counts_M2 = torch.zeros(self.source.task.target_length(length), 2, dtype=torch.long)

    def add(self, batch: Batch, answers_BT: Tensor) -> None:
        """Add a batch and its answers."""
        for name, metric in self.metrics.items():
            self._values[name].append(metric_values(name, metric, batch, answers_BT))
        if self.save:
            self.tables["predictions"] += self._predictions(batch, answers_BT)
        first = self.source.format.first_target(self.source.task.input_length(self._length))
        self._counts_M2 += counts_by_index(batch, answers_BT, first, len(self._counts_M2), self.source.format)

    def end(self) -> Row:
        """End with a length and return the means of the metrics; None if no value is defined."""
        if self._length in self.indexed and len(self._counts_M2) > 1:
            for index, (right, scored) in enumerate(self._counts_M2.tolist()):
                if scored:
                    row = {"length": self._length, "index": index, "tokens": scored}
                    self.tables["index"].append(row | {"token_accuracy": right / scored})
        means = {name: float(torch.cat(values).nanmean()) for name, values in self._values.items()}
        return {name: None if math.isnan(mean) else mean for name, mean in means.items()}

    def _predictions(self, batch: Batch, answers_BT: Tensor) -> list[Row]:
        """Return the rows of ``predictions.csv``; symbols are separated by blanks."""
        layout = self.source.format
        names = {layout.eos: END, IGNORE: NOTHING}
        inputs_BN = layout.inputs(batch.tokens_BT, self.source.task.input_length(self._length))
        rows = []
        for inputs, labels_T, answers_T in zip(inputs_BN.tolist(), batch.labels_BT, answers_BT, strict=True):
            scored_T = labels_T != IGNORE
            exact = torch.equal(labels_T[scored_T], answers_T[scored_T])
            row: Row = {"length": self._length, "exact": int(exact)}
            for column, symbols in (
                ("input", inputs),
                ("target", labels_T[scored_T].tolist()),
                ("answer", answers_T[scored_T].tolist()),
            ):
                row[column] = " ".join(names.get(symbol, str(symbol)) for symbol in symbols)
            rows.append(row)
        return rows


def counts_by_index(batch: Batch, answers_BT: Tensor, first: int, targets: int, layout: Format) -> Tensor:
    """Return how many of the answers are right and how many are scored, by index in the answer [M, 2].

    ``first`` is the column of the first of the ``targets``. The end mark does not count.
    """
    labels_BM = batch.labels_BT[:, first : first + targets]
    scored_BM = (labels_BM != IGNORE) & (labels_BM != layout.eos)
    right_BM = scored_BM & (answers_BT[:, first : first + targets] == labels_BM)
    counts_M2 = torch.stack([right_BM.sum(dim=0), scored_BM.sum(dim=0)], dim=1)
    return F.pad(counts_M2, (0, 0, 0, targets - len(counts_M2)))


def metric_values(name: str, metric: Metric, batch: Batch, answers_BT: Tensor) -> Tensor:
    """Return the values [B] of a metric in float64.

    Raises:
        UserError: it does not return a number for each row.
    """
    values = torch.as_tensor(metric(batch, answers_BT))
    if values.shape != (len(batch.tokens_BT),):
        shape = tuple(values.shape)
        expected = f"one number for each of the {len(batch.tokens_BT)} rows"
        raise UserError(f"evaluation.metrics: {name} returns the shape {shape}; expected {expected}")
    return values.detach().cpu().double()


def indexed_lengths(lengths: Collection[int], max_length: int) -> list[int]:
    """Return the longest length within training, and the first from twice of it (or else the longest)."""
    trained = [length for length in lengths if length <= max_length]
    longer = [length for length in lengths if length >= 2 * max_length]
    chosen = {max(trained, default=min(lengths)), min(longer, default=max(lengths))}
    return sorted(chosen)
