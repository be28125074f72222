"""Read and write the CSV files of a run."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pe_experiments.evaluation.curve import CURVE_COLUMNS
from pe_experiments.evaluation.metrics import EXACT_MATCH, LOSS, METRICS, TOKEN_ACCURACY
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.names import bytes_digest
from pe_experiments.terminal.console import Row
from pe_experiments.terminal.errors import UserError, shown
from pe_experiments.terminal.files import read_text, write_atomically

# Columns of ``metrics.csv``; the last three are of the validation.
TRAINING_COLUMNS = ("step", LOSS.name, "learning_rate", "gradient_norm", "validation_loss",
                    EXACT_MATCH.name, TOKEN_ACCURACY.name)  # fmt: skip
MOST_ROWS = 300_000  # largest accepted CSV file, enough for three million steps


def write_curve(
    run: RunDirectory, curve: Sequence[Row], tables: Mapping[str, Sequence[Row]]
) -> dict[str, str]:
    """Write ``extrapolation.csv`` and one CSV file for each table; return the digests of all by name."""
    further_columns = [key for key in curve[0] if key not in CURVE_COLUMNS]
    texts = {run.curve.name: to_csv([*CURVE_COLUMNS, *further_columns], curve)}
    for name, rows in tables.items():
        columns = dict.fromkeys(key for row in rows for key in row)
        texts[f"{name}.csv"] = to_csv(list(columns), rows)
    for name, text in texts.items():
        write_atomically(run.path / name, text)
    return {name: bytes_digest(text.encode()) for name, text in texts.items()}


def to_csv(columns: Sequence[str], rows: Sequence[Row], header: bool = True) -> str:
    """Return rows as CSV text with all digits of floats, so that reading it restores the same numbers."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the complete rows of a CSV file, or an empty list if it does not exist.

    Rows with missing or extra cells are dropped, such as a last row that was cut off.
    """
    if not path.exists():
        return []
    text = read_text(path)
    if text.count("\n") > MOST_ROWS:
        raise ValueError(f"it has more than {MOST_ROWS:,} rows")
    reader = csv.DictReader(io.StringIO(text))
    return [row for row in reader if None not in row and None not in row.values()]


def read_metrics(path: Path) -> list[Row]:
    """Return the rows of a ``metrics.csv`` as `read_steps`."""
    return read_steps(path, columns=TRAINING_COLUMNS)


def read_steps(path: Path, counts: Sequence[str] = ("step",), columns: Sequence[str] = ()) -> list[Row]:
    """Return the rows of a table by step as numbers, without empty cells; no rows without the file.

    Args:
        path: of the CSV file.
        counts: columns that hold whole numbers in every row.
        columns: those that are allowed; an empty sequence allows all.
    """
    try:
        rows: list[Row] = [
            {key: text if key == "split" else _number(text) for key, text in row.items() if text}
            for row in read_csv(path)
        ]
        if columns and not {key for row in rows for key in row} <= set(columns):
            raise ValueError(f"its columns are not {', '.join(columns)}")
        if not all(isinstance(row.get(key), int) for row in rows for key in counts):
            raise ValueError(f"{' or '.join(counts)} is not a number")
        if rows != sorted(rows, key=lambda row: row["step"]):
            raise ValueError("its steps are out of order")
        return rows
    except (ValueError, csv.Error) as error:
        cure = "delete it to go on from the checkpoint without these rows, or add rerun=true"
        raise UserError(f"{path} is damaged ({error}); {cure}") from error


def read_curve(path: Path) -> list[Row]:
    """Return the rows of an ``extrapolation.csv`` as numbers; None for empty cells."""
    try:
        rows = read_csv(path)
        if not rows:
            raise ValueError("no rows")
        if odd := [column for column in rows[0] if not column.isidentifier()]:
            raise ValueError(f"{shown(odd[0])} is not the name of a column")
        curve: list[Row] = [
            {
                key: row[key] if key == "split" else _number(row[key])
                for key in dict.fromkeys((*CURVE_COLUMNS, *row))
            }
            for row in rows
        ]
        counts = [row[key] for row in curve for key in ("length", "content_length", "examples")]
        if not all(isinstance(count, int) and count > 0 for count in counts):
            raise ValueError("a length or a number of examples is not valid")
        unmeasured = [row[EXACT_MATCH.name] is None for row in curve]  # all of a language model's rows
        some_missing = any(unmeasured) and not all(unmeasured)
        if some_missing or any(row[TOKEN_ACCURACY.name] is None for row in curve):
            raise ValueError("an accuracy is missing")
        for key, (low, high) in bounded_columns().items():
            for row in curve:
                value = row[key]
                if value is not None and not low <= value <= high:
                    raise ValueError(f"{key}={value:g}: expected a number from {low:g} to {high:g}")
        return curve
    except (KeyError, ValueError, csv.Error) as error:
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is missing or damaged ({why}); add rerun=true") from error


def read_run_curve(run: RunDirectory, result: Mapping[str, Any]) -> list[Row]:
    """Return the curve of a run, or of an evaluation, after comparing it with its ``result.json``."""
    rows = read_curve(run.table(run.curve.name))
    if [row["length"] for row in rows] != result["evaluation"]["lengths"]:
        raise UserError(f"{run.curve} is damaged: its lengths differ from result.json; add rerun=true")
    return rows


def bounded_columns() -> dict[str, tuple[float, float]]:
    """Return the bounds of the columns of the shipped metrics that have bounds."""
    return {column: metric.bounds for metric in METRICS if metric.bounds for column in metric.columns}


def _number(text: str) -> int | float | None:
    if not text:
        return None
    if text.isdigit() and len(text) < 16:  # small enough to be exact as a float, too
        return int(text)
    return float(text)
