"""Compare ways to extend a RoPE model to four times its training length, by further training steps."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.statistics import ALPHA, Interval, paired_t_tests, t_interval
from pe_experiments.drawing import bits_axis, draw_seeds, legend_below, length_axis, save, styles
from pe_experiments.studies import (
    Study,
    bits_per_byte,
    format_change,
    markdown_table,
    read_archive,
    with_settings,
)
from pe_experiments.studies.study import progress

SEEDS = range(5)  # the seed of the pilot is left out
TRAINED, EXTENDED, LONGEST = 256, 1024, 4096  # bytes of context
LENGTHS = [TRAINED, 512, EXTENDED, 2048, LONGEST]
STEPS = [0, 30, 150, 450]  # further steps of a child run; 0 stands for one step at a learning rate of 1e-12
BEHIND = 0.05  # bits per byte; a change has caught up if the upper end of its difference is smaller
WORDS = {  # each change in words, by the label of the child run; DroPE runs have the label `none`
    "rope": "nothing",
    "rope(base=40000)": "base times 4",
    "rope(base=160000)": "base times 16",
    "rope_linear": "linear",
    "rope_ntk": "NTK-aware",
    "rope_yarn": "YaRN",
    "rope_llama3": "Llama 3",
    "p_rope": "p-RoPE",
    "none": "RoPE removed",
    "drope": "DroPE",
}
PARENT, SCRATCH, ALIBI, FOX = ("parent", 1500), ("scratch", 1950), ("alibi", 1950), ("fox", 1950)
CONTROL = ("parent", 1950)  # RoPE at 256 with as many steps as ALiBi and FoX
FROM_SCRATCH = {
    PARENT: "RoPE at 256 (parents)",
    SCRATCH: "RoPE at 1,024",
    ALIBI: "ALiBi at 256",
    FOX: "FoX at 256",
    CONTROL: "RoPE at 256, 1,950 steps",
}
QK_NORM = Path(__file__).parent / "qk_norm"  # parents and children with normalised queries and keys
TASKS = Path(__file__).parent / "tasks"  # parents and children on copy and needle
AGAINST_TRUNCATED = [("rope_yarn", 450), ("rope_llama3", 450), ("rope(base=160000)", 450), ALIBI, FOX]
DRAWN_STEPS = [10, 30, 150, 450]  # `STEPS` on a logarithmic axis
ENLARGED = (2.1, 2.7)  # bits per byte in the enlarged panel
MODELS = [*product(WORDS, STEPS), *FROM_SCRATCH]
SYMBOLS = [20, 40, 80, 160]  # lengths on copy and needle; parents are trained up to 20, children up to 80
TASK_MODELS = [("parent", 2500), *product(("rope", "rope_linear", "rope_yarn", "none"), (0, 250))]

Model = tuple[str, int]  # the name and the training steps
Test = tuple[Model, Model, int]  # two models, and the context length at which they are compared


def read_models(folder: Path) -> pd.DataFrame:
    """Return a row per planned run: model, steps, seed, learning rate, bits per byte by context length."""
    runs = read_archive(folder)
    rows = with_settings(runs, steps="training.steps", rate="training.learning_rate")
    rows = rows.join(bits_per_byte(runs, LENGTHS), on="name")
    rows = rows[(rows["task"] == "text") & rows["seed"].isin(SEEDS)]
    models = map(model_name, rows["label"], rows["max_length"])
    return rows.assign(model=[*models], steps=rows["steps"].replace(1, 0))[
        ["model", "steps", "seed", "rate", *LENGTHS]
    ]


def model_name(label: str, max_length: int) -> str:
    """Return the change of a child run, or the name of a model trained from scratch."""
    _, arrow, last = label.rpartition(" -> ")
    last = last.partition(" [")[0]  # without the hash that distinguishes encodings with the same label
    if arrow:
        return "drope" if last == "none" and max_length == TRAINED else last
    if last == "rope":
        return "scratch" if max_length == EXTENDED else "parent"
    return last


def bits_by_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return bits per byte [seeds, (model, steps, context length)] of the seeds without missing runs."""
    wide = rows.pivot(index="seed", columns=["model", "steps"], values=LENGTHS)
    bits = {}
    for (model, steps), length in product(MODELS, LENGTHS):
        recorded = "none" if (model, steps) == ("drope", 0) else model  # equal before training
        bits[model, steps, length] = wide.get((length, recorded, steps), pd.Series(np.nan, wide.index))
    return pd.DataFrame(bits).dropna()


