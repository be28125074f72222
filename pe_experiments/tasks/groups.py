"""Word problems of permutation groups: track the product of all permutations so far."""

from itertools import permutations
from typing import Literal

import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, Task
from pe_experiments.terminal.errors import one_of

Group = Literal["s5", "a5"]
POINTS = 5  # that the permutations act on


class WordProblem(Task):
    """Which permutation is the product of those so far? x1 x2 x3 -> x1, x2 x1, x3 x2 x1.

    Elements are the permutations of five points in lexicographic order: all 120 (S5), or the 60 even ones
    (A5). A permutation p is written as its images p(0) ... p(4); the product y x applies x first. Symbols:
    element g is g as an input and |G| + g as a state. In S5 element 24 is 1 0 2 3 4 and element 33 is
    1 2 3 4 0; the one after the other is 2 1 3 4 0, element 57:

    >>> WordProblem().solve(torch.tensor([[24, 33]])).tolist()
    [[144, 177]]

    With ``reveals`` the input sometimes shows the state itself in place of the next element; nothing is
    scored there:

    >>> WordProblem(reveals=0.1).solve(torch.tensor([[24, 33, 177, 33]])).tolist()
    [[144, 177, -100, 208]]

    Elements are independent and uniform. Both groups are not solvable, so their word problems are complete
    for the class NC1, which constant-depth transformers of bounded precision are believed not to reach. The
    state is uniform whatever the length. Bag ceilings are not known. Sources: Merrill et al. 2024,
    arXiv:2404.08819 (S5, A5 and solvable groups of the same size, each prefix scored); Siems et al. 2026,
    arXiv:2602.14814 (composition of permutations with reveals of the state, as the output of a program that
    prints); Ebrahimi et al. 2026, arXiv:2602.18333 (state tracking within the training lengths). How often
    the state is revealed, by coin flips, was chosen for this project.

    Args:
        group: ``s5`` or ``a5``.
        reveals: probability that a symbol, except the first, shows the state; from 0 to below 1.
    """

    formats = ("aligned",)

    def __init__(self, group: Group = "s5", reveals: float = 0.0):
        if not 0 <= reveals < 1:
            raise ValueError(f"reveals={reveals} is outside 0 .. 1 (1 itself excluded)")
        self.reveals = reveals
        self.elements = list(permutations(range(POINTS)))
        if one_of(Group, "group", group) == "a5":  # the determinant of an even permutation is 1
            self.elements = [p for p in self.elements if torch.eye(POINTS)[list(p)].det() > 0]
        self.order = self.answers = len(self.elements)
        self.vocab_size = 2 * self.order
        index = {permutation: number for number, permutation in enumerate(self.elements)}
        # product_GG[y, x] is the element y x, which applies x first.
        self.product_GG = torch.tensor(
            [[index[tuple(y[point] for point in x)] for x in self.elements] for y in self.elements]
        )

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.order, (batch_size, length), generator=generator)
        revealed_BN = torch.rand(batch_size, length, generator=generator) < self.reveals
        revealed_BN[:, 0] = False
        states_BN = torch.empty_like(inputs_BN)
        state_B = torch.zeros_like(inputs_BN[:, 0])  # element 0 is the identity
        for index in range(length):
            next_B = self.product_GG[inputs_BN[:, index], state_B]
            state_B = state_B.where(revealed_BN[:, index], next_B)
            states_BN[:, index] = state_B
        symbols_BN = self.order + states_BN
        return symbols_BN.where(revealed_BN, inputs_BN), symbols_BN.where(~revealed_BN, IGNORE)

    def solve_row(self, row: list[int]) -> list[int]:
        images = list(range(POINTS))  # where the five points are now
        answer = []
        for symbol in row:
            if symbol >= self.order:
                images = list(self.elements[symbol - self.order])
                answer.append(IGNORE)
                continue
            permutation = self.elements[symbol]
            images = [permutation[image] for image in images]
            answer.append(self.order + self.elements.index(tuple(images)))
        return answer
