"""Analyse byte-level language models of source code past their training length."""

from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import ALPHA, paired_t_tests, rank_correlation, t_interval
from pe_experiments.drawing import bits_axis, draw_seeds, legend_below, length_axis, save, styles
from pe_experiments.studies import (
    Study,
    bits_per_byte,
    format_change,
    format_rate,
    markdown_table,
    read_archive,
    table,
)

HERE = Path(__file__).parent
# Context lengths in bytes.
TRAINED = 256
LENGTHS = [256, 512, 1024, 2048]
LONGEST = LENGTHS[-1]
ARGUMENTS = r"\([^)]*\)"  # in the label of an encoding; the labels of the bank have none
ENLARGED = (2.0, 2.65)  # bits per byte in enlarged panels
FLAT = 0.05  # bits per byte; a smaller rise counts as no rise
RESCALED = ("rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn")
FURTHER = ("rope", "depth", "prose")


def scores(runs: Runs) -> pd.DataFrame:
    """Return a row per run: label without arguments, seed, status, and bits per byte by context length."""
    rows = runs.runs.set_index("name")[["label", "seed", "status"]].join(bits_per_byte(runs, LENGTHS))
    return rows.assign(label=rows["label"].str.replace(ARGUMENTS, "", regex=True))


def by_encoding(runs: Runs) -> dict[str, pd.DataFrame]:
    """Return the scores of each encoding by seed, sorted by the mean loss at the longest context."""
    groups = scores(runs).set_index("seed").groupby("label")
    return {str(label): groups.get_group(label) for label in groups[LONGEST].mean().sort_values().index}


def by_index(runs: Runs) -> pd.DataFrame:
    """Return mean bits per byte [encodings, last indices] in parts of 64 bytes of windows of 2,048 bytes."""
    rows = runs.text[runs.text["slice"] == "index"].merge(runs.runs[["name", "label"]], on="name")
    rows = rows.assign(label=rows["label"].str.replace(ARGUMENTS, "", regex=True))
    return rows.pivot_table("bits_per_byte", "label", "last_index")


def draw_lengths(folder: Path, figures: Path) -> None:
    """Draw bits per byte over context length: the low losses on a linear axis, and all on a logarithmic one.

    The dashed line is RoPE that reads only the last `TRAINED` bytes.
    """
    groups = by_encoding(read_archive(folder))
    looks = styles(groups)
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    enlarged, complete = figure.subplots(1, 2)
    truncated = groups["rope"][TRAINED].mean()
    for axes in (enlarged, complete):
        for label, rows in groups.items():
            draw_seeds(axes, LENGTHS, rows[LENGTHS], looks[label])
        axes.axhline(truncated, color=looks["rope"][0], linestyle="--", linewidth=1.2)
        length_axis(axes, LENGTHS, TRAINED, "bits per byte", accuracy=False)
        axes.set_xlabel("context length (bytes)")
    bits_axis(complete)
    enlarged.set(ylim=ENLARGED, title="enlarged")
    complete.set(title="all")
    legend_below(figure, looks, looks)
    save(figure, figures, "answer")


def draw_contexts(folder: Path, figures: Path) -> None:
    draw_context(read_archive(folder), figures, "context")
    draw_context(read_archive(HERE / "rope"), figures, "rescaled")


