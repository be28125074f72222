"""Log the values in the CSV files of a run with Lightning's loggers, under the same names in each.

Each logger shows a run as one run with its whole history, even after interruptions: when training resumes, a
new run replaces the earlier one and gets the earlier rows of ``metrics.csv``.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from pe_experiments.configuration.schema import (
    LoggerConfig,
    MlflowConfig,
    Section,
    TrackioConfig,
    WandbConfig,
)
from pe_experiments.store.csv_files import METRICS, Row
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.names import jsonable, short_hash
from pe_experiments.store.run import Run
from pe_experiments.terminal.errors import UserError, sentence

if TYPE_CHECKING:  # imported where a logger is made, because Lightning takes seconds
    from pytorch_lightning.loggers import Logger

# Columns of the curve that are logged over length. The others, which describe the task, are only in the CSV.
MEASURED = ("exact_match", "exact_match_low", "exact_match_high", "token_accuracy", "loss")
FIGURE = "extrapolation/figure"
OVER_LENGTH: dict[str, Any] = {"step_metric": "extrapolation/length", "summary": "none"}  # W&B options
MOST_NAME, MOST_TAG = 128, 64  # limits of Weights & Biases, in characters


@dataclass(frozen=True)
class LoggedRun:
    """What loggers show of a run, of one of its evaluations, or of the evaluation of a pretrained model."""

    name: str  # MLflow and Trackio replace an earlier run of this name
    folder: Path  # for the loggers' files
    results_dir: Path
    config: dict[str, Any]
    label: str = ""
    study: str = ""
    wandb: dict[str, Any] = field(default_factory=dict)  # further arguments of `wandb.init`


class Loggers:
    """The started loggers of a run by the names of ``configs/logger``; without arguments, none."""

    def __init__(self, config: LoggerConfig | None = None, run: LoggedRun | None = None):
        self.by_name: dict[str, Logger] = {}
        if config is None or run is None:
            return
        self.config = run.config
        require_installed(config)
        try:
            for name in config.used:
                self.by_name[name] = START[name](getattr(config, name), run)
                if name != "wandb":
                    self.by_name[name].log_hyperparams(run.config)
        except BaseException:
            self.close(succeeded=False)  # else the next run of this process would log to the started ones
            raise

    @property
    def wandb(self) -> Any:
        """Return the run of Weights & Biases."""
        return self.by_name["wandb"].experiment  # type: ignore[attr-defined]

    def metrics(self, row: Row) -> None:
        """Log one row of the training curve over ``training/step``."""
        values = {f"training/{key}": value for key, value in row.items()}
        self.log(values, row["step"])

    def curve(self, rows: Sequence[Row], texts: Sequence[Row]) -> None:
        """Log the curve over input length, and for a language model the rows of ``text.csv``."""
        for row in rows:
            values = {f"extrapolation/{key}": row[key] for key in MEASURED if row[key] is not None}
            for text in texts:
                if text["length"] == row["content_length"] and text["slice"] != "index":
                    prefix = f"text/{text['windows']}_{text['slice']}"
                    measured = {"bits_per_byte", "accuracy"} & text.keys()
                    values |= {f"{prefix}_{key}": text[key] for key in measured}
            values["extrapolation/length"] = row["length"]
            self.log(values, row["length"])

    def log(self, values: dict[str, Any], step: int) -> None:
        """Log values with every logger; W&B takes the step from the values."""
        for name, logger in self.by_name.items():
            logger.log_metrics(values, None if name == "wandb" else step)

    def summary(self, summary: Row, figure: Path) -> None:
        """Log the figure, and the summary under the same names as in ``result.json``."""
        numbers = {key: value for key, value in summary.items() if isinstance(value, int | float)}
        for name, logger in self.by_name.items():
            self._log_figure(name, logger, figure)
            if name == "wandb":
                self.wandb.summary.update(summary)
            elif name == "tensorboard":
                logger.log_hyperparams(self.config, numbers)
            elif numbers:
                logger.log_metrics(numbers)

    def _log_figure(self, name: str, logger: Any, figure: Path) -> None:
        """Log a figure, except to Lightning's CSV file."""
        if name == "wandb":
            import wandb

            logger.experiment.log({FIGURE: wandb.Image(str(figure))})
        elif name == "tensorboard":
            from matplotlib.pyplot import imread

            logger.experiment.add_image(FIGURE, imread(figure), dataformats="HWC")
        elif name == "mlflow":
            logger.experiment.log_artifact(logger.run_id, str(figure))
        elif name == "trackio":
            import trackio

            logger.log_metrics({FIGURE: trackio.Image(figure)})

    def close(self, succeeded: bool) -> None:
        """End the loggers' runs."""
        for logger in self.by_name.values():
            logger.finalize("success" if succeeded else "failed")
        if "wandb" in self.by_name:
            self.wandb.finish(exit_code=int(not succeeded))
        if "trackio" in self.by_name:
            self.by_name["trackio"].close()  # type: ignore[attr-defined]


