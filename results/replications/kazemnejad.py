"""Compare the released runs of Kazemnejad et al. on copying random symbols with ours of six layers."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.drawing import legend_below, length_axis, save, styles
from pe_experiments.studies import read_archive, table, with_settings

HERE = Path(__file__).parent
VARIANT = "cmc_tr20_ts40"  # random symbols, trained to 20, evaluated to 40
ENCODINGS = {  # their name: our name
    "none": "none",
    "alibi": "alibi",
    "t5_relative_bias": "t5",
    "rotary": "rope_partial",
    "abs_sinusoid": "sinusoidal",
}
TRAINED = 20
LENGTHS = (25, 30, 40)
TITLES = ("Kazemnejad et al.: 107 M parameters, 3 runs", "here: 0.3 M parameters, 5 runs")


def curves() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return their exact match and ours [encoding and run, length]."""
    released = pd.read_csv(HERE / "kazemnejad2023.csv")
    released = released[released["variant"] == VARIANT]
    released = released.assign(encoding=released["encoding"].map(ENCODINGS))
    runs = read_archive(HERE / "conditions")
    layers = with_settings(runs, layers="model.num_layers").set_index("name")["layers"]
    points = runs.curves[(runs.curves["task"] == "copy") & runs.curves["name"].map(layers).eq(6)]
    points = points[points["content_length"].between(TRAINED, LENGTHS[-1])]
    points = points.assign(encoding=points["label"], run=points["seed"], length=points["content_length"])
    published_scores, measured_scores = (
        frame.pivot(index=["encoding", "run"], columns="length", values="exact_match")
        for frame in (released, points)
    )
    return published_scores, measured_scores


def draw(folder: Path) -> None:
    """Draw the curve of each run as a thin line and the mean as a thick line."""
    figure = Figure(figsize=(7.2, 2.7), layout="constrained")
    looks = styles(ENCODINGS.values())
    for axes, study, title in zip(figure.subplots(1, 2, sharey=True), curves(), TITLES, strict=True):
        length_axis(axes, [*LENGTHS, TRAINED], TRAINED, "exact match")
        for encoding, (colour, marker) in looks.items():
            runs = study.loc[encoding]
            axes.plot(runs.columns, runs.T, color=colour, linewidth=0.6, alpha=0.4)
            axes.plot(runs.columns, runs.mean(), color=colour, marker=marker, markersize=4)
        axes.set_title(title)
        axes.label_outer()
    legend_below(figure, looks, looks)
    save(figure, folder, "kazemnejad")


def curve_table() -> str:
    """Return a table of their exact match and ours by encoding and length: mean and range over runs."""
    encodings = [*ENCODINGS.values()]
    cells = pd.DataFrame({"encoding": [f"`{encoding}`" for encoding in encodings]}, index=encodings)
    for length in LENGTHS:
        for name, study in zip(("theirs", "ours"), curves(), strict=True):
            cells[f"{length} symbols: {name}"] = study[length].groupby("encoding").agg(mean_and_range)
    return table(cells)


def mean_and_range(values: pd.Series) -> str:
    return f"{values.mean():.2f} ({values.min():.2f} to {values.max():.2f})"
