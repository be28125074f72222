"""Many run directories as tables: one row per run, one per run and length, one per run and training step.

Directories that are not a valid finished run are left out, with the reason. Runs may be compared only within
a protocol: everything that determines a training except scheme, position policy and seed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.console import Display
from pe_experiments.errors import UserError, nearest
from pe_experiments.files import read_json
from pe_experiments.identity import short_hash
from pe_experiments.losses import guessing_loss, summarise
from pe_experiments.runs import (
    COMPLETED,
    DIVERGED,
    RunDirectory,
    only_code_differs,
    read_manifest,
    run_directory,
    tuned_settings,
    tuning_of,
)
from pe_experiments.tracking import read_curve, read_metrics

ACCURACIES = ("exact_match", "token_accuracy")
TRAINED = ("pe", "positions", "task", "model", "training")
OF_THE_TASK = ("chance", "bag_ceiling", "answer_tokens")  # columns of a curve that depend on the task alone
RESULTS = ("parameters", "encoding_parameters", "seconds_per_step", "diverged_at")
TRAINING = ("step", "loss", "exact_match", "token_accuracy")
KEYS = ("name", "label", "seed", "task", "model", "protocol", "status")  # of a run, in all tables
OTHER_TASKS = (
    "name", "label", "seed", "task", "model", "protocol", "evaluated_on", "decoding", "length",
    "content_length", "examples", "exact_match", "token_accuracy",
)  # fmt: skip

Row = dict[str, Any]


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


@dataclass
class _Loaded:
    directory: RunDirectory
    row: Row
    curve: list[Row]
    saved: Row
    other_tasks: list[Row] = field(default_factory=list)

    def with_keys(self, rows: Iterable[Row]) -> list[Row]:
        return [{key: self.row[key] for key in KEYS} | row for row in rows]

    def names(self, key: str) -> set[str]:
        """What a filter may call it; its scheme also by the config choice that the label begins with."""
        name = self.row["label" if key == "pe" else key]
        return {name, re.split(r"\(|\+| \[", name)[0]} if key == "pe" else {name}


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
    manifest = Path(results_dir) / study / "manifest.json" if study is not None else None
    tuned = tuned_settings(manifest) if manifest else []
    paths = _directories(Path(results_dir), study, left_out)
    loaded = _without_duplicates(_read_runs(paths, tuned, left_out, display or Display()), left_out)
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
    training = [row for run in loaded for row in run.with_keys(_training(run.directory, left_out))]
    text = _texts(loaded, left_out)
    mine = {run.saved["identity"]["label"] for run in loaded}
    return Runs(
        pd.DataFrame([run.row for run in loaded]),
        pd.DataFrame([point for run in loaded for point in run.with_keys(run.curve)]),
        dict(sorted(left_out.items())),
        pd.DataFrame(training),
        {run.row["name"]: run.saved for run in loaded},
        {run.row["name"]: _environment(run.directory) for run in loaded},
        [choice for choice in tuning_of(manifest) if choice.get("scheme") in mine] if manifest else [],
        _other_tasks(loaded),
        text,
    )


def _read_runs(
    paths: Sequence[Path], tuned: Sequence[str], left_out: dict[str, str], display: Display
) -> list[_Loaded]:
    loaded = []
    display.start("reading runs", len(paths))
    for number, path in enumerate(paths):
        display.step(number)
        with _or_left_out(path.name, left_out):
            loaded.append(_read_run(RunDirectory(path), tuned, left_out))
    display.stop()
    return loaded


@contextmanager
def _or_left_out(name: str, left_out: dict[str, str]) -> Iterator[None]:
    """What cannot be read is left out, with the reason."""
    try:
        yield
    except UserError as error:
        left_out[name] = str(error)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        left_out[name] = f"damaged ({type(error).__name__}: {error})"


def _directories(results_dir: Path, study: str | None, left_out: dict[str, str]) -> list[Path]:
    folder = results_dir / "runs"
    if study is not None:
        names = read_manifest(results_dir / study / "manifest.json")
        if any(Path(name).name != name for name in names):
            raise UserError(f"study={study}: its manifest lists something that is no run's name")
        return sorted({run_directory(results_dir, name).path for name in names})
    if not folder.is_dir():
        raise UserError(f"results_dir={results_dir}: there is no {folder}; train something first")
    visible = sorted(path for path in folder.iterdir() if path.name[0] != ".")
    left_out |= {path.name: "a file, no run's directory" for path in visible if not path.is_dir()}
    return [path for path in visible if path.is_dir()]


def _read_run(run: RunDirectory, tuned: Sequence[str], left_out: dict[str, str]) -> _Loaded:
    if not run.path.is_dir():
        raise UserError("the directory is gone")
    if not run.config.exists() and not run.result.exists():
        raise UserError("no run: it has neither config.yaml nor result.json")
    result = run.read_result()
    if result is None:
        raise UserError("unfinished; the command that began it resumes it")
    if result["status"] not in (COMPLETED, DIVERGED):
        raise UserError(f"{result['status']}: {result.get('reason', 'no reason recorded')}")
    saved = run.read_config()
    identity = saved["identity"]
    trained, sources = identity["trained"], identity["sources"]
    if result["name"] != identity["name"] or result["seed"] != trained["seed"]:
        raise UserError(
            f"its result.json belongs to {result['name']}, seed {result['seed']}, and its config.yaml to "
            f"{identity['name']}, seed {trained['seed']}"
        )
    if not all(isinstance(trained[group], dict) for group in TRAINED):
        raise UserError(f"{run.config} is damaged (a section that is none)")
    # Edited code of the task makes another protocol, not another scheme.
    scheme = [(trained[group], sources[group]) for group in ("pe", "positions")]
    examples = result["evaluation"]["examples"]
    protocol = protocol_of(identity, examples, tuned)
    row = {
        "name": run.name,
        "label": str(result["label"]),
        "seed": int(result["seed"]),
        "task": str(result["task"]),
        "model": str(result["model"]),
        "status": result["status"],
        "max_length": int(max(saved["derived"]["train_lengths"])),
        "protocol": short_hash(protocol),
        "family": short_hash(protocol[2:]),
        "scheme": short_hash(scheme),
        **{key: _finite(result.get(key)) for key in RESULTS},
    }
    if row["status"] == COMPLETED:
        return _with_evaluations(_Loaded(run, row, _sound_curve(run, result), saved), result, left_out)
    lengths = map(int, saved["derived"]["evaluation_lengths"])
    points = [{"length": n, "content_length": n, "examples": int(examples)} for n in lengths]
    return _Loaded(run, row, points, saved)


def protocol_of(identity: Mapping[str, Any], examples: int, tuned: Sequence[str]) -> list[Any]:
    """What runs must share to be compared: all that determines a training but scheme, policy and seed.

    Args:
        identity: of a run, as `Identity.as_dict`.
        examples: evaluated at each length.
        tuned: settings that differ by scheme, as ``training.learning_rate``.
    """
    trained, sources = identity["trained"], identity["sources"]
    training = {key: value for key, value in trained["training"].items() if f"training.{key}" not in tuned}
    return [
        trained["task"], sources["task"], trained["model"], sources.get("model"), training, examples,
        sources.get("shared"),
    ]  # fmt: skip


def _finite(value: Any) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _with_evaluations(loaded: _Loaded, result: Row, left_out: dict[str, str]) -> _Loaded:
    """The run with the results of later evaluations of its scheme: more lengths, and other tasks."""
    points = {point["content_length"]: point for point in loaded.curve}
    measured = _but_lengths(result["evaluation"])
    for path in sorted(loaded.directory.path.glob("evaluations/*/")):
        directory = RunDirectory(path)
        with _or_left_out(f"{loaded.directory.name}/evaluations/{path.name}", left_out):
            stored = directory.read_result()
            again = _but_lengths(stored["evaluation"]) if stored else {}
            if stored and "evaluated_on" in stored and again["pe"] == measured["pe"]:
                task, decoding = str(stored["evaluated_on"]), again.get("decoding", "teacher_forcing")
                said = {"evaluated_on": task, "decoding": decoding}
                loaded.other_tasks += [point | said for point in read_curve(directory.curve)]
            elif only_code_differs(again, measured):
                raise UserError("evaluated by other code than the run; evaluate it again")
            elif stored and again == measured:
                for point in _sound_curve(directory, stored):
                    points.setdefault(point["content_length"], point)
    loaded.curve = [points[length] for length in sorted(points)]
    return loaded


def _other_tasks(loaded: Sequence[_Loaded]) -> pd.DataFrame:
    """The other tasks of all runs; of a length evaluated twice the row with more examples is kept."""
    rows = [point for run in loaded for point in run.with_keys(run.other_tasks)]
    table = pd.DataFrame(rows, columns=list(OTHER_TASKS)).sort_values("examples", kind="stable")
    key = ["name", "evaluated_on", "decoding", "content_length"]
    return table.drop_duplicates(key, keep="last").sort_values(["protocol", "label", "seed", *key])


def _but_lengths(evaluation: Row) -> Row:
    return {key: value for key, value in evaluation.items() if key != "lengths"}


def _sound_curve(run: RunDirectory, result: Row) -> list[Row]:
    rows = read_curve(run.curve)
    # A language model has no exact match at any length.
    accuracies = ACCURACIES if any(row["exact_match"] is not None for row in rows) else ("token_accuracy",)
    for row in rows:
        if not all(isinstance(row[key], int | float) and 0 <= row[key] <= 1 for key in accuracies):
            raise UserError(f"{run.curve} is damaged (an accuracy that is none); add rerun=true")
        if not (isinstance(row["content_length"], int) and row["content_length"] > 0):
            raise UserError(f"{run.curve} is damaged (a length that is none); add rerun=true")
    if [row["length"] for row in rows] != result["evaluation"]["lengths"]:
        raise UserError(f"{run.curve} is damaged (not the lengths result.json names); add rerun=true")
    return rows


def _without_duplicates(loaded: list[_Loaded], left_out: dict[str, str]) -> list[_Loaded]:
    """One directory per training; of copies the one with the run's own name is kept."""
    kept: dict[tuple[str, str, int], _Loaded] = {}
    for run in sorted(loaded, key=lambda run: run.directory.name != run.saved["identity"]["name"]):
        same = kept.setdefault((run.row["protocol"], run.row["scheme"], run.row["seed"]), run)
        if same is not run:
            left_out[run.directory.name] = f"a duplicate: the same training as {same.directory.name}"
    return sorted(kept.values(), key=lambda run: run.directory.name)


