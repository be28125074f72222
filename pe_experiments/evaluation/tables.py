"""Collect what an evaluation keeps beside the curve: predictions, further metrics, accuracy by index, depth.

Shapes: B rows, T tokens, M targets.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.data.batches import Batch, Source
from pe_experiments.data.formats import Format
from pe_experiments.evaluation.metrics import Metric, exact_match, wilson_interval
from pe_experiments.tasks import DEPTHS, IGNORE
from pe_experiments.terminal.console import Row
from pe_experiments.terminal.errors import UserError

END, NOTHING = "E", "-"  # the end mark and a missing symbol in ``predictions.csv``


@dataclass
class Details:
    """Collect tables and metrics over the examples of each length, for `extrapolation_curve`."""

    source: Source
    metrics: Sequence[Metric] = ()  # functions of a batch and its answers
    save: bool = False  # whether to keep inputs, targets and answers
    indexed: Collection[int] = ()  # lengths at which accuracy by index in the answer is kept
    # Rows by the name of their CSV file: ``depth``, ``index``, ``predictions``.
    tables: defaultdict[str, list[Row]] = field(default_factory=lambda: defaultdict(list), init=False)

    def begin(self, length: int) -> None:
        self._length = length
        self.largest_id = 0.0  # of the position ids
        self._values: dict[str, list[Tensor]] = {metric.name: [] for metric in self.metrics}
        self._counts_M2 = torch.zeros(self.source.task.target_length(length), 2, dtype=torch.long)
        self._counts_D4 = torch.zeros(len(DEPTHS), 4, dtype=torch.long)  # examples, exact, right, tokens

    def add(self, batch: Batch, answers_BT: Tensor) -> None:
        self.largest_id = max(self.largest_id, float(batch.positions_BP.max()))
        for metric in self.metrics:
            self._values[metric.name].append(metric_values(metric, batch, answers_BT))
        if self.save:
            self.tables["predictions"] += self._predictions(batch, answers_BT)
        layout, task = self.source.format, self.source.task
        inputs = task.input_length(self._length)
        first = layout.first_target(inputs)
        self._counts_M2 += counts_by_index(batch, answers_BT, first, len(self._counts_M2), layout)
        depth_B = task.depth(layout.inputs(batch.tokens_BT, inputs))
        if depth_B is not None:
            bin_B = (depth_B * len(DEPTHS)).long().clamp(max=len(DEPTHS) - 1)
            content_BT = (batch.labels_BT != IGNORE) & (batch.labels_BT != layout.eos)
            right_BT = content_BT & (answers_BT == batch.labels_BT)
            exact_B = exact_match(batch, answers_BT)
            counts = [torch.ones_like(bin_B), exact_B.long(), right_BT.sum(dim=1), content_BT.sum(dim=1)]
            self._counts_D4.index_add_(0, bin_B, torch.stack(counts, dim=1))

    def end(self) -> Row:
        """End with a length and return the columns of the metrics; None if no value is defined."""
        if self._length in self.indexed and len(self._counts_M2) > 1:
            for index, (right, scored) in enumerate(self._counts_M2.tolist()):
                if scored:
                    row = {"length": self._length, "index": index, "tokens": scored}
                    self.tables["index"].append(row | {"token_accuracy": right / scored})
        for depth, (examples, exact, right, tokens) in zip(DEPTHS, self._counts_D4.tolist(), strict=True):
            if examples:
                accuracy = right / tokens if tokens else 1.0
                row = {"length": self._length, "depth": depth, "examples": examples}
                self.tables["depth"] += [row | {"exact_match": exact / examples, "token_accuracy": accuracy}]
        columns: Row = {}
        for metric in self.metrics:
            values = torch.cat(self._values[metric.name])
            values = values[~values.isnan()]
            columns |= dict.fromkeys(metric.columns)
            if len(values):
                columns[metric.name] = float(values.mean())
                if metric.binary:
                    columns |= zip(
                        metric.columns[1:], wilson_interval(int(values.sum()), len(values)), strict=True
                    )
        return columns

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
            targets, answers = labels_T[scored_T].tolist(), answers_T[scored_T].tolist()
            for column, symbols in (("input", inputs), ("target", targets), ("answer", answers)):
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


def metric_values(metric: Metric, batch: Batch, answers_BT: Tensor) -> Tensor:
    """Return the values [B] of a metric in float64.

    Raises:
        UserError: it does not return a number within its bounds for each row.
    """
    values = torch.as_tensor(metric(batch, answers_BT))
    if values.shape != (len(batch.tokens_BT),):
        shape = tuple(values.shape)
        expected = f"one number for each of the {len(batch.tokens_BT)} rows"
        raise UserError(f"evaluation.metrics: {metric.name} returns the shape {shape}; expected {expected}")
    values_B = values.detach().cpu().double()
    low, high = (0.0, 1.0) if metric.binary else metric.bounds or (-math.inf, math.inf)
    wrong_B = (values_B < low) | (values_B > high)
    if metric.binary:
        wrong_B |= (values_B > low) & (values_B < high)
    if wrong_B.any():
        value, expected = float(values_B[wrong_B][0]), "0 or 1" if metric.binary else f"{low:g} to {high:g}"
        raise UserError(f"evaluation.metrics: {metric.name} returns {value:g}; expected {expected}")
    return values_B


def indexed_lengths(lengths: Collection[int], max_length: int) -> list[int]:
    """Return the longest length within training, and the first from twice of it (or else the longest)."""
    trained = [length for length in lengths if length <= max_length]
    longer = [length for length in lengths if length >= 2 * max_length]
    chosen = {max(trained, default=min(lengths)), min(longer, default=max(lengths))}
    return sorted(chosen)