def difference(bits: pd.DataFrame, first: Model, second: Model, length: int) -> pd.Series:
    """Return the difference of two models in bits per byte, by seed."""
    return bits[(*first, length)] - bits[(*second, length)]


def families(bits: pd.DataFrame) -> dict[str, list[Test]]:
    """Return the families of tests in the plan."""
    changes = [change for change in WORDS if change != "rope"]
    best = (min(WORDS, key=lambda change: float(bits[change, 150, EXTENDED].mean())), 450)
    others = product((EXTENDED, LONGEST), (ALIBI, FOX))
    return {
        "what_to_change": [((change, 150), ("rope", 150), EXTENDED) for change in changes],
        "without_training": [((change, 0), PARENT, EXTENDED) for change in changes if change != "drope"],
        "beyond": [((change, 150), SCRATCH, LONGEST) for change in WORDS],
        "what_to_start_from": [(best, other, length) for length, other in others],
    }


def caught_up(gaps: list[Interval]) -> str:
    """Return the fewest steps after which a change has caught up, or ``not in 450``."""
    for steps, gap in zip(STEPS, gaps, strict=True):
        if gap.high < BEHIND:
            return str(steps)
    return f"not in {STEPS[-1]}"


def all_tests(folder: Path) -> pd.DataFrame:
    """Return a row per paired t test, with Holm's p-value within each family of the plan.

    The family ``truncated`` was not planned and is not adjusted. It compares with the parents' windows of
    `TRAINED` bytes, which end with the scored bytes: a truncated model reads just these.
    """
    bits = bits_by_seed(read_models(folder))
    rows: list[dict[str, Any]] = []

    def add(family: str, names: list[tuple[str, str, int]], differences: list[pd.Series]) -> None:
        tests = paired_t_tests([by_seed.to_numpy() for by_seed in differences])
        for (model, minus, length), (interval, p) in zip(names, tests, strict=True):
            numbers = {"difference": interval.estimate, "low": interval.low, "high": interval.high, "p": p}
            rows.append({"family": family, "model": model, "minus": minus, "length": length, **numbers})

    for family, tests in families(bits).items():
        names = [(describe(first), describe(second), length) for first, second, length in tests]
        add(family, names, [difference(bits, *test) for test in tests])
    for model, length in product(AGAINST_TRUNCATED, (EXTENDED, LONGEST)):
        names = [(describe(model), f"{describe(PARENT)} on their last {TRAINED}", length)]
        add("truncated", names, [bits[(*model, length)] - bits[(*PARENT, TRAINED)]])
    wide = read_models(QK_NORM).pivot(index="seed", columns=["model", "steps"], values=LENGTHS)
    dropped = wide[EXTENDED, "drope", 450]
    control = bits[(*CONTROL, TRAINED)]
    names = [
        (describe(model), f"{describe(CONTROL)}, on their last {TRAINED}", LONGEST) for model in (FOX, ALIBI)
    ]
    add("control", names, [bits[(*model, LONGEST)] - control for model in (FOX, ALIBI)])
    names = [
        ("DroPE, normalised", "DroPE", EXTENDED),
        ("DroPE, normalised", f"its parents on their last {TRAINED}", EXTENDED),
        ("DroPE, normalised", "RoPE kept, normalised", LONGEST),
    ]
    unchanged = wide[LONGEST, "drope", 450] - wide[LONGEST, "rope", 450]
    normalised = [dropped - bits["drope", 450, EXTENDED], dropped - wide[(TRAINED, *PARENT)], unchanged]
    add("normalised", names, normalised)
    return pd.DataFrame(rows)


