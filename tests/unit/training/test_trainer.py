"""The keys of ``trainer``: what they change, what is refused, and that a run resumes under each."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.run import evaluate_run, run_experiment
from pe_experiments.store.csv_files import read_csv
from pe_experiments.store.identity import identify
from pe_experiments.store.status import run_status
from pe_experiments.store.trained_model import load_model
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.errors import UserError
from pe_experiments.training.loop import batch_loss
from tests.interrupted import StopAt

Tiny = Callable[..., Experiment]


class Halved(pl.Callback):
    """Somebody's callback: scales the gradients after the backward pass."""

    def __init__(self, factor: float = 0.5):
        self.factor = factor

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for parameter in pl_module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.factor)


class Best(pl.Callback):
    """Somebody's callback: its state holds what a checkpoint is not read with."""

    def state_dict(self) -> dict[str, Any]:
        return {"best": np.float64(1.0)}


OF_LIGHTNING = "trainer.callbacks=[{{_target_: pytorch_lightning.callbacks.{}}}]"
CASES: dict[str, tuple[str, ...]] = {
    "accumulated, callback": (
        "trainer.accumulate_grad_batches=3",
        "positions=random_offset",
        f"+trainer.callbacks=[{{_target_: {__name__}.Halved}}]",
    ),
    "bf16, dropout": ("trainer.precision=bf16-mixed", "model=llama", "model.d_model=16", "model.dropout=0.2"),
    "moving average": (OF_LIGHTNING.format("EMAWeightAveraging"), "pe=rope"),
    "float64": ("trainer.precision=64-true", "pe=rope"),
    "sgd": ("optimizer=sgd",),
    "adafactor": ("optimizer=adafactor",),
    "muon, accumulated": ("optimizer=muon", "trainer.accumulate_grad_batches=2", "pe=fire"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("checkpoint_every_step")
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_that_which_was_never_stopped(case: str, tiny: Tiny, tmp_path: Path) -> None:
    options = (*CASES[case], "training.steps=25")
    whole = run_experiment(tiny(*options, f"results_dir={tmp_path / 'whole'}"))
    assert whole.status == "completed", whole.result
    assert run_experiment(tiny(*options), StopAt(17, RuntimeError("boom"))).status == "error"
    again = run_experiment(tiny(*options))
    assert (again.done, again.result["resumed_from"]) == ("resumed", 12)
    assert again.directory.metrics.read_text() == whole.directory.metrics.read_text()
    assert again.directory.curve.read_text() == whole.directory.curve.read_text()
    before = tiny(*options).untrained_model()
    after = load_model(again.directory.path, trust=True).model
    for (name, one), other in zip(before.named_parameters(), after.parameters(), strict=True):
        assert (one != other).any(), name


def test_the_loss_of_accumulated_batches_is_the_mean_over_their_tokens(tiny: Tiny) -> None:
    experiment = tiny("training.steps=1", "trainer.accumulate_grad_batches=2", "training.clip_norm=null")
    (row,) = read_csv(run_experiment(experiment).directory.metrics)
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


def test_callbacks_run_and_name_the_run_and_need_trust(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callbacks = [f"trainer.callbacks=[{{_target_: {__name__}.Halved, factor: {n}}}]" for n in (0.5, 0.25)]
    plain = ("training.clip_norm=null", "optimizer=sgd")
    runs = [run_experiment(tiny(*plain, *keys)) for keys in ([], [callbacks[0]])]
    norms = [float(read_csv(run.directory.metrics)[0]["gradient_norm"]) for run in runs]
    assert norms[1] < 0.8 * norms[0]
    assert len({identify(tiny(*keys)).name for keys in ([], [callbacks[0]], [callbacks[1]])}) == 3
    load_model(runs[1].directory.path)  # the callback is the reader's own
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="from outside this package"):
        load_model(runs[1].directory.path)
    load_model(runs[1].directory.path, trust=True)


@pytest.mark.usefixtures("checkpoint_every_step")
def test_a_state_that_could_not_be_read_again_is_refused_at_the_first_checkpoint(tiny: Tiny) -> None:
    experiment = tiny(f"trainer.callbacks=[{{_target_: {__name__}.Best}}]")
    with pytest.raises(UserError, match="with the state of Best cannot be resumed"):
        run_experiment(experiment)
    assert not run_status(experiment).run.checkpoint.exists()


def test_what_training_fixed_is_not_evaluated_otherwise(tiny: Tiny) -> None:
    run = run_experiment(tiny()).directory.path
    trainer = tiny().config.trainer.model_dump()
    assert evaluate_run(run, {"trainer": trainer | {"threads": 2}}).done == "found"
    with pytest.raises(UserError, match=r"trainer\.precision is fixed by the training"):
        evaluate_run(run, {"trainer": trainer | {"precision": "64-true"}})


def test_the_validation_loss_is_that_of_the_training(tiny: Tiny) -> None:
    """Also of another evaluation of it; infinite if it diverged."""
    loss = run_experiment(tiny()).validation_loss
    other = run_experiment(tiny("evaluation.lengths=[5,12]"))
    assert (other.done, other.validation_loss) == ("evaluated", loss)
    wild = ("optimizer=sgd", "training.clip_norm=null", "training.learning_rate=1e30", "training.steps=40")
    diverged = run_experiment(tiny(*wild, "training.check_every=1"))
    assert (diverged.status, diverged.validation_loss) == ("diverged", math.inf)


def test_what_changes_weights_is_in_the_identity_and_devices_are_not(tiny: Tiny) -> None:
    same = ("trainer=cpu", "trainer.threads=2", "trainer.matmul=default", "trainer.strategy=ddp")
    assert {identify(tiny(key)).name for key in same} == {identify(tiny()).name}
    others = ("precision=bf16-mixed", "precision=64-true", "accumulate_grad_batches=2", "threads=1")
    assert len({identify(tiny(f"trainer.{key}")).name for key in others}) == 4


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            ["trainer.gradient_clip_val=1"],
            "gradient_clip_val is not a setting; gradients are clipped by training",
        ),
        (["+trainer.gradient_clip_val=1"], "gradients are clipped by training.clip_norm"),
        (["trainer.precision=bfloat16"], "precision=bfloat16: expected 32-true, bf16-mixed or 64-true"),
        (["trainer.callbacks=[{_target_: torch.nn.Linear}]"], "torch.nn has no Callback of that name"),
        (["trainer.callbacks=[{factor: 1}]"], "trainer.callbacks needs a choice with a _target_"),
        ([OF_LIGHTNING.format("StochasticWeightAveraging, swa_lrs: 0.1")], "allowed instead: EMAWeight"),
        ([OF_LIGHTNING.format("EarlyStopping, monitor: loss")], "instead: training.stop_at_exact_match"),
        (
            ["task=text", "training.stop_at_exact_match=0.5"],
            "stop_at_exact_match=0.5: exact match is not measured on Text",
        ),
    ],
)
def test_what_is_refused_is_one_sentence(keys: list[str], said: str, tiny: Tiny) -> None:
    with pytest.raises(UserError, match=said) as caught:
        tiny(*keys)
    assert "\n" not in str(caught.value)
