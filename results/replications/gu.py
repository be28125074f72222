"""Compare induction in table 11 of Gu and Dao (2023) with our runs at every length."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison import Runs
from pe_experiments.drawing import legend_below, length_axis, save, styles
from pe_experiments.studies import read_archive, table

HERE = Path(__file__).parent
TRAINED = 256
PUBLISHED = ("learned", "rope", "xpos")  # from the lowest to the highest published accuracy
LEARNED = 99.0  # %, at the training length
REACHED = 90.0  # %
CLOSE = 10.0  # percentage points; two accuracies that differ by at most this agree
ORDERED = 5.0  # percentage points; two accuracies that differ by more have an order
FEWEST = 6  # lengths that must agree, of seven
NOT_LEARNED = "not learned"


def published() -> pd.DataFrame:
    """Return the published accuracies in % [encoding, length]."""
    rows = pd.read_csv(HERE / "gu2023.csv")
    return rows.pivot(index="encoding", columns="length", values="accuracy")


def accuracies(runs: Runs) -> pd.DataFrame:
    """Return our accuracies in % [encoding, length]."""
    return 100 * runs.curves.pivot(index="label", columns="content_length", values="exact_match")


def value_verdicts(published_scores: pd.DataFrame, measured_scores: pd.DataFrame) -> dict[str, str]:
    """Return by encoding whether at least `FEWEST` of our accuracies are close to the published ones."""
    verdicts = {}
    for encoding in measured_scores.index.intersection(published_scores.index):
        if measured_scores.loc[encoding, TRAINED] < LEARNED:
            verdicts[encoding] = NOT_LEARNED
            continue
        count = int((measured_scores.loc[encoding] - published_scores.loc[encoding]).abs().le(CLOSE).sum())
        verdicts[encoding] = f"{'yes' if count >= FEWEST else 'no'} ({count} of {measured_scores.shape[1]})"
    return verdicts


def order_verdict(measured_scores: pd.DataFrame) -> str:
    """Return whether our accuracies have the published order at 512 and at 1,024 tokens."""
    if measured_scores.loc[[*PUBLISHED], TRAINED].lt(LEARNED).any():
        return NOT_LEARNED
    learned, rope, xpos = (measured_scores.loc[encoding].to_dict() for encoding in PUBLISHED)
    at_512 = bool(rope[512] - learned[512] > ORDERED and xpos[512] - rope[512] > ORDERED)
    # The published values of absolute positions and RoPE are too close at 1,024 to have an order.
    at_1024 = bool(xpos[1024] - max(learned[1024], rope[1024]) > ORDERED)
    return ("does not agree", "partly", "agrees")[at_512 + at_1024]


def reach(measured_scores: pd.DataFrame) -> pd.Series:
    """Return the longest length at which each encoding reaches `REACHED` %, or 0."""
    return measured_scores.ge(REACHED).mul(measured_scores.columns).max(axis=1)


def accuracy_table() -> str:
    """Return a table of our accuracies by encoding and length, with the published ones in brackets."""
    published_scores = published()
    measured_scores = accuracies(read_archive(HERE / "gu"))
    verdicts = value_verdicts(published_scores, measured_scores)
    reached = reach(measured_scores)
    rows = []
    by_encoding: dict[str, dict[int, float]] = measured_scores.T.to_dict()  # type: ignore[assignment]
    published_by_encoding = published_scores.T.to_dict()
    for encoding, row in by_encoding.items():
        cells = {"encoding": f"`{encoding}`"}
        for length, accuracy in row.items():
            cells[f"{length:,}"] = f"{accuracy:.1f}"
            if encoding in published_by_encoding:
                cells[f"{length:,}"] += f" ({published_by_encoding[encoding][length]:g})"
        cells["reach"] = f"{reached[encoding]:,}" if row[TRAINED] >= LEARNED else NOT_LEARNED
        rows.append(cells | {"agrees in value": verdicts.get(encoding, "–")})
    return table(pd.DataFrame(rows))


def draw(folder: Path) -> None:
    """Draw published accuracies and ours over the length."""
    published_scores = published()
    measured_scores = accuracies(read_archive(HERE / "gu"))
    figure = Figure(figsize=(7.2, 2.7), layout="constrained")
    looks = styles(measured_scores.index)
    titles = ("Gu and Dao: trained on 256 tokens", "here: trained on 16 to 256 tokens")
    for axes, study, title in zip(
        figure.subplots(1, 2, sharey=True), (published_scores, measured_scores), titles, strict=True
    ):
        length_axis(axes, measured_scores.columns.to_numpy(float), TRAINED, "accuracy")
        for encoding, accuracy in study[measured_scores.columns].iterrows():
            colour, marker = looks[str(encoding)]
            axes.plot(measured_scores.columns, accuracy / 100, color=colour, marker=marker, markersize=4)
        axes.set_title(title)
        axes.label_outer()
    legend_below(figure, looks, looks)
    save(figure, folder, "gu")
