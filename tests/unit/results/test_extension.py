"""The study of extension: its numbers from archived runs with known effects, against scipy."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pe_experiments.comparison import Runs
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.published import read_archive
from pe_experiments.published.archive import write_archive
from pe_experiments.published.blocks import TABLE
from pe_experiments.published.pages import make_pages
from results.extension import study as extension
from tests.conftest import ROOT

LENGTHS = (256, 512, 1024, 2048, 4096)
CHANGES = {  # child's label, and bits per byte above RoPE trained on 1,024, after 0, 30, 150 and 450 steps
    "rope": (3.0, 1.0, 0.3, 0.06),
    "rope(base=40000)": (2.0, 0.8, 0.28, 0.0),
    "rope(base=160000)": (1.5, 0.7, 0.2, 0.0),
    "rope_linear": (2.0, 0.5, 0.1, 0.01),
    "rope_ntk": (2.9, 0.6, 0.2, 0.03),
    "rope_yarn": (0.2, 0.0, -0.05, -0.1),
    "rope_llama3": (-0.1, 0.5, 0.1, 0.0),
    "p_rope": (3.0, 1.1, 0.31, 0.1),
    "none": (3.0, 2.0, 1.5, 1.0),
    "drope": (3.0, 1.8, 1.4, 1.1),
}
STEPS = (0, 30, 150, 450)
SCRATCH = {("parent", 1500): 3.0, ("scratch", 1950): 0.0, ("alibi", 1950): 0.05, ("fox", 1950): -0.1}
DIVERGED = ("none", 450, 3)  # and its seed
Bits = dict[tuple[str, int, int], np.ndarray]  # by model, steps and context length: of each seed


def known_bits(seeds: int) -> Bits:
    """Seeds differ by more than most effects, as do context lengths."""
    effects = {(change, steps): by[i] for change, by in CHANGES.items() for i, steps in enumerate(STEPS)}
    bits, draw = {}, np.random.default_rng(0)
    for (model, steps), effect in (effects | SCRATCH).items():
        for place, length in enumerate(LENGTHS):
            noise = 0.02 * draw.normal(size=6)[:seeds]
            bits[model, steps, length] = 2 + 0.2 * np.arange(seeds) + effect + 0.1 * place + noise
    for length in LENGTHS:
        bits["drope", 0, length] = bits["none", 0, length]
        bits[(*DIVERGED[:2], length)][DIVERGED[2] : DIVERGED[2] + 1] = 8
    return bits


def archived(bits: Bits, seeds: int, folder: Path, without: str = "") -> Path:
    """Write the CSVs of runs with these bits per byte, in the format of a published run of RoPE."""
    published = read_archive(ROOT / "results" / "text" / "rope")
    pattern = next(name for name in published.saved if "-rope-s0-" in name)
    rows: dict[str, list[pd.DataFrame]] = {"runs": [], "curves": [], "training": [], "text": []}
    saved, environments = {}, {}
    for (model, steps), seed in product({key[:2]: None for key in bits}, range(seeds)):
        name = f"{model}-{steps}-s{seed}"
        if name == without or (model, steps) == ("drope", 0):  # that is `none`
            continue
        longest = 1024 if model == "scratch" or (model in CHANGES and model != "drope") else 256
        label = {"parent": "rope", "scratch": "rope", "drope": "rope -> none"}.get(model, model)
        label = f"rope -> {label}" if model in CHANGES and model != "drope" else label
        training = {"steps": steps or 1, "max_length": longest, "learning_rate": 0.006 if steps else 1e-12}
        status = "diverged" if (model, steps, seed) == DIVERGED else "completed"
        changed = {"name": name, "label": label, "seed": seed, "status": status}
        for key in ("runs", "curves", "training"):
            frame = getattr(published, key)
            rows[key].append(frame[frame["name"] == pattern].assign(**changed))
        rows["runs"][-1]["max_length"] = longest
        if status == "completed":
            lines = [[name, n, "sliding", "all", bits[model, steps, n][seed]] for n in LENGTHS]
            lines += [[name, n, "copy", "all", 1.0] for n in LENGTHS]
            lines += [[name, n, "sliding", "new", 1.0] for n in LENGTHS]
            columns = ["name", "length", "windows", "slice", "bits_per_byte"]
            rows["text"].append(pd.DataFrame(lines, columns=columns))
        saved[name] = deepcopy(published.saved[pattern])
        saved[name]["identity"]["name"] = name
        saved[name]["identity"]["trained"]["training"] |= training
        environments[name] = published.environments[pattern]
    frames = {key: pd.concat(frames, ignore_index=True) for key, frames in rows.items()}
    write_archive(Runs(**frames, saved=saved, environments=environments), folder)
    return folder


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bits]:
    """Five seeds, and that of the pilot."""
    folder = archived(known_bits(6), 6, tmp_path_factory.mktemp("extension"))
    return folder, {key: values[:5] for key, values in known_bits(6).items()}


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def holm_adjusted(ps: list[float]) -> list[float]:
    adjusted, highest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = highest
    return adjusted


@pytest.mark.slow
def test_the_families_are_those_of_the_plan_and_their_numbers_those_of_scipy(five: tuple[Path, Bits]) -> None:
    folder, bits = five
    values = extension.blocks(folder)
    changes = [change for change in CHANGES if change != "rope"]
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
        rows = cells(values[name])
        tests = [stats.ttest_rel(bits[first], bits[second]) for first, second in pairs]
        adjusted = holm_adjusted([test.pvalue for test in tests])
        for row, (first, second), p in zip(rows, pairs, adjusted, strict=True):
            assert row[2] == f"{first[2]:,}"
            estimate, low, high = map(float, re.findall(r"[-+][0-9.]+", row[3]))
            assert estimate == pytest.approx((bits[first] - bits[second]).mean(), abs=0.0051)
            assert row[4] == f"{p:.2g}"
            assert (low > 0 or high < 0) == (p <= 0.05) or 0 in (low, high)
            significant.append(p <= 0.05)
    assert 5 < sum(significant) < len(significant)


def test_an_interval_has_the_level_that_holms_method_gives_its_test(five: tuple[Path, Bits]) -> None:
    """The first of ten tests in order is at 0.05 / 10, the last at 0.05 if all are significant."""
    folder, bits = five
    table = extension.bits_by_seed(extension.read_models(folder))
    tests = extension.families(table)["beyond"]
    raw = {first: stats.ttest_rel(bits[(*first, n)], bits[(*second, n)]) for first, second, n in tests}
    order = sorted(raw, key=lambda model: raw[model].pvalue)
    results = dict(zip(raw, extension.tested(table, tests), strict=True))
    first = raw[order[0]].confidence_interval(1 - 0.05 / len(raw))
    assert (results[order[0]][0].low, results[order[0]][0].high) == pytest.approx((first.low, first.high))
    rejected = sum(p <= 0.05 for _, p in results.values())
    last = raw[order[-1]].confidence_interval(1 - 0.05 / max(1, len(raw) - rejected))
    assert (results[order[-1]][0].low, results[order[-1]][0].high) == pytest.approx((last.low, last.high))


def test_a_change_has_caught_up_when_its_interval_lies_below_the_margin(five: tuple[Path, Bits]) -> None:
    folder, bits = five
    values, expected = extension.blocks(folder), {}
    for change in CHANGES:
        expected[change] = "not in 450"
        for steps in reversed(STEPS):
            test = stats.ttest_rel(bits[change, steps, 1024], bits["scratch", 1950, 1024])
            if test.confidence_interval(1 - 0.05 / 10).high < 0.05:
                expected[change] = str(steps)
    assert [row[-1] for row in cells(values["caught_up"])] == list(expected.values())
    # The fewest steps count, even if the model is behind again later.
    assert expected["rope_llama3"] == "0"
    assert expected["rope_yarn"] in ("30", "150")
    assert expected["none"] == "not in 450"


def test_numbers_are_means_over_the_seeds_of_the_plan(five: tuple[Path, Bits]) -> None:
    """Not over the pilot's; in sliding windows over all bytes; a diverged run counts as 8 bits."""
    folder, bits = five
    values = extension.blocks(folder)
    assert (values["seeds"], values["rate"]) == (5, "0.006")
    for (model, steps, length), by_seed in bits.items():
        name = f"{model}_{steps}" if model in CHANGES else model
        assert values[f"{name}_at_{length}"] == pytest.approx(by_seed.mean())
    for length in (256, 1024, 2048, 4096):
        for row, change in zip(cells(values[f"at_{length}"]), CHANGES, strict=True):
            assert row[1:] == [f"{bits[change, steps, length].mean():.2f}" for steps in STEPS]
    rows = cells(values["from_scratch"])
    assert [row[1:] for row in rows] == [[f"{bits[(*m, n)].mean():.2f}" for n in LENGTHS] for m in SCRATCH]


