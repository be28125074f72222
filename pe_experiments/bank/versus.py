"""Compare your own encoding with a bank from the runs of ``sweep=versus``."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pe_experiments import NUMERICS
from pe_experiments.bank.report import Standings, report
from pe_experiments.bank.scores import FLOORS, SCORE, SECTIONS, score_table, scores_by_setting
from pe_experiments.comparison.runs import Runs, read_runs
from pe_experiments.configuration.experiment import resolve
from pe_experiments.configuration.schema import check
from pe_experiments.published.archive import FILES, SHIPPED, read_archive, select_runs
from pe_experiments.store.manifest import list_in_study
from pe_experiments.store.names import jsonable, safe_name
from pe_experiments.sweeps.jobs import DONE, PENDING, Job
from pe_experiments.sweeps.report import Comparison
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError, allowed, few

MOST_SETTINGS = 16  # so that all combinations of signs can be enumerated
STUDY = "versus"  # the folder that holds one study per encoding


class Versus(Comparison):
    """Compare the runs of one encoding with a bank, one task at a time.

    Args:
        bank: the published study, in the results directory or shipped with the package.
        baselines: labels of the encodings to compare with; None takes all of the bank.
        metric: ``score``, or exact match at a multiple of the training length, as ``exact_match_at_4x``.
    """

    def __init__(
        self, bank: str, baselines: Sequence[str] | None = None, metric: str = SCORE, tuned: Any = ()
    ):
        super().__init__(tuned)
        self.bank = bank
        self.metric = metric
        self.requested = None if baselines is None else list(baselines)
        self.reported: list[str] = []  # names of tasks

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
        places = [base / self.bank for base in (self.results_dir, SHIPPED)]
        folder = next((place for place in places if (place / FILES[-1]).exists()), None)
        if folder is None:
            raise UserError(
                f"hydra.callbacks.report.bank={self.bank} is not a published study in {places[0]}"
            )
        banked = read_archive(folder)
        if self.label in set(banked.runs["label"]) and configs[0]["label"]:
            raise UserError(f"label={self.label} is the name of an encoding of {self.bank}; choose another")
        known = sorted(set(banked.runs["label"]) - {self.label})
        unknown = [name for name in self.requested or () if name not in known]
        if unknown:
            key = "hydra.callbacks.report.baselines"
            raise UserError(f"{key}: {few(unknown)} is not in the bank; allowed: {allowed(known)}")
        self.baselines = self.requested or known
        self.floors = pd.read_csv(folder / FLOORS) if (folder / FLOORS).exists() else None
        self.banked = self._complete(banked)
        self._require_settings(jobs)
        self._say_who_made_the_baselines()
        waiting = [self._task(job) for job in jobs if job.pending]
        if waiting:
            first = waiting[0]
            runs = waiting.count(waiting[0])
            when = f"the page comes when {first} is finished ({runs} of {len(waiting)} runs)"
            say(f"{self.bank}: {when}, and grows with each task")

    def after_run(self, jobs: Sequence[Job]) -> None:
        """Report a task when all its runs have finished."""
        waiting = {self._task(job) for job in jobs if job.name and job.state in PENDING}
        tasks = {self._task(job) for job in jobs if job.state in DONE} - waiting
        if tasks - set(self.reported):
            self.reported = sorted(tasks)
            self.report([job for job in jobs if job.state in DONE and self._task(job) in tasks])

    def report(self, jobs: Sequence[Job]) -> None:
        done = [job.name for job in jobs if job.state in DONE]
        if done:
            list_in_study(self.results_dir, self.study, *done)
            standings = self._standings()
            if standings:
                report(self, standings)
            else:
                say(f"{self.bank}: nothing to compare yet; a configuration needs all its learning rates")

    def _task(self, job: Job) -> str:
        return self.tasks[job.config["task"]["_target_"]]

    def _label(self, configs: Sequence[dict[str, Any]]) -> str:
        encodings = {str([config[key] for key in ("pe", "positions", "label")]): config for config in configs}
        if len(encodings) > 1:
            raise UserError(f"sweep=versus compares one encoding with the bank, got {len(encodings)}")
        return resolve(check(next(iter(encodings.values())))).label

    def _complete(self, banked: Runs) -> Runs:
        """Return the runs of the bank in configurations that all baselines have run."""
        banked = select_runs(banked, banked.runs["label"].isin(self.baselines))
        settings = score_table(banked, self.floors, [self.metric])[["task", "setting"]].drop_duplicates()
        if settings.empty:
            raise UserError(f"{self.bank}: no configuration has runs of all encodings at all learning rates")
        complete = set(settings.itertuples(index=False, name=None))
        most = settings.groupby("task").size().max()
        if most > MOST_SETTINGS:
            raise UserError(f"{self.bank}: a task has {most} seeds; at most {MOST_SETTINGS} are allowed")
        pairs = zip(banked.runs["task"], banked.runs["seed"], strict=True)
        return select_runs(banked, pd.Series([pair in complete for pair in pairs]))

    def _require_settings(self, jobs: Sequence[Job]) -> None:
        """Raise a UserError for runs in configurations that the bank does not have."""
        points = self.banked.curves.groupby("name")
        measured = points.agg(examples=("examples", "first"), lengths=("content_length", list))
        banked: dict[str, list[dict[str, Any]]] = {}
        self.tasks: dict[str, str] = {}  # by class
        for name, task in self.banked.runs[["name", "task"]].itertuples(index=False):
            trained = self.banked.saved[name]["identity"]["trained"]
            count, lengths = measured.loc[name]
            target = trained["task"]["_target_"]
            banked.setdefault(target, []).append(_compared_config(trained, int(count), lengths))
            self.tasks[target] = task
        for job in jobs:
            if not job.name:
                continue
            experiment = resolve(check(job.config))
            part = experiment.components["task"]
            examples = job.config["evaluation"]["examples"]
            if part.target not in banked:
                known = allowed(sorted(self.tasks.values()))
                raise UserError(f"task={part.choice} is not in {self.bank}; allowed: {known}")
            lengths = {experiment.evaluation_task.nearest_length(n) for n in experiment.evaluation_lengths}
            asked_config = _compared_config(jsonable(experiment.trained), examples, lengths)
            differing = min(
                (_differing_keys(asked_config, bank_config) for bank_config in banked[part.target]), key=len
            )
            if differing:
                what = f"{', '.join(differing)} must be as in {self.bank}"
                raise UserError(f"sweep=versus, task={part.choice}: {what}")

    def _say_who_made_the_baselines(self) -> None:
        names = list(self.banked.runs["name"])
        numerics = {str(self.banked.saved[name]["identity"]["hashed"]["numerics"]) for name in names}
        versions = {str(self.banked.environments[name]["libraries"]["torch"]) for name in names}
        self.made_with = f"NUMERICS {few(sorted(numerics))} and PyTorch {few(sorted(versions))}"
        here = f"NUMERICS {NUMERICS} and PyTorch {torch.__version__}"
        say(f"{self.bank}: the baselines were trained with {self.made_with}; yours with {here}")

    def together(self) -> Runs:
        """Return the runs of the baselines and the finished runs of the encoding."""
        bank = select_runs(self.banked, self.banked.runs["label"].isin(self.baselines))
        new_runs = read_runs(self.results_dir, str(self.study))
        new_runs = select_runs(new_runs, new_runs.runs["name"].isin(self.names))
        new_runs.runs["label"] = new_runs.curves["label"] = self.label  # runs of another study may differ
        runs, curves = (
            pd.concat([getattr(part, key) for part in (bank, new_runs)]) for key in ("runs", "curves")
        )
        return Runs(runs.reset_index(drop=True), curves, saved=bank.saved | new_runs.saved)

    def scores(self) -> pd.DataFrame:
        """Return the scores of the baselines, and of the encoding in the configurations that it has run."""
        runs = self.together()
        metrics = list(dict.fromkeys((SCORE, self.metric)))
        is_new = runs.runs["label"] == self.label
        both = score_table(runs, self.floors, metrics)
        bank = score_table(select_runs(runs, ~is_new), self.floors, metrics)
        return pd.concat([bank, both[both["label"] == self.label]], ignore_index=True)

    def _standings(self) -> Standings:
        """Return the scores of every task in the configurations that the encoding has run."""
        standings = {}
        for task, rows in self.scores().groupby("task"):
            run = rows.loc[rows["label"] == self.label, "setting"]
            if len(run):
                standings[str(task)] = scores_by_setting(rows, self.metric).loc[run]
        return standings


def _compared_config(trained: Mapping[str, Any], examples: int, lengths: Iterable[int]) -> dict[str, Any]:
    """Return the part of a configuration that compared runs must share."""
    flat = {f"{part}.{key}": trained[part][key] for part in SECTIONS for key in trained[part]}
    flat |= {"seed": trained["seed"], "evaluation.examples": examples}
    return flat | {"evaluation.lengths": sorted(lengths)}


def _differing_keys(trained: Mapping[str, Any], banked: Mapping[str, Any]) -> list[str]:
    keys = [key for key in {**trained, **banked} if trained.get(key) != banked.get(key)]
    return [f"{key}={trained.get(key)} (there: {banked.get(key)})" for key in keys]
