"""One run directory as rows: its name and summary, its curves, and what it was evaluated on later."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pe_experiments.errors import UserError
from pe_experiments.files import read_json
from pe_experiments.identity import short_hash
from pe_experiments.runs import COMPLETED, DIVERGED, RunDirectory, only_code_differs
from pe_experiments.tracking import read_curve, read_metrics

ACCURACIES = ("exact_match", "token_accuracy")
TRAINED = ("pe", "positions", "task", "model", "training")
RESULTS = ("parameters", "encoding_parameters", "seconds_per_step", "diverged_at")
TRAINING = ("step", "loss", "exact_match", "token_accuracy")
KEYS = ("name", "label", "seed", "task", "model", "protocol", "status")  # of a run, in all tables

Row = dict[str, Any]


@dataclass
class LoadedRun:
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


@contextmanager
def or_left_out(name: str, left_out: dict[str, str]) -> Iterator[None]:
    """What cannot be read is left out, with the reason."""
    try:
        yield
    except UserError as error:
        left_out[name] = str(error)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        left_out[name] = f"damaged ({type(error).__name__}: {error})"


def read_run(run: RunDirectory, tuned: Sequence[str], left_out: dict[str, str]) -> LoadedRun:
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
        return _with_evaluations(LoadedRun(run, row, _sound_curve(run, result), saved), result, left_out)
    lengths = map(int, saved["derived"]["evaluation_lengths"])
    points = [{"length": n, "content_length": n, "examples": int(examples)} for n in lengths]
    return LoadedRun(run, row, points, saved)


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


def _with_evaluations(loaded: LoadedRun, result: Row, left_out: dict[str, str]) -> LoadedRun:
    """The run with the results of later evaluations of its scheme: more lengths, and other tasks."""
    points = {point["content_length"]: point for point in loaded.curve}
    measured = _but_lengths(result["evaluation"])
    for path in sorted(loaded.directory.path.glob("evaluations/*/")):
        directory = RunDirectory(path)
        with or_left_out(f"{loaded.directory.name}/evaluations/{path.name}", left_out):
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


def training_curve(run: RunDirectory, left_out: dict[str, str]) -> list[Row]:
    """The training curve; one that is damaged is left out."""
    with or_left_out(f"{run.name}/{run.metrics.name}", left_out):
        return [{key: float(row.get(key, "nan")) for key in TRAINING} for row in read_metrics(run.metrics)]
    return []


def environment_of(run: RunDirectory) -> Row:
    try:
        content = read_json(run.environment)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
