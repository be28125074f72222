"""Timing that survives a shared machine: cases in turn, ratios of neighbours, medians."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from pe_experiments.console import Display

Step = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One line of ``table.csv``.

    Attributes:
        part: of the benchmark.
        setting: sizes shared by the cases that are compared.
        case: what was measured.
        milliseconds: median.
        against: the case it is compared with.
        ratio: median of the ratios to the neighbouring measurement of ``against``.
        ratio_low, ratio_high: quartiles of these ratios.
        figure: another figure than a time, and ``unit``, what it is.
    """

    part: str
    setting: str
    case: str
    milliseconds: float | None = None
    against: str = ""
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    figure: float | None = None
    unit: str = ""

    def as_dict(self) -> dict[str, Any]:
        rounded = {key: round(value, 4) for key, value in vars(self).items() if isinstance(value, float)}
        return {**vars(self), **rounded}


def interleave(
    cases: Mapping[str, Step], repeats: int, warm_up: int, display: Display, what: str
) -> dict[str, list[float]]:
    """Seconds of every repeat of every case, taken in turn: A B C A B C ..., so that drifts hit all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    display.start(what, repeats + warm_up)
    gc.collect()
    gc.disable()
    try:
        for turn in range(repeats + warm_up):
            for name, step in cases.items():
                started = time.perf_counter()
                step()
                seconds[name].append(time.perf_counter() - started)
            display.step(turn + 1)
    finally:
        gc.enable()
        display.stop()
    return {name: taken[warm_up:] for name, taken in seconds.items()}


def compare(part: str, setting: str, seconds: Mapping[str, list[float]], against: str) -> list[Row]:
    """A row per case: its median, and its ratios to ``against``, pair by pair."""
    rows = []
    for name, taken in seconds.items():
        ratios = [mine / theirs for mine, theirs in zip(taken, seconds[against], strict=True)]
        low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        rows.append(Row(part, setting, name, 1000 * median(taken), against, median(ratios), low, high))
    return rows


def fastest(seconds: Mapping[str, list[float]], names: list[str]) -> str:
    """The case with the lowest median."""
    return min(names, key=lambda name: median(seconds[name]))
