"""Compare the released runs of Kazemnejad et al. on SCAN with ours (plan.md, SCAN)."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.statistics import rank_correlation
from pe_experiments.drawing import legend_below, length_axis, save, styles
from pe_experiments.studies import markdown_table, read_archive

from .kazemnejad import mean_and_range

HERE = Path(__file__).parent
STUDY = HERE / "scan"
SPLIT = "mdlen_tr25_ts48"  # trained to 25 actions, tested to 48, and learned in distribution
THEIRS = "Kazemnejad et al., 107 M"
OURS = "here, 0.3 M"
ENCODINGS = {"none": "none", "alibi": "alibi", "t5": "t5", "rope": "rope_partial", "sinusoidal": "sinusoidal"}
TRAINED, LONGEST = 25, 48  # actions
LEARNED = 0.9  # exact match in distribution
LENGTHS = [26, 27, 28, 30, 32, 33, 36, 40, 48]
SAME_ORDER = 0.9  # planned: a smallest rho of the five means


def exact_match() -> dict[str, pd.DataFrame]:
    """Return exact match by the name of the models: [encoding and run, length and ``in distribution``]."""
    released = pd.read_csv(HERE / "kazemnejad2023_classic.csv", dtype={"length": str})
    released = released[(released["dataset"] == "scan") & (released["split"] == SPLIT)]
    released = released[released["length"] != "overall"].assign(run=released["seed"])
    released["encoding"] = released["encoding"].map(ENCODINGS)
    curves = read_archive(STUDY).curves
    points = curves.assign(encoding=curves["label"], run=curves["seed"])
    points["length"] = points["content_length"].astype(str)
    trained = points["content_length"] <= TRAINED
    within = points[trained].groupby(["name", "encoding", "run"], as_index=False)["exact_match"].mean()
    points = pd.concat([points[~trained], within.assign(length="in distribution")])
    return {THEIRS: _wide(released), OURS: _wide(points)}


def _wide(rows: pd.DataFrame) -> pd.DataFrame:
    wide = rows.pivot(index=["encoding", "run"], columns="length", values="exact_match")
    return wide.rename(columns={str(length): length for length in LENGTHS})


def means(table: pd.DataFrame) -> pd.Series:
    """Return the mean exact match of each encoding over runs and the nine lengths past training."""
    return table.groupby("encoding")[LENGTHS].mean().T.mean()


def blocks() -> dict[str, Any]:
    """Return the table of exact match and that of rank correlations with the released runs."""
    tables = exact_match()
    lines = []
    for encoding in ENCODINGS.values():
        cells = [f"`{encoding}`"]
        for table in tables.values():
            runs = table[table.index.get_level_values("encoding") == encoding]
            learned = int((runs["in distribution"] >= LEARNED).sum())
            cells += [f"{learned} of {len(runs)}", mean_and_range(runs[LENGTHS].T.mean())]
        lines.append(cells)
    heading = ["encoding"]
    for name in tables:
        heading += [f"{name}: learned", f"{name}: past training"]
    return {"scan": markdown_table(heading, lines), **verdict(tables)}


def verdict(tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Return Spearman's rho of the five means, theirs and ours, by all runs and by single seeds of ours."""
    released = means(tables[THEIRS])
    ours = means(tables[OURS])[released.index]
    rho, p = rank_correlation(released.to_numpy(), ours.to_numpy())
    seeds = []
    for _, rows in tables[OURS].groupby("run"):
        of_seed = rank_correlation(released.to_numpy(), means(rows)[released.index].to_numpy())
        seeds.append(f"{of_seed[0]:.1f}")
    words = "same order" if rho >= SAME_ORDER - 1e-9 else "no agreement shown"
    return {"scan/rho": rho, "scan/p": p, "scan/seeds": ", ".join(seeds), "scan/verdict": words}


def draw(folder: Path) -> None:
    """Draw exact match over the number of actions: a thin line per run and a thick line for the mean."""
    tables = exact_match()
    looks = styles(ENCODINGS.values())
    figure = Figure(figsize=(7.2, 2.7), layout="constrained")
    panels = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axes, (name, table) in zip(panels, tables.items(), strict=True):
        length_axis(axes, [TRAINED, 30, 36, LONGEST], TRAINED, "exact match")
        axes.set_xlabel("actions")
        for encoding, rows in table[LENGTHS].groupby("encoding"):
            colour, marker = looks[str(encoding)]
            axes.plot(LENGTHS, rows.T, color=colour, linewidth=0.6, alpha=0.4)
            axes.plot(LENGTHS, rows.mean(), color=colour, marker=marker, markersize=4)
        axes.set_title(name)
        axes.label_outer()
    legend_below(figure, looks, looks)
    save(figure, folder, "scan")
