"""From run directories to one table and one figure per task, model and protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from rich.table import Table

from pe_experiments.comparison.figures import comparison_figure
from pe_experiments.comparison.runs_table import Runs, load_runs
from pe_experiments.console import print_table, say
from pe_experiments.errors import UserError
from pe_experiments.runs import COMPLETED, write_atomically


@dataclass(frozen=True)
class Comparison:
    """What `compare` made: one row per scheme and protocol, the files, and what was left out."""

    table: pd.DataFrame
    runs: Runs
    files: list[Path] = field(default_factory=list)


def compare(
    results_dir: str | Path = "results", study: str | None = None, out: str | Path | None = None
) -> Comparison:
    """Compare schemes over seeds and write ``table.csv``, ``curves.csv`` and ``figures/``.

    Runs are grouped by protocol (everything that was trained except scheme, position policy and seed) and
    never pooled across protocols.

    Args:
        results_dir: where ``runs`` and studies live.
        study: only the runs it lists.
        out: where to write; default ``results_dir/<study>``, or ``results_dir/comparison`` without one.

    Raises:
        UserError: nothing to compare.
    """
    runs = load_runs(results_dir, study)
    if runs.runs.empty:
        why = "; ".join(f"{name}: {reason}" for name, reason in runs.left_out.items())
        raise UserError(
            f"results_dir={results_dir}: there is no finished run to compare" + (f" ({why})" if why else "")
        )
    folder = Path(out) if out else Path(results_dir) / (study or "comparison")
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    table = scheme_table(runs.runs)
    files = [folder / "table.csv", folder / "curves.csv"]
    write_atomically(files[0], table.to_csv(index=False))
    write_atomically(files[1], runs.curves.to_csv(index=False))
    for _, section in runs.runs.groupby("protocol", sort=False):
        if (section["status"] == COMPLETED).any():
            files += _write_figure(section, runs, folder / "figures")
    return Comparison(table, runs, files)


def scheme_table(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per protocol and scheme: seeds, diverged runs, share that solved the training lengths, means.

    Diverged runs count as unsolved and as 0 exact match; they are never averaged away.
    """
    rows = []
    for (protocol, label), group in runs.groupby(["protocol", "label"], sort=False):
        diverged = group["status"] != COMPLETED
        exact = group.filter(like="exact_match").astype(float)
        exact[diverged] = exact[diverged].fillna(0.0)
        solved = group["solved_in_distribution"].eq(True)
        first = group.iloc[0]
        rows.append(
            {
                "task": first["task"],
                "model": first["model"],
                "protocol": protocol,
                "scheme": label,
                "seeds": len(group),
                "diverged": int(diverged.sum()),
                "solved_in_distribution": float(solved.mean()),
                **exact.mean(skipna=False).to_dict(),
                "horizon": float(group["horizon"].astype(float).fillna(0.0).mean()),
                "horizon_censored": bool(group["horizon_censored"].eq(True).any()),
            }
        )
    order = ["task", "model", "protocol", "exact_match_extrapolation", "scheme"]
    return pd.DataFrame(rows).sort_values(order, ascending=[True, True, True, False, True], ignore_index=True)


def _write_figure(section: pd.DataFrame, runs: Runs, folder: Path) -> list[Path]:
    first = section.iloc[0]
    curves = _with_diverged(section, runs.curves[runs.curves["name"].isin(section["name"])])
    solved = section["solved_in_distribution"].eq(True).groupby(section["label"]).mean()
    unlearned = {str(label) for label, share in solved.items() if share < 0.5}
    seeds = section.groupby("label")["seed"].nunique()
    counted = f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    counted += " seed" if seeds.max() == 1 else " seeds"
    title = f"{first['task']}, {first['model']}, trained to {first['max_length']}; {counted} per scheme"
    diverged = section.loc[section["status"] != COMPLETED, "label"].value_counts()
    if len(diverged):
        title += "; diverged (drawn at 0): " + ", ".join(f"{n} of {label}" for label, n in diverged.items())
    figure = comparison_figure(curves, unlearned, title, int(first["max_length"]))
    same = runs.runs[(runs.runs["task"] == first["task"]) & (runs.runs["model"] == first["model"])]
    suffix = f"-{first['protocol'][:4]}" if same["protocol"].nunique() > 1 else ""
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "svg", "pdf"):
        path = folder / f"{first['task']}-{first['model']}{suffix}.{kind}"
        figure.savefig(path, dpi=150)
        paths.append(path)
    return paths


def _with_diverged(section: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """The curves, with a flat one at 0 for every diverged seed: a failure is drawn, not averaged away."""
    lengths = curves.drop_duplicates("content_length").assign(exact_match=0.0, token_accuracy=0.0)
    added = [
        lengths.assign(name=run["name"], label=run["label"], seed=run["seed"])
        for run in section[section["status"] != COMPLETED].to_dict("records")
    ]
    return pd.concat([curves, *added], ignore_index=True)


def as_table(table: pd.DataFrame) -> Table:
    """The scheme table for a terminal."""
    shown = Table(show_edge=False, pad_edge=False)
    for heading in (
        "task",
        "model",
        "scheme",
        "seeds",
        "solved inside",
        "inside",
        "at 2x",
        "beyond (1x-8x)",
        "horizon",
    ):
        shown.add_column(heading, justify="left" if heading in ("task", "model", "scheme") else "right")
    previous = None
    for row in table.to_dict("records"):
        if previous is not None and row["protocol"] != previous:
            shown.add_section()
        previous = row["protocol"]
        figures = [row[f"exact_match_{key}"] for key in ("in_distribution", "at_2x", "extrapolation")]
        seeds = f"{row['seeds']}" + (f" ({row['diverged']} diverged)" if row["diverged"] else "")
        shown.add_row(
            row["task"],
            row["model"],
            row["scheme"],
            seeds,
            f"{row['solved_in_distribution']:.0%}",
            *("-" if pd.isna(figure) else f"{figure:.3f}" for figure in figures),
            f"{'>= ' if row['horizon_censored'] else ''}{row['horizon']:g}",
        )
    return shown


def show(comparison: Comparison) -> None:
    """Print the table, what was left out and where the files are."""
    print_table(as_table(comparison.table))
    for name, reason in comparison.runs.left_out.items():
        say(f"left out: {name}: {reason}")
    for path in comparison.files:
        if path.suffix in (".csv", ".png"):
            say(f"{'figure' if path.suffix == '.png' else 'table'}: {path}")
