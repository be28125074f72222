"""Plots of encodings: the heatmap of the tutorials, and curves over distance."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pe_experiments.analysis.audit import similarity_over_distance, vectors_of
from pe_experiments.analysis.relative import rotated_channels, scores_over_distance
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.absolute import AbsoluteEncoding
from pe_experiments.encodings.base import is_masked
from pe_experiments.plots import COLOURS

POSITIONS = 50  # of the heatmap every tutorial shows
BLUE = COLOURS[0]


def encoding_figure(encodings: dict[str, PositionalEncoding], distances: int) -> Figure:
    """A row per scheme: a heatmap and a curve over distance.

    Of schemes at the embedding the vectors (positions downwards) and their similarity; of others the change
    of attention over so many distances, of which the middle one is marked as the training length.
    """
    figure = Figure(figsize=(11.0, 3.6 * len(encodings)), layout="constrained")
    grid = figure.subplots(len(encodings), 2, width_ratios=(1.7, 1.0), squeeze=False)
    for (heat, curve), (label, encoding) in zip(grid, encodings.items(), strict=True):
        if isinstance(encoding, AbsoluteEncoding):
            values = _vectors(heat, curve, label, encoding)
        else:
            values = _response(heat, curve, label, encoding, distances)
        limit = float(values.abs().max()) or 1.0
        image = heat.imshow(
            values.numpy(), aspect="auto", cmap="RdBu", vmin=-limit, vmax=limit, interpolation="nearest"
        )
        figure.colorbar(image, ax=heat, pad=0.01)
        curve.spines[["top", "right"]].set_visible(False)
    return figure


def _vectors(heat: Axes, curve: Axes, label: str, encoding: AbsoluteEncoding) -> Tensor:
    vectors_PW = vectors_of(encoding, POSITIONS)
    order = " (the first change fastest with position)" if label.startswith("sinusoidal") else ""
    title = f"{label}: the vectors of {POSITIONS} positions"
    heat.set(title=title, xlabel=f"dimension{order}", ylabel="position")
    mean, spread = similarity_over_distance(vectors_PW)
    curve.plot(mean, color=BLUE)
    band = (mean - spread / 2, mean + spread / 2)
    curve.fill_between(range(POSITIONS), *band, color=BLUE, alpha=0.2, linewidth=0)
    curve.axhline(0, color="0.6", linewidth=0.8)
    curve.set(title="similarity over distance", xlabel="distance between two positions")
    curve.set(ylabel="cosine similarity (band: over all pairs)", ylim=(-1.05, 1.05))
    return vectors_PW


def _response(heat: Axes, curve: Axes, label: str, scheme: PositionalEncoding, distances: int) -> Tensor:
    shown_HN = _shown(scores_over_distance(scheme, distances))
    for head_N in shown_HN:
        curve.plot(head_N, color=BLUE, alpha=0.3, linewidth=0.9)
    curve.plot(shown_HN.mean(0), color=BLUE, linewidth=2)
    middle = distances // 2
    curve.axvline(middle, color="0.6", linewidth=0.8, linestyle=":")
    where = curve.get_xaxis_transform()
    curve.text(middle, 0.02, " training length", transform=where, color="0.4", fontsize=8)
    curve.set(title="logit of a key like the query", xlabel="distance from query back to key")
    curve.set_ylabel("change by the scheme (mean: thick)")
    heat.set_xlabel("distance from query back to key")
    channels_CN = rotated_channels(scheme, distances)
    if channels_CN is not None:
        heat.set(title=f"{label}: rotation, a channel's product with itself", ylabel="channel of the head")
        return channels_CN
    heat.set(title=f"{label}: what is added to the logit", ylabel="head", yticks=range(len(shown_HN)))
    return shown_HN


def _shown(scores_HN: Tensor) -> Tensor:
    """The scores with masked keys drawn just below the others, not a billion below."""
    masked = is_masked(scores_HN)
    if not masked.any():
        return scores_HN
    lowest = min(0.0, *scores_HN[~masked].tolist())
    return scores_HN.clamp(min=lowest - 10.0)
