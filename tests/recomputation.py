"""Recompute published values from their CSVs with numpy alone, without code of the package."""

from __future__ import annotations

import csv
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Curve = dict[int, dict[str, float]]  # by length: exact_match, token_accuracy, and what guessing gives of each
Runs = dict[str, dict[int, Curve]]  # by encoding and seed


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def sliding_bits(folder: Path) -> dict[tuple[str, int], float]:
    """Return bits per byte of each run in sliding windows by the run's name and the context length."""
    return {
        (row["name"], int(row["length"])): float(row["bits_per_byte"])
        for row in read_csv(folder / "text.csv")
        if (row["windows"], row["slice"]) == ("sliding", "all")
    }


def curves_of(rows: list[dict[str, str]]) -> Runs:
    """Return the curves of one section of ``curves.csv``, at the lengths that all runs share."""
    runs: Runs = defaultdict(lambda: defaultdict(dict))
    has_one_token_answers = {float(row["answer_tokens"]) for row in rows if row["answer_tokens"]} == {1.0}
    for row in rows:
        if row["in_summary"] == "True":
            chance = float(row["chance"] or 0)
            runs[row["label"]][int(row["seed"])][int(row["content_length"])] = {
                "exact_match": float(row["exact_match"]),
                "exact_match_chance": chance if has_one_token_answers else 0,
                "token_accuracy": float(row["token_accuracy"]),
                "token_accuracy_chance": chance,
                "seen": float(row["seen"] or 0) / float(row["examples"]),
            }
    return runs


def area(x: list[float], y: list[float]) -> float:
    """Return the mean height of a piecewise linear curve."""
    if len(x) == 1:
        return y[0]
    strips = [(x[i + 1] - x[i]) * (y[i] + y[i + 1]) / 2 for i in range(len(x) - 1)]
    return sum(strips) / (x[-1] - x[0])


def score(curve: Curve, metric: str, longest: int) -> float:
    """Return the area above chance over log length, from the first untrained length to 8x."""
    lengths = [n for n in sorted(curve) if longest < n <= 8 * longest]
    chances = [curve[n][f"{metric}_chance"] for n in lengths]
    values = [curve[n][metric] for n in lengths]
    above = [(value - chance) / (1 - chance) for value, chance in zip(values, chances, strict=True)]
    return area([math.log2(n) for n in lengths], above)


def exact_match_in_distribution(curve: Curve, longest: int) -> float:
    """Return the mean over the training lengths of which most inputs are new, or else over all of them."""
    trained = [row for n, row in curve.items() if n <= longest]
    mostly_new = [row for row in trained if row["seen"] < 0.5]
    return float(np.mean([row["exact_match"] for row in mostly_new or trained]))


def permutation_p(first: list[float], second: list[float]) -> float:
    pooled = np.array([*first, *second])
    chosen = np.array(list(itertools.combinations(range(len(pooled)), len(first))))
    sums = pooled[chosen].sum(axis=1)
    differences = np.abs(sums / len(first) - (pooled.sum() - sums) / len(second))
    return float(np.mean(differences >= abs(np.mean(first) - np.mean(second)) - 1e-9))


def holm(p: list[float]) -> list[float]:
    adjusted = [0.0] * len(p)
    largest = 0.0
    for rank, index in enumerate(np.argsort(p)):
        largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = largest
    return adjusted


def check_table(row: dict[str, str], runs: Runs) -> None:
    """Compare every mean of one encoding in ``table.csv``, and the number of runs that solved the task."""
    curves = list(runs[row["encoding"]].values())
    longest = int(row["max_length"])
    assert int(row["seeds"]) == len(curves) >= 3
    within = [exact_match_in_distribution(curve, longest) for curve in curves]
    assert int(row["solved"]) == sum(value >= 0.9 for value in within)
    means = {"exact_match_in_distribution": within}
    for metric in ("exact_match", "token_accuracy"):
        means[f"{metric}_extrapolation"] = [score(curve, metric, longest) for curve in curves]
        for n in curves[0]:
            means[f"{metric}@{n}"] = [curve[n][metric] for curve in curves]
    for column, values in means.items():
        assert float(row[column]) == pytest.approx(np.mean(values), abs=1e-9), column


def check_pairs(rows: list[dict[str, str]], runs: Runs, longest: int) -> int:
    """Compare every difference and p-value of one section of ``pairs.csv``; return the number of tests."""
    scores = {
        encoding: [score(curve, "exact_match", longest) for curve in curves.values()]
        for encoding, curves in runs.items()
    }
    for row in rows:
        difference = np.mean(scores[row["encoding"]]) - np.mean(scores[row["other"]])
        assert float(row["difference"]) == pytest.approx(difference, abs=1e-9)
    tested = [row for row in rows if not row["not_tested"]]
    p = [permutation_p(scores[row["encoding"]], scores[row["other"]]) for row in tested]
    assert [float(row["p"]) for row in tested] == pytest.approx(p)
    assert [float(row["p_holm"]) for row in tested] == pytest.approx(holm(p))
    assert [row["separated"] == "True" for row in tested] == [value <= 0.05 for value in holm(p)]
    return len(tested)


Measures = dict[str, float]  # score, 2x, 4x, whether the task was learned, loss in distribution
Bank = dict[str, dict[str, dict[int, Measures]]]  # by task, encoding and configuration
Values = dict[str, dict[int, float]]  # one measure by encoding and configuration


