"""Read run directories into tables, and record why a run is excluded (unfinished or invalid)."""

import io
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison.tuning import best_of_each, option_value
from pe_experiments.configuration.schema import MAX_LENGTH
from pe_experiments.evaluation.curve import CURVE_COLUMNS
from pe_experiments.evaluation.metrics import (
    EXACT_MATCH,
    LOSS,
    METRICS,
    TOKEN_ACCURACY,
    Metric,
    described_metric,
    summarise,
)
from pe_experiments.store.csv_files import Row, read_metrics, read_run_curve
from pe_experiments.store.directory import COMPLETED, DIVERGED, RunDirectory, run_directory
from pe_experiments.store.identity import Record
from pe_experiments.store.names import short_hash
from pe_experiments.store.study_folder import read_manifest
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import UserError, is_formula, nearest, one_line, printable, shown
from pe_experiments.terminal.files import read_text

RESULTS = ("parameters", "encoding_parameters", "seconds_per_step", "diverged_at")
TRAINING = ("step", LOSS.name, EXACT_MATCH.name, TOKEN_ACCURACY.name)
# Keys of an evaluation that must be as in the run, with the words for messages.
EVALUATION = {
    "pe": "encoding",
    "code": "version of the encoding's code",
    "task": "task",
    "decoding": "decoding",
    "window": "window",
    "examples": "number of examples",
    "files": "content of the encoding's files",
}
# The first columns of the tables of runs, curves and training.
KEYS = ("name", "label", "seed", "task", "model", "protocol", "status")
OF_THE_TASK = ("chance", "bag_ceiling", "answer_tokens")  # columns of a curve that depend only on the task
# Further tables of a run (NAME.csv): the columns that identify a row, and columns that hold numbers.
FURTHER = {
    "text": (["length", "windows", "slice", "last_index"], ["length", "bits_per_byte", "accuracy"]),
    "depth": (["length", "depth"], ["length", "depth", "token_accuracy", "examples", "exact_match"]),
    "index": (["length", "index"], ["length", "index", "token_accuracy", "tokens"]),
    "by_step": (["step", "length"], ["step", "length", "token_accuracy"]),
}


@dataclass(frozen=True)
class Runs:
    """Runs as tables, and the reasons for excluded runs.

    Attributes:
        runs: one row per run: its `KEYS`, and the summary over the lengths that all runs of a protocol share.
        curves: one row per run and length: its `KEYS`, the columns of ``extrapolation.csv``, and whether the
            summary uses the length (``in_summary``). A diverged run has accuracy 0 and the loss of guessing.
        left_out: the reason for each excluded run by name: unfinished or damaged runs, copies, and
            evaluations with another encoding, task, decoding, window or number of examples.
        training: one row per run and recorded step: loss, and accuracies if measured.
        saved: the record of each run by name.
        environments: versions, machine and command of each run by name.
        tuning: one entry per tuned option and encoding (see `tuning`).
        text: the rows of ``text.csv`` of language models and their later evaluations, with the run's name.
        depth: the same of ``depth.csv`` of tasks with a depth.
        index: the same of ``index.csv``: accuracy by index in the answer at two lengths.
        by_step: the same of ``by_step.csv``: the curve during the training.
        metrics: `METRICS` and those of the users who trained the runs.
    """

    runs: pd.DataFrame
    curves: pd.DataFrame
    left_out: dict[str, str] = field(default_factory=dict)
    training: pd.DataFrame = field(default_factory=pd.DataFrame)
    saved: dict[str, Record] = field(default_factory=dict)
    environments: dict[str, Row] = field(default_factory=dict)
    tuning: list[Row] = field(default_factory=list)
    text: pd.DataFrame = field(default_factory=pd.DataFrame)
    depth: pd.DataFrame = field(default_factory=pd.DataFrame)
    index: pd.DataFrame = field(default_factory=pd.DataFrame)
    by_step: pd.DataFrame = field(default_factory=pd.DataFrame)
    metrics: tuple[Metric, ...] = METRICS
    evaluations: dict[str, Row] = field(default_factory=dict)  # `identity.evaluation_key` of each run by name

    def __repr__(self) -> str:
        return f"<Runs: {len(self.runs)} runs, {len(self.left_out)} excluded>"


