"""Measure errors on flip-flop as in the paper on PaTH attention, at three shares of ignored pairs."""

from pathlib import Path

import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.run import evaluate_run
from pe_experiments.store.csv_files import read_curve
from pe_experiments.store.directory import COMPLETED
from pe_experiments.studies import Study, read_table
from pe_experiments.terminal.console import say

IGNORED = {"sparse": 0.98, "dense": 0.1}  # share of pairs that are ignored; 0.8 in training


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """Write ``errors.csv``: the share of wrong reads in %, by run and setting; 100 if a run diverged.

    Rows of runs that are not in ``results_dir`` are kept.
    """
    rows = []
    for run in runs.runs.to_dict("records"):
        name = run["name"]
        path = results_dir / "runs" / name
        if not path.exists():
            continue
        trained = runs.saved[name].trained
        accuracies = dict.fromkeys(["as trained", *IGNORED], 0.0)
        if run["status"] == COMPLETED:
            accuracies["as trained"] = read_curve(path / "extrapolation.csv")[0]["token_accuracy"]
            for setting, ignored in IGNORED.items():
                say(f"{name}: evaluated with {ignored:.0%} of the pairs ignored")
                changes = {"task": {**trained["task"], "ignore": ignored}, "logger": {}}
                accuracies[setting] = evaluate_run(path, changes).curve[0]["token_accuracy"]
        columns = {"name": name, "encoding": run["label"], "seed": run["seed"]}
        columns |= {key: trained["training"][key] for key in ("steps", "learning_rate")}
        for setting, accuracy in accuracies.items():
            rows.append(columns | {"setting": setting, "error": 100 * (1 - accuracy)})
    table = pd.DataFrame(rows)
    earlier = results_dir / "replications" / "path" / "errors.csv"
    if earlier.exists():
        earlier_rows = read_table(earlier, "setting")
        table = pd.concat([earlier_rows[~earlier_rows["name"].isin(table["name"])], table])
    table.sort_values("name", kind="stable").to_csv(folder / "errors.csv", index=False)


STUDY = Study(sweep=("replicate_path",), measures=(measure,), compare=True)
