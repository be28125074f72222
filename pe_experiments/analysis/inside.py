"""Look inside a trained model: its attention, where its answers are right, its first mistakes; and draw it.

Shapes: L layers, H heads, T queries, S keys, D distances, M targets.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pe_experiments.analysis.probe import DISTANCE, probe_cells
from pe_experiments.analysis.trained_model import TrainedModel
from pe_experiments.data.batches import Batch
from pe_experiments.drawing import (
    COLOURS,
    FIGURE_WIDTH,
    GREY,
    MARKERS,
    drawing,
    escaped,
    panel_grid,
    render,
    write_figure,
)
from pe_experiments.evaluation.curve import tally
from pe_experiments.evaluation.tables import counts_by_index
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import write_atomically

TEMPLATE = Path(__file__).parent / "templates" / "inside.html.j2"
NAMED_TOKENS = 48  # longest sequence whose tokens are written at the axes, which need large panels
NAMED_IN_SMALL_PANELS = 16
MOST_TOKENS = 2048  # of a sequence, because attention needs memory of its square
AVERAGED = 8  # examples over which attention by distance is averaged
MISTAKES = 10  # examples with a mistake that are kept


@dataclass(frozen=True)
class Mistake:
    """An example with a wrong answer, as printed symbols.

    ``index`` is that of the first wrong symbol of the answer. A symbol that the model did not write is empty.
    """

    inputs: list[str]
    targets: list[str]
    answers: list[str]
    index: int


@dataclass(frozen=True)
class Inside:
    """What `look_inside` measures, as arrays.

    Attributes:
        length: input length of the examples.
        examples: number of examples.
        exact_match: share of them with every scored token right, the end mark included.
        tokens: the tokens of the first example.
        attention_LHTS: attention weights on the first example; without layers if they cannot be read.
        distances_D: distances from a query back to a key, in tokens; in an encoder also negative ones.
        attention_LHD: mean weight at each distance, over all queries with a key there and over `AVERAGED`
            examples.
        accuracy_M: share of right symbols by index in the answer, without the end mark; NaN where no target
            is scored.
        needed_D: distances to the input symbol that a target repeats; None if the task has no such symbol.
        needed_accuracy_D: share of right symbols at each of these distances.
        mistakes: the first examples with a mistake.
    """

    length: int
    examples: int
    exact_match: float
    tokens: list[str]
    attention_LHTS: np.ndarray
    distances_D: np.ndarray
    attention_LHD: np.ndarray
    accuracy_M: np.ndarray
    needed_D: np.ndarray | None
    needed_accuracy_D: np.ndarray | None
    mistakes: list[Mistake]


@torch.no_grad()
def look_inside(trained: TrainedModel, length: int | None = None, examples: int = 200) -> Inside:
    """Return what a trained model attends to, and where its answers are right, on evaluation examples.

    ``length`` is the input length; None means the longest training length.

    Raises:
        UserError: the task has no input of this length, or it is too long.
    """
    experiment = trained.experiment
    task, layout = experiment.task, experiment.format
    wanted = experiment.max_length if length is None else length
    length = task.nearest_length(wanted)
    if length is None:
        raise UserError(f"length={wanted}: {type(task).__name__} makes no input of this length")
    inputs = task.input_length(length)
    tokens = layout.tokens(inputs, task.target_length(length))
    if tokens > MOST_TOKENS:
        raise UserError(f"length={length} has {tokens:,} tokens; allowed: at most {MOST_TOKENS:,} tokens")
    batches = list(experiment.source.evaluation_blocks(length, examples))
    first = layout.first_target(inputs)
    marks = {IGNORE: "", layout.bos: "begin", layout.sep: "|", layout.eos: "end", layout.slot: "_"}
    counts_M2 = torch.zeros(task.target_length(length), 2, dtype=torch.double)  # right and all targets
    needed: list[pd.DataFrame] = []  # distance from each target to the symbol that it repeats; is it right?
    mistakes: list[Mistake] = []

    def names(tokens: Tensor) -> list[str]:
        return [marks[token] if token in marks else task.symbol_name(token) for token in tokens.tolist()]

    def examine(batch: Batch, answers_BT: Tensor) -> None:
        counts_M2.add_(counts_by_index(batch, answers_BT, first, len(counts_M2), layout))
        scored_BT = batch.labels_BT != IGNORE
        wrong_BT = scored_BT & (answers_BT != batch.labels_BT)
        inputs_BN = layout.inputs(batch.tokens_BT, inputs)
        needed_BM = task.needed_indices(inputs_BN)
        if needed_BM is not None:
            rows_N, columns_N = (scored_BT & (batch.labels_BT != layout.eos)).nonzero(as_tuple=True)
            distances_N = columns_N - needed_BM[rows_N, columns_N - first] - int(layout.causal)
            needed.append(pd.DataFrame({"distance": distances_N, "right": ~wrong_BT[rows_N, columns_N]}))
        for row in wrong_BT.any(dim=1).nonzero()[: MISTAKES - len(mistakes), 0].tolist():
            columns = scored_BT[row]
            targets, answers = batch.labels_BT[row, columns], answers_BT[row, columns]
            index = int(wrong_BT[row, columns].nonzero()[0])
            mistakes.append(Mistake(names(inputs_BN[row]), names(targets), names(answers), index))

    counts = tally(trained.model, batches, layout.eos, experiment.decoding, keep=examine)
    by_distance = pd.concat(needed).groupby("distance")["right"].mean() if needed else None
    distances_D, attention_LHD, attention_LHTS = _attention(trained, batches[0])
    return Inside(
        length=length,
        examples=examples,
        exact_match=counts.exact_match,
        tokens=names(batches[0].tokens_BT[0, : int(batches[0].lengths_B[0])]),
        attention_LHTS=attention_LHTS,
        distances_D=distances_D,
        attention_LHD=attention_LHD,
        accuracy_M=(counts_M2[:, 0] / counts_M2[:, 1]).numpy(),
        needed_D=None if by_distance is None else by_distance.index.to_numpy(),
        needed_accuracy_D=None if by_distance is None else by_distance.to_numpy(),
        mistakes=mistakes,
    )


def _attention(trained: TrainedModel, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return distances, mean weights by distance [L, H, D], and weights of the first row [L, H, T, S]."""
    first = np.zeros((0, 0, 0, 0))
    longest = int(batch.lengths_B[:AVERAGED].max())
    lowest = 0 if trained.experiment.format.causal else 1 - longest
    distances_D = np.arange(lowest, longest)
    sums_LHD: list[np.ndarray] = []
    counts_D = np.zeros(len(distances_D))
    for row in range(min(AVERAGED, len(batch.tokens_BT))):
        tokens = int(batch.lengths_B[row])
        example = batch.rows(torch.tensor([row]))
        example = example._replace(
            tokens_BT=example.tokens_BT[:, :tokens], labels_BT=example.labels_BT[:, :tokens]
        )
        by_layer = trained.batch_weights(example)
        if not by_layer:
            return distances_D, np.zeros((0, 0, len(distances_D))), first
        weights_LHTS = torch.stack([by_layer[layer][0].double() for layer in sorted(by_layer)])
        if row == 0:
            first = weights_LHTS.numpy()
        # A distance that exceeds the example has an empty diagonal.
        diagonals = [weights_LHTS.diagonal(-int(distance), 2, 3).sum(-1) for distance in distances_D]
        sums_LHD.append(torch.stack(diagonals, dim=-1).numpy())
        counts_D += (tokens - np.abs(distances_D)).clip(min=0)
    return distances_D, np.sum(sums_LHD, axis=0) / counts_D, first