@dataclass
class _FinishedRun:
    """The contents of one finished run directory."""

    directory: RunDirectory
    row: Row
    curve: dict[int, Row]  # rows of extrapolation.csv by length
    saved: Record
    examples: int
    validation_loss: float
    evaluation: Row  # `identity.evaluation_key`; of the user's metrics the code that measured them last
    evaluations: list[RunDirectory] = field(default_factory=list)  # later ones that extend the curve
    metrics: dict[str, Any] = field(default_factory=dict)  # descriptions of the user's metrics by name


def read_runs(
    results_dir: str | Path = "results",
    study: str | None = None,
    *,
    pe: Collection[str] | None = None,
    display: Display | None = None,
) -> Runs:
    """Read all runs under ``results_dir/runs``, or the runs listed by a study.

    Args:
        results_dir: folder that contains the folders of runs and studies.
        study: name of a study; None means all runs.
        pe: labels of the encodings to keep; None keeps all.
        display: shows the progress.

    Raises:
        UserError: the directory, study or encoding does not exist.
    """
    left_out: dict[str, str] = {}
    manifest = {} if study is None else read_manifest(Path(results_dir), study)
    tuned = manifest.get("tuned", [])
    folder = Path(results_dir) / "runs"
    if study is not None:
        paths = sorted({run_directory(Path(results_dir), name).path for name in manifest["runs"]})
    elif folder.is_dir():
        paths = sorted(path for path in folder.iterdir() if path.name[0] != ".")
    else:
        raise UserError(f"results_dir={results_dir}: {folder} does not exist; train a run first")
    finished: list[_FinishedRun] = []
    display = display or Display()
    display.start("reading runs", len(paths))
    for number, path in enumerate(paths):
        display.step(number)
        with _exclude_on_error(path.name, left_out):
            finished.append(_read_run(RunDirectory(path), tuned, left_out))
    display.stop()
    finished = _without_duplicates(finished, tuned, left_out)
    best, tuning = best_of_each(finished, tuned)
    finished = [run for run in finished if run.directory.name in best]
    if not finished:
        return Runs(pd.DataFrame(), pd.DataFrame(), dict(sorted(left_out.items())))
    table = _with_unique_labels(pd.DataFrame([run.row for run in finished]), pe)
    by_name = {run.directory.name: run for run in finished}
    runs = {name: by_name[name] for name in table["name"]}
    metrics = _metrics_of(list(runs.values()))
    for _, names in table.groupby("protocol")["name"]:
        _fill_diverged([runs[name] for name in names], metrics)
    curves = _with_keys(table, {name: list(run.curve.values()) for name, run in runs.items()})
    curves["in_summary"] = at_shared_lengths(curves)
    training: dict[str, list[Row]] = {}
    for name, run in runs.items():
        with _exclude_on_error(f"{name}/{run.directory.metrics.name}", left_out):
            rows = read_metrics(run.directory.table(run.directory.metrics.name))
            training[name] = [{key: float(row.get(key, "nan")) for key in TRAINING} for row in rows]
    labels = {(row["protocol"], row["encoding"]): row["label"] for row in table.to_dict("records")}
    tuning = [
        choice | {"encoding": label, "grid": choice["grid"].assign(encoding=label)}
        for choice in tuning
        if (label := labels.get((choice["protocol"], choice["family"])))
    ]
    return Runs(
        runs=with_summaries(table, curves, metrics),
        curves=curves,
        training=_with_keys(table, training),
        saved={name: run.saved for name, run in runs.items()},
        environments={name: run.directory.read_environment() for name, run in runs.items()},
        tuning=tuning,
        **{name: _further_table(name, list(runs.values()), left_out) for name in FURTHER},
        metrics=metrics,
        evaluations={name: run.evaluation for name, run in runs.items()},
        left_out=dict(sorted(left_out.items())),
    )


def _with_keys(table: pd.DataFrame, rows: Mapping[str, Sequence[Row]]) -> pd.DataFrame:
    """Return the rows of every run, preceded by its `KEYS`."""
    named = pd.DataFrame([{"name": name, **row} for name, run_rows in rows.items() for row in run_rows])
    return table[[*KEYS]].merge(named, on="name") if len(named) else named


@contextmanager
def _exclude_on_error(name: str, left_out: dict[str, str]) -> Iterator[None]:
    """Record an error in the block as the reason why ``name`` is excluded."""
    try:
        yield
    except UserError as error:
        left_out[printable(name)] = one_line(str(error))
    except Exception as error:  # any error in one run must not stop the comparison of the others
        left_out[printable(name)] = one_line(f"damaged ({type(error).__name__}: {shown(error)})")


