"""Plots of encodings: the heatmap of the tutorials, and curves over distance."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pe_experiments.analysis.audit import similarity_over_distance, vectors_of
from pe_experiments.analysis.relative import Response, response
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.absolute import AbsoluteEncoding
from pe_experiments.encodings.base import is_masked

POSITIONS = 50  # of the heatmap every tutorial shows
BLUE = "#0072B2"


def encoding_figure(encodings: dict[str, PositionalEncoding], distances: int) -> Figure:
    """A row per scheme: a heatmap and a curve over distance.

    Args:
        encodings: by label. For schemes at the embedding, their vectors (positions downwards) and the
            similarity of these; for others, the change of attention over distance.
        distances: number of distances shown for the others; the middle one is marked as the training length.
    """
    figure = Figure(figsize=(11.0, 3.6 * len(encodings)), layout="constrained")
    grid = figure.subplots(len(encodings), 2, width_ratios=(1.7, 1.0), squeeze=False)
    for (heat, curve), (label, encoding) in zip(grid, encodings.items(), strict=True):
        if isinstance(encoding, AbsoluteEncoding):
            vectors_PW = vectors_of(encoding, POSITIONS)
            _vectors(figure, heat, label, vectors_PW)
            _similarity(curve, vectors_PW)
        else:
            measured = response(encoding, distances)
            _response(figure, heat, label, measured)
            _scores(curve, measured.scores_HN)
    return figure


def _vectors(figure: Figure, axes: Axes, label: str, vectors_PW: Tensor) -> None:
    fastest_first = label.startswith("sinusoidal")
    _heatmap(figure, axes, vectors_PW)
    axes.set_title(f"{label}: the vectors of {vectors_PW.shape[0]} positions")
    axes.set_ylabel("position")
    axes.set_xlabel("dimension (the first change fastest with position)" if fastest_first else "dimension")


def _response(figure: Figure, axes: Axes, label: str, measured: Response) -> None:
    axes.set_xlabel("distance from query back to key")
    if measured.channels_CN is not None:
        _heatmap(figure, axes, measured.channels_CN)
        axes.set_title(f"{label}: rotation, a channel's product with itself")
        axes.set_ylabel("channel of the head")
    else:
        _heatmap(figure, axes, _shown(measured.scores_HN))
        axes.set_title(f"{label}: what is added to the logit")
        axes.set_ylabel("head")
        axes.set_yticks(range(measured.scores_HN.shape[0]))


def _heatmap(figure: Figure, axes: Axes, values: Tensor) -> None:
    limit = float(values.abs().max()) or 1.0
    image = axes.imshow(
        values.numpy(), aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest"
    )
    figure.colorbar(image, ax=axes, pad=0.01)


def _similarity(axes: Axes, vectors_PW: Tensor) -> None:
    mean, spread = similarity_over_distance(vectors_PW)
    apart = range(len(mean))
    axes.plot(apart, mean, color=BLUE)
    axes.fill_between(apart, mean - spread / 2, mean + spread / 2, color=BLUE, alpha=0.2, linewidth=0)
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.set_title("similarity over distance")
    axes.set_xlabel("distance between two positions")
    axes.set_ylabel("cosine similarity (band: over all pairs)")
    axes.set_ylim(-1.05, 1.05)
    axes.spines[["top", "right"]].set_visible(False)


def _scores(axes: Axes, scores_HN: Tensor) -> None:
    shown_HN = _shown(scores_HN)
    for head_N in shown_HN:
        axes.plot(head_N, color=BLUE, alpha=0.3, linewidth=0.9)
    axes.plot(shown_HN.mean(0), color=BLUE, linewidth=2)
    middle = scores_HN.shape[1] // 2
    axes.axvline(middle, color="0.6", linewidth=0.8, linestyle=":")
    axes.text(middle, 0.02, " training length", transform=axes.get_xaxis_transform(), color="0.4", fontsize=8)
    axes.set_title("logit of a key like the query")
    axes.set_xlabel("distance from query back to key")
    axes.set_ylabel("change by the scheme (mean: thick)")
    axes.spines[["top", "right"]].set_visible(False)


def _shown(scores_HN: Tensor) -> Tensor:
    """The scores with masked keys drawn just below the others, not a billion below."""
    visible = scores_HN[~is_masked(scores_HN)]
    lowest = float(visible.min()) if len(visible) else 0.0
    return scores_HN.clamp(min=min(lowest, 0.0) - 10.0) if len(visible) < scores_HN.numel() else scores_HN
