"""Log the values in the CSV files of a run with Lightning's loggers, under the same names in each.

Each logger shows a run as one run with its whole history, even after interruptions. If a logger cannot resume
its run, a new one replaces it and gets the earlier rows of ``metrics.csv``.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock

from pe_experiments.configuration.schema import LoggerConfig, MlflowConfig
from pe_experiments.store.csv_files import METRICS, Row
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.names import jsonable, short_hash
from pe_experiments.store.status import Run
from pe_experiments.terminal.errors import UserError, sentence

if TYPE_CHECKING:  # imported where a logger is made, because Lightning takes seconds
    from pytorch_lightning.loggers import Logger, MLFlowLogger, WandbLogger

# Columns of the curve that are logged over length. The others, which describe the task, are only in the CSV.
MEASURED = ("exact_match", "exact_match_low", "exact_match_high", "token_accuracy", "loss")
LENGTHS = "extrapolation/lengths"  # evaluated lengths, in W&B's summary
FIGURE = "extrapolation/figure"
OVER_LENGTH: dict[str, Any] = {"step_metric": "extrapolation/length", "summary": "none"}  # W&B options
OTHER_LOGGERS = ("csv", "tensorboard", "mlflow", "trackio")
MOST_NAME, MOST_TAG = 128, 64  # limits of Weights & Biases, in characters


class Loggers:
    """The loggers of a run, or of one of its evaluations, by the names of ``configs/logger``."""

    def __init__(self, run: Run, directory: RunDirectory, resumed: bool = False):
        config = run.config
        name = run.name
        if directory is not run.directory:
            name = f"{name}-e{directory.name}"
        tags = {"study": config.study or "", "label": run.experiment.label}
        self.config = jsonable(run.saved_config)
        self.loggers: dict[str, Logger] = {}
        self._last_step = 0  # what a resumed W&B run has already
        self._has_curve = False
        # W&B is started first, so that the other loggers write nothing if it cannot start.
        if config.logger.wandb and config.logger.wandb.mode:
            wandb_logger = _wandb_logger(run, directory, self.config, resumed)
            self.loggers["wandb"] = wandb_logger
            self.wandb = wandb_logger.experiment
            self._last_step = int(self.wandb.summary.get("training/step") or 0)
            self._has_curve = self.wandb.summary.get(LENGTHS) is not None
        for kind in OTHER_LOGGERS:
            if getattr(config.logger, kind) is not None:
                results_dir = Path(config.results_dir)
                logger = _other_logger(
                    kind, config.logger, directory.path, results_dir, name, tags, self.config
                )
                logger.log_hyperparams(self.config)
                self.loggers[kind] = logger

    def metrics(self, row: Row) -> None:
        """Log one row of the training curve over ``training/step``."""
        values = {f"training/{key}": value for key, value in row.items()}
        self._log(values, row["step"], in_wandb=row["step"] <= self._last_step)

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
            self._log(values, row["length"], in_wandb=self._has_curve)
        if "wandb" in self.loggers:
            self.wandb.summary.update({LENGTHS: [row["length"] for row in rows]})

    def _log(self, values: dict[str, Any], step: int, in_wandb: bool) -> None:
        """Log values, except to W&B if a resumed W&B run has them already."""
        for name, logger in self.loggers.items():
            if name != "wandb":
                logger.log_metrics(values, step)
            elif not in_wandb:
                logger.log_metrics(values)  # W&B takes the step from the values

    def close(self, summary: Row | None, figure: Path) -> None:
        """End the loggers' runs; ``summary`` is None if the run failed."""
        for name, logger in self.loggers.items():
            if summary is not None:
                self._log_summary(name, logger, summary, figure)
            logger.finalize("failed" if summary is None else "success")
        if "wandb" in self.loggers:
            self.wandb.finish(exit_code=int(summary is None))
        if "trackio" in self.loggers:
            self.loggers["trackio"].close()  # type: ignore[attr-defined]

    def _log_summary(self, name: str, logger: Any, summary: Row, figure: Path) -> None:
        """Log the figure, and the summary under the same names as in ``result.json``."""
        numbers = {key: value for key, value in summary.items() if isinstance(value, int | float)}
        if name == "wandb":
            import wandb

            logger.experiment.log({FIGURE: wandb.Image(str(figure))})
            logger.experiment.summary.update(summary)
        elif name == "tensorboard":
            from matplotlib.pyplot import imread

            logger.experiment.add_image(FIGURE, imread(figure), dataformats="HWC")
            logger.log_hyperparams(self.config, numbers)
        else:
            logger.log_metrics(numbers)
            if name == "mlflow":
                logger.experiment.log_artifact(logger.run_id, str(figure))
            elif name == "trackio":
                import trackio

                logger.log_metrics({FIGURE: trackio.Image(figure)})


def upload_command(directory: RunDirectory) -> str | None:
    """Return the command that uploads the offline W&B run of a directory, if there is one."""
    offline_runs = sorted(directory.path.glob("wandb/offline-run-*"))
    return f"wandb sync {shlex.quote(os.path.relpath(offline_runs[-1]))}" if offline_runs else None


