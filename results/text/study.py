"""Byte-level language models past their training length: bits per byte at eight times the context.

The learning rate of each encoding was chosen on `TUNING_SEED`; three other seeds count. Shapes of tables:
encodings, seeds.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.drawing import bits_axis, draw_seeds, legend_below, length_axis, panel_grid, save, styles
from pe_experiments.studies import Study, bits_per_byte, encoding_markdown, format_change, read_archive, table
from pe_experiments.studies.inference import paired_t_tests

HERE = Path(__file__).parent
TUNING_SEED = 100
TRAINED, LENGTHS = 256, [256, 512, 1024, 2048]  # bytes of context
LONGEST = LENGTHS[-1]
ARGUMENTS = r"\(max_positions=\d+\)"  # in a label
ENLARGED = (2.0, 2.65)  # bits per byte in enlarged panels
RESCALED = ("rope_yarn", "rope_linear", "rope_dynamic_ntk", "rope_ntk")
IN_COLOUR = ("sinusoidal", "rope", "t5", "alibi", "kerple_log", "cpb_log", "fox", "fox(initial_bias=4)",
             "rope_nope")  # fmt: skip
GREY = ("0.75", "")  # encodings that are not in colour
LOOKS = {"others": GREY} | styles(IN_COLOUR) | {"cpb_log": ("#000000", "*")}


def counted(runs: Runs) -> pd.DataFrame:
    """Return label and seed of the runs that count, by name."""
    rows = runs.runs.set_index("name")[["label", "seed"]]
    rows["label"] = rows["label"].str.replace(ARGUMENTS, "", regex=True)
    return rows[rows["seed"] != TUNING_SEED]


def losses(runs: Runs) -> pd.DataFrame:
    """Return bits per byte by context length of the runs that count, indexed by label and seed."""
    return counted(runs).join(bits_per_byte(runs, LENGTHS)).set_index(["label", "seed"])


def means(bits: pd.DataFrame) -> pd.DataFrame:
    """Return mean `losses` and their rise by encoding, sorted by the loss at the longest context."""
    rows = bits.groupby("label").mean()
    rows["rise"] = rows[LONGEST] - rows[TRAINED]
    return rows.loc[rows[LONGEST].sort_values().index]


def by_index(runs: Runs) -> pd.DataFrame:
    """Return mean bits per byte [encodings, last indices] in parts of 64 bytes of windows of 2,048 bytes."""
    rows = runs.text[runs.text["slice"] == "index"]
    return rows.join(counted(runs), on="name", how="inner").pivot_table(
        "bits_per_byte", "label", "last_index"
    )


def draw_lengths(folder: Path, figures: Path) -> None:
    """Draw bits per byte over context length: the low losses on a linear axis, and all on a logarithmic one.

    The dashed line is RoPE that reads only the last `TRAINED` bytes.
    """
    bits = losses(read_archive(folder))
    figure, (enlarged, complete) = panel_grid(2, 2, 3.6)
    for axes in (enlarged, complete):
        for label in sorted(means(bits).index, key=lambda label: label in IN_COLOUR):  # grey lines below
            draw_seeds(axes, LENGTHS, bits.loc[label], LOOKS.get(label, GREY))
        axes.axhline(bits[TRAINED].xs("rope").mean(), color=LOOKS["rope"][0], linestyle="--", linewidth=1.2)
        length_axis(axes, LENGTHS, TRAINED, "bits per byte", accuracy=False)
        axes.set_xlabel("context length (bytes)")
    bits_axis(complete)
    enlarged.set(ylim=ENLARGED, title="enlarged")
    complete.set(title="all")
    legend_below(figure, LOOKS, [*IN_COLOUR, "others"])
    save(figure, figures, "answer")


def draw_context(folder: Path, figures: Path) -> None:
    """Draw bits per byte by index in windows of `LONGEST` bytes, and the same enlarged."""
    bits = by_index(read_archive(folder))
    figure, (complete, enlarged) = panel_grid(2, 2, 3.2)
    for label in sorted(bits.index, key=lambda label: label in IN_COLOUR):
        colour, marker = LOOKS.get(label, GREY)
        for axes, every in ((complete, 4), (enlarged, 1)):
            axes.plot(bits.loc[label], color=colour, marker=marker, markersize=3.5, markevery=every)
    length_axis(complete, [64, *LENGTHS], TRAINED, "bits per byte", accuracy=False)
    length_axis(enlarged, [64, 128, 192, 256], TRAINED, "", accuracy=False)
    enlarged.set(ylim=ENLARGED, title="enlarged", xlabel="index in the window")
    complete.set(title="all", xlabel="index in the window")
    legend_below(figure, LOOKS, [*IN_COLOUR, "others"])
    save(figure, figures, "context")


def values(folder: Path) -> dict[str, Any]:
    """Return the tables of the page and the numbers in its text."""
    runs = read_archive(folder)
    bits = losses(runs)
    rescaled, deep, prose = (losses(read_archive(HERE / name)) for name in ("rope", "depth", "prose"))
    at_longest = bits[LONGEST].unstack("label").drop(columns="rope")
    # RoPE's windows of `TRAINED` bytes end with the scored bytes, so they are what a truncated model reads.
    tests = paired_t_tests(at_longest.sub(bits[TRAINED].xs("rope"), axis=0))
    cells = means(bits)[[TRAINED, LONGEST]].map("{:.2f}".format).rename(columns="at {:,}".format)
    cells["minus truncated RoPE"] = tests.apply(format_change, axis=1)
    cells["p"] = tests["p"].map("{:.2g}".format)
    by_label: Any = means(bits).stack().items()
    by_part = by_index(runs).loc["fox"]
    of_deep = deep[LONGEST].unstack("label")
    ((_, of_depth),) = paired_t_tests((of_deep["none"] - of_deep["rope"]).to_frame()).iterrows()
    return {
        "table": encoding_markdown(cells.fillna("–")),
        "rescaled": rescaled_table(rescaled),
        "further": further_table({"two layers": bits, "six layers": deep, "prose": prose}),
        "copied": runs.text.loc[runs.text["windows"] == "copy", "accuracy"].max(),
        "below": (tests["high"] < 0).sum(),
        "fox/first 64": by_part[64],
        "fox/next 192": by_part[[128, 192, 256]].mean(),
        "depth/none minus rope": format_change(of_depth),
        "depth/none minus rope/p": of_depth["p"],
        **{f"{label}/{column}": value for (label, column), value in by_label},
    }


def rescaled_table(bits: pd.DataFrame) -> str:
    """Return the rises of rescaled RoPEs, and where they differ from RoPE's and ALiBi's.

    The tests are paired t tests over seeds, one family by Holm's method.
    """
    rises = bits.sub(bits[TRAINED], axis=0)[LENGTHS[1:]].unstack("label")
    differences = {
        (label, other, length): rises[length, label] - rises[length, other]
        for label in RESCALED
        for other in ("rope", "alibi")
        for length in LENGTHS[1:]
    }
    tests: Any = paired_t_tests(pd.DataFrame(differences))
    lines = []
    for label in ("rope", *RESCALED, "alibi"):
        line = {"encoding": f"`{label}`", f"at {TRAINED}": f"{bits[TRAINED].xs(label).mean():.2f}"}
        line |= {f"rise to {length:,}": f"{rises[length, label].mean():+z.2f}" for length in LENGTHS[1:]}
        below = above = "–"
        if label in RESCALED:
            below = ", ".join(f"{n:,}" for n in LENGTHS[1:] if tests.loc[(label, "rope", n), "high"] < 0)
            above = ", ".join(f"{n:,}" for n in LENGTHS[1:] if tests.loc[(label, "alibi", n), "low"] > 0)
        lines.append(line | {"below RoPE at": below, "above ALiBi at": above})
    return table(pd.DataFrame(lines))


def further_table(studies: dict[str, pd.DataFrame]) -> str:
    """Return the loss at the training length and the rise with two and six layers, and on prose."""
    cells = {}
    for words, bits in studies.items():
        rows = means(bits)
        cells[f"{words}, at {TRAINED}"] = rows[TRAINED].map("{:.2f}".format)
        cells[f"{words}, rise"] = rows["rise"].map("{:+z.2f}".format)
    return encoding_markdown(pd.DataFrame(cells).loc[rows.index])  # those on prose


STUDY = Study(sweep=("text",), values=values, figures=(draw_lengths, draw_context))
