"""Hydra callbacks that report on the runs of a sweep, selected by ``hydra.callbacks.report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from pe_experiments.sweeps.launch import LAUNCHED, Job
from pe_experiments.terminal import process
from pe_experiments.terminal.console import Lines, complain
from pe_experiments.terminal.errors import UserError, one_line, sentence

if TYPE_CHECKING:
    from pe_experiments.store.requested import Run

UNNAMED = "multirun"  # folder of sweeps without a study


class ComparisonReport(Callback):
    """Compare the runs of each study when all have finished.

    Subclasses can override `before_runs`, `after_run` and `report`, which are called with all runs.

    Args:
        tuned: options such as ``training.learning_rate``. If the sweep varies one of them, each encoding is
            compared at its best value (`comparison.tuning`). With an empty list all values are compared.
    """

    def __init__(self, tuned: Sequence[str] = ()):
        self.tuned = list(tuned)

    def before_runs(self, jobs: Sequence[Job]) -> None:
        """Inspect the runs before the sweep starts; raise a `UserError` to stop it."""
        configs = [job.run.experiment.full_config for job in jobs if job.run]
        for option in self.tuned:
            section, _, key = option.partition(".")
            if configs and not any(key in config.get(section, {}) for config in configs):
                example = "allowed: options such as training.learning_rate"
                raise UserError(f"hydra.callbacks.report.tuned: no run has an option {option}; {example}")

    def after_run(self, jobs: Sequence[Job]) -> None:
        """Inspect the runs whenever some have ended."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        LAUNCHED.clear()

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        if config.dry_run:
            return
        try:
            self.report(LAUNCHED)
            if not LAUNCHED and config.study:  # executed by another launcher
                _compare(str(config.results_dir), str(config.study))
        except Exception as error:  # Hydra would turn it into a warning
            complain(one_line(sentence(error)))
            process.exit_code = 1

    def report(self, jobs: Sequence[Job]) -> None:
        """List the finished runs in the manifests of their studies, and compare each study."""
        from pe_experiments.comparison.tuning import varying
        from pe_experiments.store.study_folder import list_in_study, write_manifest

        runs_by_study: dict[tuple[str, str], list[Run]] = {}
        for job in jobs:
            if job.done and job.run:
                place = job.run.config.results_dir, job.run.config.study or ""
                runs_by_study.setdefault(place, []).append(job.run)
        for (results_dir, study), runs in sorted(runs_by_study.items()):
            names = [run.name for run in runs]
            tuned = varying((run.experiment.full_config for run in runs), self.tuned)
            if study:
                list_in_study(Path(results_dir), study, *names, **({"tuned": tuned} if tuned else {}))
            else:  # exactly these runs
                write_manifest(Path(results_dir), UNNAMED, names, tuned=tuned)
            _compare(results_dir, study or UNNAMED)


def _compare(results_dir: str, study: str) -> None:
    from pe_experiments.comparison.compare_runs import compare, output_of, show

    show(compare(results_dir, study, output_of(results_dir, study), display=Lines()))
