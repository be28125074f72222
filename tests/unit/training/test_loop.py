"""Training: learning rates, weight decay, early stopping, reproducibility and micro-batches."""

import pytest
import torch

from pe_experiments.data.batches import TrainingStream
from pe_experiments.data.formats import Sequences
from pe_experiments.run import run_experiment
from pe_experiments.store.csv_files import read_csv
from pe_experiments.training import cpu
from pe_experiments.training.cpu import micro_batches
from pe_experiments.training.loop import batch_loss
from pe_experiments.training.optimizer import learning_rate_factor
from tests.conftest import Tiny


@pytest.mark.parametrize(
    ("schedule", "middle", "end"), [("cosine", 0.525, 0.05), ("linear", 0.525, 0.05), ("constant", 1, 1)]
)
def test_schedules_warm_up_and_decay(tiny: Tiny, schedule: str, middle: float, end: float) -> None:
    config = tiny(
        "training.steps=120", "training.warmup_steps=20", f"training.schedule={schedule}"
    ).config.training
    assert learning_rate_factor(0, config) == pytest.approx(1 / 20)
    assert learning_rate_factor(19, config) == 1
    assert learning_rate_factor(70, config) == pytest.approx(middle)
    assert learning_rate_factor(120, config) == pytest.approx(end)


def test_training_stops_at_the_requested_exact_match(tiny: Tiny) -> None:
    result = run_experiment(
        tiny("task=majority", "training.steps=400", "training.stop_at_exact_match=0.4").config
    )
    steps = [int(row["step"]) for row in read_csv(result.directory.metrics)]
    assert max(steps) < 400
    assert max(steps) % 6 == 0
    assert result.result["finished_step"] == max(steps)


def test_one_draw_serves_several_steps(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task is sampled for 16 batches together, which takes longer than a small step."""
    draws = []
    draw_sequences = TrainingStream._sequences

    def counted(stream: TrainingStream, draw: int) -> Sequences:
        draws.append((stream.split, draw))
        return draw_sequences(stream, draw)

    monkeypatch.setattr(TrainingStream, "_sequences", counted)
    run_experiment(tiny("training.steps=20").config)
    assert [draw for split, draw in draws if split == "training"] == [0, 1]


# These depend on ids, on the length of a row, and on earlier tokens.
@pytest.mark.parametrize(
    ("pe", "model"),
    [("learned", "decoder"), ("rope_dynamic_ntk", "decoder"), ("path", "decoder"), ("t5", "encoder")],
)
def test_micro_batches_have_the_loss_and_gradient_of_the_batch(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, pe: str, model: str
) -> None:
    """Sorting, splitting and padding rows changes only the rounding."""
    experiment = tiny(f"pe={pe}", f"model={model}", "training.batch_size=24", "training.max_length=11")
    network = experiment.untrained_model()
    batch = TrainingStream(experiment.source, 24, "mixed").batch(0)
    measured = {}
    for tokens, parts in ((60, 3), (10**9, 1)):
        monkeypatch.setattr(cpu, "MICRO_BATCH_TOKENS", tokens)
        assert len(micro_batches(batch, network.shape.train_length)) == parts
        network.zero_grad()
        loss = batch_loss(network, batch)
        loss.backward()
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        measured[parts] = [loss.detach(), *gradients]
    assert len(measured[1]) > 10
    torch.testing.assert_close(measured[3], measured[1], rtol=1e-4, atol=1e-6)