def draw_context(runs: Runs, folder: Path, slug: str) -> None:
    """Draw bits per byte by index in windows of `LONGEST` bytes, and on repeated 4-grams by context."""
    names = runs.runs.set_index("name")["label"].str.replace(ARGUMENTS, "", regex=True)
    rows = runs.text.assign(label=runs.text["name"].map(names))
    looks = styles(sorted(set(names)))
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    by_place, enlarged, repeated = figure.subplots(1, 3)
    for label, losses in by_index(runs).iterrows():
        for axes in (by_place, enlarged):
            draw = {"color": looks[str(label)][0], "linewidth": 1.4, "marker": looks[str(label)][1]}
            axes.plot(losses.index, losses, markersize=3.5, markevery=4 if axes is by_place else 1, **draw)
    near, far = (
        rows[rows["slice"] == name].groupby(["label", "length"])["bits_per_byte"].mean().unstack("label")
        for name in ("repeated_near", "repeated_far")
    )
    for means, line in ((near, "-"), (far, "--")):
        for label, (colour, marker) in looks.items():
            repeated.plot(means.index, means[label], line, color=colour, marker=marker, markersize=3.5)
    length_axis(by_place, [64, *LENGTHS], TRAINED, "bits per byte", accuracy=False)
    length_axis(enlarged, [64, 128, 192, 256], TRAINED, "", accuracy=False)
    length_axis(repeated, LENGTHS, TRAINED, "", accuracy=False)
    for axes, title, x in (
        (by_place, "by index", "index in the window"),
        (enlarged, "by index, enlarged", "index in the window"),
        (repeated, "last byte of repeated 4-grams", "context length (bytes)"),
    ):
        axes.set_title(title)
        axes.set_xlabel(x)
    enlarged.set_ylim(*ENLARGED)
    legend_below(figure, looks, looks)
    save(figure, folder, slug)


def values(folder: Path) -> dict[str, Any]:
    """Return the tables of the page and the numbers in its text."""
    runs = read_archive(folder)
    groups = by_encoding(runs)
    values: dict[str, Any] = {"table": rise_table(runs), "truncated": truncated_table(groups)}
    values |= {name: rise_table(read_archive(HERE / name)) for name in FURTHER}
    values |= published_tables(groups)
    values["extension"] = extension_table(by_encoding(read_archive(HERE / "rope")))
    values["copied"] = runs.text.loc[runs.text["windows"] == "copy", "accuracy"].max()
    for label, rows in groups.items():
        values[f"{label}_rise"] = (rows[LONGEST] - rows[TRAINED]).mean()
        values[f"{label}_at_end"] = rows[LONGEST].mean()
        values |= {f"{label}_at_{length}": rows[length].mean() for length in LENGTHS}
    for encoding, losses in by_index(runs).iterrows():
        values |= {f"{encoding}_index_{index:g}": loss for index, loss in losses.items()}
        values[f"{encoding}_later"] = losses[[128, 192, 256]].mean()
    for name in ("depth", "prose"):
        further = by_encoding(read_archive(HERE / name))
        above_fox = (further["alibi"][TRAINED] - further["fox"][TRAINED]).to_numpy()
        ((interval, p),) = paired_t_tests([above_fox])
        values |= {f"{name}_alibi_above_fox": interval.estimate, f"{name}_alibi_p": p}
        values[f"{name}_p"] = "< 0.001" if p < 0.001 else f"= {p:.2f}"
    ((interval, p),) = paired_t_tests([(groups["alibi"][TRAINED] - groups["fox"][TRAINED]).to_numpy()])
    return values | {"alibi_above_fox": interval.estimate, "alibi_p": p}


def truncated_table(groups: dict[str, pd.DataFrame]) -> str:
    """Return a table of losses at the longest context minus those of RoPE on its last `TRAINED` bytes.

    RoPE's windows of `TRAINED` bytes end with the scored bytes, so they are what a truncated model reads. The
    tests are paired t tests over seeds with Holm's correction.
    """
    truncated = groups["rope"][TRAINED]
    differences = {label: rows[LONGEST] - truncated for label, rows in groups.items() if label != "rope"}
    tests = paired_t_tests([values.to_numpy() for values in differences.values()])
    rows = []
    for label, (interval, p) in zip(differences, tests, strict=True):
        rows.append(
            [f"`{label}`", f"{groups[label][LONGEST].mean():.2f}", format_change(interval), f"{p:.2g}"]
        )
    heading = ["encoding", f"at {LONGEST:,} bytes", "minus RoPE on its last 256 bytes", "p"]
    return markdown_table(heading, rows)


