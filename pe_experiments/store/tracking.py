"""Log a run with Lightning's loggers, which ``configs/logger`` names by ``_target_``.

Each logger gets the values of the run's CSV files under the same names, and shows a run as one run with its
whole history, even after interruptions: when training resumes, a new run replaces the earlier one and gets
the earlier rows of ``metrics.csv``.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from pe_experiments.configuration.schema import LoggerSections, used_loggers
from pe_experiments.evaluation.metrics import METRICS, Metric
from pe_experiments.store.csv_files import TRAINING_COLUMNS, Row
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.requested import Run
from pe_experiments.terminal.errors import UserError, sentence

if TYPE_CHECKING:  # imported where a logger is built, because Lightning takes seconds
    from pytorch_lightning.loggers import Logger

CURVE, FIGURE, TABLE = "extrapolation", "extrapolation/figure", "extrapolation/table"
BY_STEP = "during_training"
FOLDERS = ("wandb", "tensorboard", "csv")  # of loggers that write to a folder of their name
EXTRAS = ("tensorboard", "mlflow")  # loggers whose package is an extra of the same name
MAX_TAG_LENGTH = 64  # characters of a tag; Weights & Biases refuses longer ones
DATA_DIR = "WANDB_DATA_DIR"  # where tables of an offline run wait for `wandb sync`
USER_HAS_DATA_DIR = DATA_DIR in os.environ


@dataclass(frozen=True)
class LoggedRun:
    """What loggers show of a run, of one of its evaluations, or of the evaluation of a pretrained model."""

    id: str  # a logger replaces an earlier run of this name
    folder: Path  # for the loggers' files
    results_dir: Path
    config: dict[str, Any]
    texts: dict[str, str] = field(default_factory=dict)  # other values of `placeholders`
    tags: list[str] = field(default_factory=list)

    @property
    def placeholders(self) -> dict[str, str]:
        """The texts that replace ``{id}``, ``{name}`` and so on in ``configs/logger``."""
        results_dir = self.results_dir.absolute()
        texts = {"name": self.id, "group": "", "job": "evaluation", "study": "", "label": ""} | self.texts
        texts |= {"id": self.id, "folder": str(self.folder)}
        return texts | {"results_dir": str(results_dir), "results_uri": results_dir.as_uri()}


class Loggers:
    """The started loggers of a run, by the sections of ``configs/logger``; without arguments, none.

    ``metrics`` is the registry of the run.
    """

    def __init__(
        self,
        sections: LoggerSections | None = None,
        run: LoggedRun | None = None,
        metrics: Sequence[Metric] = METRICS,
    ):
        self.loggers: list[Logger] = []
        self.metrics = metrics
        self.measured: list[str] = []
        if not sections or run is None:
            return
        self.measured = [column for metric in metrics for column in metric.columns]
        self.config = run.config
        require_installed(sections)
        try:
            for name, section in used_loggers(sections).items():
                logger = _start(name, section, run)
                self.loggers.append(logger)
                logger.log_hyperparams(run.config)
                if _has_axes(logger):
                    self._define_axes(logger.experiment.define_metric)  # type: ignore[attr-defined]
        except BaseException:
            self.close(succeeded=False)  # else the next run of this process would log to the started ones
            raise

    def _define_axes(self, define: Callable[..., object]) -> None:
        """Define the axis of every curve; the summary has no value of the curve's last point."""
        for key in TRAINING_COLUMNS:
            define(f"training/{key}", step_metric="training/step", hidden=key == "step")
        for key in ("length", *self.measured):
            define(f"{CURVE}/{key}", step_metric=f"{CURVE}/length", summary="none", hidden=key == "length")
        define("text/*", step_metric=f"{CURVE}/length", summary="none")

    def training(self, row: Row) -> None:
        self.log({f"training/{key}": value for key, value in row.items()}, row["step"])

    def curve(self, rows: Sequence[Row], texts: Sequence[Row]) -> None:
        """Log the curve over input length and as a table, with the rows of ``text.csv`` if there are any."""
        for row in rows:
            values = {f"{CURVE}/{key}": row[key] for key in self.measured if row.get(key) is not None}
            for text in texts:
                if text["length"] == row["content_length"] and text["slice"] != "index":
                    prefix = f"text/{text['windows']}_{text['slice']}"
                    measured = {"bits_per_byte", "accuracy"} & text.keys()
                    values |= {f"{prefix}_{key}": text[key] for key in measured}
            values[f"{CURVE}/length"] = row["length"]
            self.log(values, row["length"])
        columns = ["length", *(key for key in self.measured if any(row.get(key) is not None for row in rows))]
        for logger in self.loggers:
            _log_table(logger, TABLE, columns, [[row[column] for column in columns] for row in rows])

    def by_step(self, rows: Sequence[Row]) -> None:
        """Log rows of ``by_step.csv``: for each metric and length a curve over the steps of the training."""
        for step in dict.fromkeys(row["step"] for row in rows):
            values: dict[str, Any] = {}
            for row in rows:
                for metric in self.metrics:
                    if row["step"] == step and row.get(metric.name) is not None:
                        values[f"{BY_STEP}/{metric.name}/length_{row['length']}"] = row[metric.name]
            for logger in filter(_has_axes, self.loggers):
                for name in values:
                    logger.experiment.define_metric(name, step_metric="training/step", summary="none")  # type: ignore[attr-defined]
            self.log({"training/step": step} | values, step)

    def log(self, values: dict[str, Any], step: int) -> None:
        """Log values with every logger; W&B takes the step from the values."""
        for logger in self.loggers:
            logger.log_metrics(values, None if _has_axes(logger) else step)

    def summary(self, summary: Row, figure: Path) -> None:
        """Log the figure, and the summary under the same names as in ``result.json``."""
        numbers = {key: value for key, value in summary.items() if isinstance(value, int | float)}
        for logger in self.loggers:
            _log_image(logger, FIGURE, figure)
            if _has_axes(logger):
                logger.experiment.summary.update(numbers)  # type: ignore[attr-defined]
            elif hasattr(logger.experiment, "add_hparams"):  # type: ignore[attr-defined]
                logger.log_hyperparams(self.config, numbers)  # of TensorBoard, on a page of its own
            elif numbers:
                logger.log_metrics(numbers)

    def close(self, succeeded: bool) -> None:
        for logger in self.loggers:
            logger.finalize("success" if succeeded else "failed")
            if _has_axes(logger):  # `finalize` leaves the run open for the next trainer
                logger.experiment.finish(exit_code=int(not succeeded))  # type: ignore[attr-defined]