def show_inside(inside: Inside, probe: pd.DataFrame, title: str, max_length: int, folder: Path) -> Path:
    """Write ``attention.png``, ``distance.png``, ``accuracy.png`` and the page with them.

    The results are those of `look_inside` and `probe_positions`. Returns the path of the page.
    """
    head = f"{title}, trained to {max_length}, input length {inside.length}"
    with drawing():
        figures = {"accuracy": accuracy_figure(inside, head)}
        if inside.attention_LHTS.size:
            figures["attention"] = attention_figure(inside, head)
            figures["distance"] = distance_figure(inside, head)
        pictures = {}
        for name, figure in figures.items():
            path = folder / f"{name}.png"
            write_figure(figure, path)
            pictures[name] = path.read_bytes()
    page = folder / "inside.html"
    html = render(
        TEMPLATE,
        title=head,
        inside=inside,
        pictures=pictures,
        probe=probe_cells(probe),
        averaged=AVERAGED,
        has_marks=(probe["quantity"] == DISTANCE).any(),
    )
    write_atomically(page, html)
    return page


def attention_figure(inside: Inside, title: str) -> Figure:
    """Draw the attention weights on the first example: a row of panels per layer, a column per head."""
    layers, heads = inside.attention_LHTS.shape[:2]
    named = len(inside.tokens) <= NAMED_TOKENS
    large = named and len(inside.tokens) > NAMED_IN_SMALL_PANELS
    columns = min(heads, 2 if large else 4)
    rows = layers * math.ceil(heads / columns)
    side = FIGURE_WIDTH / columns
    figure = Figure(figsize=(FIGURE_WIDTH, 0.5 + 0.92 * rows * side), layout="constrained")
    figure.suptitle(escaped(title, 110))
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    per_layer = columns * math.ceil(heads / columns)
    for index, axes in enumerate(panels):
        layer, head = divmod(index, per_layer)
        if head >= heads:
            axes.remove()
            continue
        image = axes.imshow(inside.attention_LHTS[layer, head], cmap="viridis", vmin=0, vmax=1)
        axes.set_title(f"layer {layer}, head {head}", fontsize=7)
        axes.tick_params(labelsize=5, length=1)
        if named:
            axes.set_xticks(range(len(inside.tokens)), inside.tokens, rotation=90)
            axes.set_yticks(range(len(inside.tokens)), inside.tokens)
    figure.supxlabel("key", fontsize=8)
    figure.supylabel("query", fontsize=8)
    figure.colorbar(image, ax=figure.axes, label="attention weight", aspect=15 * rows, shrink=0.5)
    return figure


