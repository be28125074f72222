"""Recompute published values from their CSVs with numpy and pandas, without code of the package."""

from __future__ import annotations

import csv
import itertools
import json
from collections import defaultdict
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest


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


def area(x: list[float], y: list[float]) -> float:
    """Return the mean height of a piecewise linear curve."""
    if len(x) == 1:
        return y[0]
    strips = [(x[i + 1] - x[i]) * (y[i] + y[i + 1]) / 2 for i in range(len(x) - 1)]
    return sum(strips) / (x[-1] - x[0])


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


def check_comparison(folder: Path) -> int:
    """Recompute ``table.csv`` and ``pairs.csv`` from ``curves.csv``; return the number of tests."""
    table, pairs, curves = (pd.read_csv(folder / f"{name}.csv") for name in ("table", "pairs", "curves"))
    curves = curves[curves["in_summary"]].sort_values("content_length")
    tests = 0
    for protocol, rows in table.groupby("protocol"):
        points = curves[curves["protocol"] == protocol]
        longest = int(rows["max_length"].iloc[0])
        has_one_token_answers = set(points["answer_tokens"].dropna()) == {1}
        scores: dict[str, list[float]] = {}
        for row in rows.to_dict("records"):
            of_encoding = points[points["label"] == row["encoding"]]
            assert row["seeds"] == of_encoding["seed"].nunique() >= 3
            values = defaultdict(list)
            for _, curve in of_encoding.groupby("seed"):
                within = curve[curve["content_length"] <= longest]
                mostly_new = within[within["seen"].fillna(0) / within["examples"] < 0.5]
                counted = mostly_new if len(mostly_new) else within
                values["exact_match_in_distribution"].append(counted["exact_match"].mean())
                longer = curve[curve["content_length"].between(longest, 8 * longest, inclusive="right")]
                x = np.log2(longer["content_length"]).tolist()
                for metric in ("exact_match", "token_accuracy"):
                    chance = longer["chance"].fillna(0)
                    if metric == "exact_match" and not has_one_token_answers:
                        chance = 0 * chance
                    above = ((longer[metric] - chance) / (1 - chance)).tolist()
                    values[f"{metric}_extrapolation"].append(area(x, above))
                    for length, value in zip(curve["content_length"], curve[metric], strict=True):
                        values[f"{metric}@{length}"].append(value)
            for column, of_seeds in values.items():
                assert row[column] == pytest.approx(np.mean(of_seeds), abs=1e-9), column
            assert row["solved"] == sum(value >= 0.9 for value in values["exact_match_in_distribution"])
            scores[row["encoding"]] = values["exact_match_extrapolation"]
        of_protocol = pairs[pairs["protocol"] == protocol]
        assert len(of_protocol) == len(rows) * (len(rows) - 1) // 2
        for pair in of_protocol.itertuples():
            difference = np.mean(scores[pair.encoding]) - np.mean(scores[pair.other])
            assert pair.difference == pytest.approx(difference, abs=1e-9)
        tested = of_protocol[of_protocol["not_tested"].isna()]
        ps = [permutation_p(scores[pair.encoding], scores[pair.other]) for pair in tested.itertuples()]
        assert tested["p"].tolist() == pytest.approx(ps)
        assert tested["p_holm"].tolist() == pytest.approx(holm(ps))
        assert tested["separated"].tolist() == [p <= 0.05 for p in holm(ps)]
        tests += len(tested)
    return tests


@cache
def flip_flop_floor(ignore: float, length: int) -> float:
    """Return the exact match of the majority of bits, summed over leads of ones and the bit written last."""
    pairs = length // 2
    p_other = (1 - ignore) / 2  # of writing, and of reading
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


