"""Random streams: pure functions of their names, and distinct within a run."""

from __future__ import annotations

from pe_experiments.data.randomness import STREAMS, block_index, named_seed, stream


def test_no_two_streams_of_a_run_share_a_generator() -> None:
    indices = [*range(3000), *(block_index(length, block) for length in (5, 20, 160) for block in range(10))]
    seeds = {stream(0, name, index).initial_seed() for name in STREAMS for index in set(indices)}
    assert len(seeds) == len(STREAMS) * len(set(indices))


def test_named_seeds_are_the_same_on_every_machine() -> None:
    assert named_seed(0, "encoding 0") == 317241154
    assert len({named_seed(seed, name) for seed in range(50) for name in ("a", "b")}) == 100
