"""What to change in a RoPE model that goes on at four times its training length, and for how many steps."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.statistics import ALPHA, Interval, paired_t_tests, t_interval
from pe_experiments.drawing import bits_axis, draw_seeds, legend_below, save, styles
from pe_experiments.published import (
    bits_per_byte,
    format_change,
    markdown_table,
    read_archive,
    with_settings,
)

SEEDS = range(5)  # of the plan; its pilot has another
TRAINED, EXTENDED, LONGEST = 256, 1024, 4096  # bytes of context
LENGTHS = [TRAINED, 512, EXTENDED, 2048, LONGEST]
STEPS = [0, 30, 150, 450]  # of a child; 0 stands for one step at a learning rate of 1e-12
BEHIND = 0.05  # bits per byte; a change has caught up if the interval of its difference lies below
WORDS = {  # of each change, by the label of the child; DroPE has that of `none`
    "rope": "nothing", "rope(base=40000)": "base times 4", "rope(base=160000)": "base times 16", "rope_linear": "linear",
    "rope_ntk": "NTK-aware", "rope_yarn": "YaRN", "rope_llama3": "Llama 3", "p_rope": "p-RoPE", "none": "RoPE removed", "drope": "DroPE",
}  # fmt: skip
PARENT, SCRATCH, ALIBI, FOX = ("parent", 1500), ("scratch", 1950), ("alibi", 1950), ("fox", 1950)
FROM_SCRATCH = {
    PARENT: "RoPE at 256 (parents)", SCRATCH: "RoPE at 1,024", ALIBI: "ALiBi at 256", FOX: "FoX at 256",
}  # fmt: skip
MODELS = [*product(WORDS, STEPS), *FROM_SCRATCH]  # with their steps
SYMBOLS = [20, 40, 80, 160]  # of copying and needle; trained on 20, then on 80
TASK_MODELS = [("parent", 2500), *product(("rope", "rope_linear", "rope_yarn", "none"), (0, 250))]

Model = tuple[str, int]  # and its steps
Test = tuple[Model, Model, int]  # two models, and the context length at which they are compared


def read_models(folder: Path) -> pd.DataFrame:
    """Return a row per run of the plan: its model, steps, seed, learning rate and bits per byte by context length."""
    runs = read_archive(folder)
    rows = with_settings(runs, steps="training.steps", rate="training.learning_rate")
    rows = rows.join(bits_per_byte(runs, LENGTHS), on="name")
    rows = rows[(rows["task"] == "text") & rows["seed"].isin(SEEDS)]
    models = map(model_name, rows["label"], rows["max_length"])
    return rows.assign(model=[*models], steps=rows["steps"].replace(1, 0))[
        ["model", "steps", "seed", "rate", *LENGTHS]
    ]


def model_name(label: str, max_length: int) -> str:
    """Return the change of a child, or the name of a model trained from scratch."""
    _, arrow, last = label.rpartition(" -> ")
    last = last.partition(" [")[0]  # without the hash that tells two encodings of one label apart
    if arrow:
        return "drope" if last == "none" and max_length == TRAINED else last
    if last == "rope":
        return "scratch" if max_length == EXTENDED else "parent"
    return last


def bits_by_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return bits per byte [seeds, (model, steps, context length)] of the seeds of which every run is there."""
    wide = rows.pivot(index="seed", columns=["model", "steps"], values=LENGTHS)
    bits = {}
    for (model, steps), length in product(MODELS, LENGTHS):
        trained = "none" if (model, steps) == ("drope", 0) else model  # before training they are one model
        bits[model, steps, length] = wide.get((length, trained, steps), pd.Series(np.nan, wide.index))
    return pd.DataFrame(bits).dropna()


def difference(bits: pd.DataFrame, first: Model, second: Model, length: int) -> pd.Series:
    """Return the difference of bits per byte by seed."""
    return bits[(*first, length)] - bits[(*second, length)]


def lowest(bits: pd.DataFrame) -> str:
    """Return the change with the lowest mean at 1,024 bytes after 150 steps."""
    return min(WORDS, key=lambda change: float(bits[change, 150, EXTENDED].mean()))


def families(bits: pd.DataFrame) -> dict[str, list[Test]]:
    """Return the numbered families of the plan."""
    changes = [change for change in WORDS if change != "rope"]
    best = (lowest(bits), 450)
    others = product((EXTENDED, LONGEST), (ALIBI, FOX))
    return {
        "what_to_change": [((change, 150), ("rope", 150), EXTENDED) for change in changes],
        "without_training": [((change, 0), PARENT, EXTENDED) for change in changes if change != "drope"],
        "beyond": [((change, 150), SCRATCH, LONGEST) for change in WORDS],
        "what_to_start_from": [(best, other, length) for length, other in others],
    }


def tested(bits: pd.DataFrame, tests: list[Test]) -> list[tuple[Interval, float]]:
    """Return difference and p-value of each test of a family: t tests within seeds, by Holm's method."""
    return paired_t_tests([difference(bits, *test).to_numpy() for test in tests])


