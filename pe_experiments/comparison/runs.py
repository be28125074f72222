"""Many run directories as tables: one row per run, one per run and length, one per run and training step.

Directories that are not a valid finished run are left out, with the reason. Runs may be compared only within
a protocol: everything that determines a training except scheme, position policy and seed.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.configuration.schema import LONGEST, MOST_EXAMPLES, PARTS
from pe_experiments.evaluation.summary import guessing_loss, summarise
from pe_experiments.store.directory import COMPLETED, DIVERGED, RunDirectory, run_directory
from pe_experiments.store.identity import only_code_differs, short_hash
from pe_experiments.store.studies import read_manifest
from pe_experiments.store.tables import MOST, Row, read_curve, read_metrics
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import UserError, is_cell, nearest, one_line, printable, shown
from pe_experiments.terminal.files import read_json, read_text

MOST_SEED = (1 << 63) - 1  # that a table holds
ACCURACIES = ("exact_match", "token_accuracy")
RESULTS = ("parameters", "encoding_parameters", "seconds_per_step", "diverged_at")
TRAINING = ("step", "loss", "exact_match", "token_accuracy")
KEYS = ("name", "label", "seed", "task", "model", "protocol", "status")  # of a run, in all tables
OF_THE_TASK = ("chance", "bag_ceiling", "answer_tokens")  # columns of a curve that depend on the task alone


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
    """

    runs: pd.DataFrame
    curves: pd.DataFrame
    left_out: dict[str, str] = field(default_factory=dict)
    training: pd.DataFrame = field(default_factory=pd.DataFrame)
    saved: dict[str, Row] = field(default_factory=dict)
    environments: dict[str, Row] = field(default_factory=dict)
    tuning: list[Row] = field(default_factory=list)
    other_tasks: pd.DataFrame = field(default_factory=pd.DataFrame)
    text: pd.DataFrame = field(default_factory=pd.DataFrame)


@dataclass
class _Run:
    """One run as it is read: its row, its curve by length, and its later evaluations on other tasks."""

    directory: RunDirectory
    row: Row
    curve: dict[int, Row]
    saved: Row
    examples: int
    other_tasks: list[Row] = field(default_factory=list)

    def with_keys(self, rows: Iterable[Row]) -> list[Row]:
        return [{key: self.row[key] for key in KEYS} | row for row in rows]


def load_runs(
    results_dir: str | Path = "results",
    study: str | None = None,
    *,
    pe: Sequence[str] | str | None = None,
    task: Sequence[str] | str | None = None,
    model: Sequence[str] | str | None = None,
    display: Display | None = None,
) -> Runs:
    """Read every run under ``results_dir/runs``, or those that a study lists.

    ``pe`` keeps only these schemes, by label (``rope(base=500)``) or by choice (``rope``, whatever its
    arguments), ``task`` and ``model`` only these; ``display`` shows the progress.

    Raises:
        UserError: no such directory or study, or a filter that matches no run.
    """
    left_out: dict[str, str] = {}
    listed = {} if study is None else read_manifest(Path(results_dir) / study / "manifest.json")
    paths = _directories(Path(results_dir), study, listed)
    read, display = list[_Run](), display or Display()
    display.start("reading runs", len(paths))
    for number, path in enumerate(paths):
        display.step(number)
        with _or_left_out(path.name, left_out):
            read.append(_read_run(RunDirectory(path), listed.get("tuned", []), left_out))
    display.stop()
    runs = _without_duplicates(read, left_out)
    for same in _grouped(runs, "protocol", "scheme"):
        shortest = min((run.row["label"] for run in same), key=lambda label: (len(label), label))
        for run in same:  # whatever each of its runs was called
            run.row["label"] = shortest
    for key, wanted in (("pe", pe), ("task", task), ("model", model)):
        if wanted is not None:
            runs = _filtered(runs, key, [wanted] if isinstance(wanted, str) else wanted)
    for same in _grouped(runs, "label"):
        if len(_grouped(same, "scheme")) > 1:  # ``label=``, or an edited source
            for run in same:
                run.row["label"] += f" [{run.row['scheme'][:4]}]"
    for same in _grouped(runs, "protocol"):
        _summarise_protocol(same)
    training = [row for run in runs for row in run.with_keys(_training(run.directory, left_out))]
    texts = [_text(run.directory, left_out) for run in runs]
    mine = {run.saved["identity"]["label"] for run in runs}
    return Runs(
        runs=pd.DataFrame([run.row for run in runs]),
        curves=pd.DataFrame([point for run in runs for point in run.with_keys(run.curve.values())]),
        left_out=dict(sorted(left_out.items())),
        training=pd.DataFrame(training),
        saved={run.row["name"]: run.saved for run in runs},
        environments={run.row["name"]: _environment(run.directory) for run in runs},
        tuning=[choice for choice in listed.get("tuning", []) if choice["scheme"] in mine],
        other_tasks=pd.DataFrame([point for run in runs for point in run.with_keys(run.other_tasks)]),
        text=pd.concat(texts, ignore_index=True) if texts else pd.DataFrame(),
    )


