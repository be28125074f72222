"""Many run directories as tables: one row per run, one per run and length, one per run and training step.

Directories that are not a valid finished run are left out, with the reason. Runs may be compared only within
a protocol: everything that determines a training except scheme, position policy and seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison.run_rows import (
    ACCURACIES,
    LoadedRun,
    Row,
    environment_of,
    or_left_out,
    read_run,
    training_curve,
)
from pe_experiments.console import Display
from pe_experiments.errors import UserError, nearest
from pe_experiments.losses import guessing_loss, summarise
from pe_experiments.runs import (
    COMPLETED,
    DIVERGED,
    RunDirectory,
    read_manifest,
    run_directory,
)

OF_THE_TASK = ("chance", "bag_ceiling", "answer_tokens")  # columns of a curve that depend on the task alone
OTHER_TASKS = (
    "name", "label", "seed", "task", "model", "protocol", "evaluated_on", "decoding", "length",
    "content_length", "examples", "exact_match", "token_accuracy",
)  # fmt: skip


@dataclass(frozen=True)
class Runs:
    """Attributes:
    runs: one row per run: its `KEYS`, and the summary over the lengths that all runs of a protocol share.
    curves: one row per run and length: the columns of ``extrapolation.csv`` with name, label, seed, protocol,
        status, and whether the summary uses the length (``in_summary``). A diverged run is 0 throughout.
    training: one row per run and recorded step: loss, and exact match where it was measured.
    left_out: directories that hold no completed or diverged run, with the reason.
    saved: the saved configuration of each run by name.
    environments: versions, machine and command of each run, by name.
    tuning: where a study tuned a setting per scheme, one entry per choice (see `sweeps.tuning`).
    other_tasks: one row per run, length and other task it was evaluated on (``evaluate.py task=...``).
    text: of language models, the rows of ``text.csv`` with the name of the run.
    attention: by distance, of chosen runs (see `attention.measure_attention`).
    """

    runs: pd.DataFrame
    curves: pd.DataFrame
    left_out: dict[str, str] = field(default_factory=dict)
    training: pd.DataFrame = field(default_factory=pd.DataFrame)
    saved: dict[str, Row] = field(default_factory=dict)
    environments: dict[str, Row] = field(default_factory=dict)
    tuning: list[Row] = field(default_factory=list)
    other_tasks: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(OTHER_TASKS)))
    text: pd.DataFrame = field(default_factory=pd.DataFrame)
    attention: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["run"]))


def load_runs(
    results_dir: str | Path = "results",
    study: str | None = None,
    *,
    pe: Sequence[str] | str | None = None,
    task: Sequence[str] | str | None = None,
    model: Sequence[str] | str | None = None,
    labels: Mapping[str, str] | None = None,
    display: Display | None = None,
) -> Runs:
    """Read every run under ``results_dir/runs``.

    Args:
        results_dir: where ``runs`` and studies live.
        study: only the runs it lists.
        pe: only these schemes, by label (``rope(base=500)``) or by choice (``rope``, whatever its arguments).
        task, model: only these.
        labels: other names for schemes, by label.
        display: shows the progress; None shows nothing.

    Raises:
        UserError: no such directory or study, or a filter or label that matches no run.
    """
    left_out: dict[str, str] = {}
    listed = {} if study is None else read_manifest(Path(results_dir) / study / "manifest.json")
    paths = _directories(Path(results_dir), study, listed, left_out)
    read = _read_runs(paths, listed.get("tuned", []), left_out, display or Display())
    loaded = _without_duplicates(read, left_out)
    for same in _grouped(loaded, "protocol", "scheme"):
        shortest = min((run.row["label"] for run in same), key=lambda label: (len(label), label))
        for run in same:  # whatever each of its runs was called
            run.row["label"] = shortest
    for key, wanted in (("pe", pe), ("task", task), ("model", model)):
        loaded = _filtered(loaded, key, [wanted] if isinstance(wanted, str) else wanted)
    for same in _grouped(loaded, "label"):
        if len(_grouped(same, "scheme")) > 1:  # ``label=``, or an edited source
            for run in same:
                run.row["label"] += f" [{run.row['scheme'][:4]}]"
    _rename(loaded, labels or {})
    for same in _grouped(loaded, "protocol"):
        _summarise_protocol(same)
    training = [row for run in loaded for row in run.with_keys(training_curve(run.directory, left_out))]
    text = _texts(loaded, left_out)
    mine = {run.saved["identity"]["label"] for run in loaded}
    return Runs(
        pd.DataFrame([run.row for run in loaded]),
        pd.DataFrame([point for run in loaded for point in run.with_keys(run.curve)]),
        dict(sorted(left_out.items())),
        pd.DataFrame(training),
        {run.row["name"]: run.saved for run in loaded},
        {run.row["name"]: environment_of(run.directory) for run in loaded},
        [choice for choice in listed.get("tuning", []) if choice["scheme"] in mine],
        _other_tasks(loaded),
        text,
    )


def _read_runs(
    paths: Sequence[Path], tuned: Sequence[str], left_out: dict[str, str], display: Display
) -> list[LoadedRun]:
    loaded = []
    display.start("reading runs", len(paths))
    for number, path in enumerate(paths):
        display.step(number)
        with or_left_out(path.name, left_out):
            loaded.append(read_run(RunDirectory(path), tuned, left_out))
    display.stop()
    return loaded


def _directories(
    results_dir: Path, study: str | None, listed: Mapping[str, Any], left_out: dict[str, str]
) -> list[Path]:
    folder = results_dir / "runs"
    if study is not None:
        names = listed["runs"]
        if any(Path(name).name != name for name in names):
            raise UserError(f"study={study}: its manifest lists something that is no run's name")
        return sorted({run_directory(results_dir, name).path for name in names})
    if not folder.is_dir():
        raise UserError(f"results_dir={results_dir}: there is no {folder}; train something first")
    visible = sorted(path for path in folder.iterdir() if path.name[0] != ".")
    left_out |= {path.name: "a file, no run's directory" for path in visible if not path.is_dir()}
    return [path for path in visible if path.is_dir()]


def _other_tasks(loaded: Sequence[LoadedRun]) -> pd.DataFrame:
    """The other tasks of all runs; of a length evaluated twice the row with more examples is kept."""
    rows = [point for run in loaded for point in run.with_keys(run.other_tasks)]
    table = pd.DataFrame(rows, columns=list(OTHER_TASKS)).sort_values("examples", kind="stable")
    key = ["name", "evaluated_on", "decoding", "content_length"]
    return table.drop_duplicates(key, keep="last").sort_values(["protocol", "label", "seed", *key])


def _without_duplicates(loaded: list[LoadedRun], left_out: dict[str, str]) -> list[LoadedRun]:
    """One directory per training; of copies the one with the run's own name is kept."""
    kept: dict[tuple[str, str, int], LoadedRun] = {}
    for run in sorted(loaded, key=lambda run: run.directory.name != run.saved["identity"]["name"]):
        same = kept.setdefault((run.row["protocol"], run.row["scheme"], run.row["seed"]), run)
        if same is not run:
            left_out[run.directory.name] = f"a duplicate: the same training as {same.directory.name}"
    return sorted(kept.values(), key=lambda run: run.directory.name)