def caught_up(gaps: list[Interval]) -> str:
    """Return the fewest steps after which a change has caught up, or ``not in 450``."""
    enough = [steps for steps, gap in zip(STEPS, gaps, strict=True) if gap.high < BEHIND]
    return str(enough[0]) if enough else f"not in {STEPS[-1]}"


def family_table(bits: pd.DataFrame, tests: list[Test]) -> str:
    """Return a row per test: the two models, their difference with its interval, and the p-value."""
    rows = []
    for (*models, length), (estimate, p) in zip(tests, tested(bits, tests), strict=True):
        words = [FROM_SCRATCH.get(model) or f"{WORDS[model[0]]}, {model[1]} steps" for model in models]
        rows.append([*words, f"{length:,}", format_change(estimate), f"{p:.2g}"])
    return markdown_table(["model", "minus", "at bytes", "difference", "p"], rows)


def task_values(folder: Path) -> dict[str, Any]:
    """Return exact match on copying and needle as a table, and how many parents learned each task."""
    runs = read_archive(folder)
    curves = runs.curves.pivot(index="name", columns="content_length", values="exact_match")
    rows = with_settings(runs, steps="training.steps").join(curves, on="name")
    rows["model"] = [*map(model_name, rows["label"], rows["max_length"])]
    rows["steps"] = rows["steps"].replace(1, 0)
    means = rows.groupby(["task", "model", "steps"])[SYMBOLS].mean().T
    lines = []
    for task, (model, steps) in product(("copy", "needle"), TASK_MODELS):
        words = "RoPE at 20 (parents)" if model == "parent" else WORDS[model]
        cells = [f"{value:.2f}" for value in means[task, model, steps]]
        lines.append([task, words, f"{steps:,}", *cells])
    learned = rows[rows["model"] == "parent"].groupby("task")["solved_in_distribution"].sum()
    counts = {f"{task}_learned": int(count) for task, count in learned.items()}
    headings = ["task", "change", "steps", *(f"at {length}" for length in SYMBOLS)]
    return counts | {"tasks": markdown_table(headings, lines)}


def blocks(folder: Path) -> dict[str, Any]:
    """Return the tables and the numbers of the sentences.

    Numbers: ``rope_yarn_150_at_1024``, ``parent_at_1024`` (and of `scratch`, `alibi`, `fox`), ``seeds`` and
    ``rate``.
    """
    rows = read_models(folder)
    bits = bits_by_seed(rows)
    means = bits.mean()
    rates = rows.loc[rows["model"].isin([*WORDS]) & (rows["steps"] > 0), "rate"].unique()
    values: dict[str, Any] = {"seeds": len(bits), "rate": " and ".join(f"{rate:g}" for rate in sorted(rates))}
    heading = ["change", *(f"{steps} steps" for steps in STEPS)]
    for length in (TRAINED, EXTENDED, 2048, LONGEST):
        lines = [[WORDS[c], *(f"{means[c, steps, length]:.2f}" for steps in STEPS)] for c in WORDS]
        values[f"at_{length}"] = markdown_table(heading, lines)
    lines = [[words, *(f"{means[(*m, n)]:.2f}" for n in LENGTHS)] for m, words in FROM_SCRATCH.items()]
    values["from_scratch"] = markdown_table(["trained", *(f"at {n:,}" for n in LENGTHS)], lines)
    lines = []
    for change, words in WORDS.items():
        behind = [difference(bits, (change, steps), SCRATCH, EXTENDED) for steps in STEPS]
        gaps = [t_interval(by_seed.to_numpy(), ALPHA / len(WORDS)) for by_seed in behind]
        lines.append([words, *map(format_change, gaps), caught_up(gaps)])
    values["caught_up"] = markdown_table([*heading, "caught up after"], lines)
    values |= {name: family_table(bits, tests) for name, tests in families(bits).items()}
    for (model, steps), length in product(MODELS, LENGTHS):
        name = f"{model}_at_{length}" if (model, steps) in FROM_SCRATCH else f"{model}_{steps}_at_{length}"
        values[name] = means[model, steps, length]
    return values | task_values(Path(__file__).parent / "tasks")


def pages(folder: Path) -> None:
    """Draw the figure of the answer."""
    bits = bits_by_seed(read_models(folder))
    looks = {words: styles(WORDS)[change] for change, words in WORDS.items()}
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    for axes, length in zip(figure.subplots(1, 2), (EXTENDED, LONGEST), strict=True):
        scratch = bits[(*SCRATCH, length)]
        axes.axhspan(scratch.min(), scratch.max(), color="0.85", zorder=0)
        axes.axhline(scratch.mean(), color="0.35", linestyle="--", linewidth=1.0, zorder=1)
        places = range(len(STEPS))
        for change, style in zip(WORDS, looks.values(), strict=True):
            draw_seeds(axes, places, bits[[(change, steps, length) for steps in STEPS]], style)
        axes.set_xticks(places, [f"{steps}" for steps in STEPS])
        axes.set(xlabel="further steps", ylabel=f"bits per byte at {length:,} bytes")
        bits_axis(axes)
        axes.spines[["top", "right"]].set_visible(False)
    legend_below(figure, looks, looks)
    save(figure, folder / "figures", "answer")
