"""Define the metrics of a run and summarise their curves over all evaluated lengths.

Files, loggers, tables, figures and tests iterate over one registry. `METRICS` are shipped. The user's
(``evaluation.metrics=[mine.first_error]``) join them as `all_metrics`. A comparison reads their descriptions
from ``result.json``, so that it never imports the user's code.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from pe_experiments.data.batches import Batch
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.console import Row

SOLVED = 0.9  # exact match that counts as solving a length (horizon) or the training lengths
FARTHEST = 8.0  # end of the area past training, in training lengths
SPAN_WORDS = {  # the lengths over which a metric is summarised
    "in_distribution": "within the training lengths",
    "at_2x": "at twice the training length",
    "extrapolation": "past the training lengths",
}
Values = Callable[[Batch, Tensor], Any]  # of a batch and its answers [B, T]: one number per row


@dataclass(frozen=True)
class Metric:
    """A number per example, averaged over the examples of a length.

    Args:
        name: of its column.
        of: a function of a batch and the model's answers [B, T] that returns a number for each row [B]. The
            targets are ``batch.labels_BT``, -100 where none is scored. Rows with NaN are left out of the
            mean. None if `curve.tally` measures it in the forward pass, or if only its values are known.
        label: for axes and sentences; by default the name.
        bounds: the lowest and the highest possible value; None if there are none.
        higher_is_better: whether a higher value is better.
        unit: of the values, such as ``nats``.
        binary: whether each row has 0 or 1. Its mean then has Wilson's interval in two more columns.
        guess: the value of a uniform guess, from a row of the curve. With ``bounds``, it counts as 0 past the
            training lengths. Without ``bounds``, a diverged run counts as a guess. That of a user's metric is
            a further column of the curve, from which a comparison takes it.
    """

    name: str
    of: Values | None = field(default=None, compare=False)
    label: str = ""
    bounds: tuple[float, float] | None = None
    higher_is_better: bool = True
    unit: str = ""
    binary: bool = False
    guess: Callable[[Row], float] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"the name of a metric is {self.name!r}; allowed: letters, digits and _")
        if self.bounds is not None:
            low, high = self.bounds
            if not -math.inf < low < high < math.inf:
                allowed = "two numbers, the lower one first, or None"
                raise ValueError(f"{self.name}: bounds={self.bounds}; allowed: {allowed}")
        if not self.label:
            object.__setattr__(self, "label", self.name.replace("_", " "))

    def __call__(self, batch: Batch, answers_BT: Tensor) -> Any:
        assert self.of, f"{self.name} is measured in the forward pass"
        return self.of(batch, answers_BT)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return its columns in ``extrapolation.csv``."""
        return (self.name, f"{self.name}_low", f"{self.name}_high") if self.binary else (self.name,)

    @property
    def guess_column(self) -> str:
        return f"{self.name}_guess"

    @property
    def label_with_unit(self) -> str:
        """Return the label of an axis, such as ``loss (nats)``."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def digits(self) -> str:
        """Return the number format of a mean; good encodings differ in the third digit of the loss."""
        return ".2f" if self.bounds else ".3f"

    def diverged(self, row: Row) -> float:
        """Return the value that a diverged run counts with, at the length of a row of the curve."""
        if self.bounds:
            return self.bounds[0] if self.higher_is_better else self.bounds[1]
        return self.guess(row) if self.guess else math.nan

    def above_guess(self, row: Row) -> float | None:
        """Return the value in a row, scaled so that a guess is 0; None if only one answer is possible."""
        if not (self.bounds and self.guess):
            return float(row[self.name])
        guess, highest = self.guess(row), self.bounds[1]
        return None if guess == highest else (row[self.name] - guess) / (highest - guess)

    @property
    def description(self) -> dict[str, Any]:
        """Return what ``result.json`` records of a metric of the user."""
        return {key: getattr(self, key) for key in DESCRIBED} | {"guess": self.guess is not None}


DESCRIBED = ("label", "bounds", "higher_is_better", "unit", "binary")


def exact_match(batch: Batch, answers_BT: Tensor) -> Tensor:
    """Return for each row [B] whether the answer equals the label at every scored token."""
    return ((answers_BT == batch.labels_BT) | (batch.labels_BT == IGNORE)).all(dim=1)


def _chance(row: Row) -> float:
    return row.get("chance") or 0.0


def _guess_loss(row: Row) -> float:
    chance = row.get("chance")
    return math.nan if unknown(chance) or not chance else -math.log(chance)


EXACT_MATCH = Metric(
    "exact_match",
    exact_match,
    bounds=(0.0, 1.0),
    binary=True,
    guess=lambda row: _chance(row) if row.get("answer_tokens") == 1 else 0.0,
)
# The next two are means over the tokens of all examples, and the loss needs the logits: `curve.Tally`.
TOKEN_ACCURACY = Metric("token_accuracy", bounds=(0.0, 1.0), guess=_chance)
LOSS = Metric("loss", higher_is_better=False, unit="nats", guess=_guess_loss)
METRICS = (EXACT_MATCH, TOKEN_ACCURACY, LOSS)


def user_metrics(functions: Mapping[str, Values]) -> tuple[Metric, ...]:
    """Return the metrics of a run beside `METRICS`, from the user's functions and metrics by name."""
    return tuple(
        value if isinstance(value, Metric) else Metric(name, value) for name, value in functions.items()
    )


