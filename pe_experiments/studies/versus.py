"""Compare the user's encoding with a bank, from the runs of ``sweep=versus``."""

from collections.abc import Sequence
from typing import Any

import torch

from pe_experiments import NUMERICS
from pe_experiments.store.manifest import list_in_study
from pe_experiments.studies.baselines import BankComparison, compare_with_bank
from pe_experiments.studies.scores import SCORE
from pe_experiments.studies.versus_page import report
from pe_experiments.sweeps.callbacks import ComparisonReport
from pe_experiments.sweeps.launch import Job
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError


class Versus(ComparisonReport):
    """Compare the runs of one encoding with a bank, one task at a time.

    Args:
        bank: the published study, in the results directory or in the checkout of this package.
        baselines: labels of the encodings to compare with; None selects all encodings of the bank.
        metric: ``score``, or exact match at a multiple of the training length, as ``exact_match_at_4x``.
        tuned: see `ComparisonReport`.
    """

    def __init__(
        self, bank: str, baselines: Sequence[str] | None = None, metric: str = SCORE, tuned: Any = ()
    ):
        super().__init__(tuned)
        self.bank = bank
        self.baselines = baselines
        self.metric = metric
        self.comparison: BankComparison | None = None
        self.reported_tasks: set[str] = set()

    def before_runs(self, jobs: Sequence[Job]) -> None:
        """Read the bank and check that the runs can be compared with it."""
        runs = [job.run for job in jobs if job.run]
        if not runs:
            return
        if not any(text.lstrip("+").startswith(("pe=", "pe.")) for text in jobs[0].overrides):
            raise UserError("pe is missing; name your encoding, as in pe=my_module.MyEncoding")
        self.comparison = compare_with_bank(runs, self.bank, self.baselines, self.metric)
        versions = self.comparison.baseline_versions
        current = f"NUMERICS {NUMERICS} and PyTorch {torch.__version__}"
        say(f"{self.bank}: the baselines were trained with {versions}; yours with {current}")
        pending = [job.run for job in jobs if job.run and job.pending]
        if pending:
            tasks = [self.comparison.task_by_run[run.name] for run in pending]
            steps = sum(run.config.training.steps for run in pending)
            work = f"{len(pending)} runs, {steps:,} steps in all, are to be trained, one run per core"
            when = f"the page comes after {tasks[0]} ({tasks.count(tasks[0])} of them), and grows"
            say(f"{self.bank}: {work}; {when}")

    def after_run(self, jobs: Sequence[Job]) -> None:
        """Write the report of all finished tasks whenever another task has finished."""
        assert self.comparison
        tasks = self.comparison.task_by_run
        unfinished_tasks = {tasks[job.name] for job in jobs if job.pending}
        finished_tasks = {tasks[job.name] for job in jobs if job.done} - unfinished_tasks
        if finished_tasks - self.reported_tasks:
            self.reported_tasks = finished_tasks
            self.report([job for job in jobs if job.done and tasks[job.name] in finished_tasks])

    def report(self, jobs: Sequence[Job]) -> None:
        """Write the page from the finished runs among ``jobs`` and print the verdicts."""
        comparison = self.comparison
        finished = [job.name for job in jobs if job.done]
        if comparison and finished:
            list_in_study(comparison.results_dir, comparison.study, *finished)
            report(comparison)