def _directories(results_dir: Path, study: str | None, listed: Mapping[str, Any]) -> list[Path]:
    if study is not None:
        if any(Path(name).name != name for name in listed["runs"]):
            raise UserError(f"study={study}: its manifest lists something that is no run's name")
        return sorted({run_directory(results_dir, name).path for name in listed["runs"]})
    folder = results_dir / "runs"
    if not folder.is_dir():
        raise UserError(f"results_dir={results_dir}: there is no {folder}; train something first")
    return sorted(path for path in folder.iterdir() if path.name[0] != ".")


@contextmanager
def _or_left_out(name: str, left_out: dict[str, str]) -> Iterator[None]:
    """What cannot be read is left out, with the reason."""
    try:
        yield
    except UserError as error:
        left_out[printable(name)] = one_line(str(error))
    except Exception as error:  # whatever is wrong with one, the others are compared
        left_out[printable(name)] = one_line(f"damaged ({type(error).__name__}: {shown(error)})")


def _read_run(directory: RunDirectory, tuned: Sequence[str], left_out: dict[str, str]) -> _Run:
    if not (directory.config.exists() or directory.result.exists()):
        raise UserError("no run: it has neither config.yaml nor result.json")
    result = directory.read_result()
    if result is None:
        raise UserError("unfinished; the command that began it resumes it")
    if result["status"] not in (COMPLETED, DIVERGED):
        raise UserError(f"{result['status']}: {result.get('reason', 'no reason recorded')}")
    saved = directory.read_config()
    identity = saved["identity"]
    trained, sources = identity["trained"], identity["sources"]
    if not (is_cell(directory.name) and is_cell(identity["label"])):
        raise UserError("its directory or its label is called what no run is called")
    said = f"{result['name']}, seed {result['seed']}"
    meant = f"{identity['name']}, seed {trained['seed']}"
    if said != meant:
        raise UserError(f"its result.json belongs to {said}, and its config.yaml to {meant}")
    if not all(isinstance(trained[group], dict) for group in (*PARTS, "model", "training")):
        raise UserError(f"{directory.config} is damaged (a section that is none)")
    examples = _whole(result["evaluation"]["examples"], MOST_EXAMPLES)
    training = {key: value for key, value in trained["training"].items() if f"training.{key}" not in tuned}
    # Edited code of the task makes another protocol, not another scheme.
    protocol = [trained["task"], sources["task"], trained["model"], sources.get("model"), training, examples]
    row = {
        "name": directory.name,
        "label": str(result["label"]),
        "seed": _whole(result["seed"], MOST_SEED),
        "task": str(result["task"]),
        "model": str(result["model"]),
        "status": result["status"],
        "max_length": max(_whole(length, LONGEST) for length in saved["derived"]["train_lengths"]),
        "protocol": short_hash([*protocol, sources.get("shared")]),
        "scheme": short_hash([(trained[group], sources[group]) for group in ("pe", "positions")]),
        **{key: _finite(result.get(key)) for key in RESULTS},
    }
    if row["status"] == DIVERGED:
        lengths = [_whole(length, LONGEST) for length in saved["derived"]["evaluation_lengths"]]
        return _Run(directory, row, {n: {} for n in lengths}, saved, examples)
    curve = {point["content_length"]: point for point in _sound_curve(directory, result)}
    run = _Run(directory, row, curve, saved, examples)
    with _or_left_out(f"{directory.name}/evaluations", left_out):
        for name in directory.evaluations():
            with _or_left_out(f"{directory.name}/evaluations/{name}", left_out):
                _add_evaluation(run, directory.evaluation(name), result["evaluation"])
    run.curve = dict(sorted(run.curve.items()))
    return run


