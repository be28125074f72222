"""RoPE models of a study, evaluated with the context extensions, weights unchanged."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pe_experiments.comparison.runs_table import Runs
from pe_experiments.composition import changed_sections
from pe_experiments.console import say
from pe_experiments.evaluations import evaluate_run
from pe_experiments.runs import RunDirectory
from pe_experiments.tracking import read_curve

EXTENSIONS = ("rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn")
COLUMNS = ("length", "exact_match", "token_accuracy")


def evaluate_extensions(results_dir: Path, runs: Runs) -> pd.DataFrame:
    """One row per RoPE run, extension and length; what has been evaluated before is found.

    Args:
        results_dir: where ``runs`` lies.
        runs: of the study; those labelled ``rope`` are evaluated.
    """
    rows = []
    for run in runs.runs[runs.runs["label"] == "rope"].to_dict("records"):
        path = results_dir / "runs" / run["name"]
        for scheme in ("rope", *EXTENSIONS):
            curve = read_curve(path / "extrapolation.csv")
            if scheme != "rope":
                say(f"{run['name']}: evaluated as {scheme}")
                saved = RunDirectory(path).read_config()
                changes = changed_sections(saved, [f"pe={scheme}", "logger.mode=disabled"])
                curve = evaluate_run(path, changes).curve
            common = {"name": run["name"], "seed": run["seed"], "scheme": scheme}
            rows += [common | {key: row[key] for key in COLUMNS} for row in curve]
    return pd.DataFrame(rows)
