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
    """Largest differences between an encoder's outputs for the two sentences, relative to their size.

    Attributes:
        pooled: of the mean over the words.
        word: at the word ``dog``.
    """

    pooled: float
    word: float

    @property
    def blind(self) -> bool:
        """Whether the outputs differ by rounding alone."""
        return max(self.pooled, self.word) < 1e-6


@torch.no_grad()
def order_blindness(make_encoding: MakeEncoding, shape: ModelShape, seed: int = 0) -> Blindness:
    """Read both sentences with an untrained encoder of that shape, in float64; ``seed`` is of its weights."""
    model = Transformer(len(WORDS), shape, make_encoding, initialisation="pytorch", seed=seed).double()
    tokens_BT = torch.tensor([[WORDS.index(word) for word in sentence] for sentence in SENTENCES])
    hidden_BTD = model.hidden(tokens_BT)
    return Blindness(_apart(hidden_BTD.mean(dim=1)), _apart(hidden_BTD[tokens_BT == WORDS.index("dog")]))


def _apart(pair_BD: Tensor) -> float:
    return float((pair_BD[0] - pair_BD[1]).abs().max() / pair_BD.abs().max())
