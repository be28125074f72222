"""What tutorials claim of encodings and no training is needed to check: measured.

Shapes: P positions, W columns of the vectors; B rows, T tokens, D d_model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from pe_experiments.analysis.audit import (
    AUDITED,
    OFFSET,
    audit,
    pairwise_distances,
    shift_matrix,
    similarity_over_distance,
    vectors_of,
)
from pe_experiments.analysis.order_blindness import order_blindness
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.absolute import AbsoluteEncoding
from pe_experiments.encodings.learned import Learned
from pe_experiments.encodings.sinusoidal import Sinusoidal, sinusoid_vectors
from pe_experiments.encodings.teaching import BinaryCounter, RawIndex, ScaledIndex
from pe_experiments.models import Transformer

BASE = 10_000.0
LONGEST = 5000  # positions the module sample of the tutorials has room for
WIDTH = 64  # d_model of the study
NOISE = 1e-9  # below it lies only rounding, which differs from machine to machine
DIGITS = 6
ODD = 7  # a width at which sines and cosines do not pair up
ROWS = 20  # positions of a learned table
TEACHING = {
    "sinusoidal": Sinusoidal,
    "raw_index": RawIndex,
    "scaled_index": ScaledIndex,
    "binary_counter": BinaryCounter,
}
CRITERIA = ("unique", "bounded", "same distance", "same step", "no jumps")
TABLE = ((0, 1, 0, 1), (0.8415, 0.5403, 0.0100, 1.0000), (0.9093, -0.4161, 0.0200, 0.9998))

Row = tuple[str, str, str, float]  # claim, setting, quantity, value


def measure() -> pd.DataFrame:
    """Everything that needs no training.

    Returns:
        Columns ``claim, setting, quantity, value``. Values have six significant digits and are 0 below 1e-9,
        so that other machines write the same file.
    """
    parts = (formula, frequencies, sample, documents, order, uniqueness, bounds, offsets, baselines, heatmap)
    with torch.no_grad():
        rows = [row for part in parts for row in part()]
    frame = pd.DataFrame(rows, columns=["claim", "setting", "quantity", "value"])
    frame["value"] = [_rounded(value) for value in frame["value"]]
    return frame


def _rounded(value: float) -> float:
    return 0.0 if abs(value) < NOISE else float(f"{value:.{DIGITS}g}")


def formula() -> Iterator[Row]:
    """The paper's formula against a loop of scalars; the worked table; widths that are odd."""
    positions = [0, 1, 2, 17, 4095, 0.5, 1234.25]  # with gaps and fractions
    for width in (WIDTH, 7):
        loop = [
            [
                (math.sin if column % 2 == 0 else math.cos)(p / math.pow(BASE, 2 * (column // 2) / width))
                for column in range(width)
            ]
            for p in positions
        ]
        made_PW = sinusoid_vectors(torch.tensor(positions, dtype=torch.float64), width, BASE)
        error = float((made_PW - torch.tensor(loop, dtype=torch.float64)).abs().max())
        yield "formula", f"d={width}", "largest error against a loop of scalars", error
    worked = torch.tensor(TABLE, dtype=torch.float64)
    error = float((sinusoid_vectors(torch.arange(3), 4, BASE) - worked).abs().max())
    yield "formula", "worked table, d=4", "largest error against its four decimals", error
    yield "formula", "module sample, d=7", "crashes", float(_crashes(lambda: ModuleSample(7)))


def frequencies() -> Iterator[Row]:
    """Periods by dimension, read off the vector of position 1, and what of them could be trained."""
    sines_W, cosines_W = sinusoid_vectors(torch.tensor([1]), WIDTH, BASE)[0].view(-1, 2).T
    periods_W = 2 * math.pi / torch.atan2(sines_W, cosines_W)
    setting = f"d={WIDTH}"
    yield "frequency", setting, "period of the first dimension", float(periods_W[0])
    yield "frequency", setting, "period of the last dimension", float(periods_W[-1])
    rises = int((periods_W.diff() <= 0).sum())
    yield "frequency", setting, "dimensions faster than the one before", float(rises)
    yield "frequency", setting, "trainable parameters", _parameters(Sinusoidal(_shape(WIDTH)))


class ModuleSample(nn.Module):
    """The module that tutorials pass on (the PyTorch tutorial's ``PositionalEncoding``, without dropout)."""

    def __init__(self, d_model: int, max_len: int = LONGEST):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)
        self.pe: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[: x.size(0)]


def sample() -> Iterator[Row]:
    """The module sample misused as people misuse it, beside the encoding of this project."""
    zeros_BTD = torch.zeros(2, 10, WIDTH)
    ours = Sinusoidal(_shape(WIDTH))
    theirs_BTD, ours_BTD = ModuleSample(WIDTH)(zeros_BTD), ours.embed(zeros_BTD, torch.arange(10)[None])
    for setting, added_BTD in (("module sample", theirs_BTD), ("sinusoidal", ours_BTD)):
        spread = float((added_BTD - added_BTD[:, :1]).abs().max())
        yield "sample", setting, "spread over positions, batch first", spread
    as_documented_TBD = ModuleSample(WIDTH)(zeros_BTD.transpose(0, 1))
    spread = float((as_documented_TBD - as_documented_TBD[:1]).abs().max())
    yield "sample", "module sample", "spread over positions, sequence first", spread
    longer = LONGEST + 1
    crashes = _crashes(lambda: ModuleSample(WIDTH)(torch.zeros(longer, 1, WIDTH)))
    yield "sample", "module sample", f"crashes at {longer} tokens", float(crashes)
    crashes = _crashes(lambda: ours.embed(torch.zeros(1, longer, WIDTH), torch.arange(longer)[None]))
    yield "sample", "sinusoidal", f"crashes at {longer} tokens", float(crashes)
    for setting, module in (("module sample", ModuleSample(WIDTH)), ("sinusoidal", ours)):
        stored = sum(values.numel() for values in module.state_dict().values())
        yield "sample", setting, "numbers in a checkpoint", float(stored)
    saved, longer_module = ModuleSample(WIDTH).state_dict(), ModuleSample(WIDTH, LONGEST + 1000)
    yield (
        "sample",
        "module sample",
        "refuses its own checkpoint at another max_len",
        float(_crashes(lambda: longer_module.load_state_dict(saved))),
    )


def broken_sample(position: int, d_model: int) -> list[float]:
    """A sample as it is printed: it names its argument ``position`` and reads ``s``."""
    return [math.sin(s / BASE ** (2 * k / d_model)) for k in range(d_model // 2)]  # type: ignore[name-defined]  # noqa: F821


def documents() -> Iterator[Row]:
    """Slips of the documents themselves, and parameters that they compare."""
    try:
        broken_sample(1, WIDTH)
        crashes = 0.0
    except NameError:
        crashes = 1.0
    yield "documents", "sample that defines position and reads s", "crashes", crashes
    yield "documents", "binary counter", "1010 read in binary", float(int("1010", 2))
    row_W = [0.0] * ODD
    for k in range(ODD // 2):
        angle = 1 / BASE ** (2 * k / ODD)
        row_W[2 * k], row_W[2 * k + 1] = math.sin(angle), math.cos(angle)
    yield "documents", f"loop over k below d // 2, d={ODD}", "columns left empty", float(row_W.count(0.0))
    table = f"{ROWS} positions, d={WIDTH}"
    for name, scheme in (("fixed", Sinusoidal), ("learned", Learned)):
        yield "documents", table, f"parameters, {name}", _parameters(scheme(_shape(WIDTH)))
    beside = partial(Sinusoidal, combine="concat")
    models = {
        "added": Transformer(10, _shape(WIDTH, causal=True), Sinusoidal),
        "put beside a token as wide": Transformer(10, _shape(2 * WIDTH, causal=True), beside),
        "put beside a token half as wide": Transformer(10, _shape(WIDTH, causal=True), beside),
    }
    for name, model in models.items():
        yield "documents", f"transformer, d={WIDTH}", f"parameters, {name}", _parameters(model)


def _parameters(module: nn.Module) -> float:
    return float(sum(p.numel() for p in module.parameters()))


def order() -> Iterator[Row]:
    """What permuting the input does to untrained transformers in float64."""
    tokens_T = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7])
    shuffled_T = torch.tensor([5, 2, 0, 6, 3, 1, 4, 7])  # the last token stays where it is
    for name, scheme in (("none", PositionalEncoding), ("sinusoidal", Sinusoidal)):
        encoder = Transformer(8, _shape(32, causal=False), scheme, initialisation="pytorch").double()
        here_TD, there_TD = encoder.hidden(torch.stack([tokens_T, tokens_T[shuffled_T]]))
        error = float((here_TD[shuffled_T] - there_TD).abs().max())
        yield "order", f"encoder, {name}", "output at the same token", error
        place = float((here_TD - there_TD).abs().max())
        yield "order", f"encoder, {name}", "output at the same place", place
        pooled = float((here_TD.mean(0) - there_TD.mean(0)).abs().max())
        yield "order", f"encoder, {name}", "pooled output", pooled
        sentences = order_blindness(scheme, _shape(32, causal=False)).pooled
        yield "order", f"encoder, {name}", "dog bites man against man bites dog, pooled", sentences
        for layers in (1, 2):
            shape = _shape(32, causal=True, num_layers=layers)
            decoder = Transformer(8, shape, scheme, initialisation="pytorch").double()
            here_TD, there_TD = decoder.hidden(torch.stack([tokens_T, tokens_T[shuffled_T]]))
            last = float((here_TD[-1] - there_TD[-1]).abs().max())
            yield "order", f"decoder of depth {layers}, {name}", "last output, the prefix permuted", last
            sentences = order_blindness(scheme, _shape(32, causal=True, num_layers=layers)).pooled
            quantity = "dog bites man against man bites dog, pooled"
            yield "order", f"decoder of depth {layers}, {name}", quantity, sentences


def uniqueness() -> Iterator[Row]:
    """How close the closest two of 5,000 positions are, by width and by what the vectors are stored in."""
    for width in (2, 4, 8, 16, WIDTH):
        exact_PW = sinusoid_vectors(torch.arange(LONGEST), width, BASE)
        for name, vectors_PW in (("", exact_PW), (", bfloat16", exact_PW.bfloat16().double())):
            margin = float(pairwise_distances(vectors_PW).fill_diagonal_(torch.inf).min())
            yield "unique", f"d={width}{name}", f"closest two of {LONGEST} positions", margin


def bounds() -> Iterator[Row]:
    """The norm of the vectors, and what the distance of two positions depends on."""
    vectors_PW = sinusoid_vectors(torch.arange(AUDITED), WIDTH, BASE)
    norms_P = vectors_PW.norm(dim=-1)
    for quantity, value in (
        ("smallest norm", float(norms_P.min())),
        ("largest norm", float(norms_P.max())),
        ("sqrt(d/2)", math.sqrt(WIDTH / 2)),
    ):
        yield "bounded", f"d={WIDTH}", quantity, value
    _, spread_P = similarity_over_distance(vectors_PW)
    yield "same-distance", f"d={WIDTH}", "spread of the similarity over positions", float(spread_P.max())
    for width in (8, 16, WIDTH, 128, 512):
        apart_PP = pairwise_distances(sinusoid_vectors(torch.arange(200), width, BASE))
        falls = int((apart_PP[0].diff() < 0).nonzero()[0])
        yield "same-distance", f"d={width}", "offset up to which the distance rises", float(falls)
        if width == WIDTH:
            for k in range(1, 61):
                yield "distance-curve", f"d={width}", f"k={k}", float(apart_PP[0, k])


def offsets() -> Iterator[Row]:
    """PE(p + k) = M_k PE(p): what is left over."""
    vectors_PW = sinusoid_vectors(torch.arange(3000), WIDTH, BASE)
    for k in (1, OFFSET, 100):
        shifted_PW = vectors_PW[:-k] @ shift_matrix(WIDTH, BASE, k).T
        residual = float((shifted_PW - vectors_PW[k:]).norm(dim=-1).max())
        yield "exact-offset", f"d={WIDTH}, k={k}", "largest residual of M_k", residual


def baselines() -> Iterator[Row]:
    """Which criterion the index itself, the index as a share and the index in binary break."""
    for name, scheme in TEACHING.items():
        encoding: AbsoluteEncoding = scheme(_shape(WIDTH))
        for criterion, found in zip(CRITERIA, audit(encoding), strict=False):
            assert found.name.startswith(criterion)
            yield "baselines", name, f"holds: {criterion}", float(bool(found.holds))
        vectors_PW = vectors_of(encoding, AUDITED)
        steps_P = (vectors_PW[1:] - vectors_PW[:-1]).norm(dim=-1)
        yield "baselines", name, f"largest value of {AUDITED} positions", float(vectors_PW.abs().max())
        yield "baselines", name, "largest step over the smallest", float(steps_P.max() / steps_P.min())
        for tokens in (10, 100):
            first, second = vectors_of(encoding, tokens)[:2]
            yield "baselines", name, f"first step among {tokens} tokens", float((second - first).norm())
        fastest = int((vectors_PW[1:] - vectors_PW[:-1]).abs().mean(0).argmax())
        yield "baselines", name, "column that changes most, from 1", float(fastest + 1)


def heatmap() -> Iterator[Row]:
    """How much of the usual picture, 50 positions by 512 dimensions, moves at all."""
    vectors_PW = sinusoid_vectors(torch.arange(50), 512, BASE)
    moving = int(((vectors_PW.amax(0) - vectors_PW.amin(0)) > 0.1).sum())
    yield "heatmap", "50 positions, d=512", "columns that change by more than 0.1", float(moving)
    yield "heatmap", "50 positions, d=512", "columns", float(vectors_PW.shape[1])


def _shape(d_model: int, causal: bool = False, num_layers: int = 2) -> ModelShape:
    return ModelShape(d_model, 1, num_layers, causal, 20, 20)


def _crashes(call: Callable[[], object]) -> bool:
    try:
        call()
    except (RuntimeError, IndexError):
        return True
    return False
