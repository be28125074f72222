"""Whether an untrained encoder tells ``dog bites man`` from ``man bites dog``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pe_experiments.encodings import ModelShape
from pe_experiments.models import Transformer
from pe_experiments.models.backbone import MakeEncoding

WORDS = ("dog", "bites", "man")
SENTENCES = (("dog", "bites", "man"), ("man", "bites", "dog"))


@dataclass(frozen=True)
class Blindness:
    """Largest differences of outputs for the two sentences, relative to their size.

    ``pooled`` is that of the mean over the words, ``word`` that at the word ``dog``.
    """

    pooled: float
    word: float

    @property
    def blind(self) -> bool:
        """Whether the outputs differ by rounding alone."""
        return max(self.pooled, self.word) < 1e-6


def order_blindness(make_encoding: MakeEncoding, shape: ModelShape, seed: int = 0) -> Blindness:
    """Read both sentences with an untrained encoder of that shape, in float64; ``seed`` is of its weights."""
    hidden_2WD = read_both(make_encoding, shape, seed)
    return Blindness(_apart(hidden_2WD.mean(dim=1)), _apart(hidden_2WD[:, WORDS.index("dog")]))


@torch.no_grad()
def read_both(make_encoding: MakeEncoding, shape: ModelShape, seed: int = 0) -> Tensor:
    """Outputs [2, W, d_model] of an untrained transformer for both sentences, in the order of `WORDS`."""
    model = Transformer(len(WORDS), shape, make_encoding, initialisation="pytorch", seed=seed).double()
    tokens_2T = torch.tensor([[WORDS.index(word) for word in sentence] for sentence in SENTENCES])
    hidden_2TD = model.hidden(tokens_2T)
    return hidden_2TD.take_along_dim(tokens_2T.argsort(dim=1)[..., None], dim=1)


def _apart(pair_2D: Tensor) -> float:
    return float((pair_2D[0] - pair_2D[1]).abs().max() / pair_2D.abs().max())
