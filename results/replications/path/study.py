"""Flip-flop as in the paper on PaTH attention: wrong reads in %, where 80, 98 and 10 % of the pairs are ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.console import say
from pe_experiments.evaluations import evaluate_run
from pe_experiments.publishing import compare_archived
from pe_experiments.runs import COMPLETED
from pe_experiments.tracking import read_curve

IGNORED = {"sparse": 0.98, "dense": 0.1}  # share of the pairs


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """``errors.csv``: of every run the share of wrong reads in %, as trained, sparse and dense."""
    rows = []
    for run in runs.runs.to_dict("records"):
        path, saved = results_dir / "runs" / run["name"], runs.saved[run["name"]]
        curves: dict[str, Any] = {"as trained": None, **dict.fromkeys(IGNORED)}
        if run["status"] == COMPLETED:
            curves["as trained"] = read_curve(path / "extrapolation.csv")
            for setting, ignored in IGNORED.items():
                say(f"{run['name']}: evaluated with {ignored:.0%} of the pairs ignored")
                changes = {
                    "task": {**saved["task"], "ignore": ignored},
                    "logger": {**saved["logger"], "mode": "disabled"},
                }
                curves[setting] = evaluate_run(path, changes).curve
        about = {"name": run["name"], "scheme": run["label"], "seed": run["seed"]}
        about |= {key: saved["identity"]["trained"]["training"][key] for key in ("steps", "learning_rate")}
        rows += [
            about
            | {"setting": setting, "error": 100 * (1 - points[0]["token_accuracy"]) if points else 100.0}
            for setting, points in curves.items()
        ]
    pd.DataFrame(rows).to_csv(folder / "errors.csv", index=False)


def pages(folder: Path, runs: Runs) -> None:
    """The comparison; the errors are judged in ``../study.py``."""
    compare_archived(folder, runs)
