"""Time cases in turn and compare neighbouring measurements, which is robust on a shared machine."""

import gc
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from pe_experiments.terminal.console import Display

Step = Callable[[], object]
Timed = Callable[[], float]  # returns the seconds of one step
Seconds = dict[str, list[float]]


@dataclass(frozen=True)
class Row:
    """One line of ``table.csv``."""

    part: str  # of the benchmark
    setting: str  # sizes of the cases that are compared
    case: str
    milliseconds: float  # median
    against: str = ""  # the case of the denominator of the ratios
    ratio: float | None = None  # median of the ratios to the neighbouring measurement of ``against``
    ratio_low: float | None = None  # lower quartile of the ratios
    ratio_high: float | None = None  # upper quartile of the ratios


def seconds_per_step(step: Step, steps: int = 1, device: str = "cpu") -> float:
    """Return the mean seconds of some steps, until a GPU, which computes later than it is called, is done."""
    started = time.perf_counter()
    for _ in range(steps):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps


def interleave(
    cases: Mapping[str, Timed], repeats: int, display: Display, what: str, warm_up: int = 3
) -> Seconds:
    """Return the seconds of all cases, timed in turn (A B C, B C A, ...) so that drift affects all equally.

    Each round starts with another case, since the first case pays for memory that the previous one left. The
    rounds of ``warm_up`` at the start are not counted.
    """
    seconds: Seconds = {name: [] for name in cases}
    turns = deque(cases.items())
    display.start(what, repeats + warm_up)
    gc.collect()
    gc.disable()
    try:
        for repeat in range(repeats + warm_up):
            for name, case in turns:
                seconds[name].append(case())
            turns.rotate(-1)
            display.step(repeat + 1)
    finally:
        gc.enable()
        display.stop()
    return {name: times[warm_up:] for name, times in seconds.items()}


def paired_ratios(part: str, setting: str, seconds: Mapping[str, list[float]], against: str) -> list[Row]:
    """Return a row per case: its median time, and the quartiles of its ratios to ``against`` by round."""
    rows = []
    for name, times in seconds.items():
        low, middle, high = np.quantile(np.divide(times, seconds[against]), [0.25, 0.5, 0.75]).tolist()
        rows.append(Row(part, setting, name, 1000 * median(times), against, middle, low, high))
    return rows
