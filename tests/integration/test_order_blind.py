"""A trained encoder without positional encoding reaches the bag ceiling and does not exceed it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.run import run_experiment

EXAMPLES = 1500
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("task", ["lag", "even_pairs"])
def test_a_trained_order_blind_encoder_reaches_the_ceiling(
    task: str, tiny: Callable[..., Experiment]
) -> None:
    overrides = (
        "model=encoder", "pe=none", "training.max_length=5", "training.steps=300", "training.batch_size=64",
        "training.check_every=300", "evaluation.lengths=[4,5]", f"evaluation.examples={EXAMPLES}",
    )  # fmt: skip
    result = run_experiment(tiny(f"task={task}", *overrides).config)
    error = 0.5 / EXAMPLES**0.5  # standard error with one answer per example; smaller with more answers
    for row in result.curve:
        assert row["bag_ceiling"] - 0.06 <= row["token_accuracy"] <= row["bag_ceiling"] + 3 * error