def _read_run(directory: RunDirectory, tuned: Sequence[str], left_out: dict[str, str]) -> _FinishedRun:
    """Read a run directory; record excluded evaluations in ``left_out``.

    Raises:
        UserError: the run is unfinished, damaged or not a run.
    """
    if not (directory.config.exists() or directory.result.exists()):
        raise UserError("not a run directory: config.yaml and result.json are missing")
    if is_formula(directory.name):
        raise UserError("its name would be a formula in a spreadsheet")
    if not directory.name.isprintable():
        raise UserError("its name has characters that cannot be printed")
    result = directory.read_result()
    if result is None:
        raise UserError("unfinished; repeat its command to resume it")
    if result["status"] not in (COMPLETED, DIVERGED):
        raise UserError(f"{result['status']}: {result.get('reason', 'no reason recorded')}")
    saved = Record.read(directory)
    if result.get("run") != saved.hash or saved.identity.hash != saved.hash:
        raise UserError("its result.json, or its config.yaml, belongs to another run or was changed")
    examples = int(result["evaluation"]["examples"])
    max_length = int(max(saved.derived["train_lengths"]))
    if not 1 <= max_length <= MAX_LENGTH:
        raise UserError(f"its config.yaml has train_lengths up to {shown(max_length)}")
    protocol, encoding = _comparison_keys(saved.identity.hashed, result["evaluation"], tuned)
    loss = result.get("validation_loss", math.nan)
    validation_loss = float(loss) if finite(loss) else math.nan
    row = {
        "name": directory.name,
        "label": str(result["label"]),
        "seed": int(result["seed"]),
        "task": str(result["task"]),
        "model": str(result["model"]),
        "status": result["status"],
        "max_length": max_length,
        "protocol": protocol,
        "encoding": encoding,
        **{key: result[key] if finite(result.get(key)) else None for key in RESULTS},
    }
    if row["status"] == DIVERGED:
        unmeasured: dict[int, Row] = {length: {} for length in saved.derived["evaluation_lengths"]}
        return _FinishedRun(
            directory, row, unmeasured, saved, examples, validation_loss, result["evaluation"]
        )
    curve = {point["content_length"]: point for point in read_run_curve(directory, result)}
    for column, value in ((column, value) for point in curve.values() for column, value in point.items()):
        is_infinite = isinstance(value, float) and math.isinf(value) and column not in CURVE_COLUMNS
        if is_infinite or column in (*KEYS, "in_summary"):
            problem = f"{value} is not finite" if is_infinite else "no curve has this column"
            raise UserError(f"{directory.curve}: {column}: {problem}")
    run = _FinishedRun(directory, row, curve, saved, examples, validation_loss, result["evaluation"])
    run.metrics |= _described(result)
    with _exclude_on_error(f"{directory.name}/evaluations", left_out):
        for name in sorted(directory.evaluations(), key=lambda name: _ended_at(directory.evaluation(name))):
            with _exclude_on_error(f"{directory.name}/evaluations/{name}", left_out):
                _add_evaluation(run, directory.evaluation(name), result["evaluation"])
    run.curve = dict(sorted(run.curve.items()))
    return run


def _comparison_keys(hashed: Row, evaluation: Row, tuned: Collection[str]) -> tuple[str, str]:
    """Return a hash of the configuration that compared runs share, tuned options apart, and of the encoding.

    ``hashed`` is `Identity.hashed` of a run, ``evaluation`` the `identity.evaluation_key` of its evaluation.
    """
    config = hashed["config"]
    classes = hashed["classes"]

    def section(group: str) -> list[Any]:
        untuned = {key: value for key, value in config[group].items() if f"{group}.{key}" not in tuned}
        return [untuned, classes.get(group)]

    protocol = {group: section(group) for group in ("task", "model", "training", "trainer", "optimizer")}
    encoding: Row = {group: section(group) for group in ("pe", "positions")}
    if "parent" in config:  # parents that differ only in their seed count as the same encoding
        encoding["parent"] = config["parent"]["family"]
    compared = [protocol, hashed["data"], int(evaluation["examples"])]
    compared += [evaluation[key] for key in ("window", "decoding") if key in evaluation]
    return short_hash(compared), short_hash(encoding)


def finite(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float | np.number) and math.isfinite(value)