def published_tables(groups: dict[str, pd.DataFrame]) -> dict[str, str]:
    """Return a table of published changes at eight times the training length, and one of their ranks.

    Our rises, beside them, count as tied below `FLAT`.
    """
    published = pd.read_csv(HERE / "published.csv")
    wide = published.pivot(index="encoding", columns="models", values="change")[
        [*published["models"].unique()]
    ]
    rises = pd.Series({label: (rows[LONGEST] - rows[TRAINED]).mean() for label, rows in groups.items()})
    ours = rises.where(rises >= FLAT, 0.0)
    lines = []
    for encoding in [label for label in groups if label in wide.index]:
        cells = wide.loc[encoding].map("{:+.2f}".format, na_action="ignore").fillna("–")
        lines.append([f"`{encoding}`", *cells, f"{round(rises[encoding], 2) + 0.0:+.2f}"])  # no -0.00
    ranks = []
    for models in wide:
        known = wide[models].dropna()
        rho, p = rank_correlation(known.to_numpy(), ours[known.index].to_numpy())
        ranks.append([f"{models}", f"{len(known)}", f"{rho:+.2f}", f"{p:.3f}"])
    return {
        "published": markdown_table(["encoding", *map(str, wide), "here, 0.1 M, 256 to 2,048"], lines),
        "published_ranks": markdown_table(["models", "encodings", "rho with our rises", "p"], ranks),
    }


def rise_table(runs: Runs) -> str:
    """Return a table of bits per byte at the training length and their rise with the context length."""
    groups = by_encoding(runs)
    best = min(groups, key=lambda label: (groups[label][TRAINED].mean(), label))
    cells = pd.DataFrame({"encoding": [f"`{label}`" for label in groups]})
    cells[f"at {TRAINED} bytes"] = [f"{rows[TRAINED].mean():.2f}" for rows in groups.values()]
    differences = []
    for label, rows in groups.items():
        by_seed = (rows[TRAINED] - groups[best][TRAINED]).dropna()
        differences.append("–" if label == best else format_change(t_interval(by_seed.to_numpy())))
    cells[f"minus `{best}`, at {TRAINED}"] = differences
    for length in LENGTHS[1:]:
        rises = [rows[length] - rows[TRAINED] for rows in groups.values()]
        cells[f"rise to {length:,}"] = [format_change(t_interval(rise.to_numpy())) for rise in rises]
    cells["rises"] = [verdict(rise, len(groups)) for rise in rises]  # at the longest context
    if runs.tuning:
        rates = pd.Series({choice["encoding"]: format_rate(choice) for choice in runs.tuning})
        rates.index = rates.index.str.replace(ARGUMENTS, "", regex=True)
        cells["learning rate"] = rates[[*groups]].to_numpy()
    return table(cells)


def verdict(rises: pd.Series, encodings: int) -> str:
    """Return whether the loss rises by more than `FLAT`.

    Args:
        rises: rises in bits per byte, one per seed.
        encodings: number of encodings, for Bonferroni's correction.
    """
    interval = t_interval(rises.to_numpy(), ALPHA / encodings)
    if interval.high < FLAT:
        return "no"
    return "yes" if interval.low > FLAT else "unclear"


def extension_table(groups: dict[str, pd.DataFrame]) -> str:
    """Return a table that compares the rises of rescaled RoPEs with those of RoPE and ALiBi.

    The tests are paired t tests over seeds with Holm's correction.
    """
    lengths = [length for length in groups["rope"] if length in LENGTHS[1:]]
    rises = {label: rows[lengths].sub(rows[TRAINED], axis=0) for label, rows in groups.items()}
    differences = {
        (label, length, other): (rises[label][length] - rises[other][length]).to_numpy()
        for label, length, other in product(RESCALED, lengths, ("rope", "alibi"))
    }
    tests = dict(zip(differences, paired_t_tests([*differences.values()]), strict=True))
    rows = []
    for label, length in product(RESCALED, lengths):
        results = [tests[label, length, other] for other in ("rope", "alibi")]
        from_rope, from_alibi = (interval for interval, _ in results)
        extends = "no"
        if from_rope.high < 0:
            extends = "yes" if from_alibi.low > 0 else "yes; not separated from ALiBi"
        differences_with_p = [f"{format_change(interval)} (p {p:.2g})" for interval, p in results]
        rows.append([f"`{label}`", f"{length:,}", *differences_with_p, extends])
    return markdown_table(["encoding", "context", "rise minus RoPE's", "rise minus ALiBi's", "extends"], rows)


STUDY = Study(sweep=("text",), values=values, figures=(draw_lengths, draw_contexts), compare=True)
