"""Draw the pictures of why.md: ``python docs/pictures.py``."""

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Wedge
from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # for `results`, which is no part of the installed package

from pe_experiments.drawing import STYLES, drawing, printed_name, save  # noqa: E402
from pe_experiments.encodings import ModelShape, PositionalEncoding  # noqa: E402
from pe_experiments.encodings.alibi import Alibi  # noqa: E402
from pe_experiments.encodings.rope import Rope, frequencies  # noqa: E402
from pe_experiments.encodings.rope_extension import RopeLinear, RopeNtk, RopeYarn  # noqa: E402
from pe_experiments.encodings.rope_released import RopeLlama3  # noqa: E402
from pe_experiments.encodings.sinusoidal import sinusoid_vectors  # noqa: E402
from pe_experiments.encodings.t5 import distance_bucket  # noqa: E402
from pe_experiments.models.attention_scores import Inputs, attention_scores  # noqa: E402
from results.transfer import study as transfer  # noqa: E402

TRAINED, LONGEST = 20, 80  # tokens
SHAPE = ModelShape(64, 4, 2, causal=True, train_length=TRAINED, train_positions=TRAINED)
CLASS_COLOURS = ("#D55E00", "#999999", "#0072B2")  # in the order of `transfer.CLASS_NAMES`


def draw_offset(folder: Path) -> None:
    """Draw the logit of two fixed words, three apart, over the place of the pair."""
    generator = torch.Generator().manual_seed(1)
    words_2D = torch.randn(2, SHAPE.d_model, generator=generator)
    to_q_DD, to_k_DD = torch.randn(2, SHAPE.d_model, SHAPE.d_model, generator=generator) / 8
    tables = {
        "learned": torch.randn(TRAINED, SHAPE.d_model, generator=generator) * 0.7,  # as long as sinusoids
        "sinusoidal": sinusoid_vectors(torch.arange(LONGEST), SHAPE.d_model, 10_000.0).float(),
        "rope": torch.zeros(LONGEST, SHAPE.d_model),
        "alibi": torch.zeros(LONGEST, SHAPE.d_model),
    }
    figure, axes = panel("place of the key, three before the query", "logit")
    for name, table_PD in tables.items():
        encoding = {"rope": Rope, "alibi": Alibi}.get(name, PositionalEncoding)(SHAPE)
        logits = []
        for key in range(len(table_PD) - 3):
            x_2D = words_2D + table_PD[[key, key + 3]]
            q, k = ((x_2D @ to_DD).view(1, 2, 4, 16).transpose(1, 2) for to_DD in (to_q_DD, to_k_DD))
            scores = attention_scores(encoding, Inputs(q, k, x_2D[None], torch.tensor([[key, key + 3]])))
            logits.append(float(scores[0, 0, 1, 0]))
        axes.plot(logits, color=STYLES[name][0], label=printed_name(name))
    finish(figure, axes, folder, "why_offset")


def draw_angles(folder: Path) -> None:
    """Draw the angles that each pair of RoPE has reached at the trained and at four times that distance."""
    figure = Figure(figsize=(7.2, 1.25), layout="constrained")
    for pair, (axes, speed) in enumerate(
        zip(figure.subplots(1, 8), frequencies(10_000.0, 8).tolist(), strict=True)
    ):
        axes.add_patch(Circle((0, 0), 1, facecolor="white", edgecolor="0.6", linewidth=0.8))
        for length, colour in ((LONGEST, "#D55E00"), (TRAINED, "#0072B2")):
            degrees = min(360.0, float(np.degrees(length * speed)))
            axes.add_patch(Wedge((0, 0), 1, 0, degrees, facecolor=colour, linewidth=0))
        axes.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal", title=f"pair {pair}")
        axes.axis("off")
    save(figure, folder, "why_angles")