def _add_evaluation(run: _FinishedRun, later: RunDirectory, evaluation: Row) -> None:
    """Add the lengths of a later evaluation to the curve.

    Raises:
        UserError: the evaluation differs in more than its lengths, or is damaged.
    """
    result = later.read_result()
    if result is None:
        return
    differing = [
        name
        for key, name in EVALUATION.items()
        if short_hash(result["evaluation"].get(key)) != short_hash(evaluation.get(key))
    ]
    if differing:
        differences = " and ".join(differing)
        raise UserError(
            f"evaluated with a different {differences} than the run; its values are in {later.curve}"
        )
    if result.get("run") != run.saved.hash:
        raise UserError(f"{later.result} belongs to another run")
    points = {point["content_length"]: point for point in read_run_curve(later, result)}
    if any(point["exact_match"] is None for point in points.values()):
        shortest = min(run.curve)
        longest = max(run.curve)
        if (min(points), max(points)) != (shortest, longest):
            raise UserError(
                f"a text is cut by the shortest and longest length; allowed to add: {shortest} to {longest}"
            )
    code = result["evaluation"].get("metrics_code")
    is_newer = code is not None and code != run.evaluation.get("metrics_code")  # edited since: it counts
    for length, point in points.items():  # the run's own values come first; further metrics are added
        measured = {key: value for key, value in point.items() if is_newer and key not in CURVE_COLUMNS}
        run.curve[length] = {**point, **run.curve.get(length, {}), **measured}
    run.evaluations.append(later)
    if is_newer:
        run.metrics |= _described(result)
        run.evaluation = {**run.evaluation, "metrics_code": code}
    run.metrics = _described(result) | run.metrics


def _ended_at(evaluation: RunDirectory) -> tuple[int, str]:
    """Return when an evaluation ended, of which the latest counts, and its name."""
    with suppress(OSError):
        return evaluation.result.stat().st_mtime_ns, evaluation.name
    return 0, evaluation.name


def _described(result: Row) -> dict[str, Any]:
    """Return the descriptions of the user's metrics that a result records, by name."""
    metrics = result.get("metrics")
    return dict(metrics) if isinstance(metrics, Mapping) else {}


def _metrics_of(runs: Sequence[_FinishedRun]) -> tuple[Metric, ...]:
    """Return `METRICS` and the metrics of the runs' further columns."""
    columns = dict.fromkeys(column for run in runs for point in run.curve.values() for column in point)
    described = {name: description for run in reversed(runs) for name, description in run.metrics.items()}
    further = [str(column) for column in columns if column not in CURVE_COLUMNS and column.isidentifier()]
    metrics = [described_metric(name, described.get(name)) for name in further]
    others = {column for metric in metrics for column in (*metric.columns[1:], metric.guess_column)}
    return (*METRICS, *(metric for metric in metrics if metric.name not in others))


def _further_table(file: str, runs: Sequence[_FinishedRun], left_out: dict[str, str]) -> pd.DataFrame:
    """Return the rows of a file of `FURTHER` of these runs and their later evaluations, with the run's name.

    Damaged files are left out. Of equal rows, the run's own count.
    """
    keys, numbers = FURTHER[file]
    tables = [pd.DataFrame()]
    for run in runs:
        for directory in (run.directory, *run.evaluations):
            path = directory.path / f"{file}.csv"
            with _exclude_on_error(f"{run.directory.name}/{path.name}", left_out):
                if path.exists():
                    table = pd.read_csv(io.StringIO(read_text(directory.table(path.name)))).drop_duplicates(
                        keys
                    )
                    if clash := {*KEYS} & {*table}:
                        raise ValueError(f"{min(clash)} is no column of this table")
                    evaluated = {*run.curve, *run.saved.derived["evaluation_lengths"]}
                    if table["length"].nunique() > len(evaluated):
                        raise ValueError("it has more lengths than the curve")
                    values = table[numbers].astype(float)
                    if file != "text" and values.isna().any(axis=None):  # a row was cut off
                        raise ValueError("a number is missing")
                    tables.append(table.assign(name=run.directory.name)[["name", *table]])
    rows = pd.concat(tables, ignore_index=True)
    return rows.drop_duplicates(["name", *keys], ignore_index=True) if len(rows) else rows


