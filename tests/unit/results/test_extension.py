"""Test the published numbers of the study of extension with independent code and tests of scipy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from results.extension import study as extension
from tests import recomputation
from tests.conftest import ROOT

FOLDER = ROOT / "results" / "extension"
LENGTHS = (256, 512, 1024, 2048, 4096)
STEPS = (0, 30, 150, 450)
CHANGES = [
    "rope", "rope(base=40000)", "rope(base=160000)", "rope_linear", "rope_ntk", "rope_yarn", "rope_llama3",
    "p_rope", "none", "drope",
]  # fmt: skip
SCRATCH = [("parent", 1500), ("scratch", 1950), ("alibi", 1950), ("fox", 1950)]
Bits = dict[tuple[str, int, int], np.ndarray]  # by model, steps and context length, of seeds 0 to 4


def model_of(command: str) -> tuple[str, int]:
    """Return the name of the model that a run trains, and its steps."""
    arguments = dict(word.split("=") for word in command.split() if "=" in word)
    steps = int(arguments.get("training.steps", 1500))
    is_long = arguments.get("training.max_length") == "1024"
    model = arguments["pe"]
    if "pe.base" in arguments:
        model += f"(base={float(arguments['pe.base']):.0f})"
    if "init_from" in arguments and not is_long:
        model = "drope"
    if "init_from" not in arguments and model == "rope":
        model = "scratch" if is_long else "parent"
    return model, 0 if steps == 1 else steps


def bits_in(folder: Path) -> dict[tuple[str, int, int, int], float]:
    """Return bits per byte by model, steps, context length and seed."""
    runs = {row["name"]: row for row in recomputation.read_csv(folder / "runs.csv")}
    values = {}
    for row in recomputation.read_csv(folder / "text.csv"):
        if (row["windows"], row["slice"]) == ("sliding", "all"):
            run = runs[row["name"]]
            key = (*model_of(run["command"]), int(row["length"]), int(run["seed"]))
            values[key] = float(row["bits_per_byte"])
    return values


@pytest.fixture(scope="module")
def bits() -> Bits:
    values = bits_in(FOLDER)
    models = [(change, steps) for change in CHANGES for steps in STEPS] + SCRATCH
    return {
        (*model, n): np.array([values[(*model, n, seed)] for seed in range(5)])
        for model in models
        for n in LENGTHS
    }


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return extension.blocks(FOLDER)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_the_families_are_those_of_the_plan_and_their_numbers_those_of_scipy(
    values: dict[str, Any], bits: Bits
) -> None:
    changes = CHANGES[1:]
    expected = {
        "what_to_change": [((change, 150, 1024), ("rope", 150, 1024)) for change in changes],
        "without_training": [((change, 0, 1024), ("parent", 1500, 1024)) for change in changes[:-1]],
        "beyond": [((change, 150, 4096), ("scratch", 1950, 4096)) for change in CHANGES],
        "what_to_start_from": [
            (("rope_yarn", 450, n), (other, 1950, n)) for n in (1024, 4096) for other in ("alibi", "fox")
        ],
    }
    assert [len(pairs) for pairs in expected.values()] == [9, 8, 10, 4]
    significant = []
    for name, pairs in expected.items():
        tests = [stats.ttest_rel(bits[first], bits[second]) for first, second in pairs]
        adjusted = recomputation.holm([float(test.pvalue) for test in tests])
        for row, (first, second), p in zip(cells(values[name]), pairs, adjusted, strict=True):
            assert row[2] == f"{first[2]:,}"
            estimate, low, high = map(float, re.findall(r"[-+][0-9.]+", row[3]))
            assert estimate == pytest.approx((bits[first] - bits[second]).mean(), abs=0.0051)
            assert row[4] == f"{p:.2g}"
            assert (low > 0 or high < 0) == (p <= 0.05) or 0 in (low, high)
            significant.append(p <= 0.05)
    assert 5 < sum(significant) < len(significant)


def test_drope_with_normalised_queries_and_keys_is_compared_as_planned(
    values: dict[str, Any], bits: Bits
) -> None:
    """With fewer than four complete seeds there are no tests."""
    normalised = bits_in(FOLDER / "qk_norm")
    models = [("drope", 450, 1024), ("drope", 450, 4096), ("rope", 450, 4096), ("parent", 1500, 256)]
    seeds = [seed for seed in range(5) if all((*model, seed) in normalised for model in models)]
    at_1024, at_4096, unchanged, truncated = (
        np.array([normalised[(*model, seed)] for seed in seeds]) for model in models
    )
    differences = [at_1024 - bits["drope", 450, 1024][seeds], at_1024 - truncated, at_4096 - unchanged]
    rows = cells(values["normalised_tests"])
    assert values["normalised_seeds"] == ("five seeds" if len(seeds) == 5 else f"{len(seeds)} of five seeds")
    ps = ["–"] * 3
    if len(seeds) >= 4:
        raw = [float(stats.ttest_1samp(by_seed, 0).pvalue) for by_seed in differences]
        ps = [f"{p:.2g}" for p in recomputation.holm(raw)]
        assert ("a significant gain" in values["normalised"]) == (
            float(ps[0]) <= 0.05 and differences[0].mean() < 0
        )
    assert [row[2] for row in rows] == ps
    for row, by_seed in zip(rows, differences, strict=True):
        measured = re.match(r"[-+][0-9.]+", row[1])
        assert bool(measured) == bool(seeds)
        if measured:
            assert float(measured[0]) == pytest.approx(by_seed.mean(), abs=0.0051)


def test_a_change_has_caught_up_when_its_interval_lies_below_the_margin(
    values: dict[str, Any], bits: Bits
) -> None:
    expected = {}
    for change in CHANGES:
        expected[change] = "not in 450"
        for steps in reversed(STEPS):
            test = stats.ttest_rel(bits[change, steps, 1024], bits["scratch", 1950, 1024])
            if test.confidence_interval(1 - 0.05 / 10).high < 0.05:
                expected[change] = str(steps)
    assert [row[-1] for row in cells(values["caught_up"])] == list(expected.values())


def test_numbers_are_means_over_the_five_seeds(values: dict[str, Any], bits: Bits) -> None:
    assert (values["seeds"], values["rate"]) == (5, "0.006")
    for (model, steps, length), by_seed in bits.items():
        name = f"{model}_{steps}" if model in CHANGES else model
        assert values[f"{name}_at_{length}"] == pytest.approx(by_seed.mean())
    for length in (256, 1024, 2048, 4096):
        for row, change in zip(cells(values[f"at_{length}"]), CHANGES, strict=True):
            assert row[1:] == [f"{bits[change, steps, length].mean():.2f}" for steps in STEPS]
    for row, model in zip(cells(values["from_scratch"]), SCRATCH, strict=True):
        assert row[1:] == [f"{bits[(*model, n)].mean():.2f}" for n in LENGTHS]


def test_exact_match_on_copying_and_needle_is_the_mean_over_runs() -> None:
    folder = FOLDER / "tasks"
    points = pd.read_csv(folder / "curves.csv")
    points = points.merge(pd.read_csv(folder / "runs.csv")[["name", "command"]], on="name")
    trained = points["command"].str.contains("training.steps=250 ", regex=False)
    chosen = points[trained & points["label"].str.contains("-> rope_yarn", regex=False)]
    rows = extension.task_values(folder)["tasks"].splitlines()
    for task in ("copy", "needle"):
        of_task = chosen[chosen["task"] == task]
        assert of_task["name"].nunique() == 3
        means = of_task.groupby("content_length")["exact_match"].mean()
        values = " | ".join(f"{means[length]:.2f}" for length in (20, 40, 80, 160))
        assert f"| {task} | YaRN | 250 | {values} |" in rows
