"""Write the results of an evaluation of a pretrained model as a CSV, a figure and a page, and log them."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from rich.table import Table

from pe_experiments.configuration.schema import LoggerConfig
from pe_experiments.drawing import GREY, drawing, render, styles, text, write_figure
from pe_experiments.store.csv_files import to_csv
from pe_experiments.store.tracking import FIGURE, evaluation_loggers
from pe_experiments.terminal.console import print_table, say
from pe_experiments.terminal.files import read_json, write_atomically

# The encoding that is equal to each rescaling and drawn in the same style.
ENCODINGS = {"as_is": "rope", "truncated": "rope", "linear": "rope_linear", "ntk": "rope_ntk",
             "yarn": "rope_yarn", "llama3": "rope_llama3"}  # fmt: skip


def write(folder: Path, table: pd.DataFrame, facts: dict[str, Any]) -> None:
    """Write ``bits_per_byte.csv``, ``bits_per_byte.png`` and ``report.html`` to the folder.

    Args:
        folder: the folder of the evaluation.
        table: a row per rescaling and context length.
        facts: the content of ``settings.json``: request, settings, versions and properties of the model.
    """
    rows: Any = table.astype(object).where(table.notna(), None).to_dict("records")
    write_atomically(folder / "bits_per_byte.csv", to_csv(list(table.columns), rows))
    figure_path = folder / "bits_per_byte.png"
    _draw(table, facts, figure_path)
    page = render(
        Path(__file__).with_name("page.html.j2"),
        facts=facts,
        figure=figure_path.read_bytes(),
        values=_by_length(table),
        factors=table.dropna(subset="factor").groupby("length")["factor"].first().to_dict(),
    )
    write_atomically(folder / "report.html", page)


def _by_length(table: pd.DataFrame) -> dict[Any, dict[str, float]]:
    """Return the bits per byte of each rescaling by context length."""
    return {length: dict(zip(rows["rope"], rows["bits_per_byte"], strict=True))
            for length, rows in table.groupby("length")}  # fmt: skip


def _draw(table: pd.DataFrame, facts: dict[str, Any], path: Path) -> None:
    """Draw bits per byte over context length, with a line for each rescaling."""
    style_of = styles(ENCODINGS.values())
    original = facts["original_length"]
    with drawing():
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        for rope, curve in table.groupby("rope", sort=False):
            colour, marker = style_of[ENCODINGS[str(rope)]]
            line = "--" if rope == "truncated" else "-"
            axes.plot(curve["length"], curve["bits_per_byte"], line, color=colour, marker=marker, label=rope)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(sorted(table["length"].unique())))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        if original:
            axes.axvline(original, color=GREY, linestyle=(0, (4, 2)), linewidth=1.0)
            axes.text(original, 1.01, f"original length {original:,}", transform=axes.get_xaxis_transform(),
                      ha="center", va="bottom", fontsize=7, color=GREY)  # fmt: skip
        axes.set_xlabel("context length (tokens)")
        axes.set_ylabel("bits per byte")
        axes.set_title(text(facts["name"], 80), loc="left", pad=14)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        write_figure(figure, path)


def log(
    config: LoggerConfig, folder: Path, results_dir: Path, table: pd.DataFrame, facts: dict[str, Any]
) -> None:
    """Log the settings, the bits per byte of each rescaling at each context length, and the figure."""
    for logger in evaluation_loggers(config, folder, results_dir, facts["name"]):
        logger.log_hyperparams(facts["settings"])
        for length, values in _by_length(table).items():
            logger.log_metrics({f"bits_per_byte/{rope}": value for rope, value in values.items()}, length)
        _log_figure(logger, folder / "bits_per_byte.png")
        logger.finalize("success")
        if hasattr(logger, "close"):
            logger.close()


def _log_figure(logger: Any, path: Path) -> None:
    """Log a figure to Weights & Biases or MLflow; other loggers ignore it."""
    if hasattr(logger, "log_image"):  # Weights & Biases
        import wandb

        logger.log_image(FIGURE, [str(path)])
        wandb.finish()
    elif hasattr(logger, "run_id"):  # MLflow
        logger.experiment.log_artifact(logger.run_id, str(path))


def show(folder: Path) -> None:
    """Print the table of a finished evaluation and the paths of its files."""
    table = pd.read_csv(folder / "bits_per_byte.csv")
    original = read_json(folder / "settings.json")["original_length"]
    ropes = table["rope"].unique()
    printed_table = Table("length", *ropes, "", show_edge=False, caption="bits per byte; lower is better")
    for length, values in _by_length(table).items():
        note = ""
        if length == original:
            note = "<- original length"
        elif original:
            note = f"{length / original:g}x"
        printed_table.add_row(f"{length}", *(f"{values[rope]:.3f}" for rope in ropes), note)
    print_table(printed_table)
    for name in ("bits_per_byte.csv", "bits_per_byte.png", "report.html"):
        say(f"{folder / name}")