def all_metrics(functions: Mapping[str, Values]) -> tuple[Metric, ...]:
    """Return the registry of a run: `METRICS` and those of the user."""
    return (*METRICS, *user_metrics(functions))


def described_metric(name: str, description: Any) -> Metric:
    """Return the metric that a run describes; what is missing or not valid has its default.

    The description may come from a stranger.
    """
    known = description if isinstance(description, Mapping) else {}
    bounds: Any = known.get("bounds")
    is_pair = isinstance(bounds, list) and [type(end) in (int, float) for end in bounds] == [True, True]
    texts = {key: known[key][:80] for key in ("label", "unit") if isinstance(known.get(key), str)}
    flags = {key: known[key] for key in ("higher_is_better", "binary") if isinstance(known.get(key), bool)}
    valid_bounds = tuple(bounds) if is_pair and -math.inf < bounds[0] < bounds[1] < math.inf else None
    metric = Metric(name, bounds=valid_bounds, **texts, **flags)
    if known.get("guess") is not True:
        return metric
    return replace(metric, guess=lambda row: row.get(metric.guess_column) or 0.0)


def unknown(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval (1927) for a proportion.

    It measures the error of sampling examples, not the variation between runs.
    """
    z = 1.959963984540054  # of the normal distribution, for 95 %
    share = successes / trials
    centre = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    low = (centre - half) / scale
    high = (centre + half) / scale
    return (0.0 if successes == 0 else low), (1.0 if successes == trials else high)


def summarise(rows: Sequence[Row], max_length: int, metrics: Sequence[Metric] = METRICS) -> dict[str, Any]:
    """Return the metrics that summarise a curve; None if the evaluated lengths do not determine one.

    * ``exact_match_in_distribution``: mean over the lengths up to the longest training length. Lengths at
      which at least half of the inputs occurred in training (column ``seen``) are excluded, unless this
      excludes all of them.
    * ``exact_match_at_2x``: value at twice the longest training length, if evaluated there.
    * ``exact_match_extrapolation``: area under the curve over log2 length, from the first evaluated length
      past training to 8x the training length (or the longest evaluated), divided by the width, with linear
      interpolation; if there is only one such length, the value there. Each point is
      ``(x - chance) / (1 - chance)``, so guessing scores 0 and a perfect curve 1. Exact match has chance 0,
      except where the answer is one token. The area depends on the evaluated lengths, so only curves over
      the same lengths can be compared.
    * the same three for ``token_accuracy`` and for ``loss`` (nats per scored token). The loss has no chance
      level and excludes no length.
    * ``solved_in_distribution``: whether ``exact_match_in_distribution`` is at least 0.9.
    * ``horizon``: the length at which exact match first falls below 0.9, interpolated linearly over log
      length. If it is below at the first evaluated length, the horizon is 0, or None if that length is past
      training. If it never falls below, the horizon is the longest evaluated length and
      ``horizon_censored`` is true. ``horizon_ratio``: the horizon divided by the training length.

    Metrics based on exact match are None if it was not measured, as for language models. A summary is None if
    the metric is unknown at one of its lengths, such as the loss under greedy decoding. The rows have the
    columns of ``extrapolation.csv``; a missing ``seen``, ``chance`` or ``answer_tokens`` counts as 0. Metrics
    of the user have the same three summaries.
    """
    by_length = {row["content_length"]: row for row in rows}  # requested lengths may coincide
    within = [row for length, row in by_length.items() if length <= max_length]
    unseen = [row for row in within if not mostly_seen(row)] or within
    past = [row for length, row in by_length.items() if length > max_length]
    # The accuracies come first, as in the tables of published studies.
    summary = _spans(EXACT_MATCH, unseen, past, max_length) | _spans(TOKEN_ACCURACY, unseen, past, max_length)
    in_distribution = summary["exact_match_in_distribution"]
    summary["solved_in_distribution"] = None if in_distribution is None else in_distribution >= SOLVED
    exact = not any(unknown(row["exact_match"]) for row in rows)
    horizon, censored = _horizon(rows, max_length) if exact else (None, None)
    summary |= {"horizon": horizon, "horizon_censored": censored}
    summary["horizon_ratio"] = None if horizon is None else horizon / max_length
    for metric in metrics:
        summary |= _spans(metric, within if metric == LOSS else unseen, past, max_length)
    return summary


def mostly_seen(row: Row) -> bool:
    """Return whether at least half of the evaluated inputs occurred in training."""
    return 2 * (row.get("seen") or 0) >= row.get("examples", 1)


def _spans(metric: Metric, within: Sequence[Row], past: Sequence[Row], max_length: int) -> dict[str, Any]:
    """Return the three summaries of a metric: its mean over rows ``within``, at 2x, and past training."""
    summary: dict[str, Any] = {}
    twice = [row for row in past if row["content_length"] == 2 * max_length]
    for span, rows in zip(SPAN_WORDS, (within, twice, past), strict=True):
        values: list[Any] = [row.get(metric.name) for row in rows]
        value = None
        if values and not any(map(unknown, values)):
            value = _area_beyond(past, metric, max_length) if rows is past else float(np.mean(values))
        summary[f"{metric.name}_{span}"] = value
    return summary


@dataclass(frozen=True)
class Summary:
    """A metric over some of the lengths: a column of ``runs.csv``, in which encodings are compared."""

    metric: Metric
    span: str  # a key of `SPAN_WORDS`

    @property
    def column(self) -> str:
        return f"{self.metric.name}_{self.span}"

    @property
    def lower_is_better(self) -> bool:
        return not self.metric.higher_is_better

    @property
    def words(self) -> str:
        """Return what it is, such as ``exact match past the training lengths``."""
        return f"{self.metric.label_with_unit} {SPAN_WORDS[self.span]}"


def summaries_of(metrics: Sequence[Metric]) -> dict[str, Summary]:
    summaries = [Summary(metric, span) for metric in metrics for span in SPAN_WORDS]
    return {summary.column: summary for summary in summaries}


def _area_beyond(past: Sequence[Row], metric: Metric, max_length: int) -> float | None:
    """Return the area past training over log2 length, divided by its width; see `summarise`."""
    curve = {}  # by log2 length in training lengths
    for row in past:
        value = metric.above_guess(row)
        if value is not None:
            curve[math.log2(row["content_length"] / max_length)] = value
    x = np.array(sorted(curve))
    y = np.array([curve[key] for key in sorted(curve)])
    if not curve or x[0] > math.log2(FARTHEST):
        return None
    end = min(math.log2(FARTHEST), x[-1])
    if end == x[0]:
        return float(y[0])
    grid = np.append(x[x < end], end)
    return float(np.trapezoid(np.interp(grid, x, y), grid) / (end - x[0]))


def _horizon(rows: Sequence[Row], max_length: int) -> tuple[float, bool] | tuple[None, None]:
    """Return the horizon and whether it is censored; see `summarise`."""
    last: Row | None = None
    for row in sorted(rows, key=lambda row: row["content_length"]):
        if row["exact_match"] < SOLVED:
            if last is None:
                return (0.0, False) if row["content_length"] <= max_length else (None, None)
            share = (last["exact_match"] - SOLVED) / (last["exact_match"] - row["exact_match"])
            step = math.log(row["content_length"] / last["content_length"])
            return last["content_length"] * math.exp(share * step), False
        last = row
    return float(last["content_length"]) if last else 0.0, True