def distance_figure(inside: Inside, title: str) -> Figure:
    """Draw the mean attention weight by distance: a panel per layer, a line per head."""
    layers, heads, _ = inside.attention_LHD.shape
    figure, panels = panel_grid(layers, 3, 2.2, 0.7, sharey=True)
    figure.suptitle(escaped(title, 110))
    for layer, axes in enumerate(panels):
        for head in range(heads):
            axes.plot(
                inside.distances_D,
                inside.attention_LHD[layer, head],
                color=COLOURS[head % len(COLOURS)],
                marker=MARKERS[head % len(MARKERS)],
                markersize=2.5,
                markevery=max(1, len(inside.distances_D) // 12),
                linewidth=1.2,
                label=f"head {head}",
            )
        axes.set_title(f"layer {layer}")
        axes.set_xlabel("distance (tokens)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel("mean attention weight")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(heads, 8), frameon=False)
    return figure


def accuracy_figure(inside: Inside, title: str) -> Figure:
    """Draw token accuracy by index in the answer and, if it is known, by distance to the needed symbol."""
    by_distance = inside.needed_D is not None and len(inside.needed_D) > 1
    figure = Figure(figsize=(FIGURE_WIDTH, 2.6), layout="constrained")
    title += f": {inside.examples} examples, exact match {inside.exact_match:.2f}"
    figure.suptitle(escaped(title, 110))
    panels = figure.subplots(1, 2 if by_distance else 1, squeeze=False)[0]
    indices = np.arange(len(inside.accuracy_M))
    _draw_accuracy(panels[0], indices, inside.accuracy_M, "index in the answer")
    if by_distance:
        assert inside.needed_D is not None
        assert inside.needed_accuracy_D is not None
        name = "distance to the needed symbol (tokens)"
        _draw_accuracy(panels[1], inside.needed_D, inside.needed_accuracy_D, name)
    return figure


def _draw_accuracy(axes: Axes, x: np.ndarray, accuracy: np.ndarray, name: str) -> None:
    """Draw token accuracy over ``x``, with a dashed line at its mean over the values of ``x``."""
    known = ~np.isnan(accuracy)
    size = 3 if known.sum() <= 100 else 1
    axes.plot(x[known], accuracy[known], color=COLOURS[0], marker="o", markersize=size, linewidth=1.2)
    axes.axhline(float(accuracy[known].mean()), color=GREY, linestyle=(0, (4, 2)), linewidth=0.8)
    axes.set_ylim(-0.02, 1.03)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(name)
    axes.set_ylabel("token accuracy")
    axes.spines[["top", "right"]].set_visible(False)
