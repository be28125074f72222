"""Define the metrics of a run: one registry, over which files, loggers, tables, figures and tests iterate.

`METRICS` are shipped. The user's (``evaluation.metrics=[mine.first_error]``) join them as `all_metrics`. A
comparison reads their descriptions from ``result.json``, so that it never imports the user's code.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pe_experiments.data.batches import Batch
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.console import Row

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
            training lengths. Without ``bounds``, a diverged run counts as a guess.
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
            if not low < high:
                raise ValueError(f"{self.name}: bounds={self.bounds}; allowed: the lower one first")
        if not self.label:
            object.__setattr__(self, "label", self.name.replace("_", " "))

    def __call__(self, batch: Batch, answers_BT: Tensor) -> Any:
        """Return the value of each row."""
        assert self.of, f"{self.name} is measured in the forward pass"
        return self.of(batch, answers_BT)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return its columns in ``extrapolation.csv``."""
        return (self.name, f"{self.name}_low", f"{self.name}_high") if self.binary else (self.name,)

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
        return {key: getattr(self, key) for key in DESCRIBED}


DESCRIBED = ("label", "bounds", "higher_is_better", "unit", "binary")


def exact_match(batch: Batch, answers_BT: Tensor) -> Tensor:
    """Return whether the answer equals the label at every scored token of a row, [B]."""
    return all_correct(batch.labels_BT, answers_BT)


def all_correct(labels_BT: Tensor, answers_BT: Tensor) -> Tensor:
    """Return the exact match of each example [B]: the answer equals the label at every scored token."""
    return ((answers_BT == labels_BT) | (labels_BT == IGNORE)).all(dim=1)


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


def all_metrics(of_the_user: Mapping[str, Values]) -> tuple[Metric, ...]:
    """Return the registry of a run: `METRICS`, then the user's functions and metrics, by name."""
    metrics = (
        value if isinstance(value, Metric) else Metric(name, value) for name, value in of_the_user.items()
    )
    return (*METRICS, *metrics)


def described_metric(name: str, description: Any) -> Metric:
    """Return the metric that a run describes; what is missing or not valid has its default.

    The description may come from a stranger.
    """
    known = description if isinstance(description, Mapping) else {}
    bounds: Any = known.get("bounds")
    is_pair = isinstance(bounds, list) and [type(end) in (int, float) for end in bounds] == [True, True]
    texts = {key: known[key][:80] for key in ("label", "unit") if isinstance(known.get(key), str)}
    flags = {key: known[key] for key in ("higher_is_better", "binary") if isinstance(known.get(key), bool)}
    return Metric(name, bounds=tuple(bounds) if is_pair and bounds[0] < bounds[1] else None, **texts, **flags)


def unknown(value: Any) -> bool:
    """Return whether a value is None or NaN."""
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