def _whole(value: Any, most: int) -> int:
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{shown(value)}: expected a whole number up to {most}")
    return value


def _finite(value: Any) -> float | None:
    return value if isinstance(value, int | float) and abs(value) <= MOST else None


def _add_evaluation(run: _Run, later: RunDirectory, evaluation: Row) -> None:
    """Add the result of a later evaluation of its scheme: more lengths, or another task."""
    if (result := later.read_result()) is None:
        return
    again, measured = ({**one, "lengths": None} for one in (result["evaluation"], evaluation))
    if "evaluated_on" in result and again["pe"] == measured["pe"]:
        about = {"evaluated_on": result["evaluated_on"]}
        about["decoding"] = again.get("decoding", "teacher_forcing")
        if not all(map(is_cell, about.values())):
            raise UserError(f"{later.result} is damaged (evaluated_on={shown(about['evaluated_on'])})")
        run.other_tasks += [point | about for point in read_curve(later.curve)]
    elif only_code_differs(again, measured):
        raise UserError("evaluated by other code than the run; evaluate it again")
    elif again == measured:
        run.curve = {point["content_length"]: point for point in _sound_curve(later, result)} | run.curve


def _sound_curve(directory: RunDirectory, result: Row) -> list[Row]:
    rows = read_curve(directory.curve)
    # A language model has no exact match at any length.
    accuracies = ACCURACIES if any(row["exact_match"] is not None for row in rows) else ("token_accuracy",)
    lengths = [row["content_length"] for row in rows]
    measured = [row[key] for row in rows for key in accuracies]
    asked = [row["length"] for row in rows]
    sound = {
        "an accuracy that is none": all(isinstance(x, int | float) and 0 <= x <= 1 for x in measured),
        "a length that is none": all(isinstance(length, int) and length > 0 for length in lengths),
        "not the lengths result.json names": asked == result["evaluation"]["lengths"],
    }
    if wrong := [what for what, right in sound.items() if not right]:
        raise UserError(f"{directory.curve} is damaged ({wrong[0]}); add rerun=true")
    return rows


def _training(directory: RunDirectory, left_out: dict[str, str]) -> list[Row]:
    """The training curve; one that is damaged is left out."""
    with _or_left_out(f"{directory.name}/{directory.metrics.name}", left_out):
        metrics = read_metrics(directory.metrics)
        rows = [{key: float(row.get(key, "nan")) for key in TRAINING} for row in metrics]
        if any(math.isinf(value) for row in rows for value in row.values()):
            raise ValueError("an infinite value, which no run records")
        return rows
    return []


def _text(directory: RunDirectory, left_out: dict[str, str]) -> pd.DataFrame:
    """The rows of its ``text.csv``; one that is damaged is left out."""
    path = directory.path / "text.csv"
    with _or_left_out(f"{directory.name}/{path.name}", left_out):
        if path.exists():
            table = pd.read_csv(io.StringIO(read_text(path)))
            table[["bits_per_byte", "accuracy"]].astype(float)
            if not all(map(is_cell, {*table, *table["windows"], *table["slice"]})):
                raise ValueError("a cell or a column that is no name")
            return table.assign(name=directory.name)[["name", *table]]
    return pd.DataFrame()