@cache
def bank_runs(folder: Path, file: str = "curves.csv") -> pd.DataFrame:
    """Return the rows of ``runs.csv`` that have a curve in this file, with their options and measures.

    The columns ``rate, steps, shift`` are options, and ``score, 2x, learned`` follow from the curve.
    """
    trained, configs = "", {}
    for row in read_csv(folder / "provenance.csv"):  # an empty cell has the value above it
        trained = row["trained"] or trained
        configs[row["name"]] = json.loads(trained)
    runs = pd.read_csv(folder / "runs.csv")
    for column, section, key in (
        ("rate", "training", "learning_rate"),
        ("steps", "training", "steps"),
        ("shift", "model", "token_shift"),
        ("ignore", "task", "ignore"),
    ):
        runs[column] = [configs[name][section].get(key) for name in runs["name"]]
    runs["shift"] = runs["shift"].eq(True)
    points = pd.read_csv(
        folder / "curves.csv", usecols=["name", "content_length", "answer_tokens", "bag_ceiling"]
    )
    points = points.merge(pd.read_csv(folder / file)[["name", "content_length", "exact_match"]])
    points = points.merge(runs[["name", "task", "ignore", "max_length"]], on="name")
    points["times"] = points["content_length"] / points["max_length"]
    points = points[points["times"].between(1, 8)].sort_values(["name", "times"])
    floors = []
    for point in points.itertuples(index=False):
        if point.task == "flip_flop":
            floors.append(flip_flop_floor(point.ignore, point.content_length))
        else:
            floors.append(point.bag_ceiling if point.answer_tokens == 1 and point.bag_ceiling < 1 else 0.0)
    points["above"] = (points["exact_match"] - floors) / (1 - np.array(floors))
    curves = points.groupby("name")
    at_training_length = points[points["times"] == 1].set_index("name")["above"]
    scores = {
        name: area(np.log2(curve["times"]).tolist(), curve["above"].clip(lower=0).tolist())
        for name, curve in curves
    }
    runs = runs[runs["name"].isin(points["name"])].copy()
    runs["score"] = runs["name"].map(scores)
    runs["2x"] = runs["name"].map(points[points["times"] == 2].set_index("name")["exact_match"])
    is_solved = runs["solved_in_distribution"].eq(True)
    runs["learned"] = is_solved & (runs["name"].map(at_training_length) >= 0.5)
    return runs


def usual_runs(runs: pd.DataFrame, shift: bool = False) -> pd.DataFrame:
    """Return the runs of the bank at both rates with the usual steps, the fewest of a task.

    Models of several sizes are left out. ``shift`` says whether the runs have ``model.token_shift``.
    """
    of_sizes = (runs["model"] == "decoder") & (runs["max_length"] == 24) & runs["seed"].isin([0, 1])
    has_usual_steps = runs["steps"] == runs.groupby("task")["steps"].transform("min")
    return runs[runs["rate"].isin([0.003, 0.001]) & has_usual_steps & ~of_sizes & (runs["shift"] == shift)]


def cases(runs: pd.DataFrame, measure: str = "score") -> pd.DataFrame:
    """Return a measure [(task, configuration), encodings]: the run with the lowest loss, 0 if not learned."""
    counted = runs.sort_values("loss_in_distribution").drop_duplicates(["task", "label", "seed"])
    values = counted.assign(value=counted[measure].where(counted["learned"], 0.0))
    return values.pivot(index=["task", "seed"], columns="label", values="value")


def over_tasks(runs: pd.DataFrame, measure: str = "score") -> pd.DataFrame:
    """Return the means of `cases` over tasks [configurations, encodings]."""
    return cases(runs, measure).groupby("seed").mean()


def sign_flip_tests(differences: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of each column of paired differences, and its two-sided p over all flips of signs.

    Holm's method adjusts over the columns.
    """
    signs = np.array(list(itertools.product([1, -1], repeat=len(differences))))
    means = differences.mean()
    sizes = np.abs(signs @ differences.to_numpy()) / len(differences)
    ps = (sizes >= means.abs().to_numpy() - 1e-12).mean(axis=0)
    return pd.DataFrame({"difference": means, "p": holm(ps.tolist())})
