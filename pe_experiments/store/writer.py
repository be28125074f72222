"""Write the results of a training or an evaluation to its directory and its loggers."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pe_experiments.evaluation.evaluate import Curve, Tables
from pe_experiments.evaluation.summary import summarise
from pe_experiments.store.csv_files import METRICS, Row, read_metrics, to_csv, write_curve
from pe_experiments.store.directory import DIVERGED, ERROR, RunDirectory
from pe_experiments.store.environment import describe_environment, resumed_environment, user_files
from pe_experiments.store.manifest import list_in_study
from pe_experiments.store.status import RunStatus
from pe_experiments.store.tracking import Loggers
from pe_experiments.terminal import console
from pe_experiments.terminal.errors import Diverged, UserError, disk_problem
from pe_experiments.terminal.files import write_atomically


class RunWriter:
    """Write the files of one training or evaluation. Always call `close`, which ends the loggers.

    Args:
        status: the run.
        directory: directory of the run or of one of its evaluations, locked by this process.
        first_step: the step from which training resumes. Later rows of ``metrics.csv`` are dropped.
    """

    def __init__(self, status: RunStatus, directory: RunDirectory, first_step: int = 0):
        self.status = status
        self.directory = directory
        self.first_step = first_step
        rows: list[Row] = []
        if first_step:
            rows = [row for row in read_metrics(directory.metrics) if row["step"] <= first_step]
        write_atomically(directory.config, OmegaConf.to_yaml(OmegaConf.create(status.saved_config)))
        self.loggers = Loggers(status, directory)
        self._closed = False
        if directory is status.run:
            write_atomically(directory.metrics, to_csv(METRICS, rows))
        for row in rows:
            self.loggers.metrics(row)

    def begin_training(self, device: str) -> None:
        """Record the environment, list the run in its study and delete remains of an earlier attempt."""
        run = self.directory
        experiment = self.status.experiment
        environment = describe_environment(device) | {"user_files": user_files(experiment)}
        if self.first_step:
            recorded = run.read_environment()
            environment, changes = resumed_environment(recorded, environment, self.first_step)
            if changes:
                both = "environment.json records both"
                console.say(f"{run.name}: resumed in another environment ({', '.join(changes)}); {both}")
        write_atomically(run.environment, json.dumps(environment, indent=2) + "\n")
        run.error_log.unlink(missing_ok=True)
        run.result.unlink(missing_ok=True)
        list_run(self.status)

    def metrics(self, row: Row) -> None:
        """Append a row to ``metrics.csv`` and log it."""
        with self.directory.metrics.open("a", newline="") as file:
            file.write(to_csv(METRICS, [row], header=False))
        self.loggers.metrics(row)

    def curve(self, label: str, curve: Curve, tables: Tables) -> Row:
        """Write the extrapolation curve, further tables and the figures; return the summary of the curve."""
        # Imported late, because importing matplotlib takes a second.
        from pe_experiments.drawing import run_depth_figure, run_figure

        experiment = self.status.experiment
        write_curve(self.directory, curve, tables)
        self.loggers.curve(curve, tables.get("text", []))
        task = experiment.evaluation_component.label
        run_figure(curve, label, task, experiment.max_length, self.directory.figure)
        if depths := tables.get("depth"):
            path = self.directory.path / "depth.png"
            run_depth_figure(depths, label, task, experiment.max_length, path)
        return summarise(curve, experiment.max_length)

    def finish(self, result: dict[str, Any], summary: Row | None) -> None:
        """Close the loggers and write the result; ``summary`` is None if the training failed."""
        upload = self.close(summary)
        self.directory.write_result(result | {"upload": upload})

    def close(self, summary: Row | None = None) -> str | None:
        """Close the loggers once; return the command that uploads an offline W&B run, if there is one."""
        if self._closed:
            return None
        self._closed = True
        return self.loggers.close(summary, self.directory.figure)


def list_run(status: RunStatus) -> None:
    """Add a run to the manifest of its study, unless it is outside the results directory."""
    study = status.experiment.config.study
    results_dir = Path(status.experiment.config.results_dir)
    if study and status.run.path.parent.parent == results_dir:
        list_in_study(results_dir, study, status.run.name)


def training_failure(run: RunDirectory, error: Exception) -> dict[str, Any]:
    """Return the result of a training that diverged or failed.

    A mistake of the user, a full disk or a deleted run is not a result: the error is raised again.
    """
    if isinstance(error, Diverged):
        return {"status": DIVERGED, "reason": str(error), "diverged_at": error.step}
    run.refuse_deleted()
    if isinstance(error, UserError) or disk_problem(error):
        raise error
    write_atomically(run.error_log, traceback.format_exc())
    return {"status": ERROR, "reason": f"{type(error).__name__}: {error}"}