def _environment(directory: RunDirectory) -> Row:
    """Versions, machine and command; nothing where the file is missing or damaged."""
    try:
        content = read_json(directory.environment)
        versions, command = content.get("libraries", {}), " ".join(content.get("command", []))
        said = [content.get(key) for key in ("pe_experiments", "python", "source", "device", "processor")]
        texts = [text for text in (*said, *versions, *versions.values()) if text]
        return content if all(map(is_cell, texts)) and printable(command) == command else {}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _without_duplicates(runs: list[_Run], left_out: dict[str, str]) -> list[_Run]:
    """One directory per training; of copies the one with the run's own name is kept."""
    kept: dict[tuple[str, str, int], _Run] = {}
    for run in sorted(runs, key=lambda run: run.directory.name != run.saved["identity"]["name"]):
        same = kept.setdefault((run.row["protocol"], run.row["scheme"], run.row["seed"]), run)
        if same is not run:
            left_out[run.directory.name] = f"a duplicate: the same training as {same.directory.name}"
    return sorted(kept.values(), key=lambda run: run.directory.name)


def _filtered(runs: list[_Run], key: str, wanted: Sequence[str]) -> list[_Run]:
    """The runs that are called so; a scheme also by the config choice that its label begins with."""
    column = "label" if key == "pe" else key
    names = [{run.row[column], re.split(r"\(|\+| \[", run.row[column])[0]} for run in runs]
    known = set[str]().union(*names)
    for name in wanted:
        if name not in known:
            raise UserError(f"{key}={name}: no finished run has it.{nearest(name, known)}")
    return [run for run, called in zip(runs, names, strict=True) if called & set(wanted)]


def _grouped(runs: Sequence[_Run], *keys: str) -> list[list[_Run]]:
    """The runs that agree in these columns."""
    groups: dict[tuple[Any, ...], list[_Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run.row[key] for key in keys), []).append(run)
    return list(groups.values())


def _summarise_protocol(runs: list[_Run]) -> None:
    """Summaries over the lengths all runs share, so that an area is over the same lengths for all.

    A diverged run is never averaged away: it has accuracies of 0 and the loss of a uniform guess.
    """
    completed = [run for run in runs if run.row["status"] == COMPLETED]
    known = {length: point for run in completed for length, point in run.curve.items()}
    shared = set.intersection(*(set(run.curve) for run in completed or runs))
    for run in runs:
        max_length, status = run.row["max_length"], run.row["status"]
        if status == DIVERGED:
            run.curve = {
                n: {
                    "length": n,
                    "content_length": n,
                    "split": "in_distribution" if n <= max_length else "extrapolation",
                    "examples": run.examples,
                    "exact_match": None if n in known and known[n]["exact_match"] is None else 0.0,
                    "token_accuracy": 0.0,
                    **{key: known[n][key] for key in OF_THE_TASK if n in known},
                    "loss": guessing_loss(known.get(n, {})),
                }
                for n in sorted(shared)
            }
        for length, point in run.curve.items():
            point["in_summary"] = length in shared
        run.row |= summary_of([p for p in run.curve.values() if p["in_summary"]], max_length, status)


def summary_of(points: Sequence[Row], max_length: int, status: str) -> Row:
    """`evaluation.summary.summarise` with NaN for unknown values; past training a diverged run scores 0."""
    if status == DIVERGED:  # in studies published earlier its loss is missing
        points = [{**point, "loss": guessing_loss(point)} for point in points]
    summarised = summarise(points, max_length)
    summary = {key: math.nan if value is None else value for key, value in summarised.items()}
    for accuracy in ACCURACIES if status == DIVERGED else ():
        if not math.isnan(summary[f"{accuracy}_extrapolation"]):
            summary[f"{accuracy}_extrapolation"] = 0.0
    return summary
