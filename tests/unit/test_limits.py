"""Estimates before a start: what cannot fit is refused, what is used is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pe_experiments import config, data, randomness
from pe_experiments.building import (
    parameters,
    refuse_large_training,
    refuse_long_measurements,
    training_bytes,
)
from pe_experiments.composition import composed
from pe_experiments.config import Experiment, check, resolve

Tiny = Callable[..., Experiment]


def test_what_the_streams_can_number_is_what_a_configuration_may_ask_for() -> None:
    assert config.LONGEST == (1 << randomness.LENGTH_BITS) - 1
    assert config.MOST_EXAMPLES == data.BLOCK_EXAMPLES << randomness.BLOCK_BITS
    assert config.MOST_BATCHES == 1 << randomness.INDEX_BITS


@pytest.mark.parametrize(
    "overrides",
    [
        ["evaluation.lengths=[16384]", "evaluation.examples=1"],
        ["evaluation.lengths=[500,1000]", "evaluation.examples=1000", "task=sqrt"],
        ["model.d_model=512", "model.num_heads=8", "model.num_layers=6", "training.max_length=40"],
        ["training.max_length=500", "training.batch_size=32"],
    ],
)
def test_what_people_run_is_not_refused(overrides: list[str]) -> None:
    experiment = resolve(check(composed("config", overrides)))
    refuse_large_training(experiment)
    refuse_long_measurements(experiment)


def test_the_estimate_counts_parameters_and_grows_with_the_batch(tiny: Tiny) -> None:
    from pe_experiments.instantiation import build_model

    experiment = tiny("model.d_model=64", "pe=none")
    counted = sum(p.numel() for p in build_model(experiment).parameters())
    assert parameters(experiment) == pytest.approx(counted, rel=0.05)
    larger = training_bytes(tiny("model.d_model=64", "pe=none", "training.batch_size=8000"))
    assert larger > 100 * training_bytes(experiment)
