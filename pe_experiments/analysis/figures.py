"""Pictures of encodings: the heatmap of the tutorials, and similarity over distance."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pe_experiments.analysis.audit import similarity_over_distance, vectors_of
from pe_experiments.encodings.absolute import AbsoluteEncoding

POSITIONS = 50  # of the heatmap every tutorial shows


def absolute_figure(encodings: dict[str, AbsoluteEncoding]) -> Figure:
    """Per scheme a heatmap of its vectors (positions downwards) and their similarity over distance."""
    figure = Figure(figsize=(11.0, 3.6 * len(encodings)), layout="constrained")
    grid = figure.subplots(len(encodings), 2, width_ratios=(1.7, 1.0), squeeze=False)
    for (heat, curve), (label, encoding) in zip(grid, encodings.items(), strict=True):
        vectors_PW = vectors_of(encoding, POSITIONS)
        _heatmap(figure, heat, label, vectors_PW)
        _similarity(curve, vectors_PW)
    return figure


def _heatmap(figure: Figure, axes: Axes, label: str, vectors_PW: Tensor) -> None:
    limit = float(vectors_PW.abs().max())
    image = axes.imshow(
        vectors_PW.numpy(), aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest"
    )
    axes.set_title(f"{label}: the vectors of {vectors_PW.shape[0]} positions")
    axes.set_ylabel("position")
    fastest_first = label.startswith("sinusoidal")
    axes.set_xlabel("dimension (the first change fastest with position)" if fastest_first else "dimension")
    figure.colorbar(image, ax=axes, pad=0.01)


def _similarity(axes: Axes, vectors_PW: Tensor) -> None:
    mean, spread = similarity_over_distance(vectors_PW)
    places = range(len(mean))
    axes.plot(places, mean, color="#0072B2")
    axes.fill_between(places, mean - spread / 2, mean + spread / 2, color="#0072B2", alpha=0.2, linewidth=0)
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.set_title("similarity over distance")
    axes.set_xlabel("distance between two positions")
    axes.set_ylabel("cosine similarity (band: over all pairs)")
    axes.set_ylim(-1.05, 1.05)
    axes.spines[["top", "right"]].set_visible(False)
