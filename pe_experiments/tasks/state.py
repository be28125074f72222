"""State: the answer depends on the effect of all instructions so far."""

import math

import numpy as np
import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, OneAnswer, Task, distinct_symbols
from pe_experiments.tasks.ceilings import coin_flips, mean_signs, mode_shares
from pe_experiments.terminal.errors import at_least


class FlipFlop(Task):
    """Which bit was written last? write 1, ignore 0, read -> 1. Predicted at each read.

    Bits are 0 and 1, write is 2, ignore 3, read 4; a read is followed by 5, since a bit would reveal the
    answer to a model that looks ahead:

    >>> FlipFlop().solve(torch.tensor([[2, 1, 3, 0, 4, 5]])).tolist()
    [[-100, -100, -100, -100, 1, -100]]

    Inputs are pairs of an instruction and a bit. The first pair writes, the last reads; any other ignores
    with probability ``ignore`` and else writes or reads with equal probabilities. Bits are independent and
    uniform. Input lengths: even, from 4. Source: Liu et al. 2023, arXiv:2306.00946 (512 symbols, trained at
    ignore=0.8, evaluated at 0.1, 0.8 and 0.98).

    Args:
        ignore: probability of an ignored pair, from 0 to below 1.
    """

    vocab_size = 6
    answers = 2
    formats = ("aligned",)
    shortest = 4
    step = 2
    write, skip, read, blank = range(2, 6)

    def __init__(self, ignore: float = 0.8):
        if not 0 <= ignore < 1:
            raise ValueError(f"ignore={ignore} is outside 0 .. 1 (1 itself excluded)")
        self.ignore = ignore

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pairs = length // 2
        chances = torch.tensor([(1 - self.ignore) / 2, self.ignore, (1 - self.ignore) / 2])
        kinds = torch.multinomial(chances, batch_size * pairs, replacement=True, generator=generator)
        instructions_BP = self.write + kinds.view(batch_size, pairs)
        instructions_BP[:, 0] = self.write
        instructions_BP[:, -1] = self.read
        bits_BP = torch.randint(2, (batch_size, pairs), generator=generator)
        reads_BP = instructions_BP == self.read
        last_write_BP = torch.arange(pairs).where(instructions_BP == self.write, 0).cummax(dim=1).values
        answers_BP = bits_BP.gather(1, last_write_BP).where(reads_BP, IGNORE)
        inputs_BN = torch.stack([instructions_BP, bits_BP.where(~reads_BP, self.blank)], dim=-1).flatten(1)
        return inputs_BN, torch.stack([answers_BP, torch.full_like(answers_BP, IGNORE)], dim=-1).flatten(1)

    def solve_row(self, row: list[int]) -> list[int]:
        memory = IGNORE
        answer = []
        for symbol, following in zip(row, [*row[1:], self.blank], strict=True):
            if symbol == self.write:
                memory = following
            answer.append(memory if symbol == self.read else IGNORE)
        return answer

    def needed_indices(self, inputs_BN: Tensor) -> Tensor:
        """Return the index of the bit written last before each symbol."""
        writes_BN = torch.arange(inputs_BN.shape[1]).where(inputs_BN == self.write, 0)
        return writes_BN.cummax(dim=1).values + 1

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        # The queried bit may be any bit in the bag, which holds as many bits as pairs that do not read.
        pairs = length // 2
        chance = (1 - self.ignore) / 2
        if prefix:  # pair p reads after p pairs, the first of which writes
            weights = np.full(pairs - 1, chance)
            weights[-1] = 1.0
            shares = mode_shares(np.arange(1, pairs), 2)  # in bags of 1, 2, ... bits
            values = [coin_flips(p - 1, chance) @ shares[:p][::-1] for p in range(1, pairs)]
            return float(np.average(values, weights=weights))
        reads = 1 + np.arange(pairs - 1)
        weights = coin_flips(pairs - 2, chance) * reads
        return float(np.average(mode_shares(pairs - reads, 2), weights=weights))


