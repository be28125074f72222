"""Training: learning rates, weight decay, early stopping, reproducibility and micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.data import batches as data
from pe_experiments.data.batches import TrainingStream, micro_batches
from pe_experiments.run import run_experiment
from pe_experiments.store.csv_files import read_csv
from pe_experiments.tasks import IGNORE
from pe_experiments.training.loop import batch_loss
from pe_experiments.training.optimizer import learning_rate_factor


def test_each_step_has_the_scheduled_learning_rate(
    tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning ignores a scheduler under a wrong key silently."""
    rates: list[float] = []
    step_of_adamw = torch.optim.AdamW.step

    def step(self: torch.optim.AdamW, *args: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step_of_adamw(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    experiment = tiny("training.steps=40", "training.learning_rate=0.002", "training.warmup_steps=10")
    result = run_experiment(experiment.config)
    expected = [0.002 * learning_rate_factor(step, experiment.config.training) for step in range(40)]
    assert rates == expected
    recorded = {int(row["step"]): float(row["learning_rate"]) for row in read_csv(result.directory.metrics)}
    assert recorded == pytest.approx({step: expected[step - 1] for step in recorded})
    assert len(set(recorded.values())) == len(recorded) >= 4


@pytest.mark.parametrize(
    ("schedule", "middle", "end"), [("cosine", 0.525, 0.05), ("linear", 0.525, 0.05), ("constant", 1, 1)]
)
def test_schedules_warm_up_and_decay(
    tiny: Callable[..., Experiment], schedule: str, middle: float, end: float
) -> None:
    config = tiny(
        "training.steps=120", "training.warmup_steps=20", f"training.schedule={schedule}"
    ).config.training
    assert learning_rate_factor(0, config) == pytest.approx(1 / 20)
    assert learning_rate_factor(19, config) == 1
    assert learning_rate_factor(70, config) == pytest.approx(middle)
    assert learning_rate_factor(120, config) == pytest.approx(end)


def test_training_stops_at_the_requested_exact_match(tiny: Callable[..., Experiment]) -> None:
    result = run_experiment(
        tiny("task=majority", "training.steps=400", "training.stop_at_exact_match=0.4").config
    )
    steps = [int(row["step"]) for row in read_csv(result.directory.metrics)]
    assert max(steps) < 400
    assert max(steps) % 6 == 0
    assert result.result["finished_step"] == max(steps)


def test_same_seed_twice_is_bit_identical_and_another_seed_is_not(tiny: Callable[..., Experiment]) -> None:
    first = run_experiment(tiny("pe=learned").config).directory
    metrics, curve = first.metrics.read_text(), first.curve.read_text()
    rerun = run_experiment(tiny("pe=learned", "rerun=true").config)
    assert rerun.done == "trained"
    assert (rerun.directory.metrics.read_text(), rerun.directory.curve.read_text()) == (metrics, curve)
    other_seed = run_experiment(tiny("pe=learned", "seed=1").config)
    assert other_seed.directory.metrics.read_text() != metrics


# These depend on ids, on the length of a row, and on earlier tokens.
@pytest.mark.parametrize(
    ("pe", "model"),
    [("learned", "decoder"), ("rope_dynamic_ntk", "decoder"), ("path", "decoder"), ("t5", "encoder")],
)
def test_micro_batches_have_the_loss_and_gradient_of_the_batch(
    tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch, pe: str, model: str
) -> None:
    """Sorting, splitting and padding rows changes only the rounding."""
    experiment = tiny(f"pe={pe}", f"model={model}", "training.batch_size=24", "training.max_length=11")
    network = experiment.untrained_model()
    batch = TrainingStream(experiment.source, 24, "mixed").batch(0)
    measured = {}
    for tokens, parts in ((60, 3), (10**9, 1)):
        monkeypatch.setattr(data, "MICRO_BATCH_TOKENS", tokens)
        assert len(micro_batches(batch, network.shape.train_length)) == parts
        network.zero_grad()
        loss = batch_loss(network, batch)
        loss.backward()
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        measured[parts] = [loss.detach(), *gradients]
    assert len(measured[1]) > 10
    torch.testing.assert_close(measured[3], measured[1], rtol=1e-4, atol=1e-6)


def test_the_loss_is_the_mean_over_scored_tokens(tiny: Callable[..., Experiment]) -> None:
    experiment = tiny("training.batch_size=64", "training.max_length=30")
    network = experiment.untrained_model()
    batch = TrainingStream(experiment.source, 64, "mixed").batch(0)
    assert len(micro_batches(batch, network.shape.train_length)) > 1
    logits = network(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, batch.labels_BT.flatten(), ignore_index=IGNORE)
    torch.testing.assert_close(batch_loss(network, batch), expected)
