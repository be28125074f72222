"""Flip-flop as in the paper on PaTH attention: wrong reads in %, where 80, 98 and 10 % of the pairs are ignored."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.published import read_table
from pe_experiments.run import evaluate_run
from pe_experiments.store.csv_files import read_curve
from pe_experiments.store.directory import COMPLETED
from pe_experiments.terminal.console import say

IGNORED = {"sparse": 0.98, "dense": 0.1}  # share of the pairs


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """``errors.csv``: wrong reads in %, as trained, sparse and dense; rows of runs that are not here stay."""
    here = [run for run in runs.runs.to_dict("records") if (results_dir / "runs" / run["name"]).exists()]
    table = pd.DataFrame([row for run in here for row in _errors(run, runs.saved[run["name"]], results_dir)])
    earlier = results_dir / "replications" / "path" / "errors.csv"
    if earlier.exists():
        earlier_rows = read_table(earlier, "setting")
        table = pd.concat([earlier_rows[~earlier_rows["name"].isin(table["name"])], table])
    table.sort_values("name", kind="stable").to_csv(folder / "errors.csv", index=False)


def _errors(run: dict[Any, Any], saved: dict[str, Any], results_dir: Path) -> Iterator[dict[str, Any]]:
    path = results_dir / "runs" / run["name"]
    curves: dict[str, Any] = {"as trained": None, **dict.fromkeys(IGNORED)}
    if run["status"] == COMPLETED:
        curves["as trained"] = read_curve(path / "extrapolation.csv")
        for setting, ignored in IGNORED.items():
            say(f"{run['name']}: evaluated with {ignored:.0%} of the pairs ignored")
            changes = {"task": {**saved["task"], "ignore": ignored}, "logger": {}}
            curves[setting] = evaluate_run(path, changes).curve
    about = {"name": run["name"], "encoding": run["label"], "seed": run["seed"]}
    about |= {key: saved["identity"]["trained"]["training"][key] for key in ("steps", "learning_rate")}
    for setting, points in curves.items():
        error = 100 * (1 - points[0]["token_accuracy"]) if points else 100.0
        yield about | {"setting": setting, "error": error}
