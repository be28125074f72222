"""What an evaluation of a pretrained model leaves: a CSV, a picture, a page, and the same in loggers."""

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

# Each rescaling is drawn like the encoding that does the same.
ENCODINGS = {"as_is": "rope", "linear": "rope_linear", "ntk": "rope_ntk", "yarn": "rope_yarn",
             "llama3": "rope_llama3"}  # fmt: skip


def write(folder: Path, table: pd.DataFrame, facts: dict[str, Any]) -> None:
    """Write ``bits_per_byte.csv``, ``bits_per_byte.png`` and ``report.html``."""
    rows: Any = table.astype(object).where(table.notna(), None).to_dict("records")
    write_atomically(folder / "bits_per_byte.csv", to_csv(list(table.columns), rows))
    picture = folder / "bits_per_byte.png"
    _draw(table, facts, picture)
    page = render(
        Path(__file__).with_name("page.html.j2"),
        facts=facts,
        figure=picture.read_bytes(),
        values=_by_length(table),
        factors=table.dropna(subset="factor").groupby("length")["factor"].first().to_dict(),
    )
    write_atomically(folder / "report.html", page)


def _by_length(table: pd.DataFrame) -> dict[Any, dict[str, float]]:
    return {length: dict(zip(rows["rope"], rows["bits_per_byte"], strict=True))
            for length, rows in table.groupby("length")}  # fmt: skip


def _draw(table: pd.DataFrame, facts: dict[str, Any], path: Path) -> None:
    """Draw bits per byte over context length, a line for every rescaling."""
    style_of = styles(ENCODINGS.values())
    original = facts["original_length"]
    with drawing():
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        for rope, curve in table.groupby("rope", sort=False):
            colour, marker = style_of[ENCODINGS[str(rope)]]
            axes.plot(curve["length"], curve["bits_per_byte"], color=colour, marker=marker, label=rope)
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
    """Log the bits per byte of every rescaling over context length, the settings and the picture."""
    for logger in evaluation_loggers(config, folder, results_dir, facts["name"]):
        logger.log_hyperparams(facts["settings"])
        for length, values in _by_length(table).items():
            logger.log_metrics({f"bits_per_byte/{rope}": value for rope, value in values.items()}, length)
        _log_picture(logger, folder / "bits_per_byte.png")
        logger.finalize("success")


def _log_picture(logger: Any, picture: Path) -> None:
    if hasattr(logger, "log_image"):  # Weights & Biases
        import wandb

        logger.log_image(FIGURE, [str(picture)])
        wandb.finish()
    elif hasattr(logger, "run_id"):  # MLflow
        logger.experiment.log_artifact(logger.run_id, str(picture))


def show(folder: Path) -> None:
    """Print the table of a finished evaluation and where its files are."""
    table = pd.read_csv(folder / "bits_per_byte.csv")
    original = read_json(folder / "settings.json")["original_length"]
    ropes = table["rope"].unique()
    printed = Table("length", *ropes, "", show_edge=False, caption="bits per byte; lower is better")
    for length, values in _by_length(table).items():
        note = (
            "" if not original else "<- original length" if length == original else f"{length / original:g}x"
        )
        printed.add_row(f"{length}", *(f"{values[rope]:.3f}" for rope in ropes), note)
    print_table(printed)
    for name in ("bits_per_byte.csv", "bits_per_byte.png", "report.html"):
        say(f"{folder / name}")
