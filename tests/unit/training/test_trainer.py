"""The settings of ``trainer``: what they change, what is refused, and that runs resume with each."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from pe_experiments.analysis.trained_model import load_model
from pe_experiments.run import run_experiment
from pe_experiments.store.csv_files import read_csv
from pe_experiments.store.identity import identify
from pe_experiments.store.requested import Run
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.errors import UserError
from pe_experiments.training.loop import batch_loss
from tests.conftest import Tiny
from tests.interrupted import StopAt


class Best(pl.Callback):
    """A user's callback whose state cannot be read from a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        return {"best": np.float64(1.0)}


OF_LIGHTNING = "trainer.callbacks=[{{_target_: pytorch_lightning.callbacks.{}}}]"
CASES: dict[str, tuple[str, ...]] = {
    "accumulated, callback, sgd": (
        "trainer.accumulate_grad_batches=3",
        "positions=random_offset",
        "+trainer.callbacks=[{_target_: tests.integration.user_encodings.Halved}]",
        "optimizer=sgd",
    ),
    "bf16, dropout, adafactor": (
        "trainer.precision=bf16-mixed",
        "model=llama",
        "model.d_model=16",
        "model.dropout=0.2",
        "optimizer=adafactor",
    ),
    "moving average": (OF_LIGHTNING.format("EMAWeightAveraging"), "pe=rope"),
    "float64, muon, accumulated": (
        "trainer.precision=64-true",
        "optimizer=muon",
        "trainer.accumulate_grad_batches=2",
        "pe=fire",
    ),
}


@pytest.mark.slow
@pytest.mark.usefixtures("checkpoint_every_step")
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_equals_an_uninterrupted_one(case: str, tiny: Tiny, tmp_path: Path) -> None:
    options = (*CASES[case], "training.steps=25")
    whole = run_experiment(tiny(*options, f"results_dir={tmp_path / 'whole'}").config)
    assert whole.status == "completed", whole.result
    failed = run_experiment(tiny(*options).config, StopAt(17, RuntimeError("boom")))
    assert (failed.status, "boom" in failed.result["reason"]) == ("error", True)
    assert "Traceback" in failed.directory.error_log.read_text()
    resumed = run_experiment(tiny(*options).config)
    assert (resumed.done, resumed.result["resumed_from"]) == ("resumed", 12)  # the last recorded step
    assert not resumed.directory.error_log.exists()
    assert resumed.directory.metrics.read_text() == whole.directory.metrics.read_text()
    assert resumed.directory.curve.read_text() == whole.directory.curve.read_text()
    trained = dict(load_model(resumed.directory.path, trust=True).model.named_parameters())
    for name, initial in tiny(*options).untrained_model().named_parameters():
        assert (trained[name] != initial).any(), name


def test_the_loss_of_accumulated_batches_is_the_mean_over_their_tokens(tiny: Tiny) -> None:
    experiment = tiny("training.steps=1", "trainer.accumulate_grad_batches=2", "training.clip_norm=null")
    (row,) = read_csv(run_experiment(experiment.config).directory.metrics)
    model = experiment.untrained_model()
    batches = [experiment.batches.batch(index) for index in range(2)]
    counts = [int((batch.labels_BT != IGNORE).sum()) for batch in batches]
    assert counts[0] != counts[1]
    sums = [batch_loss(model, batch) * count for batch, count in zip(batches, counts, strict=True)]
    loss = torch.stack(sums).sum() / sum(counts)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert float(row["loss"]) == pytest.approx(loss.item())
    assert float(row["gradient_norm"]) == pytest.approx(torch.nn.utils.get_total_norm(gradients).item())


def test_callbacks_run_and_are_part_of_the_identity(tiny: Tiny) -> None:
    halved = "tests.integration.user_encodings.Halved"
    callbacks = [f"trainer.callbacks=[{{_target_: {halved}, factor: {n}}}]" for n in (0.5, 0.25)]
    plain = ("training.clip_norm=null", "optimizer=sgd")
    runs = [run_experiment(tiny(*plain, *keys).config) for keys in ([], [callbacks[0]])]
    norms = [float(read_csv(run.directory.metrics)[0]["gradient_norm"]) for run in runs]
    assert norms[1] < 0.8 * norms[0]
    assert len({identify(tiny(*keys)).name for keys in ([], [callbacks[0]], [callbacks[1]])}) == 3


@pytest.mark.usefixtures("checkpoint_every_step")
def test_a_callback_whose_state_cannot_be_resumed_is_refused_at_the_first_checkpoint(tiny: Tiny) -> None:
    experiment = tiny(f"trainer.callbacks=[{{_target_: {__name__}.Best}}]")
    with pytest.raises(UserError, match="with the state of Best cannot be resumed"):
        run_experiment(experiment.config)
    assert not Run(experiment.config).directory.checkpoint.exists()


def test_the_validation_loss_is_that_of_the_training_and_infinite_after_a_divergence(tiny: Tiny) -> None:
    loss = run_experiment(tiny().config).validation_loss
    evaluated = run_experiment(tiny("evaluation.lengths=[5,12]").config)
    assert (evaluated.done, evaluated.validation_loss) == ("evaluated", loss)
    wild = ("optimizer=sgd", "training.clip_norm=null", "training.learning_rate=1e30", "training.steps=40")
    diverged = run_experiment(tiny(*wild, "training.check_every=1").config)
    assert (diverged.status, diverged.validation_loss) == ("diverged", math.inf)
