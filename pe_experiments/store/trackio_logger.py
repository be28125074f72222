"""A logger of Lightning that writes to Trackio, which keeps its runs on this machine by default."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from typing import Any

from pytorch_lightning.loggers.logger import Logger


class TrackioLogger(Logger):
    """Log to a new Trackio run that replaces earlier runs of its name.

    Args:
        project: Trackio's project.
        run_name: name of the run.
        group: runs of one group are shown or hidden together.
        config: the configuration shown with the run.
    """

    def __init__(self, project: str, run_name: str, group: str | None, config: Mapping[str, Any]):
        import trackio  # an optional library

        super().__init__()
        with redirect_stdout(io.StringIO()):  # how to open the dashboard
            with suppress(ValueError):  # the project does not exist yet
                for earlier_run in trackio.Api().runs(project):
                    if earlier_run.name == run_name:
                        earlier_run.delete()
            self._run = trackio.init(
                project, run_name, group, config=dict(config), embed=False,
                auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip
        self._project = project
        self._run_name = run_name

    @property
    def name(self) -> str:
        return self._project

    @property
    def version(self) -> str:
        return self._run_name

    @property
    def experiment(self) -> Any:
        """Return the run of Trackio."""
        return self._run

    def log_hyperparams(self, params: Any, *_: Any) -> None:
        """Do nothing, since the run got its configuration when it started."""

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self._run.log({key: value for key, value in metrics.items() if value is not None}, step)

    def finalize(self, status: str) -> None:
        """Do nothing: Lightning calls this after training, and the evaluation is logged after that."""

    def close(self) -> None:
        """End the run, after everything was logged."""
        import trackio

        with redirect_stdout(io.StringIO()):
            trackio.finish()
