"""On a CUDA device models compute what they compute on the CPU. `tests/cluster/gpu.sh` runs this file.

``DRY_RUN=1`` compares the CPU with itself, to test the tests.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.configuration.choices import shipped
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.data.batches import Batch
from pe_experiments.models import Backbone
from pe_experiments.run import run_experiment
from pe_experiments.store.csv_files import read_curve, read_metrics
from pe_experiments.tasks import IGNORE
from tests.conftest import Tiny

DRY_RUN = bool(os.environ.get("DRY_RUN"))
ACCELERATOR, DEVICE = ("cpu", "cpu") if DRY_RUN else ("gpu", "cuda")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DRY_RUN and not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ENCODINGS = sorted(set(shipped("pe")) - {"custom", "by_layer", "rope_hf"})  # the last two need arguments


def loss_and_gradients(model: Backbone, batch: Batch) -> list[Tensor]:
    """Return the loss of a batch and the gradient of each parameter, on the CPU."""
    model.zero_grad()
    logits_BTV = model(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
    loss = F.cross_entropy(logits_BTV.mT, batch.labels_BT, ignore_index=IGNORE)
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [tensor.detach().cpu() for tensor in (loss, *gradients)]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_encoding_has_the_loss_and_gradients_of_the_cpu(tiny: Tiny, encoding: str) -> None:
    """Rows are padded, and double precision leaves only the order of sums to differ."""
    experiment = tiny(f"pe={encoding}", "trainer.precision=64-true", "model.num_layers=2")
    batch = experiment.batches.batch(0)
    on_cpu = experiment.untrained_model()
    on_device = copy.deepcopy(on_cpu).to(DEVICE)
    expected = loss_and_gradients(on_cpu, batch)
    measured = loss_and_gradients(on_device, batch.to(torch.device(DEVICE)))
    for tensor, expected_tensor in zip(measured, expected, strict=True):
        torch.testing.assert_close(tensor, expected_tensor, rtol=1e-7, atol=1e-9)


def losses(experiment: Experiment) -> list[float]:
    """Train and evaluate, and return the losses of the training and of each length."""
    directory = run_experiment(experiment.config).run
    training = [float(row["loss"]) for row in read_metrics(directory.metrics)]
    return [*training, *(float(row["loss"]) for row in read_curve(directory.curve))]


@pytest.mark.parametrize("trainer", [(), ("trainer.strategy=ddp",)], ids=["one device", "DDP of one process"])
def test_a_run_has_the_losses_of_the_cpu(tiny: Tiny, trainer: tuple[str, ...], tmp_path: Path) -> None:
    options = ("pe=rope", "training.steps=30", "trainer.precision=64-true")
    expected = losses(tiny(*options, "trainer=cpu", f"results_dir={tmp_path}/cpu"))
    measured = losses(tiny(*options, f"trainer.accelerator={ACCELERATOR}", *trainer))
    assert measured == pytest.approx(expected, rel=1e-6)


def test_bf16_learns_like_float32(tiny: Tiny) -> None:
    options = ("pe=rope", "training.steps=60", f"trainer.accelerator={ACCELERATOR}")
    exact = losses(tiny(*options))
    rounded = losses(tiny(*options, "trainer.precision=bf16-mixed"))
    assert rounded == pytest.approx(exact, rel=0.05)
    assert rounded != exact