def describe(model: Model) -> str:
    """Return a model in words, such as ``YaRN, 150 steps``."""
    change, steps = model
    return FROM_SCRATCH.get(model) or f"{WORDS[change]}, {steps} steps"


def test_in_words(row: Any) -> str:
    """Return a test as ``-0.07 [-0.13, -0.01], p 0.027``."""
    return f"{format_change(Interval(row.difference, row.low, row.high))}, p {row.p:.2g}"


def step_table(bits: pd.DataFrame, tests: pd.DataFrame) -> str:
    """Return bits per byte after each number of steps, when a change caught up, and the test of each."""
    means = bits.mean()
    of_changes = tests[tests["family"] == "what_to_change"].itertuples()
    cells_of_tests = {row.model: test_in_words(row) for row in of_changes}
    lines = []
    for change, words in WORDS.items():
        differences = [difference(bits, (change, steps), SCRATCH, EXTENDED) for steps in STEPS]
        gaps = [t_interval(by_seed.to_numpy(), ALPHA / len(WORDS)) for by_seed in differences]
        cells = [f"{means[change, steps, EXTENDED]:.2f}" for steps in STEPS]
        cells += [f"{means[change, 450, LONGEST]:.2f}", caught_up(gaps)]
        lines.append([words, *cells, cells_of_tests.get(describe((change, 150)), "–")])
    after = [f"after {steps}" for steps in STEPS]
    return markdown_table(
        ["change", *after, "4,096 after 450", "caught up", "minus nothing, after 150"], lines
    )


def truncated_table(tests: pd.DataFrame) -> str:
    """Return a table of losses minus those of the parents that read only their last `TRAINED` bytes."""
    rows = tests[tests["family"] == "truncated"]
    rows = rows.assign(cell=[test_in_words(row) for row in rows.itertuples()])
    wide = rows.pivot(index="model", columns="length", values="cell")
    lines = [[model, *wide.loc[model]] for model in rows["model"].unique()]
    return markdown_table(["model", *(f"at {length:,} bytes" for length in wide)], lines)


def task_rows(folder: Path) -> pd.DataFrame:
    """Return a row per run on copy and needle: model, steps and exact match by input length."""
    runs = read_archive(folder)
    curves = runs.curves.pivot(index="name", columns="content_length", values="exact_match")
    rows = with_settings(runs, steps="training.steps").join(curves, on="name")
    rows["model"] = [*map(model_name, rows["label"], rows["max_length"])]
    rows["steps"] = rows["steps"].replace(1, 0)
    return rows


def task_values(folder: Path) -> dict[str, float]:
    """Return mean exact match on copy and needle, such as ``copy/rope_yarn/250/160``."""
    means: Any = task_rows(folder).groupby(["task", "model", "steps"])[SYMBOLS].mean().stack().to_dict()
    return {"/".join(map(str, case)): value for case, value in means.items()}


