"""Compare curves that papers released or printed with ours: SCAN and induction."""

from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.drawing import legend_below, length_axis, panel_grid, save, styles
from pe_experiments.studies import read_archive
from pe_experiments.studies.inference import rank_correlation

HERE = Path(__file__).parent
SCAN_SPLIT = "mdlen_tr25_ts48"  # trained to 25 actions, tested to 48, and learned in distribution
SCAN_TRAINED, SCAN_LENGTHS = 25, [26, 27, 28, 30, 32, 33, 36, 40, 48]
SAME_ORDER = 0.9  # planned: a smallest rho of the five means
GU_TRAINED = 256
PUBLISHED = ("learned", "rope", "xpos")  # from the lowest to the highest published accuracy
LEARNED = 0.99  # accuracy at the training length
CLOSE = 0.1 + 1e-9  # two accuracies that differ by at most this agree
FEWEST = 6  # lengths that must agree, of seven

Pair = tuple[pd.DataFrame, pd.DataFrame]  # theirs and ours: exact match [encoding and run, length]


def scan() -> Pair:
    """Return the curves past training of Kazemnejad et al. on SCAN, and ours."""
    released = pd.read_csv(HERE / "kazemnejad2023_classic.csv", dtype={"length": str})
    released = released[(released["dataset"] == "scan") & (released["split"] == SCAN_SPLIT)]
    released = released[released["length"].str.isdigit()].astype({"length": int})
    released = released.rename(columns={"seed": "run"}).replace({"encoding": {"rope": "rope_partial"}})
    return by_run(released), by_run(read_archive(HERE / "scan").curves)[SCAN_LENGTHS]


def induction() -> Pair:
    """Return the accuracies of Gu and Dao at the lengths that we evaluated, and ours."""
    printed = pd.read_csv(HERE / "gu2023.csv")
    printed = printed.assign(run=0, exact_match=printed["accuracy"] / 100)
    ours = by_run(read_archive(HERE / "gu").curves)
    return by_run(printed)[ours.columns], ours


def by_run(rows: pd.DataFrame) -> pd.DataFrame:
    """Return exact match [encoding and run, length] of released or of our runs."""
    if "label" in rows:
        rows = rows.assign(encoding=rows["label"], run=rows["seed"], length=rows["content_length"])
    return rows.pivot(index=["encoding", "run"], columns="length", values="exact_match")


def scan_values() -> dict[str, Any]:
    """Return Spearman's rho of the five means past training, by all runs and by single seeds of ours."""
    released, ours = (table.T.mean().unstack("run") for table in scan())
    means = released.mean(axis="columns").to_numpy()
    rho, p = rank_correlation(means, ours.mean(axis="columns").to_numpy())
    seeds = [rank_correlation(means, of_seed.to_numpy())[0] for _, of_seed in ours.items()]
    return {
        "scan/rho": rho,
        "scan/p": p,
        "scan/seeds": ", ".join(f"{rho:.1f}" for rho in seeds),
        "scan": "agrees by the planned rule" if rho >= SAME_ORDER - 1e-9 else "no agreement shown",
    }


def gu_values() -> dict[str, str]:
    """Return whether at least `FEWEST` of our accuracies of each encoding are close to the printed ones."""
    printed, ours = (table.droplevel("run").T for table in induction())
    verdicts = []
    for encoding in PUBLISHED:
        count = ((ours[encoding] - printed[encoding]).abs() <= CLOSE).sum()
        verdict = f"{'agrees' if count >= FEWEST else 'does not'} ({count} of {len(ours)} lengths)"
        if ours[encoding][GU_TRAINED] < LEARNED:
            verdict = "not learned"
        verdicts.append(f"`{encoding}` {verdict}")
    return {"gu": "; ".join(verdicts)}


def draw(folder: Path) -> None:
    """Draw the curves of papers beside ours: a thin line per run and a thick line for the mean."""
    titles = ("Kazemnejad et al.: 107 M parameters", "here: 0.3 M parameters")
    draw_beside(scan(), titles, SCAN_TRAINED, [30, 36, 48], folder, "scan")
    titles = ("Gu and Dao: trained on 256 tokens", "here: trained on 16 to 256 tokens")
    lengths = [64, 128, 256, 512, 1024, 2048, 4096]
    draw_beside(induction(), titles, GU_TRAINED, lengths, folder, "gu")


def draw_beside(
    pair: Pair, titles: tuple[str, str], trained: int, ticks: list[int], folder: Path, name: str
) -> None:
    figure, panels = panel_grid(2, 2, 2.7, sharey=True)
    looks = styles(dict.fromkeys(pair[1].index.get_level_values("encoding")))
    for axes, curves, title in zip(panels, pair, titles, strict=True):
        length_axis(axes, [*ticks, trained], trained, "exact match")
        for encoding, runs in curves.groupby("encoding"):
            colour, marker = looks[str(encoding)]
            axes.plot(curves.columns, runs.T, color=colour, linewidth=0.6, alpha=0.4)
            axes.plot(curves.columns, runs.mean(), color=colour, marker=marker, markersize=4)
        axes.set_title(title)
        axes.label_outer()
    legend_below(figure, looks, looks)
    save(figure, folder, name)
