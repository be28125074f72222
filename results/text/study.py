"""Byte-level language models past their training length: bits per byte at eight times the context.

The learning rate of each encoding was chosen on `TUNING_SEED`; three other seeds count. Shapes of tables:
encodings, seeds.
"""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import paired_t_tests
from pe_experiments.drawing import bits_axis, draw_seeds, legend_below, length_axis, save, styles
from pe_experiments.studies import Study, bits_per_byte, format_change, read_archive, table, with_settings

HERE = Path(__file__).parent
TUNING_SEED = 100
TRAINED, LENGTHS = 256, [256, 512, 1024, 2048]  # bytes of context
LONGEST = LENGTHS[-1]
ARGUMENTS = r"\(max_positions=\d+\)"  # in a label
ENLARGED = (2.0, 2.65)  # bits per byte in enlarged panels
FURTHER = {"six layers": "depth", "prose": "prose"}
RESCALED = ("rope_yarn", "rope_linear", "rope_dynamic_ntk", "rope_ntk")
IN_COLOUR = (
    "sinusoidal",
    "rope",
    "t5",
    "alibi",
    "kerple_log",
    "cpb_log",
    "fox",
    "fox(initial_bias=4)",
    "rope_nope",
)
GREY = ("0.75", "")  # encodings that are not in colour


def scores(runs: Runs) -> pd.DataFrame:
    """Return a row per run that counts: label, seed, status, rate, and bits per byte by context length."""
    rows = with_settings(runs, rate="training.learning_rate").set_index("name")
    rows = rows[["label", "seed", "status", "rate"]].join(bits_per_byte(runs, LENGTHS))
    rows["label"] = rows["label"].str.replace(ARGUMENTS, "", regex=True)
    return rows[rows["seed"] != TUNING_SEED]


def by_encoding(runs: Runs) -> dict[str, pd.DataFrame]:
    """Return the scores of each encoding by seed, sorted by the mean loss at the longest context."""
    groups = scores(runs).set_index("seed").groupby("label")
    return {str(label): groups.get_group(label) for label in groups[LONGEST].mean().sort_values().index}


def by_index(runs: Runs) -> pd.DataFrame:
    """Return mean bits per byte [encodings, last indices] in parts of 64 bytes of windows of 2,048 bytes."""
    labels = scores(runs)["label"]
    rows = runs.text[runs.text["slice"] == "index"]
    rows = rows.assign(label=rows["name"].map(labels)).dropna(subset=["label"])
    return rows.pivot_table("bits_per_byte", "label", "last_index")


def draw_lengths(folder: Path, figures: Path) -> None:
    """Draw bits per byte over context length: the low losses on a linear axis, and all on a logarithmic one.

    The dashed line is RoPE that reads only the last `TRAINED` bytes.
    """
    groups = by_encoding(read_archive(folder))
    looks: Any = {"others": GREY} | styles(IN_COLOUR) | {"cpb_log": ("#000000", "*")}
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    enlarged, complete = figure.subplots(1, 2)
    for axes in (enlarged, complete):
        for label in sorted(groups, key=lambda label: label in IN_COLOUR):  # grey lines below
            draw_seeds(axes, LENGTHS, groups[label][LENGTHS], looks.get(label, GREY))
        axes.axhline(groups["rope"][TRAINED].mean(), color=looks["rope"][0], linestyle="--", linewidth=1.2)
        length_axis(axes, LENGTHS, TRAINED, "bits per byte", accuracy=False)
        axes.set_xlabel("context length (bytes)")
    bits_axis(complete)
    enlarged.set(ylim=ENLARGED, title="enlarged")
    complete.set(title="all")
    legend_below(figure, looks, [*IN_COLOUR, "others"])
    save(figure, figures, "answer")


def draw_context(folder: Path, figures: Path) -> None:
    """Draw bits per byte by index in windows of `LONGEST` bytes, and the same enlarged."""
    losses = by_index(read_archive(folder))
    looks: Any = {"others": GREY} | styles(IN_COLOUR) | {"cpb_log": ("#000000", "*")}
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    complete, enlarged = figure.subplots(1, 2)
    for label in sorted(losses.index, key=lambda label: label in IN_COLOUR):
        colour, marker = looks.get(label, GREY)
        for axes, every in ((complete, 4), (enlarged, 1)):
            axes.plot(
                losses.columns,
                losses.loc[label],
                color=colour,
                marker=marker,
                markersize=3.5,
                markevery=every,
            )
    length_axis(complete, [64, *LENGTHS], TRAINED, "bits per byte", accuracy=False)
    length_axis(enlarged, [64, 128, 192, 256], TRAINED, "", accuracy=False)
    enlarged.set(ylim=ENLARGED, title="enlarged", xlabel="index in the window")
    complete.set(title="all", xlabel="index in the window")
    legend_below(figure, looks, [*IN_COLOUR, "others"])
    save(figure, figures, "context")


