"""What a reader with the CSVs and a few libraries would compute; nothing of ours is used.

Curves are the rows of ``curves.csv`` of one section. Values are compared with those of ``table.csv`` and
``pairs.csv``.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

Curve = dict[int, dict[str, float]]  # by length: exact_match, token_accuracy, and what guessing gives of each
Runs = dict[str, dict[int, Curve]]  # by encoding and seed


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def curves_of(rows: list[dict[str, str]]) -> Runs:
    """By encoding, seed and length, the lengths that all runs share."""
    found: Runs = defaultdict(lambda: defaultdict(dict))
    one_token = {float(row["answer_tokens"]) for row in rows if row["answer_tokens"]} == {1.0}
    for row in rows:
        if row["in_summary"] == "True":
            chance = float(row["chance"] or 0)
            point = {key: float(row[key]) for key in ("exact_match", "token_accuracy")}
            point |= {"exact_match_chance": chance if one_token else 0, "token_accuracy_chance": chance}
            point["diverged"] = row["status"] == "diverged"
            point["seen"] = float(row["seen"] or 0) / float(row["examples"])
            found[row["label"]][int(row["seed"])][int(row["content_length"])] = point
    return found


def score(curve: Curve, metric: str, longest: int) -> float:
    """Area above chance over log length, from the first length not trained to 8x; 0 of a diverged run."""
    if any(row["diverged"] for row in curve.values()):
        return 0.0
    points = [
        (math.log2(n), (row[metric] - row[f"{metric}_chance"]) / (1 - row[f"{metric}_chance"]))
        for n, row in sorted(curve.items())
        if longest < n <= 8 * longest
    ]
    if len(points) == 1:
        return points[0][1]
    strips = [(b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points)]
    return sum(strips) / (points[-1][0] - points[0][0])


def within(curve: Curve, metric: str, longest: int) -> float:
    trained = [row for n, row in curve.items() if n <= longest]
    return float(
        np.mean([row[metric] for row in trained if row["seen"] < 0.5] or [r[metric] for r in trained])
    )


def horizon(curve: Curve) -> float:
    previous: tuple[int, float] | None = None
    for n, row in sorted(curve.items()):
        value = row["exact_match"]
        if value < 0.9:
            if previous is None:
                return 0.0
            x = (math.log(previous[0]), math.log(n))
            y = (previous[1], value)
            return math.exp(float(np.interp(-0.9, [-y[0], -y[1]], x)))
        previous = n, value
    assert previous
    return float(previous[0])


def gaffke(values: list[float], lowest: float) -> tuple[float, float]:
    """The interval, from random weights; right to about 0.005."""
    weights = np.random.default_rng(1).dirichlet(np.ones(len(values) + 1), 100_000)
    low = np.quantile(weights @ [*values, lowest], 0.025)
    return float(low), float(np.quantile(weights @ [*values, 1.0], 0.975))


def permutation(first: list[float], second: list[float]) -> float:
    pooled = np.array([*first, *second])
    chosen = np.array(list(itertools.combinations(range(len(pooled)), len(first))))
    sums = pooled[chosen].sum(axis=1)
    apart = np.abs(sums / len(first) - (pooled.sum() - sums) / len(second))
    return float(np.mean(apart >= abs(np.mean(first) - np.mean(second)) - 1e-9))


def holm(p: list[float]) -> list[float]:
    order = np.argsort(p)
    adjusted = [0.0] * len(p)
    for rank, place in enumerate(order):
        before = adjusted[order[rank - 1]] if rank else 0.0
        adjusted[place] = max(before, min(1.0, (len(p) - rank) * p[place]))
    return adjusted


def check_table(row: dict[str, str], runs: Runs) -> None:
    """Every mean, count and interval of one encoding."""
    curves = list(runs[row["encoding"]].values())
    longest = int(row["max_length"])
    seeds = len(curves)
    assert int(row["seeds"]) == seeds
    inside = [within(curve, "exact_match", longest) for curve in curves]
    counts = {"solved": sum(value >= 0.9 for value in inside)}
    means: dict[str, list[float]] = {"exact_match_in_distribution": inside}
    for metric in ("exact_match", "token_accuracy"):
        means[f"{metric}_extrapolation"] = [score(curve, metric, longest) for curve in curves]
        for n in curves[0]:
            means[f"{metric}@{n}"] = [curve[n][metric] for curve in curves]
    for n in curves[0]:
        counts[f"reached@{n}"] = sum(curve[n]["exact_match"] >= 0.9 for curve in curves)
    for column, values in means.items():
        assert float(row[column]) == pytest.approx(np.mean(values), abs=1e-9), column
        metric = column.removesuffix("_extrapolation")
        lowest = 0.0
        if metric != column:
            past = [p[f"{metric}_chance"] for c in curves for n, p in c.items() if n > longest]
            lowest = -max(past) / (1 - max(past))
        if seeds >= 3 and column in (*list(means)[:2], f"exact_match@{2 * longest}"):
            ends = float(row[f"{column}_low"]), float(row[f"{column}_high"])
            assert ends == pytest.approx(gaffke(values, lowest), abs=0.01), column
    for column, count in counts.items():
        assert int(float(row[column])) == count, column
        if seeds >= 3:
            exact = stats.binomtest(count, seeds).proportion_ci(method="exact")
            ends = float(row[f"{column}_low"]), float(row[f"{column}_high"])
            assert ends == pytest.approx((exact.low, exact.high)), column
    assert float(row["horizon"]) == pytest.approx(np.mean([horizon(curve) for curve in curves]))


def check_pairs(rows: list[dict[str, str]], runs: Runs, longest: int) -> int:
    """Every difference and p-value of one section; returns how many pairs were tested."""
    at_2x = any(row["metric"] == "exact_match_at_2x" for row in rows)

    def value(curve: Curve) -> float:
        return curve[2 * longest]["exact_match"] if at_2x else score(curve, "exact_match", longest)

    scores = {encoding: {seed: value(curve) for seed, curve in by.items()} for encoding, by in runs.items()}
    tested: list[dict[str, Any]] = [row for row in rows if not row["not_tested"]]
    p = []
    for row in rows:
        first, second = scores[row["encoding"]], scores[row["other"]]
        difference = np.mean(list(first.values())) - np.mean(list(second.values()))
        assert float(row["difference"]) == pytest.approx(difference, abs=1e-9)
        if row in tested:
            p.append(permutation(list(first.values()), list(second.values())))
    for column, values in (("p", p), ("p_holm", holm(p))):
        assert [float(row[column]) for row in tested] == pytest.approx(values), column
    assert [row["separated"] == "True" for row in tested] == [value <= 0.05 for value in holm(p)]
    return len(tested)


Bank = dict[str, dict[str, dict[int, dict[str, float]]]]  # by task, encoding, setting and measure


def bank_runs(*folders: Path, floors_of: Path | None = None, without: tuple[str, ...] = ()) -> Bank:
    """Of a bank of paired settings ``score``, ``2x``, ``4x``, and whether the task was ``learned``.

    Of two or more rates the one with the lowest loss in distribution; settings in which all have run at two.
    Runs with words of ``without`` in their command do not count.
    """
    runs = [row for folder in folders for row in read_csv(folder / "runs.csv")]
    runs = [row for row in runs if not any(words in row["command"] for words in without)]
    floors: dict[tuple[str, int, int], float] = defaultdict(float)
    for row in read_csv((floors_of or folders[0]) / "floors.csv"):
        floors[row["task"], int(row["setting"]), int(row["content_length"])] = float(row["floor"])
    points: dict[str, dict[int, float]] = defaultdict(dict)
    for row in (row for folder in folders for row in read_csv(folder / "curves.csv")):
        points[row["name"]][int(row["content_length"])] = float(row["exact_match"])
    pairs: dict[tuple[str, int], dict[str, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        pairs[run["task"], int(run["seed"])][run["label"]].append(run)
    encodings = {run["label"] for run in runs}
    found: Bank = defaultdict(lambda: defaultdict(dict))
    for (task, setting), own in pairs.items():
        if set(own) != encodings or any(len(several) < 2 for several in own.values()):
            continue
        for label, several in own.items():
            run = min(several, key=lambda one: float(one["loss_in_distribution"]))
            first = int(run["max_length"])
            curve = points[run["name"]]
            above = {}
            for n in sorted(n for n in curve if first <= n <= 8 * first):
                low = floors[task, setting, n]
                above[math.log2(n)] = max(0.0, (curve[n] - low) / (1 - low))
            strips = [(b - a) * (above[a] + above[b]) / 2 for a, b in itertools.pairwise(above)]
            low = floors[task, setting, first]
            learned = run["solved_in_distribution"] == "True" and curve[first] - low >= (1 - low) / 2
            row = {"score": sum(strips) / 3, "2x": curve[2 * first], "4x": curve[4 * first]}
            found[task][label][setting] = row | {"learned": learned}
    return found


Values = dict[str, dict[int, float]]  # by encoding and setting, learned ones alone


def measured(runs: dict[str, dict[int, dict[str, float]]], what: str, as_zero: bool = False) -> Values:
    """One measure of one task; settings that were not learned are left out, or count as 0."""
    return {
        name: {n: row[what] if row["learned"] else 0.0 for n, row in own.items() if row["learned"] or as_zero}
        for name, own in runs.items()
    }


def best_against_others(values: Values, settings: int = 12) -> tuple[str, dict[str, tuple[float, float]]]:
    """The highest mean of those that learned three quarters; difference and adjusted p of each such other."""
    often = {name: own for name, own in values.items() if len(own) >= 0.75 * settings}
    best = max(sorted(often), key=lambda name: np.mean(list(often[name].values())).round(12))
    return best, against_others(often, best, settings)


def against_others(values: Values, first: str, settings: int = 12) -> dict[str, tuple[float, float]]:
    """Difference and adjusted p of each other encoding that learned three quarters, if the first did, too."""
    often = {name: own for name, own in values.items() if len(own) >= 0.75 * settings}
    if first not in often:
        return {}
    tests = {name: sign_flip_p(often[first], own) for name, own in often.items() if name != first}
    adjusted = dict(zip(tests, holm([p for _, p, _ in tests.values()]), strict=True))
    return {name: (mean, adjusted[name]) for name, (mean, _, _) in tests.items()}


@cache
def all_signs(count: int) -> np.ndarray:
    return np.array(list(itertools.product([1, -1], repeat=count)))


def sign_flip_p(first: dict[int, float], second: dict[int, float]) -> tuple[float, float, int]:
    """Mean difference over shared settings, the two-sided p-value over all flips of signs, and how many."""
    d = np.array([first[setting] - second[setting] for setting in first if setting in second])
    signs = all_signs(len(d))
    p = np.mean(np.abs((signs * d).mean(axis=1)) >= abs(d.mean()) - 1e-12)
    return float(d.mean()), float(p), len(d)
