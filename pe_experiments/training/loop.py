"""Training one model with Lightning: the module, its batches, the training curve, checkpoints."""

from __future__ import annotations

import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, Checkpoint
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, IterableDataset

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.parts import Component, no_part_exits
from pe_experiments.configuration.schema import TrainingConfig
from pe_experiments.data.batches import Batch, TrainingStream, micro_batches, rounded_up
from pe_experiments.data.randomness import named_seed
from pe_experiments.encodings.base import at_least_float32
from pe_experiments.evaluation.curve import Row, in_distribution_tally
from pe_experiments.models import Backbone
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.errors import Diverged
from pe_experiments.training.optimizer import TrainingOptimizer, learning_rate_factor

RECORD_EVERY = 10  # steps between rows of the training curve
SCORED_STEP = 16  # scored tokens are padded to a multiple of it: kernels are set up anew for every new shape
CHECKPOINT_SECONDS = 3.0  # a kill costs about this much
CHECKPOINT_SHARE = 0.02  # of the training time at most


class TrainingModule(pl.LightningModule):
    """A model with its loss, its optimizer and the schedule of the learning rate."""

    def __init__(self, model: Backbone, optimizer: Component, training: TrainingConfig, seed: int):
        super().__init__()
        self.model = model
        self.optimizer = optimizer
        self.training_config = training
        self.seed = seed
        self.finished = False  # True once nothing is left to train; saved in every checkpoint

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of a batch, in nats."""
        seed_forward(named_seed(self.seed, f"forward {batch_idx}"), self.device)
        loss = batch_loss(self.model, batch)
        if self.step_is_recorded:
            self.log("loss", loss)
        return loss

    @property
    def step_is_recorded(self) -> bool:
        """Whether there is a row of the training curve after the present step."""
        return is_recorded(self.global_step + 1, self.training_config)

    def configure_optimizers(self) -> Any:
        optimizer = TrainingOptimizer(self.model, self.optimizer, self.training_config)
        schedule = LambdaLR(optimizer, lambda step: learning_rate_factor(step, self.training_config))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the norm of all gradients together, and log it as it was before."""
        assert isinstance(optimizer, TrainingOptimizer)
        norm = optimizer.clip_gradients(gradient_clip_val)
        if self.step_is_recorded:
            self.log("gradient_norm", norm)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["finished"] = self.finished