def _without_duplicates(
    runs: list[_FinishedRun], tuned: Sequence[str], left_out: dict[str, str]
) -> list[_FinishedRun]:
    """Return the runs, one per configuration and seed, sorted by name.

    The run with the latest `NUMERICS` is kept; if several have it, the one whose directory has the original
    name.
    """
    originals: dict[tuple[Any, ...], _FinishedRun] = {}
    originals_first = sorted(runs, key=lambda run: not run.directory.name.endswith(run.saved.hash[:8]))
    for run in sorted(originals_first, key=lambda run: -run.saved.numerics):
        values = [option_value(run.saved.trained, setting) for setting in tuned]
        configuration = (run.row["protocol"], run.row["encoding"], run.row["seed"], *values)
        original = originals.setdefault(configuration, run)
        if original is not run:
            reason = f"a duplicate of {original.directory.name}"
            if run.saved.numerics != original.saved.numerics:
                numerics = f"NUMERICS {run.saved.numerics}, and {original.directory.name}"
                reason = f"trained with {numerics} with {original.saved.numerics}"
            left_out[run.directory.name] = reason
    return sorted(originals.values(), key=lambda run: run.directory.name)


def _with_unique_labels(table: pd.DataFrame, labels: Collection[str] | None) -> pd.DataFrame:
    """Return the rows with a single label per encoding; ``labels`` selects encodings by these labels."""
    by_encoding = table.groupby(["protocol", "encoding"])["label"]
    table["label"] = by_encoding.transform(lambda labels: min(labels, key=lambda label: (len(label), label)))
    # Encodings can have the same label through the option ``label`` or edited source code.
    with_hash = table["label"] + " [" + table["encoding"].str[:4] + "]"
    if labels:
        ambiguous = table.groupby("label")["encoding"].transform("nunique") > 1
        available = {*table["label"], *with_hash[ambiguous]}
        for label in labels:
            if label not in available:
                raise UserError(f"pe={label}: no finished run has this encoding.{nearest(label, available)}")
        chosen = table["label"].isin(labels) | (with_hash.isin(labels) & ambiguous)
        table, with_hash = table[chosen].reset_index(drop=True), with_hash[chosen].reset_index(drop=True)
    ambiguous = table.groupby("label")["encoding"].transform("nunique") > 1
    return table.assign(label=table["label"].mask(ambiguous, with_hash))


def _fill_diverged(runs: list[_FinishedRun], metrics: Sequence[Metric]) -> None:
    """Give diverged runs a curve over the shared lengths: accuracy 0 and the loss of a uniform guess."""
    completed = [run for run in runs if run.row["status"] == COMPLETED]
    measured = {length: point for run in completed for length, point in run.curve.items()}
    lengths = sorted(set.intersection(*(set(run.curve) for run in completed or runs)))
    for run in runs:
        if run.row["status"] != DIVERGED:
            continue
        run.curve = {}
        for length in lengths:
            row = measured.get(length, {})  # of a completed run, if any
            values: Row = {metric.name: metric.diverged(row) for metric in metrics}
            if row.get(EXACT_MATCH.name, 0.0) is None:  # language models have none
                values[EXACT_MATCH.name] = None
            run.curve[length] = {
                "length": length,
                "content_length": length,
                "split": "in_distribution" if length <= run.row["max_length"] else "extrapolation",
                "examples": run.examples,
                **{key: row[key] for key in OF_THE_TASK if key in row},
                **values,
            }


def at_shared_lengths(curves: pd.DataFrame) -> pd.Series:
    """Return for each row whether all runs of its protocol have its length."""
    runs_with_length = curves.groupby(["protocol", "content_length"])["name"].transform("nunique")
    return runs_with_length == curves.groupby("protocol")["name"].transform("nunique")


def with_summaries(
    runs: pd.DataFrame, curves: pd.DataFrame, metrics: Sequence[Metric] = METRICS
) -> pd.DataFrame:
    """Return the runs with summaries of their curves over the lengths that all runs share."""
    shared_rows = curves[curves["in_summary"]].astype(object).where(curves.notna(), None)
    points: dict[str, list[Any]] = {name: [] for name in runs["name"]}
    for point in shared_rows.to_dict("records"):
        points[point["name"]].append(point)
    summaries = []
    for name, max_length, status in runs[["name", "max_length", "status"]].itertuples(index=False):
        values = summarise(points[name], int(max_length), metrics)
        summary = {key: math.nan if value is None else value for key, value in values.items()}
        for metric in metrics:
            column = f"{metric.name}_extrapolation"
            if status == DIVERGED and metric.bounds and not math.isnan(summary[column]):
                summary[column] = metric.diverged({})  # not below, where guessing counts as 0
        summaries.append(summary)
    return runs.assign(**pd.DataFrame(summaries, index=runs.index))