def values(folder: Path) -> dict[str, Any]:
    """Return the tables of the page and the numbers in its text."""
    runs = read_archive(folder)
    groups = by_encoding(runs)
    tests = truncation_tests(groups)
    values: dict[str, Any] = {
        "table": loss_table(groups, tests),
        "rescaled": rescaled_table(by_encoding(read_archive(HERE / "rope"))),
        "further": further_table(groups),
        "copied": runs.text.loc[runs.text["windows"] == "copy", "accuracy"].max(),
        "below": sum(interval.high < 0 for interval, _ in tests.values()),
    }
    for label, rows in groups.items():
        values[f"{label}/rise"] = (rows[LONGEST] - rows[TRAINED]).mean()
        values |= {f"{label}/{length}": rows[length].mean() for length in LENGTHS}
    losses = by_index(runs)
    values |= {
        "fox/first 64": losses.loc["fox", 64],
        "fox/next 192": losses.loc["fox", [128, 192, 256]].mean(),
    }
    deep = by_encoding(read_archive(HERE / "depth"))
    ((interval, p),) = paired_t_tests([(deep["none"][LONGEST] - deep["rope"][LONGEST]).to_numpy()])
    return values | {"depth/none minus rope": format_change(interval), "depth/none minus rope/p": p}


def truncation_tests(groups: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Return paired t tests of each loss at the longest context minus RoPE's on its last `TRAINED` bytes.

    RoPE's windows of `TRAINED` bytes end with the scored bytes, so they are what a truncated model reads.
    """
    truncated = groups["rope"][TRAINED]
    others = [label for label in groups if label != "rope"]
    differences = [(groups[label][LONGEST] - truncated).to_numpy() for label in others]
    return dict(zip(others, paired_t_tests(differences), strict=True))


def loss_table(groups: dict[str, pd.DataFrame], tests: dict[str, Any]) -> str:
    """Return a table of bits per byte, and their distance from truncated RoPE."""
    lines = []
    for label, rows in groups.items():
        interval, p = tests.get(label, (None, None))
        lines.append(
            {
                "encoding": f"`{label}`",
                f"at {TRAINED}": f"{rows[TRAINED].mean():.2f}",
                f"at {LONGEST:,}": f"{rows[LONGEST].mean():.2f}",
                "minus truncated RoPE": format_change(interval) if interval else "–",
                "p": f"{p:.2g}" if interval else "–",
            }
        )
    return table(pd.DataFrame(lines))


def rescaled_table(groups: dict[str, pd.DataFrame]) -> str:
    """Return the rises of rescaled RoPEs, and where they differ from RoPE's and ALiBi's.

    The tests are paired t tests over seeds, one family by Holm's method.
    """
    keys = [
        (label, length, other) for label in RESCALED for length in LENGTHS[1:] for other in ("rope", "alibi")
    ]

    def rise(label: str, length: int) -> pd.Series:
        return groups[label][length] - groups[label][TRAINED]

    tests = paired_t_tests(
        [(rise(label, length) - rise(other, length)).to_numpy() for label, length, other in keys]
    )
    by_key = dict(zip(keys, tests, strict=True))
    lines = []
    for label in ("rope", *RESCALED, "alibi"):
        line = {"encoding": f"`{label}`", f"at {TRAINED}": f"{groups[label][TRAINED].mean():.2f}"}
        line |= {f"rise to {length:,}": f"{rise(label, length).mean():+z.2f}" for length in LENGTHS[1:]}
        below = above = "–"
        if label in RESCALED:
            below = ", ".join(f"{n:,}" for n in LENGTHS[1:] if by_key[label, n, "rope"][0].high < 0)
            above = ", ".join(f"{n:,}" for n in LENGTHS[1:] if by_key[label, n, "alibi"][0].low > 0)
        lines.append(line | {"below RoPE at": below, "above ALiBi at": above})
    return table(pd.DataFrame(lines))


def further_table(groups: dict[str, pd.DataFrame]) -> str:
    """Return the loss at the training length and the rise with two and six layers, and on prose."""
    studies = {"two layers": groups}
    studies |= {words: by_encoding(read_archive(HERE / name)) for words, name in FURTHER.items()}
    lines = []
    for label in studies["prose"]:
        line = {"encoding": f"`{label}`"}
        for words, study in studies.items():
            rows = study[label]
            line[f"{words}, at {TRAINED}"] = f"{rows[TRAINED].mean():.2f}"
            line[f"{words}, rise"] = f"{(rows[LONGEST] - rows[TRAINED]).mean():+z.2f}"
        lines.append(line)
    return table(pd.DataFrame(lines))


STUDY = Study(sweep=("text",), values=values, figures=(draw_lengths, draw_context))
