"""Whether an untrained encoder tells ``dog bites man`` from ``man bites dog``."""

from __future__ import annotations

import torch
from torch import Tensor

from pe_experiments.encodings import ModelShape
from pe_experiments.models import Transformer
from pe_experiments.models.backbone import MakeEncoding

WORDS = ("dog", "bites", "man")
ROUNDING = 1e-6
SENTENCES = (("dog", "bites", "man"), ("man", "bites", "dog"))


def order_blindness(make_encoding: MakeEncoding, shape: ModelShape, seed: int = 0) -> tuple[float, float]:
    """The largest differences of an untrained encoder's outputs for both sentences, relative to their size.

    Returns:
        That of the mean over the words, and that at the word ``dog``; an order-blind encoder's are rounding
        in float64, below `ROUNDING`.
    """
    hidden_2WD = read_both(make_encoding, shape, seed)
    return _apart(hidden_2WD.mean(dim=1)), _apart(hidden_2WD[:, WORDS.index("dog")])


@torch.no_grad()
def read_both(make_encoding: MakeEncoding, shape: ModelShape, seed: int = 0) -> Tensor:
    """Outputs [2, W, d_model] of an untrained transformer for both sentences, in the order of `WORDS`."""
    model = Transformer(len(WORDS), shape, make_encoding, initialisation="pytorch", seed=seed).double()
    tokens_2T = torch.tensor([[WORDS.index(word) for word in sentence] for sentence in SENTENCES])
    hidden_2TD = model.hidden(tokens_2T)
    return hidden_2TD.take_along_dim(tokens_2T.argsort(dim=1)[..., None], dim=1)


def _apart(pair_2D: Tensor) -> float:
    return float((pair_2D[0] - pair_2D[1]).abs().max() / pair_2D.abs().max())
