"""Flip-flop language modelling as in the paper on PaTH attention: errors where more and where fewer pairs are ignored."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.console import say
from pe_experiments.evaluations import evaluate_run
from pe_experiments.publishing import compare_archived
from pe_experiments.tracking import read_curve

IGNORED = {"sparse": 0.98, "dense": 0.1}  # share of the pairs


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """``errors.csv``: of every run the share of wrong reads in %, as trained, sparse and dense."""
    rows = []
    for run in runs.runs.to_dict("records"):
        path, saved = results_dir / "runs" / run["name"], runs.saved[run["name"]]
        curves = {"as trained": read_curve(path / "extrapolation.csv")}
        for setting, ignored in IGNORED.items():
            say(f"{run['name']}: evaluated with {ignored:.0%} of the pairs ignored")
            quiet = {**saved["logger"], "mode": "disabled"}
            curves[setting] = evaluate_run(
                path, {"task": {**saved["task"], "ignore": ignored}, "logger": quiet}
            ).curve
        about = {"name": run["name"], "scheme": run["label"], "seed": run["seed"]}
        rows += [
            about | {"setting": setting, "error": 100 * (1 - points[0]["token_accuracy"])}
            for setting, points in curves.items()
        ]
    pd.DataFrame(rows).to_csv(folder / "errors.csv", index=False)


def pages(folder: Path, runs: Runs) -> None:
    """The comparison; what is made of the errors stands in the ledger above."""
    compare_archived(folder, runs)
