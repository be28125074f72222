"""Read many run directories into tables; exclude invalid or unfinished runs and record the reason."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison.tuning import best_of_each
from pe_experiments.configuration.schema import PARTS
from pe_experiments.evaluation.summary import guessing_loss, summarise
from pe_experiments.store.csv_files import Row, read_curve, read_metrics
from pe_experiments.store.directory import COMPLETED, DIVERGED, RunDirectory, run_directory
from pe_experiments.store.manifest import read_manifest
from pe_experiments.store.names import short_hash
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import UserError, nearest, one_line, printable, shown
from pe_experiments.terminal.files import read_text

ACCURACIES = ("exact_match", "token_accuracy")
RESULTS = ("parameters", "encoding_parameters", "seconds_per_step", "diverged_at")
TRAINING = ("step", "loss", "exact_match", "token_accuracy")
EVALUATION = {"pe": "encoding", "task": "task", "decoding": "decoding", "examples": "number of examples"}
KEYS = ("name", "label", "seed", "task", "model", "protocol", "status")  # of a run, in all tables
OF_THE_TASK = ("chance", "bag_ceiling", "answer_tokens")  # columns of a curve that depend only on the task


@dataclass(frozen=True)
class Runs:
    """Attributes:
    runs: one row per run: its `KEYS`, and the summary over the lengths that all runs of a protocol share.
    curves: one row per run and length: its `KEYS`, the columns of ``extrapolation.csv``, and whether the
        summary uses the length (``in_summary``). A diverged run is 0 throughout.
    left_out: the reasons for excluded runs by name (unfinished or damaged runs, copies, and evaluations
        with another encoding, task, decoding or number of examples).
    training: one row per run and recorded step: loss, and exact match if measured.
    saved: the saved configuration of each run by name.
    environments: versions, machine and command of each run, by name.
    tuning: one entry per tuned option and encoding (see `tuning`).
    text: the rows of ``text.csv`` of language models, with the name of the run.
    depth: the rows of ``depth.csv`` of tasks with a depth, including later evaluations, with the name of the
        run.
    """

    runs: pd.DataFrame
    curves: pd.DataFrame
    left_out: dict[str, str] = field(default_factory=dict)
    training: pd.DataFrame = field(default_factory=pd.DataFrame)
    saved: dict[str, Row] = field(default_factory=dict)
    environments: dict[str, Row] = field(default_factory=dict)
    tuning: list[Row] = field(default_factory=list)
    text: pd.DataFrame = field(default_factory=pd.DataFrame)
    depth: pd.DataFrame = field(default_factory=pd.DataFrame)


@dataclass
class _Run:
    directory: RunDirectory
    row: Row
    curve: dict[int, Row]  # by length
    saved: Row
    examples: int
    evaluations: list[RunDirectory] = field(default_factory=list)  # whose lengths are in the curve, too


def read_runs(
    results_dir: str | Path = "results",
    study: str | None = None,
    *,
    pe: Collection[str] | None = None,
    display: Display | None = None,
) -> Runs:
    """Read every run under ``results_dir/runs``, or the runs listed by a study.

    ``pe`` keeps only the encodings with these labels; ``display`` shows the progress.

    Raises:
        UserError: the directory, study or encoding does not exist.
    """
    left_out: dict[str, str] = {}
    manifest = {} if study is None else read_manifest(Path(results_dir) / study / "manifest.json")
    tuned = manifest.get("tuned", [])
    paths = _directories(Path(results_dir), study, manifest)
    finished: list[_Run] = []
    display = display or Display()
    display.start("reading runs", len(paths))
    for number, path in enumerate(paths):
        display.step(number)
        with _or_left_out(path.name, left_out):
            finished.append(_read_run(RunDirectory(path), tuned, left_out))
    display.stop()
    best, tuning = best_of_each(finished, tuned)
    finished = [run for run in finished if run.directory.name in best]
    if not finished:
        return Runs(pd.DataFrame(), pd.DataFrame(), dict(sorted(left_out.items())))
    table = _labelled(_without_duplicates(finished, left_out), pe)
    by_name = {run.directory.name: run for run in finished}
    runs = {name: by_name[name] for name in table["name"]}
    for _, names in table.groupby("protocol")["name"]:
        _fill_diverged([runs[name] for name in names])
    curves = _with_keys(table, {name: list(run.curve.values()) for name, run in runs.items()})
    curves["in_summary"] = shared(curves)
    training = {name: _training(run.directory, left_out) for name, run in runs.items()}
    labels = set(table["label"])
    return Runs(
        runs=summarised(table, curves),
        curves=curves,
        training=_with_keys(table, training),
        saved={name: run.saved for name, run in runs.items()},
        environments={name: run.directory.read_environment() for name, run in runs.items()},
        tuning=[choice for choice in tuning if choice["encoding"] in labels],
        text=pd.concat([_text(run.directory, left_out) for run in runs.values()], ignore_index=True),
        depth=pd.concat([_depth(run, left_out) for run in runs.values()], ignore_index=True),
        left_out=dict(sorted(left_out.items())),
    )


def _with_keys(table: pd.DataFrame, rows: Mapping[str, Sequence[Row]]) -> pd.DataFrame:
    """Return the rows of every run, preceded by its `KEYS`."""
    named = pd.DataFrame([{"name": name} | row for name, of_run in rows.items() for row in of_run])
    return table[[*KEYS]].merge(named, on="name") if len(named) else named


def _directories(results_dir: Path, study: str | None, manifest: Mapping[str, Any]) -> list[Path]:
    if study is not None:
        if any(Path(name).name != name for name in manifest["runs"]):
            raise UserError(f"study={study}: its manifest lists an invalid run name")
        return sorted({run_directory(results_dir, name).path for name in manifest["runs"]})
    folder = results_dir / "runs"
    if not folder.is_dir():
        raise UserError(f"results_dir={results_dir}: {folder} does not exist; train a run first")
    return sorted(path for path in folder.iterdir() if path.name[0] != ".")


@contextmanager
def _or_left_out(name: str, left_out: dict[str, str]) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        left_out[printable(name)] = one_line(str(error))
    except Exception as error:  # any error in one run must not stop the comparison of the others
        left_out[printable(name)] = one_line(f"damaged ({type(error).__name__}: {shown(error)})")


def _read_run(directory: RunDirectory, tuned: Sequence[str], left_out: dict[str, str]) -> _Run:
    directory.restore()
    if not (directory.config.exists() or directory.result.exists()):
        raise UserError("not a run directory: config.yaml and result.json are missing")
    result = directory.read_result()
    if result is None:
        raise UserError("unfinished; repeat its command to resume it")
    if result["status"] not in (COMPLETED, DIVERGED):
        raise UserError(f"{result['status']}: {result.get('reason', 'no reason recorded')}")
    saved = directory.read_config()
    identity = saved["identity"]
    trained = identity["trained"]
    of_result = f"{result['name']}, seed {result['seed']}"
    of_config = f"{identity['name']}, seed {trained['seed']}"
    if of_result != of_config:
        raise UserError(f"its result.json belongs to {of_result}, and its config.yaml to {of_config}")
    if not all(isinstance(trained[group], dict) for group in (*PARTS, "model", "training")):
        raise UserError(f"{directory.config} is damaged: a section is not a mapping")
    examples = int(result["evaluation"]["examples"])
    protocol, encoding = comparison_keys(identity["hashed"], examples, tuned)
    row = {
        "name": directory.name,
        "label": str(result["label"]),
        "seed": int(result["seed"]),
        "task": str(result["task"]),
        "model": str(result["model"]),
        "status": result["status"],
        "max_length": int(max(saved["derived"]["train_lengths"])),
        "protocol": protocol,
        "encoding": encoding,
        **{key: _finite(result.get(key)) for key in RESULTS},
    }
    if row["status"] == DIVERGED:
        return _Run(directory, row, {n: {} for n in saved["derived"]["evaluation_lengths"]}, saved, examples)
    curve = {point["content_length"]: point for point in _sound_curve(directory, result)}
    run = _Run(directory, row, curve, saved, examples)
    with _or_left_out(f"{directory.name}/evaluations", left_out):
        for name in directory.evaluations():
            with _or_left_out(f"{directory.name}/evaluations/{name}", left_out):
                _add_evaluation(run, directory.evaluation(name), result["evaluation"])
    run.curve = dict(sorted(run.curve.items()))
    return run


def comparison_keys(hashed: Row, examples: int, tuned: Collection[str] = ()) -> tuple[str, str]:
    """Return a hash of what compared runs must share, and a hash of the encoding.

    Args:
        hashed: `Identity.hashed` of a run.
        examples: number of evaluation examples per length.
        tuned: options that may differ, such as ``training.learning_rate``.
    """
    config, classes = hashed["config"], hashed["classes"]

    def content(group: str) -> list[Any]:
        untuned = {key: value for key, value in config[group].items() if f"{group}.{key}" not in tuned}
        return [untuned, classes.get(group)]

    shared = {group: content(group) for group in ("task", "model", "training", "trainer", "optimizer")}
    compared: Row = {group: content(group) for group in ("pe", "positions")}
    if "parent" in config:  # of another seed it is another run, and the same encoding
        compared["parent"] = config["parent"]["family"]
    return short_hash([shared, hashed["data"], examples]), short_hash(compared)


def _finite(value: Any) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _add_evaluation(run: _Run, later: RunDirectory, evaluation: Row) -> None:
    """Add the lengths of a later evaluation; exclude it if it differs in more than its lengths."""
    result = later.read_result()
    if result is None:
        return
    differing = [
        name for key, name in EVALUATION.items() if result["evaluation"].get(key) != evaluation.get(key)
    ]
    if differing:
        differences = " and ".join(differing)
        raise UserError(
            f"evaluated with a different {differences} than the run; its values are in {later.curve}"
        )
    points = {point["content_length"]: point for point in _sound_curve(later, result)}
    if any(point["exact_match"] is None for point in points.values()):
        ends = (min(run.curve), max(run.curve))
        if (min(points), max(points)) != ends:
            raise UserError(
                f"a text is cut by the shortest and longest length; allowed to add: {ends[0]} to {ends[1]}"
            )
    run.curve = points | run.curve
    run.evaluations.append(later)


def _sound_curve(directory: RunDirectory, result: Row) -> list[Row]:
    rows = read_curve(directory.curve)
    if [row["length"] for row in rows] != result["evaluation"]["lengths"]:
        differ = "its lengths differ from result.json"
        raise UserError(f"{directory.curve} is damaged: {differ}; add rerun=true")
    return rows


def _training(directory: RunDirectory, left_out: dict[str, str]) -> list[Row]:
    """Return the training curve; exclude a damaged one."""
    with _or_left_out(f"{directory.name}/{directory.metrics.name}", left_out):
        metrics = read_metrics(directory.metrics)
        return [{key: float(row.get(key, "nan")) for key in TRAINING} for row in metrics]
    return []


def _text(directory: RunDirectory, left_out: dict[str, str]) -> pd.DataFrame:
    """Return the rows of ``text.csv``; exclude a damaged one."""
    numbers = ["length", "bits_per_byte", "accuracy"]
    return _table(directory.path / "text.csv", numbers, directory.name, left_out)


def _depth(run: _Run, left_out: dict[str, str]) -> pd.DataFrame:
    """Return the rows of ``depth.csv`` of a run and its later evaluations; exclude a damaged one."""
    paths = [directory.path / "depth.csv" for directory in (run.directory, *run.evaluations)]
    numbers = ["length", "depth", "examples", "exact_match", "token_accuracy"]
    table = pd.concat([_table(path, numbers, run.directory.name, left_out) for path in paths])
    return table.drop_duplicates(["length", "depth"]) if len(table) else table


def _table(path: Path, numbers: list[str], name: str, left_out: dict[str, str]) -> pd.DataFrame:
    """Return the rows of a CSV file of a run, with its name as first column; empty without the file."""
    with _or_left_out(f"{name}/{path.name}", left_out):
        if path.exists():
            table = pd.read_csv(io.StringIO(read_text(path)))
            table[numbers].astype(float)
            return table.assign(name=name)[["name", *table]]
    return pd.DataFrame()


def _without_duplicates(runs: list[_Run], left_out: dict[str, str]) -> pd.DataFrame:
    """Return the rows of the runs, one per training: of the latest `NUMERICS`, and named after the run."""
    numerics = {run.directory.name: run.saved["identity"]["hashed"].get("numerics", 0) for run in runs}

    def place(run: _Run) -> tuple[int, bool]:
        return -numerics[run.directory.name], run.directory.name != run.saved["identity"]["name"]

    table = pd.DataFrame([run.row for run in sorted(runs, key=place)])
    original = table.groupby(["protocol", "encoding", "seed"])["name"].transform("first")
    copies = table["name"] != original
    for name, same in zip(table.loc[copies, "name"], original[copies], strict=True):
        older = f"trained with NUMERICS {numerics[name]}, and {same} with {numerics[same]}"
        left_out[name] = f"a duplicate of {same}" if numerics[name] == numerics[same] else older
    return table[~copies].sort_values("name", ignore_index=True)


def _labelled(table: pd.DataFrame, labels: Collection[str] | None) -> pd.DataFrame:
    """Return the wanted encodings, with exactly one label per encoding."""
    by_encoding = table.groupby(["protocol", "encoding"])["label"]
    table["label"] = by_encoding.transform(lambda labels: min(labels, key=lambda label: (len(label), label)))
    if labels:
        known = set(table["label"])
        for label in labels:
            if label not in known:
                raise UserError(f"pe={label}: no finished run has this encoding.{nearest(label, known)}")
        table = table[table["label"].isin(labels)].reset_index(drop=True)
    several = table.groupby("label")["encoding"].transform("nunique") > 1  # ``label=``, or edited source
    with_hash = table["label"] + " [" + table["encoding"].str[:4] + "]"
    return table.assign(label=table["label"].mask(several, with_hash))


def _fill_diverged(runs: list[_Run]) -> None:
    """Give diverged runs a curve over the shared lengths: accuracy 0 and the loss of a uniform guess."""
    completed = [run for run in runs if run.row["status"] == COMPLETED]
    known = {length: point for run in completed for length, point in run.curve.items()}
    lengths = sorted(set.intersection(*(set(run.curve) for run in completed or runs)))
    for run in runs:
        if run.row["status"] == DIVERGED:
            run.curve = {
                n: {
                    "length": n,
                    "content_length": n,
                    "split": "in_distribution" if n <= run.row["max_length"] else "extrapolation",
                    "examples": run.examples,
                    "exact_match": None if n in known and known[n]["exact_match"] is None else 0.0,
                    "token_accuracy": 0.0,
                    **{key: known[n][key] for key in OF_THE_TASK if n in known},
                    "loss": guessing_loss(known.get(n, {})),
                }
                for n in lengths
            }


def shared(curves: pd.DataFrame) -> pd.Series:
    """Return whether all runs of the protocol have the length, so that areas cover the same lengths."""
    runs_with_length = curves.groupby(["protocol", "content_length"])["name"].transform("nunique")
    return runs_with_length == curves.groupby("protocol")["name"].transform("nunique")


def summarised(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with the summaries computed from the shared lengths of their curves."""
    known = curves[curves["in_summary"]].astype(object).where(curves.notna(), None)
    points: dict[str, list[Any]] = {name: [] for name in runs["name"]}
    for point in known.to_dict("records"):
        points[point["name"]].append(point)
    rows = runs[["name", "max_length", "status"]].itertuples(index=False)
    summaries = [_summary(points[name], int(longest), status) for name, longest, status in rows]
    return runs.assign(**pd.DataFrame(summaries, index=runs.index))


def _summary(points: Sequence[Row], max_length: int, status: str) -> Row:
    """Return the summary with NaN for unknown values; past training a diverged run scores 0."""
    known = summarise(points, max_length)
    summary = {key: math.nan if value is None else value for key, value in known.items()}
    for metric in (f"{accuracy}_extrapolation" for accuracy in ACCURACIES):
        if status == DIVERGED and not math.isnan(summary[metric]):
            summary[metric] = 0.0
    return summary