@pytest.mark.slow
def test_with_three_complete_seeds_nothing_is_tested(tmp_path: Path) -> None:
    folder = archived(known_bits(4), 4, tmp_path, without="rope_yarn-150-s3")
    values = extension.blocks(folder)
    assert values["seeds"] == 3
    expected = known_bits(3)["rope_yarn", 150, 1024].mean()
    assert values["rope_yarn_150_at_1024"] == pytest.approx(expected)
    assert {row[4] for row in cells(values["what_to_change"])} == {"–"}
    assert {row[-1] for row in cells(values["caught_up"])} == {"–"}
    assert "[" not in values["beyond"] + values["caught_up"]


@pytest.mark.slow
def test_the_page_shows_every_table(five: tuple[Path, Bits]) -> None:
    folder, _ = five
    make_pages(folder, extension)
    page, values = (folder / "README.md").read_text("utf-8"), extension.blocks(folder)
    tables = {name for name, value in values.items() if str(value).startswith("| ")}
    assert {name for _, name, _ in TABLE.findall(page)} == tables
    assert "<!-- {seeds} -->5<!-- end -->" in page
    assert values["caught_up"] in page
    assert [path.name for path in folder.glob("figures/*.png")] == ["answer.png"]


def test_children_have_the_labels_of_the_plan(tiny: Callable[..., Experiment]) -> None:
    options: list[tuple[Any, ...]] = [("pe=rope", "pe.base=40000.0"), ("pe=rope", "pe.base=160000.0")]
    options += [(f"pe={name}",) for name in ("rope", "rope_linear", "rope_ntk", "rope_yarn", "rope_llama3")]
    options += [("pe=p_rope",), ("pe=none",)]
    assert {tiny(*option).label for option in options} | {"drope"} == set(extension.WORDS)


def test_exact_match_on_copying_and_needle_is_the_mean_of_the_rows_of_its_runs() -> None:
    folder = Path(extension.__file__).parent / "tasks"
    points = pd.read_csv(folder / "curves.csv")
    points = points.merge(pd.read_csv(folder / "runs.csv")[["name", "command"]], on="name")
    trained = points["command"].str.contains("training.steps=250 ", regex=False)
    chosen = points[trained & points["label"].str.contains("-> rope_yarn", regex=False)]
    rows = extension.task_values(folder)["tasks"].splitlines()
    for task in ("copy", "needle"):
        own = chosen[chosen["task"] == task]
        assert own["name"].nunique() == 3
        means = own.groupby("content_length")["exact_match"].mean()
        cells = " | ".join(f"{means[length]:.2f}" for length in (20, 40, 80, 160))
        assert f"| {task} | YaRN | 250 | {cells} |" in rows
