"""Compare ways to extend a RoPE model to four times its training length, by further training steps."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import ALPHA, t_interval
from pe_experiments.drawing import bits_axis, draw_seeds, legend_below, panel_grid, save, styles
from pe_experiments.studies import (
    Study,
    bits_per_byte,
    format_test,
    markdown_table,
    read_archive,
    with_options,
)
from pe_experiments.studies.inference import paired_t_tests
from pe_experiments.studies.pages import progress

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
# Models from scratch and their steps: RoPE at 256 and at 1,024 bytes, and two others at 256.
PARENT, SCRATCH, ALIBI, FOX = ("parent", 1500), ("scratch", 1950), ("alibi", 1950), ("fox", 1950)
CONTROL = ("parent", 1950)  # RoPE at 256 with as many steps as ALiBi and FoX
QK_NORM = Path(__file__).parent / "qk_norm"  # parents and children with normalised queries and keys
TASKS = Path(__file__).parent / "tasks"  # parents and children on copy and needle
AGAINST_TRUNCATED = {
    ("rope_yarn", 450): "YaRN, 450 steps",
    ("rope_llama3", 450): "Llama 3, 450 steps",
    ("rope(base=160000)", 450): "base times 16, 450 steps",
    ALIBI: "ALiBi at 256",
    FOX: "FoX at 256",
}
DRAWN_STEPS = [10, 30, 150, 450]  # `STEPS` on a logarithmic axis
ENLARGED = (2.1, 2.7)  # bits per byte in the enlarged panel
SYMBOLS = [20, 40, 80, 160]  # lengths on copy and needle; parents are trained up to 20, children up to 80

Column = tuple[str, int, int]  # the name of a model, its training steps and the context length


def load(folder: Path) -> pd.DataFrame:
    """Return bits per byte [seeds, (model, steps, length)]; models of `QK_NORM` end in ``+qk_norm``."""
    parts = []
    for study, suffix in ((folder, ""), (QK_NORM, "+qk_norm")):
        runs = read_archive(study)
        rows = with_models(runs).join(bits_per_byte(runs, LENGTHS), on="name")
        rows["model"] += suffix
        bits = rows.pivot(index="seed", columns=["model", "steps"], values=LENGTHS)
        parts.append(bits.reorder_levels([1, 2, 0], axis="columns"))
    bits = pd.concat(parts, axis="columns")
    for length in LENGTHS:
        bits["drope", 0, length] = bits["none", 0, length]  # equal before training
    return bits


def with_models(runs: Runs) -> pd.DataFrame:
    """Return `Runs.runs` with columns for the model and for its training steps.

    A model is the change of a child run, or the name of a model trained from scratch.
    """
    rows = with_options(runs, steps="training.steps")
    # Without the hash that distinguishes encodings with the same label.
    labels = rows["label"].str.partition(" [")[0].str.rpartition(" -> ")
    is_rope = labels[0].eq("") & labels[2].eq("rope")
    names = {  # the first that applies counts
        "drope": labels[0].ne("") & labels[2].eq("none") & rows["max_length"].eq(TRAINED),
        "scratch": is_rope & rows["max_length"].eq(EXTENDED),
        "parent": is_rope,
    }
    model = np.select([*names.values()], [*names], labels[2])
    return rows.assign(model=model, steps=rows["steps"].replace(1, 0))


def families(bits: pd.DataFrame) -> Iterator[tuple[str, list[tuple[Column, Column]]]]:
    """Yield the families of tests: a name, and pairs of columns of which the second is subtracted.

    The tests in ``truncated`` were not planned and are not adjusted: each is a family. They compare with the
    parents' windows of `TRAINED` bytes, which end with the scored bytes: a truncated model reads just these.
    """
    changes = [change for change in WORDS if change != "rope"]
    yield "what_to_change", [((change, 150, EXTENDED), ("rope", 150, EXTENDED)) for change in changes]
    changes.remove("drope")  # without training it is `none`
    yield "without_training", [((change, 0, EXTENDED), (*PARENT, EXTENDED)) for change in changes]
    yield "beyond", [((change, 150, LONGEST), (*SCRATCH, LONGEST)) for change in WORDS]
    best = min(WORDS, key=lambda change: float(bits[change, 150, EXTENDED].mean()))
    others = product((EXTENDED, LONGEST), (ALIBI, FOX))
    yield "what_to_start_from", [((best, 450, length), (*other, length)) for length, other in others]
    for model, length in product(AGAINST_TRUNCATED, (EXTENDED, LONGEST)):
        yield "truncated", [((*model, length), (*PARENT, TRAINED))]
    yield "control", [((*model, LONGEST), (*CONTROL, TRAINED)) for model in (FOX, ALIBI)]
    dropped = ("drope+qk_norm", 450, EXTENDED)
    at_longest = (("drope+qk_norm", 450, LONGEST), ("rope+qk_norm", 450, LONGEST))
    parents = ("parent+qk_norm", 1500, TRAINED)
    yield "normalised", [(dropped, ("drope", 450, EXTENDED)), (dropped, parents), at_longest]


def all_tests(bits: pd.DataFrame) -> pd.DataFrame:
    """Return a row per paired t test, with Holm's p-value within each family.

    Rows are indexed by family, both models and the length, as ``control/fox minus parent/4096``.
    """
    parts = []
    for family, pairs in families(bits):
        tests = paired_t_tests(pd.DataFrame([bits[first] - bits[second] for first, second in pairs]).T)
        tests.index = pd.Index([f"{family}/{a[0]} minus {b[0]}/{a[2]}" for a, b in pairs])
        names = pd.DataFrame(
            [(family, *first, *second) for first, second in pairs], tests.index,
            ["family", "model", "steps", "length", "minus", "minus_steps", "minus_length"],
        )  # fmt: skip
        parts.append(names.join(tests))
    return pd.concat(parts)


def step_table(bits: pd.DataFrame, tests: dict[str, str]) -> str:
    """Return bits per byte after each number of steps, when a change caught up, and the test of each."""
    lines = []
    for change, words in WORDS.items():
        gaps = [bits[change, steps, EXTENDED] - bits[(*SCRATCH, EXTENDED)] for steps in STEPS]
        ends = [t_interval(gap.to_numpy(), ALPHA / len(WORDS)).high for gap in gaps]
        caught_up = [f"{steps}" for steps, high in zip(STEPS, ends, strict=True) if high < BEHIND]
        columns = [*product([change], STEPS, [EXTENDED]), (change, 450, LONGEST)]
        means = [f"{bits[column].mean():.2f}" for column in columns]
        test = tests.get(f"what_to_change/{change} minus rope/{EXTENDED}", "–")
        lines.append([words, *means, [*caught_up, "not in 450"][0], test])
    after = [f"after {steps}" for steps in STEPS]
    return markdown_table(
        ["change", *after, "4,096 after 450", "caught up", "minus nothing, after 150"], lines
    )


def values(bits: pd.DataFrame) -> dict[str, Any]:
    """Return the tables and the numbers in the text.

    Examples of numbers are ``rope_yarn_150_at_1024``, ``seeds`` and ``copy/rope_yarn/250/160``.
    """
    tests = {str(key): format_test(row) for key, row in all_tests(bits).iterrows()}
    minus_truncated = [  # losses minus those of the parents that read only their last `TRAINED` bytes
        [words, *(tests[f"truncated/{model} minus parent/{length}"] for length in (EXTENDED, LONGEST))]
        for (model, _), words in AGAINST_TRUNCATED.items()
    ]
    losses: Any = bits.mean().items()
    runs = read_archive(TASKS)  # on copy and needle
    curves = runs.curves.pivot(index="name", columns="content_length", values="exact_match")
    rows = with_models(runs).join(curves, on="name")
    on_tasks: Any = rows.groupby(["task", "model", "steps"])[SYMBOLS].mean().stack().items()
    return {
        "seeds": len(bits),
        "steps": step_table(bits, tests),
        "truncated": markdown_table(["model", "at 1,024 bytes", "at 4,096 bytes"], minus_truncated),
        "progress/qk_norm": progress(QK_NORM, Study(planned=50)),  # plan.md
        "progress/tasks": progress(TASKS, Study(planned=54)),
        **tests,
        **{f"{model}_{steps}_at_{length}": loss for (model, steps, length), loss in losses},
        **{"/".join(map(str, case)): exact_match for case, exact_match in on_tasks},
    }


def draw_steps(bits: pd.DataFrame, figures: Path) -> None:
    """Draw bits per byte over further steps at two context lengths, with an enlarged panel in the middle.

    The dotted line is the parent that reads only its last `TRAINED` bytes.
    """
    style_by_change = styles(WORDS)
    looks = {words: style_by_change[change] for change, words in WORDS.items()}
    figure, panels = panel_grid(3, 3, 3.6)
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
    for axes in (panels[0], panels[2]):
        bits_axis(axes)
    panels[0].set(title=f"at {EXTENDED:,} bytes", ylabel="bits per byte")
    panels[1].set(title=f"at {EXTENDED:,} bytes, enlarged", ylim=ENLARGED)
    panels[2].set(title=f"at {LONGEST:,} bytes")
    legend_below(figure, looks, looks)
    save(figure, figures, "answer")


STUDY = Study(
    planned=225,  # plan.md: the preset lists the parents alone
    load=load,
    values=values,
    figures=(draw_steps,),
    tables={"tests": all_tests},
)
