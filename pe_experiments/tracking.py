"""What goes to CSV files and to Weights & Biases, and under which names.

The CSV files are the truth. Weights & Biases is a mirror: after a kill and resume an offline mirror is
written anew from the CSV, so there is always exactly one wandb run with the whole history.
"""

from __future__ import annotations

import csv
import io
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pe_experiments.config import LoggerConfig
from pe_experiments.errors import UserError, shown
from pe_experiments.files import write_atomically
from pe_experiments.runs import RunDirectory

METRICS = (
    "step",
    "loss",
    "learning_rate",
    "gradient_norm",
    "validation_loss",
    "exact_match",
    "token_accuracy",
)
CURVE = (
    "length",
    "content_length",
    "split",
    "examples",
    "seen",
    "token_accuracy",
    "exact_match",
    "exact_match_low",
    "exact_match_high",
    "loss",
    "chance",
    "bag_ceiling",
    "input_blind",
    "answer_tokens",
    "tokens",
    "largest_position",
    "untrained_positions",
)
ADDED = ("input_blind", "seen", "answer_tokens")  # columns that runs of earlier versions do not have

Row = dict[str, Any]
Tables = dict[str, list[Row]]  # more that was measured, by the name of its CSV file


class Tracker:
    """Writes one run's curves to its directory and mirrors them.

    Args:
        run: its directory.
        name: the run's name, also its wandb id.
        config: shown by wandb beside the curves.
        logger: mode, project, entity and tags.
        group: study the run belongs to, if any.
        job_type: ``training`` or ``evaluation``.
        from_step: rows of ``metrics.csv`` up to here are kept (the step of the checkpoint resumed from).

    Raises:
        UserError: Weights & Biases cannot start in the mode asked for, or ``metrics.csv`` is damaged.
    """

    def __init__(
        self,
        run: RunDirectory,
        name: str,
        config: dict[str, Any],
        logger: LoggerConfig,
        *,
        group: str | None = None,
        job_type: str = "training",
        from_step: int = 0,
    ):
        self.run = run
        kept = [row for row in read_metrics(run.metrics) if row["step"] <= from_step] if from_step else []
        mirrors = logger.mode != "disabled"
        self._wandb = start_wandb(run.path, name, config, logger, group, job_type) if mirrors else None
        mirrored = self._wandb.summary if self._wandb else {}  # of an online run that is being resumed
        self._already_mirrored = int(mirrored.get("training/step") or 0)
        self._curve_mirrored = mirrored.get("extrapolation/length") is not None
        self._metrics = None
        if job_type == "training":
            write_atomically(run.metrics, to_csv(METRICS, kept))
            self._metrics = run.metrics.open("a", newline="")
            for row in kept:
                self._mirror_metrics(row)

    def metrics(self, row: Row) -> None:
        """One row of the training curve."""
        assert self._metrics is not None
        self._metrics.write(to_csv(METRICS, [row], header=False))
        self._metrics.flush()
        self._mirror_metrics(row)

    def curve(self, rows: Sequence[Row], tables: Tables | None = None) -> None:
        """The extrapolation curve, complete, and the tables that belong to it."""
        write_curve(self.run, rows, tables or {})
        if self._wandb and not self._curve_mirrored:
            for row in rows:
                more = _named((tables or {}).get("text", []), row["content_length"])
                self._wandb.log(
                    {f"extrapolation/{key}": row[key] for key in CURVE if row[key] is not None} | more
                )

    def close(self, summary: dict[str, Any] | None = None, figure: Path | None = None) -> str | None:
        """Mirror summary and figure and end the wandb run.

        Returns:
            The command that uploads an offline run, else None.
        """
        if self._metrics:
            self._metrics.close()
        if not self._wandb:
            return None
        import wandb

        if figure is not None:
            self._wandb.log({"extrapolation/figure": wandb.Image(str(figure))})
        for key, value in (summary or {}).items():
            self._wandb.summary[key] = value
        offline = self._wandb.offline
        folder = Path(self._wandb.dir).parent
        self._wandb.finish(exit_code=0 if summary is not None else 1)
        return f"wandb sync {shlex.quote(os.path.relpath(folder))}" if offline else None

    def _mirror_metrics(self, row: Row) -> None:
        if self._wandb and row["step"] > self._already_mirrored:
            self._wandb.log({f"training/{key}": value for key, value in row.items()})