def run_loggers(
    run: Run, directory: RunDirectory, config: dict[str, Any], metrics: Sequence[Metric]
) -> Loggers:
    """Start the loggers of a run, or of one of its evaluations in a directory of its own."""
    experiment = run.experiment
    label, task = experiment.label, experiment.components["task"].choice
    study = f"{run.config.study}: " if run.config.study else ""
    run_id, name, job = run.name, f"{label}, {task}, seed {run.config.seed}", "training"
    if directory is not run.directory:
        run_id, name, job = f"{run_id}-e{directory.name}", f"{name}, evaluated again", "evaluation"
    texts = {
        "name": name[: 2 * MAX_TAG_LENGTH],
        "group": f"{study}{label}, {task} [{run.identity.family[:4]}]"[-2 * MAX_TAG_LENGTH :],
        "job": job,
        "study": run.config.study or "",
        "label": label,
    }
    tags = [tag[:MAX_TAG_LENGTH] for tag in (label, task, experiment.model_choice)]
    results_dir = Path(run.config.results_dir)
    logged = LoggedRun(run_id, directory.path, results_dir, config, texts, tags)
    return Loggers(run.config.logger, logged, metrics)


def _start(name: str, section: Mapping[str, Any], run: LoggedRun) -> Logger:
    """Build a logger and start its run, which replaces earlier runs of this id."""
    from hydra.utils import instantiate
    from pytorch_lightning.loggers import Logger

    # Error reporting is the only thing for which wandb uses the network in offline mode.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    if not USER_HAS_DATA_DIR:
        os.environ[DATA_DIR] = str(run.folder / "wandb")  # instead of the home directory
    for package in ("alembic", "mlflow"):
        logging.getLogger(package).setLevel(logging.WARNING)
    if name in FOLDERS:
        shutil.rmtree(run.folder / name, ignore_errors=True)
    arguments = _filled(section, run.placeholders)
    has_database = "tracking_uri" in section
    # Only one process at a time creates MLflow's tables.
    with FileLock(run.results_dir / ".mlflow.lock") if has_database else nullcontext():
        try:
            logger = instantiate(arguments, _convert_="all")
            if not isinstance(logger, Logger):
                raise TypeError(f"{type(logger).__name__} is no logger of Lightning")
            # wandb warns of this argument, which Lightning passes as None.
            vars(logger).get("_wandb_init", {}).pop("anonymous", None)
            experiment = logger.experiment  # type: ignore[attr-defined]  # starts its run
        except Exception as error:
            reason = sentence(error.__cause__ or error)
            options = "logger.wandb.mode=offline, which needs no account, another logger, or logger=none"
            raise UserError(f"logger={name} could not start ({reason}); allowed: {options}") from error
        if hasattr(experiment, "search_runs"):  # of MLflow, whose server may hold runs of others
            same_name = f"attributes.run_name = '{run.id}'"
            for earlier in experiment.search_runs([str(logger.experiment_id)], same_name):  # type: ignore[attr-defined]
                is_same_run = earlier.data.tags.get("results_dir") == str(run.results_dir.absolute())
                if is_same_run and earlier.info.run_id != logger.run_id:  # type: ignore[attr-defined]
                    experiment.delete_run(earlier.info.run_id)
    if _has_axes(logger):
        experiment.tags = [*dict.fromkeys([*(experiment.tags or ()), *run.tags])]
    return logger


