"""Copying random symbols in Kazemnejad et al.'s released runs and in ours of six layers, curve by curve."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from pe_experiments.drawing import length_axis, save, styles
from pe_experiments.published import markdown_table, read_archive, with_settings

HERE = Path(__file__).parent
VARIANT = "cmc_tr20_ts40"  # random symbols, trained to 20, evaluated to 40
ENCODINGS = {"none": "none", "alibi": "alibi", "t5_relative_bias": "t5", "rotary": "rope_partial",
             "abs_sinusoid": "sinusoidal"}  # fmt: skip
TRAINED, LENGTHS, LONGEST = 20, (25, 30, 40), 40
TITLES = ("Kazemnejad et al.: 107 M parameters, 3 runs", "here: 0.3 M parameters, 5 runs")
RANKS = """\
By rank, the two studies agree in {same_25} of {of_25} pairs of encodings at 25 symbols and in {same_30} \
of {of_30} at 30 (Spearman's rho {rho_25:+.2f} and {rho_30:+.2f}; with five encodings, neither is \
significant)."""

Curves = pd.DataFrame  # [encoding and run, length], exact match


def curves() -> tuple[Curves, Curves]:
    """Theirs and ours."""
    released = pd.read_csv(HERE / "kazemnejad2023.csv")
    released = released[released["variant"] == VARIANT]
    released = released.assign(encoding=released["encoding"].map(ENCODINGS))
    theirs = released.pivot(index=["encoding", "run"], columns="length", values="exact_match")
    runs = read_archive(HERE / "conditions")
    table = with_settings(runs, layers="model.num_layers")
    table = table[(table["task"] == "copy") & (table["layers"] == 6)]
    points = runs.curves[runs.curves["name"].isin(table["name"])]
    points = points[points["content_length"].between(TRAINED, LONGEST)]
    points = points.rename(columns={"label": "encoding", "seed": "run"})
    return theirs, points.pivot(index=["encoding", "run"], columns="content_length", values="exact_match")


def draw(folder: Path) -> None:
    """The mean over runs as a line, each run as a thin one."""
    figure, looks = Figure(figsize=(7.2, 2.9), layout="constrained"), styles(ENCODINGS.values())
    panels = figure.subplots(1, 2, sharey=True)
    for axes, study, title in zip(panels, curves(), TITLES, strict=True):
        length_axis(axes, [*LENGTHS, TRAINED], TRAINED, "exact match")
        for encoding, (colour, marker) in looks.items():
            runs = study.loc[encoding]
            axes.plot(runs.columns, runs.T, color=colour, linewidth=0.6, alpha=0.4)
            axes.plot(runs.columns, runs.mean(), color=colour, marker=marker, markersize=4, label=encoding)
        axes.set_title(title)
    panels[1].set_ylabel("")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False)
    save(figure, folder, "kazemnejad")


def blocks() -> dict[str, str]:
    """Exact match of both by encoding and length, and how far their orders agree."""
    theirs, ours = curves()
    heading = ["encoding", *(f"{n} symbols: {whose}" for n in LENGTHS for whose in ("theirs", "ours"))]
    rows = [
        [f"`{encoding}`", *(_cell(study.loc[encoding][n]) for n in LENGTHS for study in (theirs, ours))]
        for encoding in ENCODINGS.values()
    ]
    values: dict[str, float] = {}
    for n in LENGTHS[:2]:
        means = [
            study[n].groupby("encoding").mean()[[*ENCODINGS.values()]].to_numpy() for study in (theirs, ours)
        ]
        signs = [
            [np.sign((study[a] - study[b]).round(9)) for study in means] for a, b in combinations(range(5), 2)
        ]
        apart = [pair for pair in signs if 0 not in pair]
        values |= {f"same_{n}": sum(a == b for a, b in apart), f"of_{n}": len(apart)}
        values[f"rho_{n}"] = stats.spearmanr(means[0], means[1]).statistic
    return {"curves": markdown_table(heading, rows), "by_rank": RANKS.format_map(values)}


def _cell(values: pd.Series) -> str:
    return f"{values.mean():.2f} ({values.min():.2f} to {values.max():.2f})"
