"""Recall: name the symbol that followed an earlier occurrence of a queried symbol."""

import numpy as np
import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, OneAnswer, Task, distinct_symbols
from pe_experiments.tasks.ceilings import coin_flips, mean_mode_share, mode_share, mode_shares
from pe_experiments.terminal.argument_checks import at_least


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
        return 2 * (queried_BQ[:, :, None] == keys_BP[:, None]).long().argmax(dim=2) + 1

    def depth(self, inputs_BN: Tensor) -> Tensor | None:
        if self.queries > 1:
            return None
        pair_B = (inputs_BN[:, :-1:2] == inputs_BN[:, -1:]).long().argmax(dim=1)
        return pair_B / max(1, self._pairs(inputs_BN.shape[1]) - 1)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        pairs = self._pairs(length)  # the bag tells which keys are queried, not their values
        if prefix:
            return mean_mode_share(pairs - self.queries + 1, pairs, self.values)
        return mode_share(pairs, self.values)

    def _pairs(self, length: int) -> int:
        """Return the number of pairs in an input of this length."""
        return (length - self.queries) // 2


class OverwrittenRecall(OneAnswer):
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

    shortest = 5
    step = 2

    def __init__(self, keys: int = 80, values: int = 10):
        self.keys = at_least(2, "keys", keys)
        self.values = self.answers = at_least(2, "values", values)
        self.vocab_size = keys + values

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pairs = length // 2
        keys_BP = torch.randint(self.keys, (batch_size, pairs), generator=generator)
        values_BP = torch.randint(self.keys, self.vocab_size, (batch_size, pairs), generator=generator)
        queried_B1 = torch.randint(self.keys, (batch_size, 1), generator=generator)
        written_B2 = distinct_symbols(pairs, 2, batch_size, generator)
        keys_BP = keys_BP.scatter(1, written_B2, queried_B1.expand(-1, 2))
        last_B1 = _last_pair(keys_BP, queried_B1)
        pairs_B2P = torch.stack([keys_BP, values_BP], dim=-1).flatten(1)
        return torch.cat([pairs_B2P, queried_B1], dim=1), values_BP.gather(1, last_B1)

    def solve_row(self, row: list[int]) -> list[int]:
        *pairs, queried = row
        value = IGNORE
        for key, following in zip(pairs[::2], pairs[1::2], strict=True):
            if key == queried:
                value = following
        return [value]

    def needed_indices(self, inputs_BN: Tensor) -> Tensor:
        return 2 * _last_pair(inputs_BN[:, :-1:2], inputs_BN[:, -1:]) + 1

    def depth(self, inputs_BN: Tensor) -> Tensor:
        last_B1 = _last_pair(inputs_BN[:, :-1:2], inputs_BN[:, -1:])
        return last_B1[:, 0] / (inputs_BN.shape[1] // 2 - 1)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        return mode_share(length // 2, self.values)  # the values do not depend on where the key stands


def _last_pair(keys_BP: Tensor, queried_B1: Tensor) -> Tensor:
    """Return the index [B, 1] of the last pair with the queried key."""
    from_end_B1 = (keys_BP.flip(1) == queried_B1).long().argmax(dim=1, keepdim=True)
    return keys_BP.shape[1] - 1 - from_end_B1


class NoisyRecall(OneAnswer):
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

    shortest = 3
    step = 2

    def __init__(self, keys: int = 80, values: int = 10, fillers: int = 16, noise: float = 0.2):
        self.keys = at_least(2, "keys", keys)
        self.values = self.answers = at_least(2, "values", values)
        self.fillers = at_least(1, "fillers", fillers)
        if not 0 < noise < 1:
            raise ValueError(f"noise={noise} is outside 0 .. 1 (both excluded)")
        self.noise = noise
        self.longest = 2 * keys + 1
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

    def solve_row(self, row: list[int]) -> list[int]:
        *places, queried = row
        values = dict(zip(places[::2], places[1::2], strict=True))
        return [values.get(queried, IGNORE)]

    def needed_indices(self, inputs_BN: Tensor) -> Tensor:
        return 2 * (inputs_BN[:, :-1:2] == inputs_BN[:, -1:]).long().argmax(dim=1, keepdim=True) + 1

    def depth(self, inputs_BN: Tensor) -> Tensor:
        place_B = (inputs_BN[:, :-1:2] == inputs_BN[:, -1:]).long().argmax(dim=1)
        return place_B / max(1, inputs_BN.shape[1] // 2 - 1)

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
        trigger_B = (inputs_BN == self.fillers).long().argmax(dim=1)
        return trigger_B / max(1, inputs_BN.shape[1] - 3)

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        return mode_share(length - 2, self.fillers)