def seed_forward(seed: int, device: torch.device) -> None:
    """Seed what a forward pass may draw, so that it follows from seed and batch, also after a resume.

    ``torch.manual_seed`` would store a stack trace for every unused GPU backend at every step: a
    millisecond, and memory that is never freed.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def batch_loss(model: Backbone, batch: Batch) -> Tensor:
    """Mean cross entropy over the scored tokens of a batch, in nats."""
    if batch.tokens_BT.device.type != "cpu":  # constant shapes, and nothing the host has to wait for
        logits_BTV = model(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
        return F.cross_entropy(
            at_least_float32(logits_BTV.flatten(0, 1)), batch.labels_BT.flatten(), ignore_index=IGNORE
        )
    parts = micro_batches(batch, model.shape.train_length)
    return torch.stack([_loss_sum(model, part) for part in parts]).sum() / (batch.labels_BT != IGNORE).sum()


def _loss_sum(model: Backbone, batch: Batch) -> Tensor:
    """The summed loss. The head is applied to scored tokens alone, padded to a multiple of SCORED_STEP."""
    labels_N = batch.labels_BT.flatten()
    scored_n = (labels_N != IGNORE).nonzero()[:, 0]
    filled_n = F.pad(scored_n, (0, rounded_up(len(scored_n), SCORED_STEP) - len(scored_n)))
    labels_n = labels_N[filled_n]
    labels_n[len(scored_n) :] = IGNORE
    hidden_nD = model.hidden(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B, filled_n)
    logits_nV = at_least_float32(model.head(hidden_nD))
    return F.cross_entropy(logits_nV, labels_n, ignore_index=IGNORE, reduction="sum")


class TrainingData(pl.LightningDataModule):
    """The batches of a training, from the step on that it stands at: batch i follows from the seed and i."""

    def __init__(self, batches: TrainingStream):
        super().__init__()
        self.batches = batches

    def train_dataloader(self) -> DataLoader[Batch]:
        assert self.trainer is not None
        first = self.trainer.global_step * self.trainer.accumulate_grad_batches
        return DataLoader(_BatchesFrom(self.batches, first), batch_size=None)


class _BatchesFrom(IterableDataset[Batch]):
    def __init__(self, batches: TrainingStream, first: int):
        self.batches = batches
        self.first = first

    def __iter__(self) -> Iterator[Batch]:
        return map(self.batches.batch, count(self.first))


def is_recorded(step: int, config: TrainingConfig) -> bool:
    """Whether there is a row of the training curve after a step."""
    return step % RECORD_EVERY == 0 or is_checked(step, config)


def is_checked(step: int, config: TrainingConfig) -> bool:
    """Whether that row is about fresh examples, too."""
    return step % config.check_every == 0 or step == config.steps


class Recorder(Callback):
    """Records the training curve; every ``check_every`` steps evaluates on fresh examples in distribution.

    ``record`` is called with each row, ``show`` with the number of every step taken.
    """

    def __init__(
        self,
        validation: TrainingStream,
        training: TrainingConfig,
        record: Callable[[Row], None],
        show: Callable[[int], None],
    ):
        self.validation = validation
        self.training = training
        self.record = record
        self.show = show
        # Of the batches since the last row, each divided by accumulate_grad_batches. They are looked at
        # together, because looking waits for a GPU.
        self.losses: list[Tensor] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.losses.append(outputs["loss"])
        if not ends_step(trainer, batch_idx):
            return
        step = trainer.global_step
        self.show(step)
        if not is_recorded(step, self.training):
            return
        losses = torch.stack(self.losses)
        self.losses.clear()
        raise_if_diverged(losses, trainer)
        row: Row = {
            "step": step,
            "loss": float(losses[-trainer.accumulate_grad_batches :].sum()),
            "learning_rate": learning_rate_factor(step - 1, self.training) * self.training.learning_rate,
            "gradient_norm": float(trainer.callback_metrics["gradient_norm"]),
        }
        if is_checked(step, self.training):
            found = self._check(module)
            module.log_dict(found)
            row |= found
            enough = self.training.stop_at_exact_match
            trainer.should_stop |= enough is not None and found.get("exact_match", -1.0) >= enough
        self.record(row)

    def _check(self, module: pl.LightningModule) -> dict[str, float]:
        assert isinstance(module, TrainingModule)
        module.eval()
        counts = in_distribution_tally(module.model, self.validation, self.training.check_examples)
        module.train()
        exact = {"exact_match": counts.exact_match} if self.validation.source.task.exact else {}
        return {"validation_loss": counts.loss, **exact, "token_accuracy": counts.token_accuracy}


def raise_if_diverged(losses: Tensor, trainer: pl.Trainer) -> None:
    """Raise `Diverged` with the step of the first of these losses of the last batches that is not finite."""
    finite = losses.isfinite().tolist()
    if not all(finite):
        batches_since = len(finite) - 1 - finite.index(False)
        raise Diverged(trainer.global_step - batches_since // trainer.accumulate_grad_batches)


class Checkpointer(Checkpoint):
    """Keeps one checkpoint, replaced atomically every few seconds, and at the end by the weights alone."""

    def __init__(self, path: Path, training: TrainingConfig):
        self.path = path
        self.training = training
        self.due = time.monotonic() + CHECKPOINT_SECONDS

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Only after a recorded step is the loss known to be finite.
        recorded = ends_step(trainer, batch_idx) and is_recorded(trainer.global_step, self.training)
        last = trainer.should_stop or trainer.global_step == self.training.steps
        if recorded and not last and time.monotonic() >= self.due:
            started = time.monotonic()
            save_atomically(trainer, self.path)
            cost = time.monotonic() - started
            self.due = time.monotonic() + max(CHECKPOINT_SECONDS, cost / CHECKPOINT_SHARE)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not all(parameter.isfinite().all() for parameter in module.parameters()):
            raise Diverged(trainer.global_step)  # the last update did it, after the last loss
        assert isinstance(module, TrainingModule)
        module.finished = True
        save_atomically(trainer, self.path, weights_only=True)


def ends_step(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Whether the optimizer has stepped after this batch, the last of ``accumulate_grad_batches``."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def save_atomically(trainer: pl.Trainer, path: Path, weights_only: bool = False) -> None:
    """Save a checkpoint so that a kill at any moment leaves the old one or the new one.

    With ``weights_only`` the optimizer's state, two thirds of the file, is left out.
    """
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".tmp")
    try:
        trainer.save_checkpoint(draft, weights_only=weights_only)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)  # after an error, such as a full disk


def train_model(
    model: Backbone,
    experiment: Experiment,
    device: str,
    checkpoint: Path,
    first: int,
    record: Callable[[Row], None],
    show: Callable[[int], None],
) -> int:
    """Train in place, from the start or from the checkpoint of step ``first``; returns the last step.

    ``record`` is called with each row of ``metrics.csv``, ``show`` with the number of every step taken.

    Raises:
        Diverged: the loss is no longer finite.
        KeyboardInterrupt: Ctrl-C; the last checkpoint is at most a few seconds old.
    """
    config, training = experiment.config.trainer, experiment.config.training
    module = TrainingModule(model, experiment.components["optimizer"], training, experiment.config.seed)
    validation = TrainingStream(experiment.source, training.batch_size, "mixed", "validation")
    callbacks = [
        *(callback.build() for callback in experiment.callbacks),
        Recorder(validation, training, record, show),
        Checkpointer(checkpoint, training),
    ]
    with warnings.catch_warnings():
        known = "does not have many workers|isinstance.treespec, LeafSpec|`srun` command is available"
        warnings.filterwarnings("ignore", message=f".*({known})")
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
        trainer = pl.Trainer(
            accelerator="gpu" if device == "cuda" else device,
            devices=config.devices,
            num_nodes=config.num_nodes,
            strategy=config.strategy,
            precision=config.precision,
            accumulate_grad_batches=config.accumulate_grad_batches,
            gradient_clip_val=training.clip_norm,
            max_steps=training.steps,
            max_epochs=-1,
            log_every_n_steps=RECORD_EVERY,
            callbacks=callbacks,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            plugins=[LightningEnvironment()],  # one process, also where Slurm's variables suggest several
        )
        on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            with no_part_exits():
                data = TrainingData(experiment.batches)
                trainer.fit(
                    module, datamodule=data, ckpt_path=checkpoint if first else None, weights_only=True
                )
        except SystemExit as error:  # Lightning's reaction to Ctrl-C
            raise KeyboardInterrupt from error
        finally:
            if signal.getsignal(signal.SIGINT) is not on_interrupt:  # Lightning leaves the signal ignored
                signal.signal(signal.SIGINT, on_interrupt)
    return trainer.global_step
