"""Test what is published about learning, by code that reads the CSVs of the bank itself."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from results.bank.learnability import study
from tests import recomputation

FOLDER = Path(study.__file__).parent
RATES = ("0.001", "0.003")
Key = tuple[str, str, int]  # encoding, task, configuration


def measures_by_rate(folder: Path) -> dict[Key, dict[str, recomputation.Measures]]:
    """Return the measures of each run of a study, and ``first``: the step that reached 0.9."""
    first: dict[str, float] = {}
    for row in recomputation.read_csv(folder / "training.csv"):
        if float(row["exact_match"]) >= 0.9:
            first.setdefault(row["name"], float(row["step"]))
    runs: dict[Key, dict[str, recomputation.Measures]] = defaultdict(dict)
    for run, measures in recomputation.measured_runs(folder):
        rate = next(rate for rate in RATES if f"learning_rate={rate}" in run["command"])
        measures["first"] = first.get(run["name"], np.inf)
        runs[run["label"], run["task"], int(run["seed"])][rate] = measures
    return runs


@pytest.mark.slow
def test_independent_code_finds_the_numbers_of_the_page() -> None:
    runs = measures_by_rate(study.BANK / "v2") | measures_by_rate(study.BANK / "mirrored")
    values = study.blocks(FOLDER)
    table = {line.split("|")[1].strip(" `"): line.split("|") for line in values["table"].splitlines()}
    for label in ("fox", "kerple_log", "rope", "none"):
        cases = {key: rates for key, rates in runs.items() if key[0] == label and key[1] in study.TASKS}
        best = {key: min(rates.values(), key=lambda run: run["loss"]) for key, rates in cases.items()}
        learned = [run["learned"] for run in best.values()]
        assert (values[f"learned/{label}"], len(learned)) == (sum(learned), 96)
        at_rates = [sum(rates[rate]["learned"] for rates in cases.values()) for rate in RATES]
        assert [int(cell) for cell in table[label][4:6]] == at_rates
        medians = [
            np.median([run["first"] for key, run in best.items() if key[1] == task and run["learned"]])
            for task in study.TASKS
        ]
        assert table[label][-2].strip() == " / ".join(f"{median:,.0f}" for median in medians)
        for task in study.TASKS:
            in_first_half = [cases[label, task, setting] for setting in range(12)]
            scores = np.array([[score(rates[rate]) for rate in RATES] for rates in in_first_half])
            chosen = []  # at the rate with the higher sum in the other eleven configurations
            for setting in range(12):
                elsewhere = np.delete(scores, setting, axis=0).sum(axis=0)
                chosen.append(scores[setting, elsewhere.argmax()])
            assert values[f"{task}/{label}/by score"] == pytest.approx(np.mean(chosen))


def score(run: recomputation.Measures) -> float:
    return run["score"] if run["learned"] else 0.0