def measured_runs(
    *folders: Path, floors_of: Path | None = None, without: tuple[str, ...] = ()
) -> list[tuple[dict[str, str], Measures]]:
    """Return the rows of ``runs.csv`` with their measures.

    Args:
        folders: of ``runs.csv`` and ``curves.csv``.
        floors_of: folder of ``floors.csv``, the first of `folders` if None.
        without: runs with one of these words in their command are left out.
    """
    runs = [row for folder in folders for row in read_csv(folder / "runs.csv")]
    runs = [row for row in runs if not any(words in row["command"] for words in without)]
    floors: dict[tuple[str, int, int], float] = defaultdict(float)
    for row in read_csv((floors_of or folders[0]) / "floors.csv"):
        floors[row["task"], int(row["setting"]), int(row["content_length"])] = float(row["floor"])
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for folder in folders:
        for row in read_csv(folder / "curves.csv"):
            curves[row["name"]][int(row["content_length"])] = float(row["exact_match"])
    measured = []
    for run in runs:
        curve = curves[run["name"]]
        floor = {n: floors[run["task"], int(run["seed"]), n] for n in curve}
        measured.append((run, measures_of(run, curve, floor)))
    return measured


def bank_runs(*folders: Path, rates: int = 2, **options: Any) -> Bank:
    """Return the measures in those configurations that all encodings have run at so many rates or more.

    Of the rates the one with the lowest loss in distribution counts. See `measured_runs` for the others.
    """
    configurations: dict[tuple[str, int], dict[str, list[Measures]]] = defaultdict(lambda: defaultdict(list))
    for run, measures in measured_runs(*folders, **options):
        configurations[run["task"], int(run["seed"])][run["label"]].append(measures)
    encodings = {label for by_label in configurations.values() for label in by_label}
    bank: Bank = defaultdict(lambda: defaultdict(dict))
    for (task, setting), by_label in configurations.items():
        if set(by_label) == encodings and min(map(len, by_label.values())) >= rates:
            for label, at_rates in by_label.items():
                bank[task][label][setting] = min(at_rates, key=lambda measures: measures["loss"])
    return bank


def measures_of(run: dict[str, str], curve: dict[int, float], floor: dict[int, float]) -> Measures:
    first = int(run["max_length"])
    lengths = [n for n in sorted(curve) if first <= n <= 8 * first]
    above = [max(0.0, (curve[n] - floor[n]) / (1 - floor[n])) for n in lengths]
    halfway = curve[first] - floor[first] >= (1 - floor[first]) / 2
    return {
        "score": area([math.log2(n) for n in lengths], above),
        "2x": curve[2 * first],
        "4x": curve[4 * first],
        "learned": run["solved_in_distribution"] == "True" and halfway,
        "loss": float(run["loss_in_distribution"]),
    }


def measured(runs: dict[str, dict[int, Measures]], measure: str, as_zero: bool = False) -> Values:
    """Return one measure of one task; configurations that were not learned are left out, or count as 0."""
    values: Values = {name: {} for name in runs}
    for name, by_setting in runs.items():
        for setting, measures in by_setting.items():
            if measures["learned"]:
                values[name][setting] = measures[measure]
            elif as_zero:
                values[name][setting] = 0.0
    return values


def over_tasks(bank: Bank, tasks: Sequence[str], measure: str) -> Values:
    """Return the mean of a measure over tasks; configurations that were not learned count as 0."""
    by_task = [measured(bank[task], measure, as_zero=True) for task in tasks]
    return {
        name: {setting: float(np.mean([values[name][setting] for values in by_task])) for setting in first}
        for name, first in by_task[0].items()
    }


def often_learned(values: Values, settings: int) -> Values:
    return {name: by_setting for name, by_setting in values.items() if len(by_setting) >= 0.75 * settings}


def best_against_others(values: Values, settings: int = 12) -> tuple[str, dict[str, tuple[float, float]]]:
    """Return the encoding with the highest mean, and its difference from each other and adjusted p."""
    often = often_learned(values, settings)
    best = max(sorted(often), key=lambda name: np.mean(list(often[name].values())).round(12))
    return best, against_others(often, best, settings)


def against_others(values: Values, first: str, settings: int = 12) -> dict[str, tuple[float, float]]:
    """Return difference and adjusted p from each other encoding; all must have learned three quarters."""
    often = often_learned(values, settings)
    if first not in often:
        return {}
    tests = {name: sign_flip_p(often[first], often[name]) for name in often if name != first}
    adjusted = dict(zip(tests, holm([p for _, p, _ in tests.values()]), strict=True))
    return {name: (mean, adjusted[name]) for name, (mean, _, _) in tests.items()}


@cache
def all_signs(count: int) -> np.ndarray:
    return np.array(list(itertools.product([1, -1], repeat=count)))


def sign_flip_p(first: dict[int, float], second: dict[int, float]) -> tuple[float, float, int]:
    """Return the mean difference, the two-sided p over all flips of signs, and the number of pairs."""
    d = np.array([first[setting] - second[setting] for setting in first if setting in second])
    signs = all_signs(len(d))
    p = np.mean(np.abs((signs * d).mean(axis=1)) >= abs(d.mean()) - 1e-12)
    return float(d.mean()), float(p), len(d)
