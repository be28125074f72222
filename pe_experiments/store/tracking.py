"""Mirror the CSV files of a run to Lightning's loggers, with the same names in each.

A run is one run in each logger with its whole history, even after interruptions. A logger's run that cannot
be continued is replaced from the rows of ``metrics.csv``.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock
from pytorch_lightning.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from pe_experiments.configuration.schema import LoggerConfig, MlflowConfig
from pe_experiments.store.csv_files import METRICS, Row
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.names import short_hash
from pe_experiments.store.status import RunStatus
from pe_experiments.terminal.errors import UserError, sentence

# Columns of the curve that become panels over length; the others, which describe the task, stay in the CSV.
MEASURED = ("exact_match", "exact_match_low", "exact_match_high", "token_accuracy", "loss")
LENGTHS = "extrapolation/lengths"  # evaluated lengths, in W&B's summary
FIGURE = "extrapolation/figure"
BY_LENGTH: dict[str, Any] = {"step_metric": "extrapolation/length", "summary": "none"}  # in W&B
MOST_NAME, MOST_TAG = 128, 64  # limits of Weights & Biases, in characters


class Loggers:
    """The loggers of a run, or of one of its evaluations, by the names of ``configs/logger``."""

    def __init__(self, status: RunStatus, directory: RunDirectory):
        config, name = status.experiment.config, status.run.name
        if directory is not status.run:
            name = f"{name}-e{directory.name}"
        tags = {"study": config.study or "", "label": status.identity.label}
        self.config = status.saved_config
        self.loggers: dict[str, Logger] = {}
        # of a continued W&B run
        self._last_step = 0
        self._has_curve = False
        if config.logger.wandb and config.logger.wandb.mode:  # first: if it cannot start, nothing is written
            self.loggers["wandb"] = mirror = _wandb(status, directory)
            self.wandb = mirror.experiment
            self._last_step = int(self.wandb.summary.get("training/step") or 0)
            self._has_curve = self.wandb.summary.get(LENGTHS) is not None
        local = _local_loggers(config.logger, directory.path, Path(config.results_dir), name, tags)
        for logger in local.values():
            logger.log_hyperparams(self.config)
        self.loggers |= local

    def metrics(self, row: Row) -> None:
        """Log one row of the training curve over ``training/step``."""
        named = {f"training/{key}": value for key, value in row.items()}
        self._log(named, row["step"], continued=row["step"] <= self._last_step)

    def curve(self, rows: Sequence[Row], texts: Sequence[Row]) -> None:
        """Log the extrapolation curve over input length, and further values of a language model."""
        for row in rows:
            named = {f"extrapolation/{key}": row[key] for key in MEASURED if row[key] is not None}
            for text in texts:
                if text["length"] == row["content_length"] and text["slice"] != "index":
                    prefix = f"text/{text['windows']}_{text['slice']}"
                    measured = {"bits_per_byte", "accuracy"} & text.keys()
                    named |= {f"{prefix}_{key}": text[key] for key in measured}
            named["extrapolation/length"] = row["length"]
            self._log(named, row["length"], continued=self._has_curve)
        if "wandb" in self.loggers:
            self.wandb.summary.update({LENGTHS: [row["length"] for row in rows]})

    def _log(self, named: dict[str, Any], step: int, continued: bool) -> None:
        for name, logger in self.loggers.items():
            if name != "wandb":
                logger.log_metrics(named, step)
            elif not continued:  # else it has been logged
                logger.log_metrics(named)  # W&B finds the step among the values

    def close(self, summary: Row | None, figure: Path) -> str | None:
        """End the runs, as failed without a summary; return the command that uploads an offline W&B run."""
        upload = None
        for name, logger in self.loggers.items():
            if summary is not None:
                self._conclude(name, logger, summary, figure)
            logger.finalize("failed" if summary is None else "success")
        if "wandb" in self.loggers:
            if self.wandb.offline:
                upload = f"wandb sync {shlex.quote(os.path.relpath(Path(self.wandb.dir).parent))}"
            self.wandb.finish(exit_code=int(summary is None))
        return upload

    def _conclude(self, name: str, logger: Any, summary: Row, figure: Path) -> None:
        """Log the figure, and the summary under the names of ``result.json``."""
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


def _wandb(status: RunStatus, directory: RunDirectory) -> WandbLogger:
    """Return a W&B run with files in the directory; replace an earlier offline run."""
    experiment = status.experiment
    trained = status.identity.trained
    run_id = status.run.name
    job = "training"
    config = experiment.config
    model = experiment.model_choice[:MOST_TAG]
    label = status.identity.label[:MOST_TAG]
    task = experiment.components["task"].choice[:MOST_TAG]
    name = f"{label}, {task}, seed {config.seed}"
    settings = config.logger.wandb
    assert settings
    repeated = f"{label}, {task} [{short_hash(trained | {'seed': None})[:4]}]"  # without the seed
    group = (f"{config.study}: {repeated}" if config.study else repeated)[-MOST_NAME:]
    if directory is not status.run:
        run_id = f"{run_id}-e{directory.name}"
        name = f"{name}, evaluated again"
        job = "evaluation"
    tags = (*(tag[:MOST_TAG] for tag in settings.tags), label, task, model)
    arguments: dict[str, Any] = settings.model_dump() | {
        "name": name[:MOST_NAME],
        "id": run_id,
        "job_type": job,
    }
    arguments |= {"group": group, "tags": list(dict.fromkeys(tags))}
    arguments["resume"] = "allow" if settings.mode == "online" else None
    mirror = _start_wandb(**arguments, config=status.saved_config, dir=directory.path)
    for key in METRICS:
        mirror.define_metric(f"training/{key}", step_metric="training/step", hidden=key == "step")
    for key in ("length", *MEASURED):  # the last logged value, at the longest length, is not a summary
        mirror.define_metric(f"extrapolation/{key}", **BY_LENGTH, hidden=key == "length")
    mirror.define_metric("text/*", **BY_LENGTH)
    return WandbLogger(experiment=mirror)


def _start_wandb(mode: Literal["offline", "online"], dir: Path, **settings: Any) -> Any:
    """Start a quiet W&B run; an offline one that lies in ``dir`` is replaced."""
    # Its look-up at start is the one thing wandb would ask the network for offline.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    if mode == "offline":
        for old in dir.glob("wandb/offline-run-*"):
            shutil.rmtree(old)
    quiet: dict[str, Any] = dict.fromkeys(("silent", "x_disable_stats", "disable_git", "disable_code"), True)
    quiet["console"] = "off"
    try:
        return wandb.init(mode=mode, dir=dir, settings=quiet, **settings)
    except Exception as error:
        without = "allowed without an account: logger.wandb.mode=offline, or another logger"
        why = f"Weights & Biases could not start ({sentence(error)}); {without}"
        raise UserError(f"logger.wandb.mode={mode}: {why}") from error


def _local_loggers(
    config: LoggerConfig, folder: Path, results_dir: Path, name: str, tags: dict[str, str] | None = None
) -> dict[str, Logger]:
    """Return the loggers other than W&B; ``name`` and ``tags`` are those of the run in MLflow."""
    kinds = [kind for kind in ("csv", "tensorboard") if getattr(config, kind) is not None]
    loggers = {kind: _fresh_logger(kind, folder) for kind in kinds}
    if config.mlflow is not None:
        loggers["mlflow"] = _mlflow(config.mlflow, name, results_dir, tags)
    return loggers


def _fresh_logger(name: str, folder: Path) -> Logger:
    """Return a logger of files in the folder, which replace earlier ones."""
    shutil.rmtree(folder / name, ignore_errors=True)
    where: dict[str, Any] = {"save_dir": folder, "name": name, "version": ""}
    if name == "csv":
        return CSVLogger(**where, flush_logs_every_n_steps=1)
    _require("tensorboard")
    return TensorBoardLogger(**where, default_hp_metric=False)


def _mlflow(
    settings: MlflowConfig, name: str, results_dir: Path, tags: dict[str, str] | None = None
) -> MLFlowLogger:
    """Return a run in MLflow that replaces an earlier one of that name, by default in ``results_dir``."""
    _require("mlflow")
    results = results_dir.absolute()
    for noisy in ("alembic", "mlflow"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    with FileLock(results / ".mlflow.lock"):  # one process creates the tables
        logger = MLFlowLogger(
            settings.experiment_name,
            name,
            settings.tracking_uri or f"sqlite:///{results / 'mlflow.db'}",
            tags=tags,
            artifact_location=None if settings.tracking_uri else (results / "mlflow").as_uri(),
        )
        try:
            client, this = logger.experiment, logger.run_id
        except Exception as error:
            why = f"MLflow could not start ({sentence(error)})"
            raise UserError(f"logger.mlflow.tracking_uri={settings.tracking_uri}: {why}") from error
        named = f"attributes.run_name = '{name}'"
        for run in client.search_runs([str(logger.experiment_id)], named):
            if run.info.run_id != this:
                client.delete_run(run.info.run_id)
    return logger


def _require(package: str) -> None:
    if not find_spec(package):
        brings = f'install it with pip install -e ".[{package}]"'
        raise UserError(f"logger={package}: {package} is not installed; {brings}")


def evaluation_loggers(config: LoggerConfig, folder: Path, results_dir: Path, name: str) -> list[Logger]:
    """Return loggers of an evaluation that no training of ours precedes, such as a pretrained model's."""
    loggers = list(_local_loggers(config, folder, results_dir, name).values())
    if config.wandb and config.wandb.mode:
        started = _start_wandb(**config.wandb.model_dump(), name=name[:MOST_NAME], dir=folder)
        loggers.append(WandbLogger(experiment=started))
    return loggers
