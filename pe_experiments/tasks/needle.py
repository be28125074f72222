"""A needle in a haystack: name the value that follows a mark at any position."""

import copy
from typing import Literal, Self

import torch
from torch import Tensor

from pe_experiments.tasks.base import Split, Task
from pe_experiments.tasks.ceilings import bag_share
from pe_experiments.tasks.text import Text
from pe_experiments.terminal.errors import at_least, one_of

Filler = Literal["symbols", "text"]
LETTERS = 26  # letters, "a" to "z", from which a value in a text is drawn


class Needle(Task):
    """Which k symbols followed the mark? With k=2: 3 1 ! 4 0 5 2 ! -> 4 0.

    The mark is the symbol after the fillers, here 6. It occurs at the end and once before, uniformly over all
    places that leave room for the value:

    >>> Needle(k=2, symbols=6).solve(torch.tensor([[3, 1, 6, 4, 0, 5, 2, 6]])).tolist()
    [[4, 0]]

    Fillers and value are independent and uniform symbols; with ``filler=text`` a window of the corpus that
    `Text` reads, in which the mark (256) and k random letters from a to z replace bytes. Shortest input:
    k + 2. With k=1 and symbols it is `Induction`. Sources: the passkey of Mohtashami and Jaggi 2023,
    arXiv:2305.16300 (to 32,000 tokens); Chen et al. 2023, arXiv:2309.12307 (LongLoRA: fine-tuned at 32,768
    tokens, evaluated from 1,000 to 34,000); the grid of length and depth after Kamradt 2023 (needle in a
    haystack). These sources query pretrained models without training on the task.

    Args:
        k: length of the value in symbols, at least 1.
        symbols: number of symbols for fillers and value, at least 2; not used with ``filler=text``.
        filler: ``symbols`` or ``text``.
        path: the corpus of ``filler=text``, as in `Text`.
    """

    def __init__(self, k: int = 2, symbols: int = 16, filler: Filler = "symbols", path: str | None = None):
        self.k = at_least(1, "k", k)
        self.symbols = self.value_symbols = at_least(2, "symbols", symbols)
        self.text = None
        self.shortest = k + 2
        if one_of(Filler, "filler", filler) == "text":
            self.text = Text(path)
            self.symbols = self.text.vocab_size
            self.value_symbols = LETTERS
            self.data_files = self.text.data_files
            self.longest = self.text.longest
        elif path is not None:
            raise ValueError(f"path={path} is read only with filler=text")
        self.answers = self.value_symbols
        self.mark = self.symbols
        self.vocab_size = self.symbols + 1

    def for_split(self, split: Split) -> Self:
        task = copy.copy(self)
        if self.text:
            task.text = self.text.for_split(split)
        return task

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        values_BK = torch.randint(self.value_symbols, (batch_size, self.k), generator=generator)
        if self.text:
            values_BK += ord("a")
            inputs_BN, _ = self.text.sample(length, batch_size, generator)
        else:
            inputs_BN = torch.randint(self.symbols, (batch_size, length), generator=generator)
        mark_B1 = torch.randint(length - self.k - 1, (batch_size, 1), generator=generator)
        inputs_BN.scatter_(1, mark_B1, self.symbols)
        inputs_BN.scatter_(1, mark_B1 + torch.arange(1, self.k + 1), values_BK)
        inputs_BN[:, -1] = self.symbols
        return inputs_BN, values_BK

    def solve_row(self, row: list[int]) -> list[int]:
        start = row.index(self.symbols) + 1
        return row[start : start + self.k]

    def target_length(self, length: int) -> int:
        return self.k

    def needed_indices(self, inputs_BN: Tensor) -> Tensor:
        mark_B1 = (inputs_BN == self.symbols).long().argmax(dim=1, keepdim=True)
        return mark_B1 + torch.arange(1, self.k + 1)

    def depth(self, inputs_BN: Tensor) -> Tensor:
        return (self.needed_indices(inputs_BN)[:, 0] - 1) / max(1, inputs_BN.shape[1] - self.k - 2)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float | None:
        return None if self.text else bag_share(length - 2, self.k, self.symbols, prefix)
