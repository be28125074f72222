"""Compare the released runs of Kazemnejad et al. on SCAN with ours of two sizes (plan.md, SCAN)."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.statistics import rank_correlation
from pe_experiments.drawing import legend_below, length_axis, save, styles
from pe_experiments.store.published import PROVENANCE
from pe_experiments.studies import markdown_table, read_archive, with_settings

from .kazemnejad import mean_and_range

HERE = Path(__file__).parent
STUDY = HERE / "scan"
SPLIT = "mdlen_tr25_ts48"  # trained to 25 actions, tested to 48, and learned in distribution
THEIRS = "Kazemnejad et al., 107 M"
SIZES = {64: "here, 0.3 M", 192: "here, 2.7 M"}  # by width
ENCODINGS = {"none": "none", "alibi": "alibi", "t5": "t5", "rope": "rope_partial", "sinusoidal": "sinusoidal"}
TRAINED, LONGEST = 25, 48  # actions
LEARNED = 0.9  # exact match in distribution
RUNS = 3  # of each encoding
LENGTHS = [26, 27, 28, 30, 32, 33, 36, 40, 48]
NOT_YET = "No size has all its planned runs yet, so no correlation is computed."


def exact_match(study: Path = STUDY) -> dict[str, pd.DataFrame]:
    """Return exact match by the name of the models: [encoding and run, length and ``in distribution``].

    Sizes of ours without a run are left out.
    """
    released = pd.read_csv(HERE / "kazemnejad2023_classic.csv", dtype={"length": str})
    released = released[(released["dataset"] == "scan") & (released["split"] == SPLIT)]
    released = released[released["length"] != "overall"].assign(run=released["seed"])
    released["encoding"] = released["encoding"].map(ENCODINGS)
    tables = {THEIRS: _wide(released)}
    if not (study / PROVENANCE).exists():
        return tables
    archive = read_archive(study)
    runs = with_settings(archive, width="model.d_model").set_index("name")
    points = archive.curves.assign(encoding=archive.curves["label"], run=archive.curves["seed"])
    points["length"] = points["content_length"].astype(str)
    trained = points["content_length"] <= TRAINED
    within = points[trained].groupby(["name", "encoding", "run"], as_index=False)["exact_match"].mean()
    points = pd.concat([points[~trained], within.assign(length="in distribution")])
    points["width"] = points["name"].map(runs["width"])
    return tables | {SIZES[width]: _wide(rows) for width, rows in points.groupby("width")}


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
            past = mean_and_range(runs[LENGTHS].T.mean()) if len(runs) else "–"
            cells += [f"{learned} of {len(runs)}", past]
        lines.append(cells)
    heading = ["encoding"]
    for name in tables:
        heading += [f"{name}: learned", f"{name}: past training"]
    return {"scan": markdown_table(heading, lines), "scan_ranks": rank_table(tables)}


def rank_table(tables: dict[str, pd.DataFrame]) -> str:
    """Return a table of the rank correlations of the sizes whose runs are complete."""
    released = means(tables[THEIRS])
    lines = []
    for name, table in tables.items():
        runs = table.groupby("encoding").size().reindex(released.index)
        if name != THEIRS and runs.eq(RUNS).all():
            rho, p = rank_correlation(released.to_numpy(), means(table)[released.index].to_numpy())
            lines.append([name, f"{len(runs)}", f"{rho:.2f}", f"{p:.2f}"])
    if not lines:
        return NOT_YET
    return markdown_table(["models", "encodings", "rho with the released runs", "p"], lines)


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
