"""An encoder without encoding, trained, ends on the bag ceiling and not above it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.run import run_experiment

EXAMPLES = 1500
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("task", ["lag", "even_pairs"])
def test_a_trained_order_blind_encoder_stays_under_the_ceiling(
    task: str, tiny: Callable[..., Experiment]
) -> None:
    settings = (
        "training.max_length=5",
        "training.steps=300",
        "training.batch_size=64",
        "training.check_every=300",
    )
    evaluation = ("evaluation.lengths=[4,5]", f"evaluation.examples={EXAMPLES}")
    result = run_experiment(tiny(f"task={task}", "model=encoder", "pe=none", *settings, *evaluation))
    error = 0.5 / EXAMPLES**0.5  # of one answer per example; more answers only make it smaller
    for row in result.curve:
        assert row["token_accuracy"] <= row["bag_ceiling"] + 3 * error
        assert row["token_accuracy"] >= row["bag_ceiling"] - 0.06, "it has not learnt what a bag allows"
