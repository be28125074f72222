"""Random streams are distinct within a run; golden numbers notice if they change."""

from __future__ import annotations

from pe_experiments.data.randomness import STREAMS, block_index, stream


def test_no_two_streams_of_a_run_share_a_generator() -> None:
    indices = [*range(3000), *(block_index(length, block) for length in (5, 20, 160) for block in range(10))]
    seeds = {stream(0, name, index).initial_seed() for name in STREAMS for index in set(indices)}
    assert len(seeds) == len(STREAMS) * len(set(indices))
