"""What tutorials claim of encodings and no training is needed to check: measured.

Shapes: P positions, W columns of the vectors; B rows, T tokens, D d_model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
from pe_experiments.encodings.learned import Learned
from pe_experiments.encodings.sinusoidal import Sinusoidal, sinusoid_vectors
from pe_experiments.encodings.teaching import BinaryCounter, RawIndex, ScaledIndex
from pe_experiments.models import Transformer

BASE = 10_000.0
LONGEST = 5000  # positions the module sample of the tutorials has room for
WIDTH = 64  # d_model of the study
NOISE = 1e-9  # below it lies only rounding, which differs from machine to machine
DIGITS = 6
ROWS = 20  # positions of a learned table
TEACHING = {
    "sinusoidal": Sinusoidal,
    "raw_index": RawIndex,
    "scaled_index": ScaledIndex,
    "binary_counter": BinaryCounter,
}
CRITERIA = ("unique", "bounded", "same distance", "same step", "no jumps")
WORKED_TABLE = ((0, 1, 0, 1), (0.8415, 0.5403, 0.0100, 1.0000), (0.9093, -0.4161, 0.0200, 0.9998))

Measured = dict[str, float]


def audited() -> pd.DataFrame:
    """Everything that needs no training.

    Returns:
        Columns ``quantity, value``. Values have six significant digits and are 0 below 1e-9, so that other
        machines write the same file.
    """
    with torch.no_grad():
        parts = [part() for part in (formula, sample, documents, order, vectors, alternatives)]
    rows = [(name, value) for part in parts for name, value in part.items()]
    frame = pd.DataFrame(rows, columns=["quantity", "value"])
    frame["value"] = [0.0 if abs(x) < NOISE else float(f"{x:.{DIGITS}g}") for x in frame["value"]]
    return frame


def _largest(values: Tensor) -> float:
    return float(values.abs().max())


def formula() -> Measured:
    """The paper's formula against a loop of scalars; the worked table; widths that are odd; periods."""
    positions = [0, 1, 2, 17, 4095, 0.5, 1234.25]  # with gaps and fractions
    found = {}
    for width in (WIDTH, 7):
        angles = [[p / BASE ** (2 * (c // 2) / width) for c in range(width)] for p in positions]
        loop = [[(math.sin, math.cos)[c % 2](angle) for c, angle in enumerate(row)] for row in angles]
        made_PW = sinusoid_vectors(torch.tensor(positions, dtype=torch.float64), width, BASE)
        found[f"formula, error, d={width}"] = _largest(made_PW - torch.tensor(loop, dtype=torch.float64))
    worked = torch.tensor(WORKED_TABLE, dtype=torch.float64)
    sines_W, cosines_W = sinusoid_vectors(torch.tensor([1]), WIDTH, BASE)[0].view(-1, 2).T
    periods_W = 2 * math.pi / torch.atan2(sines_W, cosines_W)
    return found | {
        "formula, error of the worked table": _largest(sinusoid_vectors(torch.arange(3), 4, BASE) - worked),
        "period of the first pair": float(periods_W[0]),
        "period of the last pair": float(periods_W[-1]),
        "pairs faster than the one before": float((periods_W.diff() <= 0).sum()),
    }


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


def sample() -> Measured:
    """The module sample misused as people misuse it, beside the encoding of this project."""
    zeros_BTD = torch.zeros(2, 10, WIDTH)
    theirs, ours = ModuleSample(WIDTH), Sinusoidal(_shape(WIDTH))
    spread = {
        "sample, batch first": (theirs(zeros_BTD), 1),
        "sample, sequence first": (theirs(zeros_BTD.transpose(0, 1)), 0),
        "encoding here": (ours.embed(zeros_BTD, torch.arange(10)[None]), 1),
    }
    found = {
        f"spread over positions, {n}": _largest(x - x.narrow(dim, 0, 1)) for n, (x, dim) in spread.items()
    }
    longer, saved = LONGEST + 1, theirs.state_dict()
    return found | {
        "sample crashes at d=7": _crashes(lambda: ModuleSample(7)),
        "sample crashes past its table": _crashes(lambda: theirs(torch.zeros(longer, 1, WIDTH))),
        "encoding here crashes there": _crashes(
            lambda: ours.embed(torch.zeros(1, longer, WIDTH), torch.arange(longer)[None])
        ),
        "values in a checkpoint, sample": float(sum(values.numel() for values in saved.values())),
        "values in a checkpoint, here": float(sum(values.numel() for values in ours.state_dict().values())),
        "sample refuses its checkpoint at another max_len": _crashes(
            lambda: ModuleSample(WIDTH, LONGEST + 1000).load_state_dict(saved)
        ),
    }


def printed_sample(position: int, d_model: int) -> list[float]:
    """A sample as it is printed: it names its argument ``position`` and reads ``s``."""
    return [math.sin(s / BASE ** (2 * k / d_model)) for k in range(d_model // 2)]  # type: ignore[name-defined]  # noqa: F821


def documents() -> Measured:
    """Slips of the documents themselves, and parameters that they compare."""
    row_W = [0.0] * 7
    for k in range(7 // 2):
        row_W[2 * k : 2 * k + 2] = math.sin(BASE ** (-2 * k / 7)), math.cos(BASE ** (-2 * k / 7))
    beside = partial(Sinusoidal, combine="concat")
    counted: dict[str, nn.Module] = {
        "fixed": Sinusoidal(_shape(WIDTH)),
        "learned": Learned(_shape(WIDTH)),
        "added": Transformer(10, _shape(WIDTH, causal=True), Sinusoidal),
        "beside a token as wide": Transformer(10, _shape(2 * WIDTH, causal=True), beside),
        "beside a token half as wide": Transformer(10, _shape(WIDTH, causal=True), beside),
    }
    return {
        "printed sample crashes": _crashes(lambda: printed_sample(1, WIDTH)),
        "1010 read in binary": float(int("1010", 2)),
        "columns left empty, d=7": float(row_W.count(0.0)),
        **{f"parameters, {n}": float(sum(p.numel() for p in m.parameters())) for n, m in counted.items()},
    }


def order() -> Measured:
    """What permuting the input does to untrained transformers in float64."""
    tokens_T = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7])
    shuffled_T = torch.tensor([5, 2, 0, 6, 3, 1, 4, 7])  # the last token stays where it is
    found = {}
    for scheme_name, scheme in (("none", PositionalEncoding), ("sinusoidal", Sinusoidal)):
        for kind, layers in (("encoder", 2), ("decoder of depth 1", 1), ("decoder of depth 2", 2)):
            shape = _shape(32, causal=kind != "encoder", num_layers=layers)
            model = Transformer(8, shape, scheme, initialisation="pytorch").double()
            here_TD, there_TD = model.hidden(torch.stack([tokens_T, tokens_T[shuffled_T]]))
            name = f"order, {kind}, {scheme_name}, "
            if kind == "encoder":
                found[name + "output at the same token"] = _largest(here_TD[shuffled_T] - there_TD)
                found[name + "output at the same index"] = _largest(here_TD - there_TD)
                found[name + "pooled output"] = _largest(here_TD.mean(0) - there_TD.mean(0))
            else:
                found[name + "last output, the prefix permuted"] = _largest(here_TD[-1] - there_TD[-1])
            found[name + "dog bites man against man bites dog, pooled"] = order_blindness(
                scheme, shape
            ).pooled
    return found


def vectors() -> Measured:
    """Uniqueness, norms, distances and shifts of sinusoids, and how much of the usual heatmap moves."""
    found = {}
    for width in (2, 4, 8, 16, WIDTH):
        exact_PW = sinusoid_vectors(torch.arange(LONGEST), width, BASE)
        for name, vectors_PW in (("", exact_PW), (", bfloat16", exact_PW.bfloat16().double())):
            apart_PP = pairwise_distances(vectors_PW).fill_diagonal_(torch.inf)
            found[f"closest two positions, d={width}{name}"] = float(apart_PP.min())
    vectors_PW = sinusoid_vectors(torch.arange(AUDITED), WIDTH, BASE)
    norms_P, spread_P = vectors_PW.norm(dim=-1), similarity_over_distance(vectors_PW)[1]
    found |= {
        "smallest norm": float(norms_P.min()),
        "largest norm": float(norms_P.max()),
        "sqrt(d/2)": math.sqrt(WIDTH / 2),
        "spread of the similarity over positions": float(spread_P.max()),
    }
    for width in (8, 16, WIDTH, 128, 512):
        apart_PP = pairwise_distances(sinusoid_vectors(torch.arange(200), width, BASE))
        falls = (apart_PP[0].diff() < 0).nonzero()
        found[f"distance rises up to, d={width}"] = float(falls[0])
        if width == WIDTH:
            found |= {f"distance, k={k}": float(apart_PP[0, k]) for k in range(1, 61)}
    vectors_PW = sinusoid_vectors(torch.arange(3000), WIDTH, BASE)
    for k in (1, OFFSET, 100):
        shifted_PW = vectors_PW[:-k] @ shift_matrix(WIDTH, BASE, k).T
        found[f"residual of M_k, k={k}"] = float((shifted_PW - vectors_PW[k:]).norm(dim=-1).max())
    heatmap_PW = sinusoid_vectors(torch.arange(50), 512, BASE)
    moving_W = (heatmap_PW.amax(0) - heatmap_PW.amin(0)) > 0.1
    return found | {"columns that change": float(moving_W.sum()), "columns": float(len(moving_W))}


def alternatives() -> Measured:
    """Which criterion the index itself, the index as a share and the index in binary break."""
    found = {}
    for name, scheme in TEACHING.items():
        encoding = scheme(_shape(WIDTH))
        for criterion, audited in zip(CRITERIA, audit(encoding), strict=False):
            assert audited.name.startswith(criterion)
            found[f"{name}, holds, {criterion}"] = float(bool(audited.holds))
        vectors_PW = vectors_of(encoding, AUDITED)
        steps_PW = vectors_PW[1:] - vectors_PW[:-1]
        sizes_P = steps_PW.norm(dim=-1)
        found[f"{name}, largest value"] = _largest(vectors_PW)
        found[f"{name}, largest step over the smallest"] = float(sizes_P.max() / sizes_P.min())
        found[f"{name}, column that changes most"] = float(steps_PW.abs().mean(0).argmax() + 1)
        for tokens in (10, 100):
            first, second = vectors_of(encoding, tokens)[:2]
            found[f"{name}, first step of {tokens}"] = float((second - first).norm())
    return found


def _shape(d_model: int, causal: bool = False, num_layers: int = 2) -> ModelShape:
    return ModelShape(d_model, 1, num_layers, causal, 20, 20)


def _crashes(call: Callable[[], object]) -> float:
    try:
        call()
    except (RuntimeError, IndexError, NameError):
        return 1.0
    return 0.0
