"""Compare rescalings of a pretrained model's RoPE past its training length with the model truncated."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.drawing import panel_grid, save, styles
from pe_experiments.pretrained.report import ENCODINGS
from pe_experiments.studies import Study, table

TRUNCATED, TRAINED, LONGEST = 2048, 8192, 16384  # tokens
RESCALINGS = ("as_is", "linear", "ntk", "llama3", "yarn")
THETA = 100_000  # base of the model as it is; NTK raises it
ENLARGED = (-0.06, 0.1)  # bits per byte


def by_stretch(folder: Path) -> pd.DataFrame:
    """Return bits per byte [stretches, (rescaling, length)]; up to `TRAINED` all rescalings are ``as_is``."""
    rows = pd.read_csv(folder / "stretches.csv")
    rows["bits_per_byte"] = rows["bits"] / rows["bytes"]
    blocks = pd.DataFrame(rows["block"].map(json.loads).tolist())  # of RoPE
    rows["rope"] = blocks["rope_type"].replace("default", "as_is").mask(blocks["rope_theta"] > THETA, "ntk")
    return rows.pivot(index="stretch", columns=["rope", "length"], values="bits_per_byte")


def draw(folder: Path, figures: Path) -> None:
    """Draw the differences from the model that reads only its last tokens, a dot per stretch of text."""
    bits = by_stretch(folder)
    truncated = bits["as_is", TRUNCATED]
    columns = {f"last {TRAINED:,} tokens": ("as_is", TRAINED)}
    columns |= {f"{name}, {LONGEST:,} tokens": (name, LONGEST) for name in reversed(RESCALINGS)}
    looks = styles(ENCODINGS.values())
    figure, (complete, enlarged) = panel_grid(2, 2, 2.3, sharey=True)
    for axes in (complete, enlarged):
        for place, (name, length) in enumerate(columns.values()):
            differences = bits[name, length] - truncated
            colour = looks[ENCODINGS[name]][0]
            axes.plot(differences, [place] * len(differences), "o", color=colour, markersize=3.5, alpha=0.5)
            axes.plot(differences.mean(), place, "|", color=colour, markersize=13, markeredgewidth=2)
        axes.axvline(0, color="0.6", linewidth=0.8)
        axes.set_yticks(range(len(columns)), [*columns])
    enlarged.set(xlim=ENLARGED, xticks=[-0.05, 0, 0.05, 0.1])
    complete.set_title("all", fontsize=8)
    enlarged.set_title("enlarged", fontsize=8)
    figure.supxlabel(f"bits per byte minus those of the model on its last {TRUNCATED:,} tokens", fontsize=8)
    save(figure, figures, "answer")


def values(folder: Path) -> dict[str, Any]:
    """Return the table of the page and the numbers in its text, such as ``yarn_16384``."""
    losses = pd.read_csv(folder / "bits_per_byte.csv").pivot(
        index="length", columns="rope", values="bits_per_byte"
    )
    means = losses[[*RESCALINGS]].map("{:.3f}".format).rename(columns="`{}`".format, index="{:,}".format)
    return {
        **{f"{rope}_{length}": loss for rope in RESCALINGS for length, loss in losses[rope].items()},
        "rise": losses[["yarn", "llama3", "ntk"]].max(axis="columns")[LONGEST] - losses["as_is"][TRAINED],
        "means": table(means.rename_axis("context length").reset_index()),
    }


STUDY = Study(values=values, figures=(draw,))
