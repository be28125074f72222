"""Measure the claims of tutorials on encodings that need no training.

``python -m results.tutorial_claims.audits`` writes ``audits.csv``.

Shapes: P positions, W columns of the vectors; B rows, T tokens, D d_model.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from pe_experiments.analysis import audit
from pe_experiments.analysis.audit import order_blindness
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.learned import Learned
from pe_experiments.encodings.sinusoidal import Sinusoidal, sinusoid_vectors
from pe_experiments.models import Transformer

BASE = 10_000.0
LONGEST = 5000  # positions in the table of the printed module
WIDTH = 64  # d_model of the study
NOISE = 1e-9  # smaller values are rounding errors, which differ between machines
NOISE_FLOAT32 = 1e-5  # the same for quantities in float32
PAIR = "dog bites man against man bites dog, pooled"
WORKED_TABLE = ((0, 1, 0, 1), (0.841, 0.540, 0.010, 1.000), (0.909, -0.416, 0.020, 1.000))  # as printed
HERE = Path(__file__).parent
# From *Introduction to Natural Language Processing with Transformers*, 5.2; a line break splits a word.
FUNCTION = (HERE / "printed_function.txt").read_text()
WHOLE_FUNCTION = FUNCTION.replace("position\n\ns", "positions")
# The module of *Positional Encoding in Transformers*, with its indentation restored.
MODULE = (HERE / "printed_module.txt").read_text()

Measured = dict[str, Any]  # numbers and tensors of one value


def audit_all() -> pd.DataFrame:
    """Return all measured quantities, in six digits and without rounding errors, which differ by machine."""
    with torch.no_grad():
        values = formula() | printed_code() | counts() | order() | vectors()
    audits = pd.DataFrame([(name, float(x)) for name, x in values.items()], columns=["quantity", "value"])
    noise = np.where(audits["quantity"].str.endswith("float32"), NOISE_FLOAT32, NOISE)
    rounded = audits["value"].map("{:.6g}".format).astype(float)
    return audits.assign(value=rounded.where(audits["value"].abs() >= noise, 0.0))


def _largest(values: Tensor) -> Tensor:
    return values.abs().max()


def formula() -> Measured:
    """Compare the paper's formula with a scalar loop and a printed table, and measure its periods."""
    positions = [0, 1, 2, 17, 4095, 0.5, 1234.25]  # with gaps and fractions
    values = {}
    for width in (WIDTH, 7):
        angles = [[p / BASE ** (2 * (c // 2) / width) for c in range(width)] for p in positions]
        expected = [[(math.sin, math.cos)[c % 2](angle) for c, angle in enumerate(row)] for row in angles]
        expected_PW = torch.tensor(expected, dtype=torch.float64)
        vectors_PW = sinusoid_vectors(torch.tensor(positions, dtype=torch.float64), width, BASE)
        values[f"formula, error, d={width}"] = _largest(vectors_PW - expected_PW)
    worked = torch.tensor(WORKED_TABLE, dtype=torch.float64)
    sines_W, cosines_W = sinusoid_vectors(torch.tensor([1]), WIDTH, BASE)[0].view(-1, 2).T
    periods_W = 2 * math.pi / torch.atan2(sines_W, cosines_W)
    return values | {
        "formula, error of the worked table": _largest(sinusoid_vectors(torch.arange(3), 4, BASE) - worked),
        "period of the first pair": periods_W[0],
        "period of the last pair": periods_W[-1],
        "pairs faster than the one before": (periods_W.diff() <= 0).sum(),
    }


def printed(code: str, name: str) -> Any:
    """Execute printed code and return the class or function of this name."""
    namespace: dict[str, Any] = {"math": math, "np": np, "torch": torch}
    exec(code, namespace)
    return namespace[name]


def printed_code() -> Measured:
    """Run the printed module, also when it is fed batch first, and the printed function."""
    zeros_BTD = torch.zeros(2, 10, WIDTH)
    module = printed(MODULE, "PositionalEncoding")(WIDTH)
    errors_PW = module.pe[:, 0] - sinusoid_vectors(torch.arange(LONGEST), WIDTH, BASE)
    batch_first = module(zeros_BTD).transpose(0, 1)
    sequence_first = module(zeros_BTD.transpose(0, 1))
    function = printed(WHOLE_FUNCTION, "positional_encoding")
    true_PW = sinusoid_vectors(torch.arange(50), 512, BASE)
    return {
        "spread over positions, sample, batch first": _largest(batch_first - batch_first[:1]),
        "spread over positions, sample, sequence first": _largest(sequence_first - sequence_first[:1]),
        "values of the sample more than 1e-3 off": (errors_PW.abs() > 1e-3).sum(),
        "printed function crashes as extracted": _crashes(lambda: compile(FUNCTION, "printed", "exec")),
        "printed function, joined, error at d=512": _largest(torch.tensor(function(50, 512)) - true_PW),
        "printed function, joined, crashes at d=7": _crashes(lambda: function(50, 7)),
    }


def counts() -> Measured:
    """Count what documents count, parameters, and columns that change with the position of a token."""
    values: Measured = {"1010 read in binary": int("1010", 2)}
    for width in (8, 7):
        values[f"columns without a k, d={width}"] = width - 2 * math.ceil((width - 1) / 2)
    concatenated = partial(Sinusoidal, combine="concat")
    modules: dict[str, nn.Module] = {
        "fixed": Sinusoidal(_shape(WIDTH)),
        "learned": Learned(_shape(WIDTH)),
        "added": Transformer(10, _shape(WIDTH, causal=True), Sinusoidal),
        "beside a token as wide": Transformer(10, _shape(2 * WIDTH, causal=True), concatenated),
        "beside a token half as wide": Transformer(10, _shape(WIDTH, causal=True), concatenated),
    }
    for name, module in modules.items():
        values[f"parameters, {name}"] = sum(parameter.numel() for parameter in module.parameters())
    tokens_BT = torch.zeros(1, 20, dtype=torch.long)
    for combine, encoding in (("add", Sinusoidal), ("concat", concatenated)):
        torch.manual_seed(0)
        shape = _shape(WIDTH, causal=True, num_layers=1)
        model = Transformer(8, shape, encoding, initialisation="pytorch").double()
        embedded_BTD = model.embed(tokens_BT, torch.arange(20)[None])
        for where, x_BTD in (("embedded", embedded_BTD), ("after a layer", model.hidden(tokens_BT))):
            changes_D = (x_BTD[0] - x_BTD[0, :1]).abs().amax(0) > NOISE
            values[f"columns that change with the position, {combine}, {where}"] = changes_D.sum()
    return values


def order() -> Measured:
    """Measure the effect of permuting the input of untrained transformers in float64."""
    tokens_T = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7])
    shuffled_T = torch.tensor([5, 2, 0, 6, 3, 1, 4, 7])
    encoder, decoder = (_shape(32, causal=causal) for causal in (False, True))
    model = Transformer(8, encoder, PositionalEncoding, initialisation="pytorch").double()
    original_TD, permuted_TD = model.hidden(torch.stack([tokens_T, tokens_T[shuffled_T]]))
    return {
        "order, encoder, none, output at the same token": _largest(original_TD[shuffled_T] - permuted_TD),
        "order, encoder, none, output at the same index": _largest(original_TD - permuted_TD),
        "order, encoder, none, pooled output": _largest(original_TD.mean(0) - permuted_TD.mean(0)),
        f"order, encoder, none, {PAIR}": order_blindness(PositionalEncoding, encoder)[0],
        f"order, decoder of depth 2, none, {PAIR}": order_blindness(PositionalEncoding, decoder)[0],
    }


def vectors() -> Measured:
    """Measure distances, shifts and bounds of sinusoids."""
    values = shifts("float64") | shifts("float32")
    for width, kind in [*product((2, 4, 8, 16, WIDTH), ("float64", "float32")), (2, "bfloat16")]:
        vectors_PW = sinusoid_vectors(torch.arange(LONGEST), width, BASE).to(getattr(torch, kind)).double()
        distances_PP = audit.pairwise_distances(vectors_PW).fill_diagonal_(torch.inf)
        values[f"closest two positions, d={width}, {kind}"] = distances_PP.min()
    for tokens in (10, 100):
        vectors_PW = audit.vectors_of(Sinusoidal(_shape(WIDTH)), tokens)
        values[f"sinusoidal, first step of {tokens}"] = vectors_PW[:2].diff(dim=0).norm()
    return values


def shifts(kind: str) -> Measured:
    """Measure bounds and the dependence on the offset of two positions, with vectors in the given dtype."""
    vectors_PW = sinusoid_vectors(torch.arange(audit.AUDITED), WIDTH, BASE).to(getattr(torch, kind))
    distances_PP = audit.pairwise_distances(vectors_PW)
    similarity_PP = vectors_PW @ vectors_PW.T / (WIDTH / 2)
    diagonals = [similarity_PP.diagonal(k) for k in range(len(vectors_PW))]
    steps_2W = vectors_PW[[7, 14]] - vectors_PW[[5, 12]]
    values = {
        "values above 1 in size": (vectors_PW.abs() > 1).sum(),
        "spread of the similarity over positions": max(x.max() - x.min() for x in diagonals),
        "distance, 5 to 7": distances_PP[5, 7],
        "distance, 12 to 14": distances_PP[12, 14],
        "difference vectors of 5 to 7 and 12 to 14, apart": steps_2W.diff(dim=0).norm(),
    }
    for k in (1, 2, audit.OFFSET, 100):
        linear_map_WW = audit.shift_matrix(WIDTH, BASE, k).to(vectors_PW)
        errors_PW = vectors_PW[:-k] @ linear_map_WW.T - vectors_PW[k:]
        values[f"residual of M_k, k={k}"] = errors_PW.norm(dim=-1).max()
        if k == 2:
            values["error of 12 to 14 with the linear map of 5 to 7"] = _largest(errors_PW[[5, 12]])
    return {f"{name}, {kind}": x for name, x in values.items()}


def _shape(d_model: int, causal: bool = False, num_layers: int = 2) -> ModelShape:
    return ModelShape(d_model, 1, num_layers, causal, 20, 20)


def _crashes(call: Callable[[], object]) -> bool:
    try:
        call()
    except (RuntimeError, IndexError, SyntaxError, ValueError):
        return True
    return False


if __name__ == "__main__":
    audit_all().to_csv(HERE / "audits.csv", index=False)
