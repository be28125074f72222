"""Training one model: the LightningModule, optimiser and schedule, the training curve, checkpoints."""

from __future__ import annotations

import logging
import math
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
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from pe_experiments.configuration.parts import no_part_exits
from pe_experiments.configuration.schema import TrainingConfig
from pe_experiments.data.batches import Batch, Source, TrainingStream, micro_batches, rounded_up
from pe_experiments.data.randomness import named_seed
from pe_experiments.encodings.base import at_least_float32
from pe_experiments.evaluation.curve import Row, in_distribution_tally
from pe_experiments.models import Backbone
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.errors import Diverged
from pe_experiments.training.optimizer import FlatOptimizer, learning_rate_factor

RECORD_EVERY = 10  # steps between rows of the training curve
SCORED_STEP = 16  # scored tokens are padded to a multiple of it: kernels are set up anew for every new shape
CHECKPOINT_SECONDS = 3.0  # a kill costs about this much
CHECKPOINT_SHARE = 0.02  # of the training time at most


class TrainingModule(pl.LightningModule):
    """Mean cross entropy over the scored tokens, an optimizer, warm-up and decay.

    Lightning is given several steps at a time, as its own work takes as long as a small model's forward pass.
    """

    automatic_optimization = False

    def __init__(self, model: Backbone, training: TrainingConfig, seed: int, show: Callable[[int], None]):
        super().__init__()
        self.seed = seed
        self.model = model
        self.training_config = training
        self.show = show
        self.finished = False  # True once nothing is left to train; saved in every checkpoint
        self.last_step = 0
        self.gradient_norm = torch.tensor(math.nan)  # of the last step, before clipping

    def training_step(self, batches: list[Batch], batch_idx: int) -> Tensor:
        """One step per batch; returns the last loss."""
        before = self.last_step
        losses = [self._step(batch) for batch in batches]
        finite = torch.stack(losses).isfinite().tolist()  # only now: a GPU need not be waited for
        if not all(finite):
            raise Diverged(before + finite.index(False) + 1)
        return losses[-1]

    def _step(self, batch: Batch) -> Tensor:
        # A scheme may draw random numbers in forward; they follow from seed and step, also after a resume.
        # `torch.manual_seed` would store a stack trace for every unused GPU backend at every step: a
        # millisecond, and memory that is never freed.
        seed = named_seed(self.seed, f"forward {self.last_step}")
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        loss = batch_loss(self.model, batch)
        self.gradient_norm = self.flat.step(loss, self.last_step)
        self.last_step += 1
        self.show(self.last_step)
        return loss.detach()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        self.flat = FlatOptimizer(self.model, self.training_config)
        return self.flat.optimizers

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint |= {"finished": self.finished, "global_step": self.last_step}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.last_step = checkpoint["global_step"]


def batch_loss(model: Backbone, batch: Batch) -> Tensor:
    """Mean cross entropy over the scored tokens of a batch, in nats."""
    if batch.tokens_BT.is_cuda:  # constant shapes, and nothing the host has to wait for
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


class _Ahead(IterableDataset):
    """The batches from the module's next step on, in lists up to the next recorded step."""

    def __init__(self, batches: TrainingStream, module: TrainingModule):
        self.batches = batches
        self.module = module

    def __iter__(self) -> Iterator[list[Batch]]:
        index = self.module.last_step  # a checkpoint has been loaded by now
        while True:
            end = next(step for step in count(index + 1) if is_recorded(step, self.module.training_config))
            yield [self.batches.batch(n) for n in range(index, end)]
            index = end


def is_recorded(step: int, config: TrainingConfig) -> bool:
    """Whether there is a row of the training curve after a step."""
    return step % RECORD_EVERY == 0 or is_checked(step, config)


def is_checked(step: int, config: TrainingConfig) -> bool:
    """Whether that row is about fresh examples, too."""
    return step % config.check_every == 0 or step == config.steps


class Recorder(Callback):
    """Records the training curve; every ``check_every`` steps evaluates on fresh examples in distribution."""

    def __init__(self, validation: TrainingStream, record: Callable[[Row], None]):
        self.validation = validation
        self.record = record

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, TrainingModule)
        config, step = module.training_config, module.last_step
        row: Row = {
            "step": step,
            "loss": float(outputs["loss"]),
            "learning_rate": learning_rate_factor(step - 1, config) * config.learning_rate,
            "gradient_norm": float(module.gradient_norm),
        }
        if is_checked(step, config):
            row |= self._check(module)
        enough = config.stop_at_exact_match
        if step == config.steps or (enough is not None and row.get("exact_match", -1.0) >= enough):
            module.finished = trainer.should_stop = True
        self.record(row)

    def _check(self, module: TrainingModule) -> Row:
        module.eval()
        counts = in_distribution_tally(module.model, self.validation, module.training_config.check_examples)
        module.train()
        exact = {"exact_match": counts.exact_match} if self.validation.source.task.exact else {}
        return {"validation_loss": counts.loss, **exact, "token_accuracy": counts.token_accuracy}


def raise_if_diverged(module: TrainingModule) -> None:
    if module.finished and not all(p.isfinite().all() for p in module.model.parameters()):
        raise Diverged(module.last_step)  # the last update did it, after the last loss


class Checkpointer(Callback):
    """Keeps one checkpoint, replaced atomically every few seconds and at the end."""

    def __init__(self, path: Path):
        self.path = path
        self.due = time.monotonic() + CHECKPOINT_SECONDS

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, TrainingModule)
        if module.finished or time.monotonic() >= self.due:
            raise_if_diverged(module)
            started = time.monotonic()
            save_atomically(trainer, self.path, module.finished)
            cost = time.monotonic() - started
            self.due = time.monotonic() + max(CHECKPOINT_SECONDS, cost / CHECKPOINT_SHARE)


def save_atomically(trainer: pl.Trainer, path: Path, finished: bool = False) -> None:
    """Save a checkpoint so that a kill at any moment leaves the old one or the new one.

    Once training is ``finished`` the optimizer's state, two thirds of the file, is left out.
    """
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".tmp")
    try:
        trainer.save_checkpoint(draft, weights_only=finished)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)  # after an error, such as a full disk


def train_model(
    model: Backbone,
    source: Source,
    training: TrainingConfig,
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
    module = TrainingModule(model, training, source.seed, show)
    batches = TrainingStream(source, training.batch_size, training.batching)
    validation = TrainingStream(source, training.batch_size, "mixed", "validation")
    with warnings.catch_warnings():
        known = "does not have many workers|isinstance.treespec, LeafSpec|`srun` command is available"
        warnings.filterwarnings("ignore", message=f".*({known})")
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
        trainer = pl.Trainer(
            accelerator="gpu" if device == "cuda" else "cpu",
            devices=1,
            max_steps=-1,  # `Recorder` ends it
            max_epochs=-1,
            precision="bf16-mixed" if training.precision == "bfloat16" else "32-true",
            callbacks=[Recorder(validation, record), Checkpointer(checkpoint)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            plugins=[LightningEnvironment()],  # one process, also where Slurm's variables suggest several
        )
        resumed = checkpoint if first else None
        on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            with no_part_exits():
                loader = DataLoader(_Ahead(batches, module), batch_size=None)
                trainer.fit(module, loader, ckpt_path=resumed, weights_only=True)
        except SystemExit as error:  # Lightning's reaction to Ctrl-C
            raise KeyboardInterrupt from error
        finally:
            if signal.getsignal(signal.SIGINT) is not on_interrupt:  # Lightning leaves the signal ignored
                signal.signal(signal.SIGINT, on_interrupt)
    raise_if_diverged(module)
    return module.last_step