def run_loggers(run: Run, directory: RunDirectory, config: dict[str, Any]) -> Loggers:
    """Start the loggers of a run, or of one of its evaluations in a directory of its own."""
    experiment = run.experiment
    label, model = experiment.label[:MOST_TAG], experiment.model_choice[:MOST_TAG]
    task = experiment.components["task"].choice[:MOST_TAG]
    study = run.config.study or ""
    hash_without_seed = short_hash(jsonable(experiment.trained | {"seed": None}))
    group = f"{label}, {task} [{hash_without_seed[:4]}]"
    name, shown_name, job = run.name, f"{label}, {task}, seed {run.config.seed}", "training"
    if directory is not run.directory:
        name, shown_name, job = f"{name}-e{directory.name}", f"{shown_name}, evaluated again", "evaluation"
    settings = run.config.logger.wandb
    tags = [*(settings.tags if settings else ()), label, task, model]
    wandb = {
        "name": shown_name[:MOST_NAME],
        "id": name,  # W&B replaces an earlier run of this id
        "job_type": job,
        "group": (f"{study}: {group}" if study else group)[-MOST_NAME:],
        "tags": list(dict.fromkeys(tag[:MOST_TAG] for tag in tags)),
    }
    results_dir = Path(run.config.results_dir)
    logged = LoggedRun(name, directory.path, results_dir, config, experiment.label, study, wandb)
    return Loggers(run.config.logger, logged)


def _wandb(settings: WandbConfig, run: LoggedRun) -> Logger:
    """Start a quiet W&B run; an offline run replaces earlier offline runs in the folder."""
    # Error reporting is the only thing for which wandb uses the network in offline mode.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb
    from pytorch_lightning.loggers import WandbLogger

    if settings.mode == "offline":
        for earlier_run in run.folder.glob("wandb/offline-run-*"):
            shutil.rmtree(earlier_run)
    quiet: dict[str, Any] = dict.fromkeys(("silent", "x_disable_stats", "disable_git", "disable_code"), True)
    quiet["console"] = "off"
    arguments = {"name": run.name[:MOST_NAME], **settings.model_dump(), **run.wandb}
    try:
        wandb_run = wandb.init(dir=run.folder, config=run.config, settings=quiet, **arguments)
    except Exception as error:
        alternative = "allowed without an account: logger.wandb.mode=offline, or another logger"
        why = f"Weights & Biases could not start ({sentence(error)}); {alternative}"
        raise UserError(f"logger.wandb.mode={settings.mode}: {why}") from error
    for key in METRICS:
        wandb_run.define_metric(f"training/{key}", step_metric="training/step", hidden=key == "step")
    for key in ("length", *MEASURED):  # without a summary, which would be the value at the longest length
        wandb_run.define_metric(f"extrapolation/{key}", **OVER_LENGTH, hidden=key == "length")
    wandb_run.define_metric("text/*", **OVER_LENGTH)
    return WandbLogger(experiment=wandb_run)


def _csv(settings: Section, run: LoggedRun) -> Logger:
    from pytorch_lightning.loggers import CSVLogger

    shutil.rmtree(run.folder / "csv", ignore_errors=True)
    return CSVLogger(run.folder, "csv", version="", flush_logs_every_n_steps=1)


def _tensorboard(settings: Section, run: LoggedRun) -> Logger:
    from pytorch_lightning.loggers import TensorBoardLogger

    shutil.rmtree(run.folder / "tensorboard", ignore_errors=True)
    return TensorBoardLogger(run.folder, "tensorboard", version="", default_hp_metric=False)


def _trackio(settings: TrackioConfig, run: LoggedRun) -> Logger:
    from pe_experiments.store.trackio_logger import TrackioLogger

    return TrackioLogger(settings.project, run.name, run.label or None, run.config)


def _mlflow(settings: MlflowConfig, run: LoggedRun) -> Logger:
    """Return the logger of an MLflow run that replaces earlier runs of that name and results folder."""
    from pytorch_lightning.loggers import MLFlowLogger

    results = run.results_dir.absolute()
    tags = {"study": run.study, "label": run.label, "results_dir": str(results)}
    for package in ("alembic", "mlflow"):
        logging.getLogger(package).setLevel(logging.WARNING)
    with FileLock(results / ".mlflow.lock"):  # so that only one process creates the tables
        logger = MLFlowLogger(
            settings.experiment_name,
            run.name,
            settings.tracking_uri or f"sqlite:///{results / 'mlflow.db'}",
            tags=tags,
            artifact_location=None if settings.tracking_uri else (results / "mlflow").as_uri(),
        )
        try:
            client = logger.experiment
            run_id = logger.run_id
        except Exception as error:
            why = f"MLflow could not start ({sentence(error)})"
            raise UserError(f"logger.mlflow.tracking_uri={settings.tracking_uri}: {why}") from error
        same_name = f"attributes.run_name = '{run.name}'"
        for earlier_run in client.search_runs([str(logger.experiment_id)], same_name):
            # A server may hold runs of others.
            is_own = earlier_run.data.tags.get("results_dir") == str(results)
            if is_own and earlier_run.info.run_id != run_id:
                client.delete_run(earlier_run.info.run_id)
    return logger


START: dict[str, Callable[[Any, LoggedRun], Logger]] = {
    "wandb": _wandb,
    "csv": _csv,
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "trackio": _trackio,
}


def require_installed(config: LoggerConfig) -> None:
    """Raise an error if a logger of the configuration is not installed."""
    for package in config.used:
        if package != "csv" and not find_spec(package):
            how = f'install it with pip install -e ".[{package}]"'
            raise UserError(f"logger={package}: {package} is not installed; {how}")


def upload_command(directory: RunDirectory) -> str | None:
    """Return the command that uploads the offline W&B run of a directory, if there is one."""
    offline_runs = sorted(directory.path.glob("wandb/offline-run-*"))
    return f"wandb sync {shlex.quote(os.path.relpath(offline_runs[-1]))}" if offline_runs else None
