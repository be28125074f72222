"""Recall: name the symbol that followed an earlier occurrence of a queried symbol."""

import math

import numpy as np
import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, OneAnswer, Task, distinct_symbols
from pe_experiments.tasks.ceilings import bag_share, coin_flips, mode_share, mode_shares
from pe_experiments.terminal.errors import at_least


class AssociativeRecall(Task):
    """Pairs of a key and its value, then a key: what was its value? a 1 b 4 c 1 | b -> 4.

    Symbols: keys ``0 .. keys-1``, then the values. With three keys and values 3, 4, 5:

    >>> AssociativeRecall(keys=3, values=3).solve(torch.tensor([[0, 4, 2, 3, 1, 4, 2]])).tolist()
    [[3]]
    >>> AssociativeRecall(keys=3, values=3, queries=2).solve(torch.tensor([[0, 4, 2, 3, 2, 0]])).tolist()
    [[3, 4]]

    Keys are distinct, values independent and uniform, queried keys distinct and random. An input of p pairs
    has 2p + ``queries`` symbols; p is at least ``queries`` and at most ``keys``. Sources: Ba et al. 2016,
    arXiv:1610.06258 (one query); with more than one, multi-query associative recall of Arora et al. 2023,
    arXiv:2312.04927 (64 to 512 tokens).

    Args:
        keys: key symbols, at least 2.
        values: value symbols, at least 2.
        queries: number of queried keys, at least 1.
    """

    step = 2

    def __init__(self, keys: int = 80, values: int = 10, queries: int = 1):
        self.keys = at_least(2, "keys", keys)
        self.values = self.answers = at_least(2, "values", values)
        self.queries = at_least(1, "queries", queries)
        if queries > keys:
            raise ValueError(f"queries={queries} must be at most keys={keys}")
        self.shortest = 3 * queries
        self.longest = 2 * keys + queries
        self.vocab_size = keys + values

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pairs = self._pairs(length)
        keys_BP = distinct_symbols(self.keys, pairs, batch_size, generator)
        values_BP = torch.randint(self.keys, self.vocab_size, (batch_size, pairs), generator=generator)
        queried_BQ = distinct_symbols(pairs, self.queries, batch_size, generator)
        pairs_B2P = torch.stack([keys_BP, values_BP], dim=-1).flatten(1)
        return torch.cat([pairs_B2P, keys_BP.gather(1, queried_BQ)], dim=1), values_BP.gather(1, queried_BQ)

    def solve_row(self, row: list[int]) -> list[int]:
        pairs = row[: -self.queries]
        queried_keys = row[-self.queries :]
        values = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return [values.get(key, IGNORE) for key in queried_keys]

    def target_length(self, length: int) -> int:
        return self.queries

    def needed_indices(self, inputs_BN: Tensor) -> Tensor:
        keys_BP, queried_BQ = inputs_BN[:, : -self.queries : 2], inputs_BN[:, -self.queries :]
        is_queried_BQP = queried_BQ[:, :, None] == keys_BP[:, None]
        from_end_BQ = is_queried_BQP.flip(2).long().argmax(dim=2)  # subclasses repeat keys; the last counts
        return 2 * (keys_BP.shape[1] - 1 - from_end_BQ) + 1

    def depth(self, inputs_BN: Tensor) -> Tensor | None:
        if self.queries > 1:
            return None
        pair_B = self.needed_indices(inputs_BN)[:, 0] // 2
        return pair_B / max(1, self._pairs(inputs_BN.shape[1]) - 1)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        # The bag tells which keys are queried, not their values.
        return bag_share(self._pairs(length), self.queries, self.values, prefix)

    def _pairs(self, length: int) -> int:
        return (length - self.queries) // 2