def _filtered(loaded: list[_Loaded], key: str, wanted: Sequence[str] | None) -> list[_Loaded]:
    if wanted is None:
        return loaded
    known = set[str]().union(*(run.names(key) for run in loaded))
    for name in wanted:
        if name not in known:
            raise UserError(f"{key}={name}: no finished run has it.{nearest(name, known)}")
    return [run for run in loaded if run.names(key) & set(wanted)]


def _grouped(loaded: Sequence[_Loaded], *keys: str) -> list[list[_Loaded]]:
    """The runs that agree in these columns."""
    groups: dict[tuple[Any, ...], list[_Loaded]] = {}
    for run in loaded:
        groups.setdefault(tuple(run.row[key] for key in keys), []).append(run)
    return list(groups.values())


def _rename(loaded: list[_Loaded], labels: Mapping[str, str]) -> None:
    known = {run.row["label"] for run in loaded}
    for label, text in labels.items():
        if label not in known:
            raise UserError(f"labels: no run is called {label}.{nearest(label, known)}")
        if list(labels.values()).count(text) > 1 or text in known - set(labels):
            raise UserError(f"labels: {text} would be two schemes; allowed: a text of its own for each")
    for run in loaded:
        run.row["label"] = labels.get(run.row["label"], run.row["label"])


def _summarise_protocol(loaded: list[_Loaded]) -> None:
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


def _training(run: RunDirectory, left_out: dict[str, str]) -> list[Row]:
    """The training curve; one that is damaged is left out."""
    with _or_left_out(f"{run.name}/{run.metrics.name}", left_out):
        return [{key: float(row.get(key, "nan")) for key in TRAINING} for row in read_metrics(run.metrics)]
    return []


def _texts(loaded: Sequence[_Loaded], left_out: dict[str, str]) -> pd.DataFrame:
    """The rows of every ``text.csv``; one that is damaged is left out."""
    tables = []
    for run in loaded:
        path = run.directory.path / "text.csv"
        with _or_left_out(f"{run.directory.name}/{path.name}", left_out):
            if path.exists():
                table = pd.read_csv(path)
                table[["bits_per_byte", "accuracy"]].astype(float)
                tables.append(table.assign(name=run.directory.name)[["name", *table]])
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _environment(run: RunDirectory) -> Row:
    try:
        content = read_json(run.environment)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
