"""The study ``core``: order and its absence, over five tasks, with and without a causal mask."""

from __future__ import annotations

from pe_experiments.comparison.runs_table import Runs
from pe_experiments.studies.figures_in_words import Figures, markdown_table, render, shown

TASKS = ("copy", "reverse", "precedence", "lag", "majority")
FIXED = ("none", "sinusoidal", "learned")
RELATIVE = ("rope", "alibi", "t5")


def page(runs: Runs) -> str:
    """``README.md`` of the study."""
    figures = Figures(runs)
    return render("core.md.j2", f=figures, table=summary_table(figures), unsolved=unsolved(figures))


def schemes(task: str, model: str) -> tuple[str, ...]:
    """What was trained on a task with a model."""
    beside = RELATIVE if model == "decoder" and task in ("copy", "reverse", "lag") else ()
    return (*FIXED, *beside)


def summary_table(figures: Figures) -> str:
    """A row per task, model and scheme."""
    rows = [
        [
            task,
            model,
            scheme,
            figures.solved(task, model, scheme),
            *(shown(figures.mean(task, model, scheme, metric)) for metric in ("inside", "at_2x", "beyond")),
        ]
        for task in TASKS
        for model in ("decoder", "encoder")
        for scheme in schemes(task, model)
    ]
    heading = ["task", "model", "scheme", "seeds that solve it", "inside", "at 2x", "beyond (1x to 8x)"]
    return markdown_table(heading, rows)


def unsolved(figures: Figures) -> list[str]:
    """Where not every seed learned the training lengths, so that figures beyond say little."""
    found = []
    for task in TASKS:
        for model in ("decoder", "encoder"):
            for scheme in schemes(task, model):
                solved = figures.solved(task, model, scheme)
                if not solved.startswith(solved.rpartition(" ")[2]):
                    found.append(f"{scheme} on {task} ({model}, {solved} seeds)")
    return found