class DyckDepth(Task):
    """How many brackets are open? ( ( ) ( -> 1 2 1 2. Predicted at each bracket.

    Opening is 0, closing 1, depth d is the symbol 2 + d:

    >>> DyckDepth().solve(torch.tensor([[0, 0, 1, 0]])).tolist()
    [[3, 4, 3, 4]]

    Each bracket opens or closes with equal probabilities, but never closes at depth 0 nor opens at depth
    ``deepest``. A decoder can count its brackets without order, an encoder cannot. Bounded depth: Yao et al.
    2021, arXiv:2105.11115 (depths to 10, trained to 700 symbols, evaluated to 1,400); predicting the
    depth at each bracket: made for this project.

    Args:
        deepest: largest depth, at least 2.
    """

    formats = ("aligned",)

    def __init__(self, deepest: int = 8):
        self.deepest = at_least(2, "deepest", deepest)
        self.vocab_size = 3 + deepest

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        closes_BN = torch.randint(2, (batch_size, length), generator=generator)
        depths_BN = torch.empty_like(closes_BN)
        depth_B = torch.zeros(batch_size, dtype=torch.long)
        for index in range(length):
            closes_B = closes_BN[:, index]
            closes_B[depth_B == 0] = 0
            closes_B[depth_B == self.deepest] = 1
            depth_B = depth_B + 1 - 2 * closes_B
            depths_BN[:, index] = depth_B
        return closes_BN, 2 + depths_BN

    def solve_row(self, row: list[int]) -> list[int]:
        depths = [row[: i + 1].count(0) - row[: i + 1].count(1) for i in range(len(row))]
        return [2 + depth if 0 <= depth <= self.deepest else IGNORE for depth in depths]

    def chance(self, length: int) -> float:
        depths = 1 if length == 1 else length + 1  # the first bracket opens
        return 1 / min(depths, self.deepest + 1)

    def input_blind(self, length: int) -> float:
        # The likeliest depth at each index.
        up, down = self._steps()
        share_D = np.eye(self.deepest + 1)[0]
        total = 0.0
        for _ in range(length):
            share_D = share_D @ (up + down)
            total += float(share_D.max())
        return total / length

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        if prefix:
            return 1.0  # the depth is the number of opening minus closing brackets so far
        # The bag tells the depth at the end; the bracket at the scored position is known too.
        up, down = self._steps()
        to_end = [np.eye(self.deepest + 1)]
        for _ in range(length - 1):
            to_end.append((up + down) @ to_end[-1])
        before = np.eye(self.deepest + 1)[0]
        total = 0.0
        for index in range(length):
            for bracket in (up, down):  # P(depth here, depth at the end), the most likely depth of each end
                total += ((before @ bracket)[:, None] * to_end[length - 1 - index]).max(axis=0).sum()
            before = before @ (up + down)
        return float(total / length)

    def _steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Return P(depth before, depth after) an opening and a closing bracket, reflected at both ends."""
        up = np.diag(np.full(self.deepest, 0.5), 1)
        down = np.diag(np.full(self.deepest, 0.5), -1)
        up[0] = 2 * up[0]
        down[-1] = 2 * down[-1]
        return up, down


class StackManipulation(Task):
    """Name the stack, top first, after pushes and pops on a given stack: 0 1 1 push-0 pop pop -> 1 0.

    The input is a stack, bottom first, then instructions. Bits are 0 and 1, pop is 2, push 0 is 3, push 1 is
    4; popping an empty stack does nothing:

    >>> StackManipulation().solve(torch.tensor([[0, 1, 1, 3, 2, 2], [1, 2, 2, 2, 4, 3]])).tolist()
    [[1, 0, -100, -100, -100, -100, -100], [0, 1, -100, -100, -100, -100, -100]]

    The height of the stack is uniform from 1 to n-1 (a single symbol is a stack), bits and instructions are
    independent and uniform. Source: Delétang et al. 2022, arXiv:2207.02098 (trained to 40, evaluated to 500).
    As in the source, there are n+1 targets (the answer and its end mark, here EOS), which are scored up to
    that mark; unlike there, the zeros after the mark have no loss.
    """

    vocab_size = 5
    answers = 2

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        height_B1 = torch.randint(1, max(length, 2), (batch_size, 1), generator=generator)
        bits_BN = torch.randint(2, (batch_size, length), generator=generator)
        actions_BN = torch.randint(2, 5, (batch_size, length), generator=generator)
        inputs_BN = bits_BN.where(torch.arange(length) < height_B1, actions_BN)
        stack_BN = torch.zeros_like(inputs_BN)
        height_B = torch.zeros_like(inputs_BN[:, 0])
        for symbol_B in inputs_BN.unbind(1):  # the first bits are pushed like all others
            pops_B = symbol_B == 2
            bit_B = symbol_B.where(symbol_B < 2, symbol_B - 3).clamp(min=0)
            top_B1 = height_B[:, None].clamp(max=length - 1)
            stack_BN.scatter_(1, top_B1, bit_B[:, None])  # a pop writes above the height, which is ignored
            height_B = (height_B + 1 - 2 * pops_B.long()).clamp(min=0)
        index_M = height_B[:, None] - 1 - torch.arange(self.target_length(length))
        return inputs_BN, stack_BN.gather(1, index_M.clamp(min=0)).where(index_M >= 0, IGNORE)

    def solve_row(self, row: list[int]) -> list[int]:
        stack: list[int] = []
        for symbol in row:
            if symbol != 2:
                stack.append(symbol if symbol < 2 else symbol - 3)
            elif stack:
                stack.pop()
        return stack[::-1]

    def target_length(self, length: int) -> int:
        return length + 1


class VariableAssignment(OneAnswer):
    """A chain of assignments, then a variable: a = +1, b = -a, c = +b; what is c? "minus".

    Symbols: variables ``0 .. variables-1``, then +, -, 1, and the answers "plus" and "minus". A clause is a
    variable, a sign, and the variable of the clause before (in the first clause: 1). With three variables,
    the symbols after the variables are 3 to 7:

    >>> chain = [[0, 3, 5, 1, 4, 0, 2, 3, 1, 2]]
    >>> VariableAssignment(variables=3).solve(torch.tensor(chain)).tolist()
    [[7]]

    Variables are distinct and random, signs independent and uniform; the queried variable is uniform in the
    later half of the chain. An input of c clauses has 3c + 1 symbols; c is at least 2 and at most
    ``variables``. Sources: LEGO of Zhang et al. 2022, arXiv:2206.04301, as in Kazemnejad et al. 2023,
    arXiv:2305.19466 (to 8 clauses, evaluated to 16).

    Args:
        variables: number of variables, at least 2; also the longest chain.
    """

    shortest = 7
    step = 3
    answers = 2

    def __init__(self, variables: int = 26):
        self.variables = at_least(2, "variables", variables)
        self.longest = 3 * variables + 1
        self.plus, self.minus, self.one, self.positive, self.negative = range(variables, variables + 5)
        self.vocab_size = variables + 5

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        clauses = length // 3
        names_BC = distinct_symbols(self.variables, clauses, batch_size, generator)
        flips_BC = torch.randint(2, (batch_size, clauses), generator=generator)
        queried_B1 = torch.randint((clauses + 1) // 2, clauses, (batch_size, 1), generator=generator)
        before_BC = torch.cat([torch.full((batch_size, 1), self.one), names_BC[:, :-1]], dim=1)
        chain_BC3 = torch.stack([names_BC, self.plus + flips_BC, before_BC], dim=-1)
        negative_BC = flips_BC.cumsum(dim=1) % 2
        inputs_BN = torch.cat([chain_BC3.flatten(1), names_BC.gather(1, queried_B1)], dim=1)
        return inputs_BN, self.positive + negative_BC.gather(1, queried_B1)

    def solve_row(self, row: list[int]) -> list[int]:
        values = {self.one: 1}
        for name, sign, before in zip(row[:-1:3], row[1:-1:3], row[2:-1:3], strict=True):
            if before in values:  # always true in a chain
                values[name] = values[before] if sign == self.plus else -values[before]
        queried = row[-1]
        if queried not in values:
            return [IGNORE]
        return [self.positive if values[queried] == 1 else self.negative]

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        # The bag tells how many signs are minus. It also tells whether the last variable of the chain is
        # queried, because that variable occurs nowhere else; then the answer is the parity of all signs.
        # Otherwise any other variable in the later half of the chain may be queried.
        clauses = length // 3
        queried = range((clauses + 1) // 2, clauses)
        if len(queried) == 1:
            return 1.0
        # E[(-1)^(minuses up to the variable)], given the number of minuses in the whole chain.
        means = np.mean([mean_signs(clauses, index + 1) for index in queried[:-1]], axis=0)
        expected = float(coin_flips(clauses) @ np.abs(means))
        return 1 / len(queried) + (1 - 1 / len(queried)) * (1 + expected) / 2


class Blocks(Task):
    """Has the last of several blocks begun? a a b a a -> no no no yes yes. Predicted at each symbol.

    Blocks of 0 and of 1 alternate, the first is of 0. The answers are 2 (no) and 3 (yes):

    >>> Blocks(blocks=3).solve(torch.tensor([[0, 0, 1, 0, 0]])).tolist()
    [[2, 2, 2, 3, 3]]

    The places where blocks begin are random. An input has at least as many symbols as blocks. Source: the
    released code of pentagonalize/CRASP_depth (3 to 12 blocks, one to ten layers), which relates the number
    of blocks to the depth that a transformer needs.

    Args:
        blocks: at least 2.
    """

    formats = ("aligned",)
    vocab_size = 4
    answers = 2

    def __init__(self, blocks: int = 4):
        self.blocks = self.shortest = at_least(2, "blocks", blocks)

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        begins_BN = torch.zeros(batch_size, length, dtype=torch.long)
        begins_BN.scatter_(1, 1 + distinct_symbols(length - 1, self.blocks - 1, batch_size, generator), 1)
        block_BN = begins_BN.cumsum(dim=1)
        return block_BN % 2, 2 + (block_BN == self.blocks - 1).long()

    def solve_row(self, row: list[int]) -> list[int]:
        block = 0
        answers = []
        for before, symbol in zip([row[0], *row], row, strict=False):
            block += symbol != before
            answers.append(3 if block == self.blocks - 1 else 2)
        if row[0] != 0 or block != self.blocks - 1:
            return [IGNORE] * len(row)
        return answers

    def input_blind(self, length: int) -> float:
        # At index t all other blocks have begun if their beginnings are among the places 1 .. t.
        all_places = math.comb(length - 1, self.blocks - 1)
        begun = [math.comb(index, self.blocks - 1) / all_places for index in range(length)]
        return sum(max(share, 1 - share) for share in begun) / length

    def bag_ceiling(self, length: int, prefix: bool = False) -> float | None:
        return 1.0 if self.blocks == 2 else None  # with two blocks, the symbol is the answer
