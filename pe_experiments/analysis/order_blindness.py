"""Whether an untrained encoder tells ``dog bites man`` from ``man bites dog``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.models import Transformer

WORDS = ("dog", "bites", "man")
SENTENCES = (("dog", "bites", "man"), ("man", "bites", "dog"))


@dataclass(frozen=True)
class Blindness:
    """Differences between an encoder's outputs for two sentences with the same words.

    Attributes:
        pooled: largest difference between the mean-pooled outputs, relative to their size.
        word: the same for the outputs at the word ``dog``.
    """

    pooled: float
    word: float

    @property
    def blind(self) -> bool:
        """Whether the outputs differ by rounding alone."""
        return max(self.pooled, self.word) < 1e-6


@torch.no_grad()
def order_blindness(
    make_encoding: Callable[[ModelShape], PositionalEncoding], shape: ModelShape, seed: int = 0
) -> Blindness:
    """Read both sentences with an untrained two-layer encoder, in float64.

    Args:
        make_encoding: builds the scheme from a shape, as in `Transformer`.
        shape: of an encoder that reads at least three tokens.
        seed: of the weights.
    """
    model = Transformer(len(WORDS), shape, make_encoding, initialisation="pytorch", seed=seed).double()
    tokens_BT = torch.tensor([[WORDS.index(word) for word in sentence] for sentence in SENTENCES])
    hidden_BTD = model.hidden(tokens_BT)
    pooled_BD = hidden_BTD.mean(dim=1)
    first = SENTENCES[0].index("dog"), SENTENCES[1].index("dog")
    dog_BD = torch.stack([hidden_BTD[0, first[0]], hidden_BTD[1, first[1]]])
    return Blindness(_apart(pooled_BD), _apart(dog_BD))


def _apart(pair_BD: torch.Tensor) -> float:
    return float((pair_BD[0] - pair_BD[1]).abs().max() / pair_BD.abs().max())
