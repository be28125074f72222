"""Compare the user's encoding with a bank, from the runs of ``sweep=versus``."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pe_experiments import NUMERICS
from pe_experiments.bank.report import ScoresByTask, report
from pe_experiments.bank.scores import FLOORS, SCORE, SECTIONS, score_table, scores_by_setting
from pe_experiments.comparison.runs import Runs, read_runs
from pe_experiments.configuration.experiment import resolve
from pe_experiments.configuration.schema import check
from pe_experiments.published.archive import PROVENANCE, SHIPPED, read_archive, select_runs
from pe_experiments.store.manifest import list_in_study
from pe_experiments.store.names import jsonable, safe_name
from pe_experiments.sweeps.jobs import DONE, PENDING, Job
from pe_experiments.sweeps.report import ComparisonReport
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError, allowed, few

MOST_SETTINGS = 16  # per task, because the test enumerates all combinations of signs
STUDY = "versus"  # the folder that holds one study per encoding


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
        self.metric = metric
        self.requested_baselines = None if baselines is None else list(baselines)
        self.reported_tasks: list[str] = []

    def before_runs(self, jobs: Sequence[Job]) -> None:
        """Read the bank and check that the runs can be compared with it.

        Raises:
            UserError: the bank does not exist, or a run cannot be compared with it.
        """
        configs = [job.config for job in jobs if job.name]
        if not configs:
            return
        if not any(text.lstrip("+").startswith(("pe=", "pe.")) for text in jobs[0].overrides):
            raise UserError("pe is missing; name your encoding, as in pe=my_module.MyEncoding")
        self.results_dir = Path(configs[0]["results_dir"])
        self.label = self._label(configs)
        self.study = f"{STUDY}/{safe_name(self.label).replace('=', '-')}"
        self.names = {job.name for job in jobs}
        folders = [base / self.bank for base in (self.results_dir, SHIPPED)]
        folder = next((path for path in folders if (path / PROVENANCE).exists()), None)
        if folder is None:
            raise UserError(
                f"hydra.callbacks.report.bank={self.bank} is not a published study in {folders[0]}"
            )
        bank_runs = read_archive(folder)
        if self.label in set(bank_runs.runs["label"]) and configs[0]["label"]:
            raise UserError(f"label={self.label} is the name of an encoding of {self.bank}; choose another")
        available = sorted(set(bank_runs.runs["label"]) - {self.label})
        unknown = [name for name in self.requested_baselines or () if name not in available]
        if unknown:
            key = "hydra.callbacks.report.baselines"
            raise UserError(f"{key}: {few(unknown)} is not in the bank; allowed: {allowed(available)}")
        self.baselines = self.requested_baselines or available
        self.floors = pd.read_csv(folder / FLOORS) if (folder / FLOORS).exists() else None
        self.bank_runs = self._complete(bank_runs)
        self._require_settings(jobs)
        self._say_versions()
        pending_tasks = [self._task(job) for job in jobs if job.pending]
        if pending_tasks:
            first = pending_tasks[0]
            when = f"the page comes when {first} is finished"
            runs = f"{pending_tasks.count(first)} of {len(pending_tasks)} runs"
            say(f"{self.bank}: {when} ({runs}), and grows with each task")

    def after_run(self, jobs: Sequence[Job]) -> None:
        """Write the report of all finished tasks whenever another task has finished."""
        unfinished_tasks = {self._task(job) for job in jobs if job.name and job.state in PENDING}
        tasks = {self._task(job) for job in jobs if job.state in DONE} - unfinished_tasks
        if tasks - set(self.reported_tasks):
            self.reported_tasks = sorted(tasks)
            self.report([job for job in jobs if job.state in DONE and self._task(job) in tasks])

    def report(self, jobs: Sequence[Job]) -> None:
        """Write the page from the finished runs among ``jobs`` and print the verdicts."""
        finished = [job.name for job in jobs if job.state in DONE]
        if finished:
            list_in_study(self.results_dir, self.study, *finished)
            scores_by_task = self._scores_by_task()
            if scores_by_task:
                report(self, scores_by_task)
            else:
                say(f"{self.bank}: nothing to compare yet; a configuration needs all its learning rates")

    def _task(self, job: Job) -> str:
        """Return the name in the bank of the task of a job."""
        return self.task_by_run[job.name]

    def _label(self, configs: Sequence[dict[str, Any]]) -> str:
        """Return the label of the user's encoding; raise a UserError if there are several encodings."""
        encodings = {str([config[key] for key in ("pe", "positions", "label")]): config for config in configs}
        if len(encodings) > 1:
            raise UserError(f"sweep=versus compares one encoding with the bank, got {len(encodings)}")
        return resolve(check(next(iter(encodings.values())))).label

    def _complete(self, bank_runs: Runs) -> Runs:
        """Return the runs of the baselines in configurations that all baselines have run."""
        bank_runs = select_runs(bank_runs, bank_runs.runs["label"].isin(self.baselines))
        settings = score_table(bank_runs, self.floors, [self.metric])[["task", "setting"]].drop_duplicates()
        if settings.empty:
            raise UserError(f"{self.bank}: no configuration has runs of all encodings at all learning rates")
        complete = set(settings.itertuples(index=False, name=None))
        most = settings.groupby("task").size().max()
        if most > MOST_SETTINGS:
            raise UserError(f"{self.bank}: a task has {most} seeds; at most {MOST_SETTINGS} are allowed")
        pairs = zip(bank_runs.runs["task"], bank_runs.runs["seed"], strict=True)
        return select_runs(bank_runs, pd.Series([pair in complete for pair in pairs]))

    def _require_settings(self, jobs: Sequence[Job]) -> None:
        """Raise a UserError for runs in configurations that the bank does not have."""
        curves = self.bank_runs.curves.groupby("name")
        evaluations = curves.agg(examples=("examples", "first"), lengths=("content_length", list))
        bank_configs: dict[
            str, list[tuple[str, dict[str, Any]]]
        ] = {}  # task and config, by class of the task
        self.task_by_run: dict[str, str] = {}
        for name, task in self.bank_runs.runs[["name", "task"]].itertuples(index=False):
            trained = self.bank_runs.saved[name]["identity"]["trained"]
            examples, lengths = evaluations.loc[name]
            target = trained["task"]["_target_"]
            bank_config = _compared_config(trained, int(examples), lengths)
            bank_configs.setdefault(target, []).append((task, bank_config))
        for job in jobs:
            if not job.name:
                continue
            experiment = resolve(check(job.config))
            task_component = experiment.components["task"]
            choice, target = task_component.choice, task_component.target
            if target not in bank_configs:
                tasks = allowed(sorted(set(self.bank_runs.runs["task"])))
                raise UserError(f"task={choice} is not in {self.bank}; allowed: {tasks}")
            examples = job.config["evaluation"]["examples"]
            lengths = {experiment.evaluation_task.nearest_length(n) for n in experiment.evaluation_lengths}
            config = _compared_config(jsonable(experiment.trained), examples, lengths)
            differences = [
                (_differing_keys(config, bank_config), task) for task, bank_config in bank_configs[target]
            ]
            fewest_differences, self.task_by_run[job.name] = min(differences, key=lambda pair: len(pair[0]))
            if fewest_differences:
                problem = f"{', '.join(fewest_differences)} must be as in {self.bank}"
                raise UserError(f"sweep=versus, task={choice}: {problem}")

    def _say_versions(self) -> None:
        """Print the versions with which the baselines were trained, and those of the user."""
        names = list(self.bank_runs.runs["name"])
        numerics = {str(self.bank_runs.saved[name]["identity"]["hashed"]["numerics"]) for name in names}
        torch_versions = {str(self.bank_runs.environments[name]["libraries"]["torch"]) for name in names}
        numerics_text, torch_text = few(sorted(numerics)), few(sorted(torch_versions))
        self.baseline_versions = f"NUMERICS {numerics_text} and PyTorch {torch_text}"
        current = f"NUMERICS {NUMERICS} and PyTorch {torch.__version__}"
        say(f"{self.bank}: the baselines were trained with {self.baseline_versions}; yours with {current}")

    def all_runs(self) -> Runs:
        """Return the runs of the baselines and the finished runs of the encoding."""
        new_runs = read_runs(self.results_dir, str(self.study))
        new_runs = select_runs(new_runs, new_runs.runs["name"].isin(self.names))
        # A run that was first trained for another study can have another label.
        new_runs.runs["label"] = self.label
        new_runs.curves["label"] = self.label
        runs = pd.concat([self.bank_runs.runs, new_runs.runs], ignore_index=True)
        curves = pd.concat([self.bank_runs.curves, new_runs.curves])
        return Runs(runs, curves, saved={**self.bank_runs.saved, **new_runs.saved})

    def scores(self) -> pd.DataFrame:
        """Return the scores of the baselines, and of the encoding in the configurations that it has run."""
        runs = self.all_runs()
        metrics = list(dict.fromkeys((SCORE, self.metric)))
        is_new = runs.runs["label"] == self.label
        # Only in configurations that the encoding has run.
        all_scores = score_table(runs, self.floors, metrics)
        bank_scores = score_table(select_runs(runs, ~is_new), self.floors, metrics)
        new_scores = all_scores[all_scores["label"] == self.label]
        return pd.concat([bank_scores, new_scores], ignore_index=True)

    def _scores_by_task(self) -> ScoresByTask:
        """Return the scores of every task in the configurations that the encoding has run."""
        scores = {}
        for task, rows in self.scores().groupby("task"):
            settings = rows.loc[rows["label"] == self.label, "setting"]
            if len(settings):
                scores[str(task)] = scores_by_setting(rows, self.metric).loc[settings]
        return scores


def _compared_config(trained: Mapping[str, Any], examples: int, lengths: Iterable[int]) -> dict[str, Any]:
    """Return the options that compared runs must share, by dotted key."""
    config = {f"{part}.{key}": trained[part][key] for part in SECTIONS for key in trained[part]}
    config["seed"] = trained["seed"]
    config["evaluation.examples"] = examples
    config["evaluation.lengths"] = sorted(lengths)
    return config


def _differing_keys(config: Mapping[str, Any], bank_config: Mapping[str, Any]) -> list[str]:
    """Return the options in which two configurations differ, with both values."""
    keys = [key for key in {**config, **bank_config} if config.get(key) != bank_config.get(key)]
    return [f"{key}={config.get(key)} (bank: {bank_config.get(key)})" for key in keys]
