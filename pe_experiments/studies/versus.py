"""Compare the user's encoding with a bank, from the runs of ``sweep=versus``: verdicts, a figure, a page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from pe_experiments import NUMERICS
from pe_experiments.comparison.runs import Runs, read_runs
from pe_experiments.drawing import drawing, legend_below, length_axis, panel_grid, render, save, styles
from pe_experiments.store.study_folder import list_in_study
from pe_experiments.studies.archive import select_runs
from pe_experiments.studies.baselines import BankComparison, compare_with_bank
from pe_experiments.studies.scores import SCORE, score_table, scores_by_configuration
from pe_experiments.studies.verdicts import SIGNS, verdicts_on
from pe_experiments.sweeps.callbacks import ComparisonReport
from pe_experiments.sweeps.launch import Job
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import make_folder, write_atomically

LEGEND = (
    "+ better, - worse, = tied (no significant difference), . too few configurations; only one learned the\n"
    "task in three quarters of the configurations: (+) yours, (-) the baseline; 0 neither did"
)
# Scores [configurations, encodings] by task, NaN where the encoding did not learn the task.
ScoresByTask = dict[str, pd.DataFrame]
HIGHLIGHTED = 3  # number of baselines with the highest mean that are drawn in colour
PALE = "0.75"  # grey of the other baselines


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


def report(versus: BankComparison) -> None:
    """Write tables, the figure and the page that compares an encoding with a bank, and print the verdicts."""
    label, bank_runs = versus.label, versus.bank_runs
    new_runs = read_runs(versus.results_dir, versus.study)
    new_runs = select_runs(new_runs, new_runs.runs["name"].isin(versus.task_by_run))
    for frame in (new_runs.runs, new_runs.curves):
        frame["label"] = label  # a run that was first trained for another study can have another label
    table_of_runs = pd.concat([bank_runs.runs, new_runs.runs], ignore_index=True)
    curves = pd.concat([bank_runs.curves, new_runs.curves])
    runs = Runs(table_of_runs, curves, saved={**bank_runs.saved, **new_runs.saved})
    metrics = list(dict.fromkeys((SCORE, versus.metric)))
    all_scores = score_table(runs, metrics)  # only in configurations that the encoding has run
    new_scores = all_scores[all_scores["label"] == label]
    table = pd.concat([score_table(bank_runs, metrics), new_scores], ignore_index=True)
    scores_by_task: ScoresByTask = {}
    for task, rows in table.groupby("task"):
        configurations = rows.loc[rows["label"] == label, "configuration"]
        if len(configurations):
            scores_by_task[str(task)] = scores_by_configuration(rows, versus.metric).loc[configurations]
    if not scores_by_task:
        say(f"{versus.bank}: nothing to compare yet; a configuration needs all its learning rates")
        return
    folder = versus.results_dir / versus.study
    figures_folder = make_folder(folder / "figures")
    with drawing():
        _draw_curves(versus, runs, table, scores_by_task, figures_folder)
    verdicts = {task: verdicts_on(scores, label) for task, scores in scores_by_task.items()}
    count = sum(len(scores) for scores in scores_by_task.values())
    cost = f"{count} configurations were run on {len(scores_by_task)} tasks"
    page = render(
        Path(__file__).with_name("versus.html.j2"),
        versus=versus,
        tasks=[(task, rows.to_dict("records")) for task, rows in verdicts.items()],
        figure=(figures_folder / "curves.svg").read_bytes(),
        score=versus.metric == SCORE,
        cost=cost,
    )
    write_atomically(folder / "report.html", page)
    rows = pd.concat(verdicts, names=["task"]).reset_index(level="task")
    for name, frame in (("verdicts.csv", rows), ("scores.csv", table)):
        write_atomically(folder / name, frame.to_csv(index=False))
    rows["sign"] = rows["verdict"].map(SIGNS)
    say(rows.pivot(index="task", columns="baseline", values="sign").to_string(na_rep=""))
    say(f"{LEGEND}\n{cost}\npage: {folder / 'report.html'}")


def _draw_curves(
    versus: BankComparison, runs: Runs, table: pd.DataFrame, scores_by_task: ScoresByTask, folder: Path
) -> None:
    """Draw mean exact match over input length, in multiples of the training length, with a panel per task.

    The means are over the configurations that the encoding has run. Its line is thick, and the highest
    baselines are in colour. A length is drawn if all runs were evaluated at it.
    """
    figure, panels = panel_grid(len(scores_by_task), 3, 1.9)
    in_colour = {}
    for task, scores in scores_by_task.items():
        highest = scores.drop(columns=versus.label).mean().nlargest(HIGHLIGHTED).index
        in_colour[task] = [*map(str, highest[::-1]), versus.label]
    coloured = dict.fromkeys(label for labels in in_colour.values() for label in reversed(labels))
    style_of = styles(coloured) | {"others": (PALE, "")}
    curves = runs.curves.merge(runs.runs[["name", "max_length"]], on="name")
    curves["times"] = curves["content_length"] / curves["max_length"]
    for axes, (task, scores) in zip(panels, scores_by_task.items(), strict=True):
        rows = table[(table["task"] == task) & table["configuration"].isin(scores.index)]
        points = curves[curves["name"].isin(rows["name"])]
        points = points[points.groupby("times")["name"].transform("size") == len(rows)]
        means = points.groupby(["label", "times"])["exact_match"].mean().unstack("label")
        grey = [str(label) for label in means if label not in in_colour[task]]
        for label in (*grey, *in_colour[task]):
            colour, marker = style_of["others" if label in grey else label]
            width = 2.4 if label == versus.label else 1.2
            axes.plot(means.index, means[label], color=colour, marker=marker, markersize=3, linewidth=width)
        first, last = np.log2([means.index.min(), means.index.max()])
        powers = 2.0 ** np.arange(np.floor(first), np.ceil(last) + 1)
        length_axis(axes, powers, 1, "exact match")
        axes.xaxis.set_major_formatter(lambda times, _: f"{times:g}x")
        axes.set(title=task, xlabel="input length / longest in training")
        axes.label_outer()
    legend_below(figure, style_of, [*coloured, "others"])
    save(figure, folder, "curves")
