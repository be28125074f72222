"""The files that a training or an evaluation leaves in its directory, written as they come."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.evaluation.evaluate import Curve, Tables
from pe_experiments.evaluation.summary import summarise
from pe_experiments.store.csv_files import METRICS, Row, read_metrics, to_csv, write_curve
from pe_experiments.store.directory import COMPLETED, DIVERGED, ERROR, RunDirectory, list_in_study
from pe_experiments.store.environment import describe_environment, user_files
from pe_experiments.store.plan import Plan
from pe_experiments.store.tracking import Mirror
from pe_experiments.terminal.errors import Diverged, UserError, disk_problem
from pe_experiments.terminal.files import write_atomically


class Record:
    """The files of one training or evaluation (``directory``), and their mirror in Weights & Biases.

    ``result`` is what ``result.json`` will say. Rows of a training after the checkpoint's step are dropped.
    """

    def __init__(self, plan: Plan, directory: RunDirectory, result: dict[str, Any], from_step: int = 0):
        self.plan, self.directory, self.result = plan, directory, result
        self._summary: dict[str, Any] | None = None
        earlier = read_metrics(directory.metrics) if from_step else []
        kept = [row for row in earlier if row["step"] <= from_step]
        write_atomically(directory.config, OmegaConf.to_yaml(OmegaConf.create(plan.saved_config)))
        self._mirror = Mirror(plan, directory)
        if directory is plan.run:
            write_atomically(directory.metrics, to_csv(METRICS, kept))
        for row in kept:
            self._mirror.metrics(row)

    def metrics(self, row: Row) -> None:
        with self.directory.metrics.open("a", newline="") as file:
            file.write(to_csv(METRICS, [row], header=False))
        self._mirror.metrics(row)

    def curve(self, curve: Curve, tables: Tables) -> None:
        """The extrapolation curve, complete, and what belongs to it: tables, picture, summary."""
        write_curve(self.directory, curve, tables)
        self._mirror.curve(curve, tables.get("text", []))
        draw(self.plan.experiment, self.result["label"], curve, self.directory.figure)
        self._summary = summarise(curve, self.plan.experiment.max_length)
        self.result |= self._summary

    def close(self) -> None:
        known = (self.plan.result or {}) | self.result
        self.result["upload"] = self._mirror.close(self._summary, known, self.directory.figure)


def draw(experiment: Experiment, label: str, curve: Curve, path: Path) -> None:
    from pe_experiments.drawing import run_figure  # matplotlib: a second a finished run need not wait

    run_figure(curve, f"{label} on {experiment.evaluated_on.label}", experiment.max_length, path)


def list_run(plan: Plan) -> None:
    """List a run in its study; one that lies outside the results is in none."""
    study, results_dir = plan.experiment.config.study, Path(plan.experiment.config.results_dir)
    if study and plan.run.path.parent.parent == results_dir:
        list_in_study(results_dir, study, plan.run.name)


@contextmanager
def recorded(plan: Plan, from_step: int, device: str) -> Iterator[Record]:
    """The record of a training: a loss that diverges and an error of a part end the run, not the program."""
    run, experiment, trained = plan.run, plan.experiment, plan.identity.trained
    result: dict[str, Any] = {"status": ERROR, "name": run.name, "label": plan.identity.label}
    result |= {"task": experiment.components["task"].choice, "model": experiment.model_choice}
    result |= {"seed": trained["seed"], "steps": trained["training"]["steps"], "resumed_from": from_step}
    result["evaluation"] = plan.evaluation
    record = Record(plan, run, result, from_step)
    try:
        environment = describe_environment(device) | {"user_files": user_files(experiment)}
        write_atomically(run.environment, json.dumps(environment, indent=2) + "\n")
        run.error_log.unlink(missing_ok=True)
        run.result.unlink(missing_ok=True)
        list_run(plan)
        yield record
        result["status"] = COMPLETED
    except Diverged as error:
        result |= {"status": DIVERGED, "reason": str(error), "diverged_at": error.step}
    except UserError:
        raise
    except Exception as error:
        if disk_problem(error) or not run.path.exists():
            raise
        run.error_log.write_text(traceback.format_exc())
        result["reason"] = f"{type(error).__name__}: {error}"
    finally:
        record.close()
    run.write_result(result)
