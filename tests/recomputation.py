"""Recompute published values from their CSVs with numpy alone, without code of the package."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Curve = dict[int, dict[str, float]]  # by length: exact_match, token_accuracy, and what guessing gives of each
Runs = dict[str, dict[int, Curve]]  # by encoding and seed


@lru_cache(maxsize=3)  # the curves of the bank take a second, and many tests read them
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


Measures = dict[str, float]  # score, 2x, whether the task was learned, loss in distribution
Bank = dict[str, dict[str, dict[int, Measures]]]  # by task, encoding and configuration
Values = dict[str, dict[int, float]]  # one measure by encoding and configuration


@cache
def flip_flop_floor(ignore: float, length: int) -> float:
    """Return the exact match of the majority of bits, summed over leads of ones and the bit written last."""
    pairs, p_other = (
        length // 2,
        (1 - ignore) / 2,
    )  # of writing, and of reading
    chances = {(1, 1): 0.5, (-1, 0): 0.5}  # after the first write
    for pair in range(1, pairs):
        p_write, p_read = (0.0, 1.0) if pair == pairs - 1 else (p_other, p_other)
        following: dict[tuple[int, int], float] = defaultdict(float)
        for (lead, last), chance in chances.items():
            right = 0.5 if lead == 0 else float((lead > 0) == last)
            following[lead, last] += chance * (1 - p_write - p_read + p_read * right)
            following[lead + 1, 1] += chance * p_write / 2
            following[lead - 1, 0] += chance * p_write / 2
        chances = following
    return sum(chances.values())


def trained_configs(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the trained configuration of each run of a study; an empty cell has the value above it."""
    configs, trained = {}, ""
    for row in read_csv(folder / "provenance.csv"):
        trained = row["trained"] or trained
        configs[row["name"]] = json.loads(trained)
    return configs


def bank_halves(folder: Path, tasks: Sequence[str]) -> tuple[Bank, Bank]:
    """Return the measures in configurations 0 to 11 and 12 to 23, of the encodings that have all runs there.

    These are the runs at rates of 0.003 and 0.001 with the usual steps, which are the fewest of a task.
    """
    runs, configs = read_csv(folder / "runs.csv"), trained_configs(folder)
    steps = {
        task: min(configs[r["name"]]["training"]["steps"] for r in runs if r["task"] == task)
        for task in tasks
    }
    names: list[dict[str, list[str]]] = [defaultdict(list), defaultdict(list)]
    for run in runs:
        config, seed = configs[run["name"]], int(run["seed"])
        training = config["training"]
        compares_sizes = (run["model"], training["max_length"]) == ("decoder", 24) and seed in (0, 1)
        is_usual = training["learning_rate"] in (0.003, 0.001) and training["steps"] == steps.get(run["task"])
        if is_usual and not compares_sizes and not config["model"].get("token_shift"):
            names[seed >= 12][run["label"]].append(run["name"])
    halves = []
    curves = read_csv(folder / "curves.csv")
    for half in names:
        complete = {name for runs in half.values() if len(runs) == len(tasks) * 24 for name in runs}
        halves.append(with_curves(folder, [row for row in curves if row["name"] in complete]))
    return halves[0], halves[1]


def with_curves(folder: Path, curves: list[dict[str, str]]) -> Bank:
    """Return the measures of the runs that have ``curves``, by task, encoding and configuration.

    If a configuration has several runs, the one with the lowest loss in distribution counts.
    """
    runs, configs = {row["name"]: row for row in read_csv(folder / "runs.csv")}, trained_configs(folder)
    full = {(row["name"], row["content_length"]): row for row in read_csv(folder / "curves.csv")}
    by_run: dict[str, dict[int, float]] = defaultdict(dict)
    floors: dict[str, dict[int, float]] = defaultdict(dict)
    for row in curves:
        name, length = row["name"], int(row["content_length"])
        point = full[name, row["content_length"]]
        floor = 0.0
        if runs[name]["task"] == "flip_flop":
            floor = flip_flop_floor(configs[name]["task"]["ignore"], length)
        elif float(point["answer_tokens"]) == 1 and float(point["bag_ceiling"]) < 1:
            floor = float(point["bag_ceiling"])
        by_run[name][length], floors[name][length] = float(row["exact_match"]), floor
    bank: Bank = defaultdict(lambda: defaultdict(dict))
    for name, curve in sorted(by_run.items()):
        run, measures = runs[name], measures_of(runs[name], curve, floors[name])
        by_configuration = bank[run["task"]][run["label"]]
        earlier = by_configuration.get(int(run["seed"]))
        if earlier is None or measures["loss"] < earlier["loss"]:
            by_configuration[int(run["seed"])] = measures
    return bank


def measures_of(run: dict[str, str], curve: dict[int, float], floor: dict[int, float]) -> Measures:
    first = int(run["max_length"])
    lengths = [n for n in sorted(curve) if first <= n <= 8 * first]
    above = [max(0.0, (curve[n] - floor[n]) / (1 - floor[n])) for n in lengths]
    halfway = curve[first] - floor[first] >= (1 - floor[first]) / 2
    return {
        "score": area([math.log2(n) for n in lengths], above),
        "2x": curve[2 * first],
        "learned": run["solved_in_distribution"] == "True" and halfway,
        "loss": float(run["loss_in_distribution"]),
    }


def measured(runs: dict[str, dict[int, Measures]], measure: str) -> Values:
    """Return one measure of one task; configurations that were not learned count as 0."""
    return {
        name: {setting: row[measure] if row["learned"] else 0.0 for setting, row in by_setting.items()}
        for name, by_setting in runs.items()
    }


def over_tasks(bank: Bank, tasks: Sequence[str], measure: str) -> Values:
    """Return the mean of a measure over tasks; configurations that were not learned count as 0."""
    by_task = [measured(bank[task], measure) for task in tasks]
    return {
        name: {setting: float(np.mean([values[name][setting] for values in by_task])) for setting in first}
        for name, first in by_task[0].items()
    }


def against_others(values: Values, first: str) -> dict[str, tuple[float, float]]:
    """Return the difference from each other encoding and its adjusted p."""
    tests = {name: sign_flip_p(values[first], values[name]) for name in values if name != first}
    adjusted = dict(zip(tests, holm([p for _, p in tests.values()]), strict=True))
    return {name: (difference, adjusted[name]) for name, (difference, _) in tests.items()}


@cache
def all_signs(count: int) -> np.ndarray:
    return np.array(list(itertools.product([1, -1], repeat=count)))


def sign_flip_p(first: dict[int, float], second: dict[int, float]) -> tuple[float, float]:
    """Return the mean difference and the two-sided p over all flips of signs."""
    d = np.array([first[setting] - second[setting] for setting in first if setting in second])
    signs = all_signs(len(d))
    p = np.mean(np.abs((signs * d).mean(axis=1)) >= abs(d.mean()) - 1e-12)
    return float(d.mean()), float(p)