def _filled(value: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(item, texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, texts) for item in value]
    if isinstance(value, str):
        for key, text in texts.items():
            value = value.replace(f"{{{key}}}", text)
    return value


# What loggers can do beside logging numbers, which Lightning has no common method for. A logger that has none
# of these, such as Lightning's CSV file, gets the numbers alone.
def _has_axes(logger: Any) -> bool:
    """Return whether a logger has axes of its own for its curves, as W&B, instead of one count of steps."""
    return hasattr(logger.experiment, "define_metric")


def _log_image(logger: Any, key: str, path: Path) -> None:
    experiment = logger.experiment
    if hasattr(logger, "log_image"):  # W&B
        logger.log_image(key, [str(path)])
    elif hasattr(experiment, "add_image"):  # TensorBoard
        from matplotlib.pyplot import imread

        experiment.add_image(key, imread(path), dataformats="HWC")
    elif hasattr(experiment, "log_artifact"):  # MLflow
        experiment.log_artifact(logger.run_id, str(path))


def _log_table(logger: Any, key: str, columns: list[str], rows: list[list[Any]]) -> None:
    experiment = logger.experiment
    if hasattr(logger, "log_table"):  # W&B
        logger.log_table(key, columns, rows)
    elif hasattr(experiment, "add_text"):  # TensorBoard
        from pe_experiments.drawing import markdown_table  # imports matplotlib

        experiment.add_text(key, markdown_table(columns, [[f"{cell}" for cell in row] for row in rows]))
    elif hasattr(experiment, "log_table"):  # MLflow
        by_column = {column: [row[n] for row in rows] for n, column in enumerate(columns)}
        experiment.log_table(logger.run_id, by_column, f"{key}.json")


def upload_command(directory: RunDirectory) -> str | None:
    """Return the command that uploads the offline W&B run of a directory, if there is one."""
    offline_runs = sorted(directory.path.glob("wandb/offline-run-*"))
    return f"wandb sync {shlex.quote(os.path.relpath(offline_runs[-1]))}" if offline_runs else None


def require_installed(sections: LoggerSections) -> None:
    """Raise an error if a logger of the configuration is not installed."""
    for name in used_loggers(sections):
        if name in EXTRAS and not find_spec(name):
            how = f'install it with pip install -c constraints.txt -e ".[{name}]"'
            raise UserError(f"logger={name}: {name} is not installed; {how}")
