"""The study ``precision``: do conclusions change when training computes in bfloat16?"""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from pe_experiments.comparison import style
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.statistics import Interval, paired_difference
from pe_experiments.studies.figures_in_words import Figures, markdown_table, render, shown, shown_difference

TASKS = ("copy", "reverse", "lag")
SCHEMES = ("rope", "alibi", "t5")
METRIC = "beyond"


def page(runs: Runs) -> str:
    """``README.md`` of the study."""
    full, half = (Figures(runs, (("precision", p),)) for p in ("float32", "bfloat16"))
    rows, told_apart, orders = [], [], []
    for task in TASKS:
        for scheme in SCHEMES:
            differences = {metric: _change(full, half, task, scheme, metric) for metric in ("inside", METRIC)}
            rows.append(
                [
                    task,
                    scheme,
                    f"{full.solved(task, 'decoder', scheme)}, {half.solved(task, 'decoder', scheme)}",
                    shown(full.mean(task, "decoder", scheme, METRIC)),
                    shown(half.mean(task, "decoder", scheme, METRIC)),
                    shown_difference(differences["inside"]),
                    shown_difference(differences[METRIC]),
                ]
            )
            if _excludes_zero(differences[METRIC]):
                told_apart.append(f"{scheme} on {task}")
        orders.append((task, _order(full, task), _order(half, task)))
    heading = ["task", "scheme", "seeds solved (float32, bfloat16)", "beyond, float32", "beyond, bfloat16",
               "difference inside", "difference beyond"]  # fmt: skip
    changed = [task for task, one, other in orders if one != other]
    return render(
        "precision.md.j2",
        table=markdown_table(heading, rows),
        told_apart=told_apart,
        changed=changed,
        orders=orders,
        cells=len(rows),
        seeds=len(full.values("copy", "decoder", "rope", METRIC)),
    )


def draw(runs: Runs, folder: Path) -> None:
    """Every run in float32 against the same run in bfloat16."""
    full, half = (Figures(runs, (("precision", p),)) for p in ("float32", "bfloat16"))
    with style.drawing():
        figure = Figure(figsize=(7.2, 2.7), layout="constrained")
        panels = figure.subplots(1, len(TASKS), sharey=True)
        looks = style.styles(SCHEMES)
        for axes, task in zip(panels, TASKS, strict=True):
            for scheme in SCHEMES:
                colour, marker = looks[scheme]
                x, y = (f.values(task, "decoder", scheme, METRIC) for f in (full, half))
                seeds = sorted(set(x) & set(y))
                axes.plot(
                    [x[s] for s in seeds],
                    [y[s] for s in seeds],
                    marker,
                    color=colour,
                    alpha=0.7,
                    label=scheme,
                )
            axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.7)
            axes.set_title(task)
            axes.set_xlabel("float32")
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("bfloat16")
        panels[0].legend(frameon=False)
        figure.suptitle("Exact match beyond the training lengths (1x to 8x), a point per seed")
        style.save(figure, folder, "precision")


def _change(full: Figures, half: Figures, task: str, scheme: str, metric: str) -> Interval:
    """bfloat16 minus float32, paired by seed."""
    return paired_difference(
        half.values(task, "decoder", scheme, metric), full.values(task, "decoder", scheme, metric)
    ).difference


def _excludes_zero(value: Interval) -> bool:
    return value.low > 0 or value.high < 0


def _order(figures: Figures, task: str) -> list[str]:
    """The schemes from best to worst beyond training."""
    return sorted(SCHEMES, key=lambda scheme: -figures.mean(task, "decoder", scheme, METRIC).estimate)