def values(folder: Path) -> dict[str, Any]:
    """Return the tables and the numbers in the text.

    Examples of numbers are ``rope_yarn_150_at_1024``, ``parent_at_1024``, ``seeds`` and ``rate``.
    """
    rows = read_models(folder)
    bits = bits_by_seed(rows)
    means = bits.mean()
    tests = all_tests(folder)
    rates = rows.loc[rows["model"].isin([*WORDS]) & (rows["steps"] > 0), "rate"].unique()
    values: dict[str, Any] = {
        "seeds": len(bits),
        "rate": " and ".join(f"{rate:g}" for rate in sorted(rates)),
        "steps": step_table(bits, tests),
        "truncated": truncated_table(tests),
        "progress/qk_norm": progress(QK_NORM, Study(planned=50)),  # plan.md
        "progress/tasks": progress(TASKS, Study(planned=54)),
    }
    for (name, steps), length in product(MODELS, LENGTHS):
        is_named = (name, steps) in FROM_SCRATCH and (name, steps) != CONTROL
        prefix = name if is_named else f"{name}_{steps}"
        values[f"{prefix}_at_{length}"] = means[name, steps, length]
    rows_of_tests: Any = tests[tests["family"].isin(["what_to_start_from", "normalised"])].itertuples()
    for row in rows_of_tests:
        values[f"{row.family}/{row.minus.split()[0]}/{row.length}"] = test_in_words(row)
    of_control: Any = tests[tests["family"] == "control"].itertuples()
    for row in of_control:
        values[f"control/{row.model.split()[0]}"] = test_in_words(row)
    return values | task_values(TASKS)


def draw_steps(folder: Path, figures: Path) -> None:
    """Draw bits per byte over further steps at two context lengths, with an enlarged panel in the middle.

    The dotted line is the parent that reads only its last `TRAINED` bytes.
    """
    bits = bits_by_seed(read_models(folder))
    style_by_change = styles(WORDS)
    looks = {words: style_by_change[change] for change, words in WORDS.items()}
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    panels = figure.subplots(1, 3)
    truncated = float(bits[(*PARENT, TRAINED)].mean())
    for axes, length in zip(panels, (EXTENDED, EXTENDED, LONGEST), strict=True):
        scratch = bits[(*SCRATCH, length)]
        axes.axhspan(scratch.min(), scratch.max(), color="0.85", zorder=0)
        axes.axhline(scratch.mean(), color="0.35", linestyle="--", linewidth=1.0, zorder=1)
        axes.axhline(truncated, color="black", linestyle=":", linewidth=1.3, zorder=1)
        for change in WORDS:
            columns = [(change, steps, length) for steps in STEPS]
            draw_seeds(axes, DRAWN_STEPS, bits[columns], style_by_change[change])
        axes.set_xscale("log")
        axes.set_xticks(DRAWN_STEPS, [f"{steps}" for steps in STEPS])
        axes.minorticks_off()
        axes.set_xlabel("further steps")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (panels[0], panels[2]):
        bits_axis(axes)
    panels[0].set(title=f"at {EXTENDED:,} bytes", ylabel="bits per byte")
    panels[1].set(title=f"at {EXTENDED:,} bytes, enlarged", ylim=ENLARGED)
    panels[2].set(title=f"at {LONGEST:,} bytes")
    legend_below(figure, looks, looks)
    save(figure, figures, "answer")


def draw_tasks(folder: Path, figures: Path) -> None:
    """Draw exact match over input length on copy and needle, without and with further training."""
    rows = task_rows(TASKS)
    style_by_change = styles(WORDS)
    changes = [model for model, steps in TASK_MODELS if steps == 0]
    looks = {WORDS[change]: style_by_change[change] for change in changes}
    figure = Figure(figsize=(7.2, 2.3), layout="constrained")
    panels = figure.subplots(1, 4, sharey=True)
    for axes, (task, steps) in zip(panels, product(("copy", "needle"), (0, 250)), strict=True):
        for change in changes:
            chosen = rows[(rows["task"] == task) & (rows["model"] == change) & (rows["steps"] == steps)]
            draw_seeds(axes, SYMBOLS, chosen[SYMBOLS], style_by_change[change])
        length_axis(axes, SYMBOLS, 80 if steps else 20, "exact match")
        axes.set_title(f"{task}, {steps} further steps", fontsize=7.5)
        axes.label_outer()
    legend_below(figure, looks, looks)
    save(figure, figures, "tasks")


STUDY = Study(
    planned=225,  # plan.md: the preset lists the parents alone
    values=values,
    figures=(draw_steps, draw_tasks),
    tables={"tests": all_tests},
)