class OverwrittenRecall(AssociativeRecall):
    """Pairs of a key and its value, then a key: what was its last value? a 1 b 4 a 2 b 3 a 0 | b -> 3.

    Symbols: keys ``0 .. keys-1``, then the values. With three keys and values 3, 4, 5:

    >>> OverwrittenRecall(keys=3, values=3).solve(torch.tensor([[0, 4, 1, 3, 0, 5, 2, 4, 0]])).tolist()
    [[5]]

    The queried key is uniform and stands in two random pairs; the keys of all other pairs are uniform, so it
    may occur again. Values are independent and uniform. An input of p pairs has 2p + 1 symbols; p is at least
    2. Sources: multi-query recall in which keys are assigned anew, ``forgetting_mqar`` of zoology
    (HazyResearch/zoology), after Arora et al. 2023, arXiv:2312.04927; there at most one new value per key,
    after all first values. One query, and new values at any place, were chosen for this project.

    Args:
        keys: key symbols, at least 2.
        values: value symbols, at least 2.
    """

    def __init__(self, keys: int = 80, values: int = 10):
        super().__init__(keys, values)
        self.shortest = 5
        self.longest = Task.longest

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pairs = length // 2
        keys_BP = torch.randint(self.keys, (batch_size, pairs), generator=generator)
        values_BP = torch.randint(self.keys, self.vocab_size, (batch_size, pairs), generator=generator)
        queried_B1 = torch.randint(self.keys, (batch_size, 1), generator=generator)
        written_B2 = distinct_symbols(pairs, 2, batch_size, generator)
        keys_BP = keys_BP.scatter(1, written_B2, queried_B1.expand(-1, 2))
        pairs_B2P = torch.stack([keys_BP, values_BP], dim=-1).flatten(1)
        inputs_BN = torch.cat([pairs_B2P, queried_B1], dim=1)
        return inputs_BN, inputs_BN.gather(1, self.needed_indices(inputs_BN))

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        return mode_share(length // 2, self.values)  # the values do not depend on where the key stands


class CompositionalRecall(OneAnswer):
    """Triples of two keys and their value, then two keys: a x 1 a y 4 b x 2 b y 3 | a y -> 4.

    Symbols: first keys ``0 .. keys-1``, second keys, then the values. With two keys of each kind and the
    values 4 and 5:

    >>> task = CompositionalRecall(keys=2, values=2)
    >>> task.solve(torch.tensor([[0, 2, 4, 0, 3, 5, 1, 2, 4, 0, 3]])).tolist()
    [[5]]

    The pairs of keys are distinct random cells of a square grid, the smallest with enough cells, whose rows
    and columns are random keys; values are independent and uniform. Neither key suffices, since others share
    it. An input of t triples has 3t + 2 symbols; t is at most ``keys`` squared. Source: compositional
    multi-query recall of zoology (HazyResearch/zoology), after Arora et al. 2023, arXiv:2312.04927; one query
    was chosen for this project.

    Args:
        keys: first keys, and as many second keys, at least 2.
        values: value symbols, at least 2.
    """

    shortest = 5
    step = 3

    def __init__(self, keys: int = 20, values: int = 10):
        self.keys = at_least(2, "keys", keys)
        self.values = self.answers = at_least(2, "values", values)
        self.longest = 3 * keys**2 + 2
        self.vocab_size = 2 * keys + values

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        triples = length // 3
        side = math.isqrt(triples - 1) + 1
        cells_BT = distinct_symbols(side**2, triples, batch_size, generator)
        rows_BG, columns_BG = (distinct_symbols(self.keys, side, batch_size, generator) for _ in range(2))
        first_BT = rows_BG.gather(1, cells_BT // side)
        second_BT = self.keys + columns_BG.gather(1, cells_BT % side)
        values_BT = torch.randint(2 * self.keys, self.vocab_size, (batch_size, triples), generator=generator)
        queried_B1 = torch.randint(triples, (batch_size, 1), generator=generator)
        triples_BN = torch.stack([first_BT, second_BT, values_BT], dim=-1).flatten(1)
        query = [keys_BT.gather(1, queried_B1) for keys_BT in (first_BT, second_BT)]
        return torch.cat([triples_BN, *query], dim=1), values_BT.gather(1, queried_B1)

    def solve_row(self, row: list[int]) -> list[int]:
        *triples, first, second = row
        values = dict(zip(zip(triples[::3], triples[1::3], strict=True), triples[2::3], strict=True))
        return [values.get((first, second), IGNORE)]

    def needed_indices(self, inputs_BN: Tensor) -> Tensor:
        same_first_BT = inputs_BN[:, :-2:3] == inputs_BN[:, -2:-1]
        same_second_BT = inputs_BN[:, 1:-2:3] == inputs_BN[:, -1:]
        return 3 * (same_first_BT & same_second_BT).long().argmax(dim=1, keepdim=True) + 2

    def depth(self, inputs_BN: Tensor) -> Tensor:
        triple_B = self.needed_indices(inputs_BN)[:, 0] // 3
        return triple_B / max(1, inputs_BN.shape[1] // 3 - 1)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        return mode_share(length // 3, self.values)  # the bag tells the values, not which keys they have


class TwoTokenRecall(Task):
    """Keys and values of two symbols, then several keys: ab 12 ba 34 | ba ab -> 34 12.

    Symbols: those of keys, ``0 .. keys-1``, then those of values. With two of each:

    >>> task = TwoTokenRecall(keys=2, values=2, queries=1)
    >>> task.solve(torch.tensor([[0, 1, 2, 3, 1, 0, 3, 3, 1, 0]])).tolist()
    [[3, 3]]

    Keys are distinct as pairs of symbols and share them; the symbols of values are independent and uniform;
    queried keys are distinct and random. An input of p keys has 4p + 2 ``queries`` symbols; p is at least
    ``queries``. Source: multi-query multi-token associative recall (MQMTAR) of Vasylenko et al. 2025,
    arXiv:2506.16640 (four queries; there the keys and values fill 80 % of the input).

    Args:
        keys: symbols of keys, at least 2.
        values: symbols of values, at least 2.
        queries: number of queried keys, at least 1 and at most ``keys`` squared.
    """

    step = 4

    def __init__(self, keys: int = 20, values: int = 10, queries: int = 4):
        self.keys = at_least(2, "keys", keys)
        self.values = self.answers = at_least(2, "values", values)
        self.queries = at_least(1, "queries", queries)
        if queries > keys**2:
            raise ValueError(f"queries={queries} must be at most the square of keys={keys}")
        self.shortest = 6 * queries
        self.longest = 4 * keys**2 + 2 * queries
        self.vocab_size = keys + values

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pairs = self._pairs(length)
        cells_BP = distinct_symbols(self.keys**2, pairs, batch_size, generator)
        keys_BP2 = torch.stack([cells_BP // self.keys, cells_BP % self.keys], dim=-1)
        values_BP2 = torch.randint(self.keys, self.vocab_size, keys_BP2.shape, generator=generator)
        queried_BQ = distinct_symbols(pairs, self.queries, batch_size, generator)
        queried_BQ2 = queried_BQ[..., None].expand(-1, -1, 2)
        pairs_BN = torch.cat([keys_BP2, values_BP2], dim=-1).flatten(1)
        queries_BN = keys_BP2.gather(1, queried_BQ2).flatten(1)
        return torch.cat([pairs_BN, queries_BN], dim=1), values_BP2.gather(1, queried_BQ2).flatten(1)

    def solve_row(self, row: list[int]) -> list[int]:
        stop = len(row) - 2 * self.queries
        values = {tuple(row[i : i + 2]): row[i + 2 : i + 4] for i in range(0, stop, 4)}
        queried_keys = [tuple(row[i : i + 2]) for i in range(stop, len(row), 2)]
        return [symbol for key in queried_keys for symbol in values.get(key, [IGNORE, IGNORE])]

    def target_length(self, length: int) -> int:
        return 2 * self.queries

    def needed_indices(self, inputs_BN: Tensor) -> Tensor:
        pairs_BP4 = inputs_BN[:, : -2 * self.queries].unflatten(1, (-1, 4))
        queried_BQ2 = inputs_BN[:, -2 * self.queries :].unflatten(1, (-1, 2))
        is_queried_BQP = (queried_BQ2[:, :, None] == pairs_BP4[:, None, :, :2]).all(-1)
        first_BQ1 = 4 * is_queried_BQP.long().argmax(dim=2, keepdim=True) + 2
        return torch.cat([first_BQ1, first_BQ1 + 1], dim=2).flatten(1)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        # The bag tells the symbols of values, not where they stand.
        return bag_share(2 * self._pairs(length), 2 * self.queries, self.values, prefix)

    def _pairs(self, length: int) -> int:
        return (length - 2 * self.queries) // 4


class PathStar(Task):
    """Edges of a star with several arms in random order, then its centre and a leaf: the path between them.

    ca cb ad be | c d -> c a d. Symbols are nodes. With two arms of two edges, from 0 to 1, 2 and to 3, 4:

    >>> PathStar(arms=2, nodes=5).solve(torch.tensor([[3, 4, 0, 1, 0, 3, 1, 2, 0, 4]])).tolist()
    [[0, 3, 4]]

    Nodes are random and distinct, edges point away from the centre. Arms of m edges make inputs of
    2 ``arms`` m + 2 symbols and answers of m + 1. Sources: Bachmann and Nagarajan 2024, arXiv:2403.06963 (a
    model trained with teacher forcing cannot choose the first edge), and ``train_path_star.py`` of
    x-transformers.

    Args:
        arms: at least 2.
        nodes: symbols, more than ``arms``.
    """

    def __init__(self, arms: int = 2, nodes: int = 100):
        self.arms = at_least(2, "arms", arms)
        self.vocab_size = at_least(arms + 1, "nodes", nodes)
        self.step = 2 * arms
        self.shortest = 2 * arms + 2
        self.longest = 2 * arms * ((nodes - 1) // arms) + 2

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        edges = self.target_length(length) - 1
        nodes_BC = distinct_symbols(self.vocab_size, 1 + self.arms * edges, batch_size, generator)
        centre_BA1 = nodes_BC[:, :1, None].expand(-1, self.arms, -1)
        paths_BAM = torch.cat([centre_BA1, nodes_BC[:, 1:].unflatten(1, (self.arms, edges))], dim=2)
        edges_BE2 = torch.stack([paths_BAM[..., :-1], paths_BAM[..., 1:]], dim=-1).flatten(1, 2)
        order_BE = distinct_symbols(self.arms * edges, self.arms * edges, batch_size, generator)
        edges_BE2 = edges_BE2.gather(1, order_BE[..., None].expand(-1, -1, 2))
        arm_B = torch.randint(self.arms, (batch_size,), generator=generator)
        path_BM = paths_BAM[torch.arange(batch_size), arm_B]
        return torch.cat([edges_BE2.flatten(1), path_BM[:, [0, -1]]], dim=1), path_BM

    def solve_row(self, row: list[int]) -> list[int]:
        *edges, centre, leaf = row
        before = dict(zip(edges[1::2], edges[::2], strict=True))
        path = [leaf]
        while path[0] != centre and path[0] in before and len(path) <= len(edges):
            path.insert(0, before[path[0]])
        return path if path[0] == centre and len(path) == self.target_length(len(row)) else []

    def target_length(self, length: int) -> int:
        return (length - 2) // (2 * self.arms) + 1

    def needed_indices(self, inputs_BN: Tensor) -> Tensor:
        path_BM = self.solve(inputs_BN)
        is_end_BME = path_BM[:, 1:, None] == inputs_BN[:, None, 1:-2:2]
        centre_B1 = torch.full((len(inputs_BN), 1), inputs_BN.shape[1] - 2)
        return torch.cat([centre_B1, 2 * is_end_BME.long().argmax(dim=2) + 1], dim=1)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        # The centre occurs most often. Each other node of the path is one of those that occur twice: the
        # inner nodes of all arms and the queried leaf.
        edges = self.target_length(length) - 1
        twice = self.arms * (edges - 1) + 1
        known = range(edges) if prefix else [0] * edges
        return (1 + sum(1 / (twice - seen) for seen in known)) / (edges + 1)


class NoisyRecall(AssociativeRecall):
    """Pairs of a key and its value among pairs of noise, then a key: a 1 . : b 4 : : c 1 | b -> 4.

    Symbols: keys ``0 .. keys-1``, then the values, then the fillers, which are noise. With three keys, values
    3, 4, 5 and fillers 6, 7:

    >>> NoisyRecall(keys=3, values=3, fillers=2).solve(torch.tensor([[0, 4, 6, 7, 1, 3, 7, 7, 1]])).tolist()
    [[3]]

    Each of p places holds two independent fillers with probability ``noise``, otherwise a pair; one random
    place always holds a pair. Keys are distinct, values independent and uniform, the queried key is a random
    one of those present. An input of p places has 2p + 1 symbols; p is at most ``keys``. Source: MAD of Poli
    et al. 2024, arXiv:2403.17844 (noisy in-context recall: 128 symbols, 16 of them noise, which stands at a
    fifth of the places, or up to 0.8 in harder variants; keys may repeat there with the same value, and
    each repetition is a query).

    Args:
        keys: key symbols, at least 2; also the largest number of places.
        values: value symbols, at least 2.
        fillers: noise symbols, at least 1.
        noise: probability that a place holds noise, above 0 and below 1.
    """

    def __init__(self, keys: int = 80, values: int = 10, fillers: int = 16, noise: float = 0.2):
        super().__init__(keys, values)
        self.fillers = at_least(1, "fillers", fillers)
        if not 0 < noise < 1:
            raise ValueError(f"noise={noise} is outside 0 .. 1 (both excluded)")
        self.noise = noise
        self.first_filler = keys + values
        self.vocab_size = keys + values + fillers

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        places = length // 2
        keys_BP = distinct_symbols(self.keys, places, batch_size, generator)
        values_BP = torch.randint(self.keys, self.first_filler, (batch_size, places), generator=generator)
        noise_BP2 = torch.randint(
            self.first_filler, self.vocab_size, (batch_size, places, 2), generator=generator
        )
        is_noise_BP = torch.rand(batch_size, places, generator=generator) < self.noise
        pair_B1 = torch.randint(places, (batch_size, 1), generator=generator)
        is_noise_BP = is_noise_BP.scatter(1, pair_B1, False)
        queried_B1 = torch.multinomial((~is_noise_BP).double(), 1, generator=generator)
        pairs_BP2 = torch.stack([keys_BP, values_BP], dim=-1)
        symbols_BP2 = noise_BP2.where(is_noise_BP[..., None], pairs_BP2)
        inputs_BN = torch.cat([symbols_BP2.flatten(1), keys_BP.gather(1, queried_B1)], dim=1)
        return inputs_BN, values_BP.gather(1, queried_B1)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        # The bag tells the values of all pairs. Their number is 1 plus a binomial number.
        places = length // 2
        weights = coin_flips(places - 1, 1 - self.noise)
        return float(weights @ mode_shares(np.arange(1, places + 1), self.values))


class MultiHop(OneAnswer):
    """Links from a variable to another, then a variable: where do k links lead? a>c b>a c>b | a -> b.

    Symbols are variables. With k=2 hops, from 0 to 2 and from 2 to 1:

    >>> MultiHop(hops=2, variables=4).solve(torch.tensor([[0, 2, 1, 0, 2, 1, 0]])).tolist()
    [[1]]

    The links, in random order, join p random variables to one random cycle; the queried variable is random.
    An input of p links has 2p + 1 symbols; p is at least ``hops`` + 1, so that the answer is not the queried
    variable, and at most ``variables``. Sources: Depo of Allen-Zhu 2025, Physics of Language Models part 4.1
    (k links along a directed cycle whose edges are shuffled; there names have several tokens and k is part of
    the question); k-hop induction of Sanford et al. 2024, arXiv:2402.09268 (a transformer needs about log k
    layers); variable tracking of RULER, Hsieh et al. 2024, arXiv:2404.06654 (pretrained models).

    Args:
        hops: number k of links to follow, at least 1.
        variables: number of symbols, more than ``hops``; also the largest number of links.
    """

    step = 2

    def __init__(self, hops: int = 2, variables: int = 80):
        self.hops = at_least(1, "hops", hops)
        if variables <= hops:
            raise ValueError(f"variables={variables} must be more than hops={hops}")
        self.variables = self.vocab_size = variables
        self.shortest = 2 * hops + 3
        self.longest = 2 * variables + 1

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        links = length // 2
        cycle_BP = distinct_symbols(self.variables, links, batch_size, generator)
        order_BP = distinct_symbols(links, links, batch_size, generator)
        from_BP = cycle_BP.gather(1, order_BP)
        to_BP = cycle_BP.roll(-1, dims=1).gather(1, order_BP)
        queried_B1 = torch.randint(links, (batch_size, 1), generator=generator)
        links_BN = torch.stack([from_BP, to_BP], dim=-1).flatten(1)
        answers_B1 = cycle_BP.gather(1, (queried_B1 + self.hops) % links)
        return torch.cat([links_BN, cycle_BP.gather(1, queried_B1)], dim=1), answers_B1

    def solve_row(self, row: list[int]) -> list[int]:
        *links, variable = row
        leads_to = dict(zip(links[::2], links[1::2], strict=True))
        for _ in range(self.hops):
            variable = leads_to.get(variable, IGNORE)
        return [variable]

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        return 1 / (length // 2 - 1)  # any variable but the queried one


class Induction(OneAnswer):
    """Which symbol followed the trigger at its first occurrence? 3 1 ! 4 1 5 ! -> 4.

    The trigger is the symbol after the fillers, here 6. It occurs at the end and once before, at random but
    never next to the end:

    >>> Induction(fillers=6).solve(torch.tensor([[3, 1, 6, 4, 1, 5, 6]])).tolist()
    [[4]]

    Fillers are independent and uniform. Shortest input: 3. Source: the induction heads task of Gu and Dao
    2023, arXiv:2312.00752 (16 symbols, trained at 256, evaluated from 64 to 1,048,576), after Olsson et al.
    2022, arXiv:2209.11895.

    Args:
        fillers: filler symbols, at least 2.
    """

    shortest = 3

    def __init__(self, fillers: int = 15):
        self.fillers = self.answers = at_least(2, "fillers", fillers)
        self.vocab_size = fillers + 1

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_BN = torch.randint(self.fillers, (batch_size, length), generator=generator)
        trigger_B1 = torch.randint(length - 2, (batch_size, 1), generator=generator)
        inputs_BN = inputs_BN.scatter(1, trigger_B1, self.fillers)
        inputs_BN[:, -1] = self.fillers
        return inputs_BN, inputs_BN.gather(1, trigger_B1 + 1)

    def solve_row(self, row: list[int]) -> list[int]:
        return [row[row.index(self.fillers) + 1]]

    def needed_indices(self, inputs_BN: Tensor) -> Tensor:
        return (inputs_BN == self.fillers).long().argmax(dim=1, keepdim=True) + 1

    def depth(self, inputs_BN: Tensor) -> Tensor:
        return (self.needed_indices(inputs_BN)[:, 0] - 1) / max(1, inputs_BN.shape[1] - 3)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        return mode_share(length - 2, self.fillers)
