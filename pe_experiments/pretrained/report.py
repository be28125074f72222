"""Write the results of an evaluation of a pretrained model as a CSV, a figure and a page, and log them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from rich.table import Table

from pe_experiments.configuration.schema import LoggerSections
from pe_experiments.drawing import GREY, drawing, escaped, render, styles, write_figure
from pe_experiments.store.tracking import LoggedRun, Loggers
from pe_experiments.tasks import DEPTHS
from pe_experiments.terminal.console import print_table, say
from pe_experiments.terminal.errors import UserError, one_line
from pe_experiments.terminal.files import make_folder, read_json, write_atomically

# The encoding that is equal to each rescaling and drawn in the same style.
ENCODINGS = {"as_is": "rope", "truncated": "rope", "linear": "rope_linear", "ntk": "rope_ntk",
             "yarn": "rope_yarn", "llama3": "rope_llama3", "none": "none"}  # fmt: skip
FINETUNED = "_finetuned"  # ends the label of a model after fine-tuning

VALUES = {"bits_per_byte": "bits per byte (lower is better)", "accuracy": "accuracy; intervals: accuracy.csv"}


def write(folder: Path, table: pd.DataFrame, by_depth: pd.DataFrame | None, facts: dict[str, Any]) -> None:
    """Write the table as CSV, its figure, and ``report.html`` to the folder.

    The table has a row per rescaling and context length, and ``by_depth`` one for each depth of the needle.
    ``facts`` is the content of ``settings.json``: request, settings, versions and properties of the model.
    """
    value = _value(facts)
    write_atomically(folder / f"{value}.csv", table.to_csv(index=False))
    if by_depth is not None:
        write_atomically(folder / f"{value}_by_depth.csv", by_depth.to_csv(index=False))
    figure_path = folder / f"{value}.png"
    with drawing():
        if by_depth is None:
            figure = Figure(figsize=(6.4, 3.6), layout="constrained")
            _draw_lines(figure.subplots(), table, facts)
        else:
            figure = Figure(figsize=(7.2, 6.0), layout="constrained")
            halves: Any = figure.subfigures(2, 1, height_ratios=(3.4, 2.2))
            _draw_lines(halves[0].subplots(), table, facts)
            _draw_depths(halves[1], by_depth, facts)
        write_figure(figure, figure_path)
    page = render(
        Path(__file__).with_name("page.html.j2"),
        facts=facts,
        figure=figure_path.read_bytes(),
        values=_cells(table, value, intervals=True),
        factors=table.dropna(subset="factor").groupby("length")["factor"].first().to_dict(),
    )
    write_atomically(folder / "report.html", page)


def _value(facts: dict[str, Any]) -> str:
    """Return the column that an evaluation measures, a key of `VALUES`."""
    return "bits_per_byte" if facts["settings"].get("measure", "loss") == "loss" else "accuracy"


def _cells(table: pd.DataFrame, value: str, intervals: bool = False) -> dict[Any, dict[str, str]]:
    """Return the cells of a printed table by context length and rescaling."""
    cells: dict[Any, dict[str, str]] = {}
    for row in table.to_dict("records"):
        text = f"{row[value]:.3f}"
        if intervals and "low" in row:
            text = f"{row[value]:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        cells.setdefault(row["length"], {})[str(row["rope"])] = text
    return cells


def _draw_lines(axes: Axes, table: pd.DataFrame, facts: dict[str, Any]) -> None:
    """Draw the values over context length, with a line for each rescaling."""
    value = _value(facts)
    style_of = styles(ENCODINGS.values())
    original = facts["original_length"]
    labels = set(table["rope"])
    for rope, curve in table.groupby("rope", sort=False):
        name = str(rope).removesuffix(FINETUNED)
        colour, marker = style_of[ENCODINGS[name]]
        line = "--" if name == "truncated" else "-"
        opacity = 0.35 if f"{rope}{FINETUNED}" in labels else 1.0  # faint before fine-tuning
        axes.plot(curve["length"], curve[value], line, color=colour, marker=marker, label=rope, alpha=opacity)
        if "low" in curve:
            axes.vlines(curve["length"], curve["low"], curve["high"], color=colour, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(table["length"].unique())))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda length, _: f"{length:,.0f}")
    if original:
        axes.axvline(original, color=GREY, linestyle=(0, (4, 2)), linewidth=1.0)
        axes.text(original, 1.01, f"original length {original:,}", transform=axes.get_xaxis_transform(),
                  ha="center", va="bottom", fontsize=7, color=GREY)  # fmt: skip
    axes.set_xlabel("context length (tokens)")
    axes.set_ylabel(value.replace("_", " "))
    if value == "accuracy":
        axes.set_ylim(-0.03, 1.03)
    axes.set_title(escaped(facts["name"], 80), loc="left", pad=14)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_depths(figure: Any, by_depth: pd.DataFrame, facts: dict[str, Any]) -> None:
    """Draw a heatmap of accuracy by context length and depth for each rescaling.

    Depth increases downwards, as in a text, and cells without examples are grey. A line marks the end of the
    original length.
    """
    ropes = by_depth["rope"].unique()
    panels = figure.subplots(1, len(ropes), sharey=True, squeeze=False)[0]
    for axes, rope in zip(panels, ropes, strict=True):
        rows = by_depth[by_depth["rope"] == rope]
        cells = rows.pivot_table("accuracy", "depth", "length").reindex(DEPTHS)
        lengths = cells.columns.tolist()
        extent = (-0.5, len(lengths) - 0.5, 1, 0)
        axes.set_facecolor("0.85")
        image = axes.imshow(cells, cmap="viridis", vmin=0, vmax=1, aspect="auto", extent=extent)
        columns_within = sum(length <= (facts["original_length"] or 0) for length in lengths)
        if 0 < columns_within < len(lengths):
            axes.axvline(columns_within - 0.5, color="#D55E00", linewidth=2)
        axes.set_xticks(range(len(lengths)), [f"{length}" for length in lengths], rotation=90)
        axes.set_title(rope, fontsize=8)
    panels[0].set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    panels[0].set_ylabel("depth")
    figure.supxlabel("context length (tokens)", fontsize=8)
    figure.colorbar(image, ax=list(panels), label="accuracy")


def log(
    config: LoggerSections, folder: Path, results_dir: Path, table: pd.DataFrame, facts: dict[str, Any]
) -> None:
    """Log the settings, the value of each rescaling at each context length, and the figure."""
    value = _value(facts)
    # In a folder of its own, since a logger's files replace earlier ones and the folder is the user's choice.
    logged_run = LoggedRun(facts["name"], make_folder(folder / "loggers"), results_dir, facts["settings"])
    loggers = Loggers(config, logged_run)
    length: Any
    for length, rows in table.groupby("length"):
        logged = dict(zip(f"{value}/" + rows["rope"], rows[value], strict=True))
        loggers.log({"length": length, **logged}, length)
    loggers.summary({}, folder / f"{value}.png")
    loggers.close(succeeded=True)


@contextmanager
def undamaged(file: Path) -> Iterator[None]:
    """Convert the errors of reading a damaged file, or one that was not written here, to a `UserError`."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        why = one_line(f"{type(error).__name__}: {error}")
        cure = "delete it and settings.json to evaluate again, or set out to another folder"
        raise UserError(f"{file} is missing or damaged ({why}); {cure}") from error


def show(folder: Path) -> None:
    """Print the table of a finished evaluation and the paths of its files."""
    with undamaged(folder / "settings.json"):
        facts = read_json(folder / "settings.json")
        value = _value(facts)
        original = facts["original_length"]
    with undamaged(folder / f"{value}.csv"):
        table = pd.read_csv(folder / f"{value}.csv")
        ropes = table["rope"].unique()
        cells_by_length = _cells(table, value)
    printed_table = Table("length", *ropes, "", show_edge=False, caption=VALUES[value])
    for length, cells in cells_by_length.items():
        note = ""
        if length == original:
            note = "<- original length"
        elif original:
            note = f"{length / original:g}x"
        printed_table.add_row(f"{length}", *(cells[rope] for rope in ropes), note)
    print_table(printed_table)
    for name in (f"{value}.csv", f"{value}.png", "report.html"):
        say(f"{folder / name}")
