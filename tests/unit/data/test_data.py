"""How an encoder reads examples, and which streams draw them; golden numbers hold all other layouts."""

from __future__ import annotations

import torch

import pe_experiments.configuration.schema as config
import pe_experiments.data.batches as data
from pe_experiments.data import randomness
from pe_experiments.data.formats import SlotsFormat
from pe_experiments.data.randomness import STREAMS, block_index, stream

X = torch.tensor([[3, 1, 4], [2, 2, 0]])
EOS, SLOT = 12, 13


def test_an_encoder_gets_as_many_slots_whatever_the_length_of_the_answer() -> None:
    rows = SlotsFormat(10, False).lay_out(X, torch.tensor([[5, 6, 7], [7, -100, -100]]))
    assert rows.tokens_BT.tolist() == [[3, 1, 4, SLOT, SLOT, SLOT], [2, 2, 0, SLOT, SLOT, SLOT]]
    assert rows.labels_BT.tolist() == [[-100] * 3 + [5, 6, 7], [-100] * 3 + [7, EOS, -100]]
    assert rows.lengths_B.tolist() == [6, 6]


def test_no_two_streams_of_a_run_share_a_generator() -> None:
    indices = [*range(3000), *(block_index(length, block) for length in (5, 20, 160) for block in range(10))]
    seeds = {stream(0, name, index).initial_seed() for name in STREAMS for index in set(indices)}
    assert len(seeds) == len(STREAMS) * len(set(indices))


def test_the_limits_of_a_configuration_are_those_of_the_random_streams() -> None:
    assert config.MAX_LENGTH == (1 << randomness.LENGTH_BITS) - 1
    assert config.MOST_EXAMPLES == data.BLOCK_EXAMPLES << randomness.BLOCK_BITS
    assert config.MOST_BATCHES == 1 << randomness.INDEX_BITS