def write_curve(run: RunDirectory, curve: Sequence[Row], tables: Tables) -> None:
    """Write ``extrapolation.csv`` and a CSV file for each of the tables."""
    write_atomically(run.curve, to_csv(CURVE, curve))
    for name, rows in tables.items():
        columns = dict.fromkeys(key for row in rows for key in row)
        write_atomically(run.path / f"{name}.csv", to_csv(list(columns), rows))


def _named(rows: Sequence[Row], length: int) -> Row:
    """Bits per byte and accuracy at a length, as ``text/sliding_new_accuracy``; nothing by index."""
    return {
        f"text/{row['windows']}_{row['slice']}_{key}": row[key]
        for row in rows
        for key in ("bits_per_byte", "accuracy")
        if row["length"] == length and row["slice"] != "index" and key in row
    }


def start_wandb(
    folder: Path,
    name: str,
    config: dict[str, Any],
    logger: LoggerConfig,
    group: str | None,
    job_type: str,
) -> Any:
    """A wandb run whose files lie in ``folder``; an offline mirror that was there is made anew.

    Raises:
        UserError: Weights & Biases cannot start in the mode asked for.
    """
    # Its look-up at start is the one thing wandb would ask the network for offline.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    if logger.mode == "offline":
        for old in folder.glob("wandb/offline-run-*"):
            shutil.rmtree(old)
    try:
        mirror = wandb.init(
            project=logger.project,
            entity=logger.entity,
            tags=logger.tags,
            name=name,
            id=name,
            group=group,
            job_type=job_type,
            config=config,
            dir=folder,
            mode=logger.mode,
            resume="allow" if logger.mode == "online" else None,
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, disable_git=True, disable_code=True
            ),
        )
    except Exception as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"logger.mode={logger.mode}: Weights & Biases could not start ({first[0]}); allowed without an "
            f"account: offline or disabled"
        ) from error
    for key in METRICS:
        mirror.define_metric(f"training/{key}", step_metric="training/step")
    for key in CURVE:
        mirror.define_metric(f"extrapolation/{key}", step_metric="extrapolation/length")
    mirror.define_metric("text/*", step_metric="extrapolation/length")
    return mirror


def to_csv(columns: Sequence[str], rows: Sequence[Row], header: bool = True) -> str:
    """Rows as CSV text; floats with all their digits, so that equal files mean equal numbers."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_csv(path: Path) -> list[dict[str, str]]:
    """The complete rows of a CSV file; none where there is no file. A torn last row (a kill) is left out."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if None not in row and None not in row.values()]


def read_metrics(path: Path) -> list[Row]:
    """The rows of a ``metrics.csv`` with their types, without the cells that are empty.

    Raises:
        UserError: the file is damaged.
    """
    try:
        rows = read_csv(path)
        if rows and not set(rows[0]) <= set(METRICS):
            raise ValueError(f"its columns are {shown(','.join(rows[0]))}")
        typed = [{key: _number(text) for key, text in row.items() if text} for row in rows]
        last = 0
        for row in typed:
            if not isinstance(step := row.get("step"), int) or step < last:
                raise ValueError("a step that is none, or out of order")
            last = step
        return typed
    except (ValueError, csv.Error) as error:
        raise UserError(
            f"{path} is damaged ({error}); delete it to go on from the checkpoint without these rows, or add "
            f"rerun=true"
        ) from error


def read_curve(path: Path) -> list[Row]:
    """The rows of an ``extrapolation.csv`` with their types; None where a cell is empty.

    Raises:
        UserError: the file is missing or damaged.
    """
    try:
        rows = read_csv(path)
        if not rows:
            raise ValueError("no rows")
        rows = [dict.fromkeys(ADDED, "") | row for row in rows]
        return [{key: row[key] if key == "split" else _cell(row[key]) for key in CURVE} for row in rows]
    except (KeyError, ValueError, csv.Error) as error:
        raise UserError(
            f"{path} is missing or damaged ({type(error).__name__}: {error}); add rerun=true"
        ) from error


def _cell(text: str) -> int | float | None:
    return _number(text) if text else None


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)
