"""Write the results of a training or an evaluation to its directory and its loggers."""

from __future__ import annotations

import json
import math
import time
import traceback
from pathlib import Path
from typing import Any, Self

import yaml  # type: ignore[import-untyped]

from pe_experiments.configuration.schema import used_loggers
from pe_experiments.evaluation.evaluate_model import Curve, Tables, by_step_columns
from pe_experiments.evaluation.metrics import METRICS, all_metrics, summarise
from pe_experiments.store.csv_files import (
    TRAINING_COLUMNS,
    Row,
    read_metrics,
    read_steps,
    to_csv,
    write_curve,
)
from pe_experiments.store.directory import DIVERGED, ERROR, RunDirectory
from pe_experiments.store.environment import describe_environment, environment_changes
from pe_experiments.store.names import file_digest, jsonable
from pe_experiments.store.requested import Run
from pe_experiments.store.study_folder import list_in_study
from pe_experiments.store.tracking import Loggers, run_loggers
from pe_experiments.terminal import console
from pe_experiments.terminal.errors import Diverged, UserError, disk_problem
from pe_experiments.terminal.files import inside, write_atomically


class RunWriter(console.Observer):
    """Write the files of one training or evaluation in a ``with`` block, at whose end the loggers end.

    ``directory`` is that of the run or of one of its evaluations, locked by this process.
    """

    def __init__(self, run: Run, directory: RunDirectory, display: console.Display):
        self.run = run
        self.directory = directory
        self.display = display
        self.validation_loss = math.nan  # of the last row that has one
        self.first_step = 0
        self.tracking = Loggers()
        self.succeeded = False
        self.has_said_cost = False  # of evaluations during the training
        self.files: dict[str, str] = {}  # digests of the written tables by name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tracking.close(self.succeeded)

    def begin(self) -> None:
        """Write the configuration and start the loggers."""
        for entry in self.directory.path.iterdir():  # folders of loggers, in the directory of a stranger
            inside(self.directory.path, entry.name)
        config = jsonable(self.run.saved_config)
        write_atomically(self.directory.config, yaml.safe_dump(config, sort_keys=False))
        if used_loggers(self.run.config.logger):
            metrics = all_metrics(self.run.experiment.metrics)
            self.tracking = run_loggers(self.run, self.directory, config, metrics)

    def begin_training(self, device: str, first_step: int) -> None:
        """Begin, or resume at a step: drop later rows, record the environment, list the run in its study."""
        directory = self.directory
        self.first_step = first_step
        rows: list[Row] = []
        by_step: list[Row] = []
        if first_step:
            console.say(f"{self.run.name}: resuming at step {first_step} of {self.run.config.training.steps}")
            rows = [row for row in read_metrics(directory.metrics) if row["step"] <= first_step]
            curves = read_steps(directory.by_step, counts=("step", "length"))
            by_step = [row for row in curves if row["step"] <= first_step]
        self.begin()
        write_atomically(directory.metrics, to_csv(TRAINING_COLUMNS, rows))
        for row in rows:
            self._log(row)
        if by_step or self.run.config.evaluation.every:
            columns = by_step_columns(self.run.experiment)
            # The earlier rows may have a metric of the user that is not measured any more.
            by_step = [{key: value for key, value in row.items() if key in columns} for row in by_step]
            write_atomically(directory.by_step, to_csv(columns, by_step))
            self.tracking.by_step(by_step)
        else:
            directory.by_step.unlink(missing_ok=True)
        environment = describe_environment(device)
        if first_step:
            previous = directory.read_environment()
            earlier = previous.pop("earlier", [])
            if changes := environment_changes(environment, previous):
                earlier = [*earlier, previous | {"until_step": first_step}]
                remark = f"{self.run.name}: resumed in another environment ({', '.join(changes)})"
                console.say(f"{remark}; environment.json records both")
            if earlier:
                environment["earlier"] = earlier
        write_atomically(directory.environment, json.dumps(environment, indent=2) + "\n")
        directory.error_log.unlink(missing_ok=True)
        directory.result.unlink(missing_ok=True)
        list_run(self.run)
        self.display.start("training", self.run.config.training.steps, first_step)
        self.started = time.monotonic()

    def row(self, row: Row) -> None:
        with self.directory.metrics.open("a", newline="") as file:
            file.write(to_csv(TRAINING_COLUMNS, [row], header=False))
        self._log(row)

    def evaluated(self, rows: list[Row], seconds: float) -> None:
        """Append the rows of one step to ``by_step.csv``, log them and say once what they cost."""
        with self.directory.by_step.open("a", newline="") as file:
            file.write(to_csv(by_step_columns(self.run.experiment), rows, header=False))
        self.tracking.by_step(rows)
        every = self.run.config.evaluation.every
        if every and not self.has_said_cost:
            self.has_said_cost = True
            left = (self.run.config.training.steps - self.first_step) // every
            each = f"{seconds:.1f} s each time, {console.duration(seconds * left)} in all"
            self.display.say(f"evaluating {len(rows)} lengths every {every} steps takes {each}")

    def _log(self, row: Row) -> None:
        self.validation_loss = row.get("validation_loss", self.validation_loss)
        self.tracking.training(row)

    def curve(self, label: str, curve: Curve, tables: Tables) -> Row:
        """Write the extrapolation curve, further tables and the figure; return the summary of the curve."""
        # Imported late, because importing matplotlib takes a second.
        from pe_experiments.drawing import run_figure

        experiment = self.run.experiment
        self.directory.refuse_deleted()
        self.files = write_curve(self.directory, curve, tables)
        for path in (self.directory.metrics, self.directory.by_step):
            if path.exists():
                self.files[path.name] = file_digest(path)
        self.tracking.curve(curve, tables.get("text", []))
        task = experiment.evaluation_component.label
        run_figure(curve, label, task, experiment.max_length, self.directory.figure)
        metrics = all_metrics(experiment.metrics)
        summary = summarise(curve, experiment.max_length, metrics)
        if experiment.metrics:  # so that a comparison need not import them
            summary["metrics"] = {metric.name: metric.description for metric in metrics[len(METRICS) :]}
        return summary

    def log_summary(self, summary: Row) -> None:
        """Log the summary and the figure, which ends a training or an evaluation with success."""
        self.tracking.summary(summary, self.directory.figure)
        self.succeeded = True


def list_run(run: Run) -> None:
    """Add a run to the manifest of its study, unless it is outside the results directory."""
    results_dir = Path(run.config.results_dir)
    if run.config.study and run.final_directory.path.parent.parent == results_dir:
        list_in_study(results_dir, run.config.study, run.name)


def training_failure(directory: RunDirectory, error: Exception) -> dict[str, Any]:
    """Return the entries of the result of a training that diverged or failed.

    A mistake of the user, a full disk or a deleted run is not a result: the error is raised again.
    """
    if isinstance(error, Diverged):
        return {"status": DIVERGED, "reason": str(error), "diverged_at": error.step}
    if isinstance(error, UserError) or disk_problem(error):
        raise error
    directory.refuse_deleted()
    write_atomically(directory.error_log, traceback.format_exc())
    return {"status": ERROR, "reason": f"{type(error).__name__}: {error}"}