def _wandb_logger(
    requested: Run, directory: RunDirectory, saved_config: dict[str, Any], resumed: bool
) -> WandbLogger:
    """Return the logger of a W&B run with files in the directory.

    An online run goes on if the training is ``resumed``. Otherwise an earlier run of this id is replaced.
    """
    experiment = requested.experiment
    config = experiment.config
    settings = config.logger.wandb
    assert settings
    model = experiment.model_choice[:MOST_TAG]
    label = experiment.label[:MOST_TAG]
    task = experiment.components["task"].choice[:MOST_TAG]
    run_id = requested.name
    name = f"{label}, {task}, seed {config.seed}"
    job = "training"
    hash_without_seed = short_hash(jsonable(experiment.trained | {"seed": None}))
    group = f"{label}, {task} [{hash_without_seed[:4]}]"
    if config.study:
        group = f"{config.study}: {group}"
    if directory is not requested.directory:
        run_id = f"{run_id}-e{directory.name}"
        name = f"{name}, evaluated again"
        job = "evaluation"
    tags = (*(tag[:MOST_TAG] for tag in settings.tags), label, task, model)
    arguments: dict[str, Any] = {
        **settings.model_dump(),
        "name": name[:MOST_NAME],
        "id": run_id,
        "job_type": job,
        "group": group[-MOST_NAME:],
        "tags": list(dict.fromkeys(tags)),
        "resume": "allow" if resumed and settings.mode == "online" else None,
    }
    run = _start_wandb(**arguments, config=saved_config, dir=directory.path)
    for key in METRICS:
        run.define_metric(f"training/{key}", step_metric="training/step", hidden=key == "step")
    for key in ("length", *MEASURED):  # without a summary, which would be the value at the longest length
        run.define_metric(f"extrapolation/{key}", **OVER_LENGTH, hidden=key == "length")
    run.define_metric("text/*", **OVER_LENGTH)
    from pytorch_lightning.loggers import WandbLogger

    return WandbLogger(experiment=run)


def _start_wandb(mode: Literal["offline", "online"], dir: Path, **arguments: Any) -> Any:
    """Start a quiet W&B run; an offline run replaces earlier offline runs in ``dir``."""
    # Error reporting is the only thing for which wandb uses the network in offline mode.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    if mode == "offline":
        for earlier_run in dir.glob("wandb/offline-run-*"):
            shutil.rmtree(earlier_run)
    quiet: dict[str, Any] = dict.fromkeys(("silent", "x_disable_stats", "disable_git", "disable_code"), True)
    quiet["console"] = "off"
    try:
        return wandb.init(mode=mode, dir=dir, settings=quiet, **arguments)
    except Exception as error:
        alternative = "allowed without an account: logger.wandb.mode=offline, or another logger"
        why = f"Weights & Biases could not start ({sentence(error)}); {alternative}"
        raise UserError(f"logger.wandb.mode={mode}: {why}") from error


def _other_logger(
    kind: str,
    config: LoggerConfig,
    folder: Path,
    results_dir: Path,
    name: str,
    tags: dict[str, str] | None = None,
    saved_config: dict[str, Any] | None = None,
) -> Logger:
    """Return a logger other than W&B; MLflow and Trackio give the run ``name`` and know its ``tags``."""
    if kind == "mlflow":
        assert config.mlflow
        return _mlflow_logger(config.mlflow, name, results_dir, tags)
    if kind == "trackio":
        assert config.trackio
        _require("trackio")
        from pe_experiments.store.trackio_logger import TrackioLogger

        group = (tags or {}).get("label")
        return TrackioLogger(config.trackio.project, name, group, saved_config or {})
    return _file_logger(kind, folder)


def _file_logger(name: str, folder: Path) -> Logger:
    """Return a logger that writes files in the folder and replaces earlier ones."""
    from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

    shutil.rmtree(folder / name, ignore_errors=True)
    location: dict[str, Any] = {"save_dir": folder, "name": name, "version": ""}
    if name == "csv":
        return CSVLogger(**location, flush_logs_every_n_steps=1)
    _require("tensorboard")
    return TensorBoardLogger(**location, default_hp_metric=False)


def _mlflow_logger(
    settings: MlflowConfig, name: str, results_dir: Path, tags: dict[str, str] | None
) -> MLFlowLogger:
    """Return the logger of an MLflow run that replaces earlier runs of that name and results folder."""
    _require("mlflow")
    from pytorch_lightning.loggers import MLFlowLogger

    results = results_dir.absolute()
    tags = {**(tags or {}), "results_dir": str(results)}  # a server may hold runs of others
    for package in ("alembic", "mlflow"):
        logging.getLogger(package).setLevel(logging.WARNING)
    with FileLock(results / ".mlflow.lock"):  # so that only one process creates the tables
        logger = MLFlowLogger(
            settings.experiment_name,
            name,
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
        same_name = f"attributes.run_name = '{name}'"
        for run in client.search_runs([str(logger.experiment_id)], same_name):
            is_own = run.data.tags.get("results_dir") == str(results)
            if is_own and run.info.run_id != run_id:
                client.delete_run(run.info.run_id)
    return logger


def require_installed(config: LoggerConfig) -> None:
    """Raise an error if a logger of the configuration is not installed."""
    for kind in ("tensorboard", "mlflow", "trackio"):
        if getattr(config, kind) is not None:
            _require(kind)


def _require(package: str) -> None:
    """Raise an error if a package is not installed."""
    if not find_spec(package):
        how = f'install it with pip install -e ".[{package}]"'
        raise UserError(f"logger={package}: {package} is not installed; {how}")


def evaluation_loggers(config: LoggerConfig, folder: Path, results_dir: Path, name: str) -> list[Logger]:
    """Return loggers for the evaluation of a model that no run trained, such as a pretrained model."""
    kinds = [kind for kind in OTHER_LOGGERS if getattr(config, kind) is not None]
    loggers = [_other_logger(kind, config, folder, results_dir, name) for kind in kinds]
    if config.wandb and config.wandb.mode:
        from pytorch_lightning.loggers import WandbLogger

        run = _start_wandb(**config.wandb.model_dump(), name=name[:MOST_NAME], dir=folder)
        loggers.append(WandbLogger(experiment=run))
    return loggers
