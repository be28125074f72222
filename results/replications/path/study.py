"""Measure errors on flip-flop as in the paper on PaTH attention, at three shares of ignored pairs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.run import evaluate_run
from pe_experiments.store.csv_files import read_curve
from pe_experiments.store.directory import COMPLETED
from pe_experiments.store.record import Record
from pe_experiments.studies import Study, read_table
from pe_experiments.terminal.console import say

IGNORED = {"sparse": 0.98, "dense": 0.1}  # share of pairs that are ignored; 0.8 in training


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """Write ``errors.csv``: the share of wrong reads in % of each run and setting.

    Rows of runs that are not in ``results_dir`` are kept.
    """
    available = [run for run in runs.runs.to_dict("records") if (results_dir / "runs" / run["name"]).exists()]
    rows = [row for run in available for row in _errors(run, runs.saved[run["name"]], results_dir)]
    table = pd.DataFrame(rows)
    earlier = results_dir / "replications" / "path" / "errors.csv"
    if earlier.exists():
        earlier_rows = read_table(earlier, "setting")
        table = pd.concat([earlier_rows[~earlier_rows["name"].isin(table["name"])], table])
    table.sort_values("name", kind="stable").to_csv(folder / "errors.csv", index=False)


def _errors(run: dict[Any, Any], saved: Record, results_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield a row per setting; a run that diverged has an error of 100 %."""
    path = results_dir / "runs" / run["name"]
    curves: dict[str, Any] = {"as trained": None, **dict.fromkeys(IGNORED)}
    if run["status"] == COMPLETED:
        curves["as trained"] = read_curve(path / "extrapolation.csv")
        for setting, ignored in IGNORED.items():
            say(f"{run['name']}: evaluated with {ignored:.0%} of the pairs ignored")
            changes = {"task": {**saved.trained["task"], "ignore": ignored}, "logger": {}}
            curves[setting] = evaluate_run(path, changes).curve
    training = saved.trained["training"]
    columns = {
        "name": run["name"],
        "encoding": run["label"],
        "seed": run["seed"],
        "steps": training["steps"],
        "learning_rate": training["learning_rate"],
    }
    for setting, points in curves.items():
        error = 100 * (1 - points[0]["token_accuracy"]) if points else 100.0
        yield columns | {"setting": setting, "error": error}


STUDY = Study(sweep=("replicate_path",), measures=(measure,), compare=True)