def draw_rescaled(folder: Path) -> None:
    """Draw the frequency of each pair after rescaling by four, relative to RoPE."""
    shape = ModelShape(128, 1, 1, causal=True, train_length=2048, train_positions=2048)
    ids = torch.arange(2)[None]
    at = Inputs(*torch.zeros(2, 1, 1, 2, 128), torch.zeros(1, 2, 128), ids).context(causal=True)
    plain = Rope(shape).frequencies_BR(at)[0]
    figure, axes = panel("pair of channels, fastest first", "frequency, relative to RoPE", shade=False)
    for name, cls in {
        "rope_linear": RopeLinear, "rope_ntk": RopeNtk, "rope_yarn": RopeYarn, "rope_llama3": RopeLlama3,
    }.items():  # fmt: skip
        rescaled = cls(shape, factor=4.0, original_length=2048).frequencies_BR(at)[0]
        colour = STYLES.get(name, ("#000000", ""))[0]
        axes.plot((rescaled / plain).tolist(), color=colour, label=printed_name(name))
    axes.set_ylim(0, 1.05)
    finish(figure, axes, folder, "why_rescaled")


def draw_biases(folder: Path) -> None:
    """Draw what four biases add to a logit, over distance, for parameters chosen by hand."""
    distance = torch.arange(LONGEST + 1)
    buckets = distance_bucket(-distance, 16, TRAINED, causal=True)
    gates = torch.full((LONGEST,), 4.0).sigmoid().log()
    gates[29] = -2.0  # a token 30 back at which the model forgets
    biases = {
        "alibi": -distance / 16,
        "t5": -0.15 * buckets,
        "kerple_log": -torch.log1p(distance.float()) * 0.75,
        "fox": torch.cat([torch.zeros(1), gates.cumsum(0)]),
    }
    figure, axes = panel("distance from the query back to the key", "added to the logit")
    for name, bias in biases.items():
        axes.plot(bias.tolist(), color=STYLES[name][0], label=printed_name(name))
    finish(figure, axes, folder, "why_biases")


def draw_classes(folder: Path) -> None:
    """Draw how much the loss on text rises from 256 to 2,048 bytes, by encoding, coloured by class."""
    losses = transfer.load(HERE)
    rises = transfer.rises(losses).groupby("label").mean()
    class_of = {
        **transfer.hindsight(losses)["class"].to_dict(),
        **transfer.read_predictions()["class"].to_dict(),
    }
    figure = Figure(figsize=(5.5, 2.9), layout="constrained")
    axes = figure.subplots()
    rises = rises[[label for label in rises.index if label in class_of]].sort_values(ascending=False)
    for number, name in enumerate(transfer.CLASS_NAMES):
        labels = [label for label in rises.index if class_of[label] == number]
        places = [rises.index.get_loc(label) for label in labels]
        axes.hlines(places, 0, rises[labels], color=CLASS_COLOURS[number], linewidth=2)
        axes.plot(rises[labels], places, "o", color=CLASS_COLOURS[number], label=name)
    axes.set_yticks(range(len(rises)), [printed_name(label) for label in rises.index], fontsize=7)
    axes.set_xlabel("rise of the loss from 256 to 2,048 bytes, bits per byte")
    axes.legend(frameon=False, loc="upper right")
    save(figure, folder, "why_classes")


def panel(x: str, y: str, shade: bool = True) -> tuple[Figure, Axes]:
    """Return a figure with one panel, in which the trained lengths are shaded."""
    figure = Figure(figsize=(5.5, 2.2), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y)
    if shade:
        axes.axvspan(0, TRAINED, color="0.92", linewidth=0)
    return figure, axes


def finish(figure: Figure, axes: Axes, folder: Path, name: str) -> None:
    """Add the legend and write the picture."""
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.margins(x=0)
    save(figure, folder, name)


def draw_all(folder: Path) -> None:
    """Write all pictures to a folder, as small PNGs."""
    with drawing(["png"]):
        for draw in (draw_offset, draw_angles, draw_rescaled, draw_biases, draw_classes):
            draw(folder)
    for path in folder.glob("why_*.png"):
        with Image.open(path) as image:
            small = image.convert("RGB").quantize(64, method=Image.Quantize.MEDIANCUT)
        small.save(path, optimize=True)


if __name__ == "__main__":
    draw_all(HERE)