def _filtered(loaded: list[LoadedRun], key: str, wanted: Sequence[str] | None) -> list[LoadedRun]:
    if wanted is None:
        return loaded
    known = set[str]().union(*(run.names(key) for run in loaded))
    for name in wanted:
        if name not in known:
            raise UserError(f"{key}={name}: no finished run has it.{nearest(name, known)}")
    return [run for run in loaded if run.names(key) & set(wanted)]


def _grouped(loaded: Sequence[LoadedRun], *keys: str) -> list[list[LoadedRun]]:
    """The runs that agree in these columns."""
    groups: dict[tuple[Any, ...], list[LoadedRun]] = {}
    for run in loaded:
        groups.setdefault(tuple(run.row[key] for key in keys), []).append(run)
    return list(groups.values())


def _rename(loaded: list[LoadedRun], labels: Mapping[str, str]) -> None:
    known = {run.row["label"] for run in loaded}
    for label, text in labels.items():
        if label not in known:
            raise UserError(f"labels: no run is called {label}.{nearest(label, known)}")
        if list(labels.values()).count(text) > 1 or text in known - set(labels):
            raise UserError(f"labels: {text} would be two schemes; allowed: a text of its own for each")
    for run in loaded:
        run.row["label"] = labels.get(run.row["label"], run.row["label"])


def _summarise_protocol(loaded: list[LoadedRun]) -> None:
    """Summaries over the lengths all runs share, so that an area is over the same lengths for all.

    A diverged run is never averaged away: it has accuracies of 0 and the loss of a uniform guess.
    """
    completed = [run for run in loaded if run.row["status"] == COMPLETED]
    known = {point["content_length"]: point for run in completed for point in run.curve}
    shared = set.intersection(*({p["content_length"] for p in run.curve} for run in completed or loaded))
    for run in loaded:
        max_length = run.row["max_length"]
        if run.row["status"] == DIVERGED:
            run.curve = [
                {
                    "length": n,
                    "content_length": n,
                    "split": "in_distribution" if n <= max_length else "extrapolation",
                    "examples": run.curve[0]["examples"],
                    "exact_match": None if n in known and known[n]["exact_match"] is None else 0.0,
                    "token_accuracy": 0.0,
                    **{key: known[n][key] for key in OF_THE_TASK if n in known},
                    "loss": guessing_loss(known.get(n, {})),
                }
                for n in sorted(shared)
            ]
        for point in run.curve:
            point["in_summary"] = point["content_length"] in shared
        points = [point for point in run.curve if point["in_summary"]]
        run.row |= summary_of(points, max_length, run.row["status"])


def summary_of(points: Sequence[Row], max_length: int, status: str) -> Row:
    """`losses.summarise` with NaN for unknown values; past training a diverged run scores 0."""
    if status == DIVERGED:  # in studies published earlier its loss is missing
        points = [{**point, "loss": guessing_loss(point)} for point in points]
    summary = {
        key: math.nan if value is None else value for key, value in summarise(points, max_length).items()
    }
    if status == DIVERGED:
        areas = [f"{accuracy}_extrapolation" for accuracy in ACCURACIES]
        summary |= {key: 0.0 for key in areas if not math.isnan(summary[key])}
    return summary


def _texts(loaded: Sequence[LoadedRun], left_out: dict[str, str]) -> pd.DataFrame:
    """The rows of every ``text.csv``; one that is damaged is left out."""
    tables = []
    for run in loaded:
        path = run.directory.path / "text.csv"
        with or_left_out(f"{run.directory.name}/{path.name}", left_out):
            if path.exists():
                table = pd.read_csv(path)
                table[["bits_per_byte", "accuracy"]].astype(float)
                tables.append(table.assign(name=run.directory.name)[["name", *table]])
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
