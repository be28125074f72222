"""Training one model: the LightningModule, optimiser and schedule, the training curve, checkpoints."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, IterableDataset

from pe_experiments.config import TrainingConfig, warmup_steps
from pe_experiments.data import Batch, Source, TrainingStream, micro_batches, rounded_up
from pe_experiments.evaluation import in_distribution_tally
from pe_experiments.models import Backbone
from pe_experiments.randomness import named_seed
from pe_experiments.tasks import IGNORE

RECORD_EVERY = 10  # steps between rows of the training curve
SCORED_STEP = 64  # scored tokens are padded to a multiple of it: kernels are set up anew for every new shape
CHECKPOINT_SECONDS = 3.0  # a kill costs about this much
CHECKPOINT_SHARE = 0.02  # of the training time at most

Row = dict[str, Any]


class Diverged(ArithmeticError):
    """The loss is no longer a finite number."""

    def __init__(self, step: int):
        super().__init__(f"the loss became NaN or infinite at step {step}")
        self.step = step


class TrainingModule(pl.LightningModule):
    """Mean cross entropy over the scored tokens, AdamW, warm-up and decay.

    Attributes:
        finished: True once nothing is left to train; saved in every checkpoint.
        last_step: optimiser steps taken so far.
        gradient_norm: of the last step, before clipping.
    """

    def __init__(self, model: Backbone, training: TrainingConfig, seed: int = 0):
        super().__init__()
        self.seed = seed
        self.model = model
        self.training_config = training
        self.finished = False
        self.last_step = 0
        self.gradient_norm = torch.tensor(math.nan)
        self.bad_step = torch.tensor(-1)  # first step with a non-finite loss; read only now and then

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        # A scheme may draw random numbers in forward; they follow from seed and step, also after a resume.
        seed_forward(named_seed(self.seed, f"forward {self.global_step}"), self.device)
        loss = batch_loss(self.model, batch)
        fresh = ~loss.detach().isfinite() & (self.bad_step < 0)
        self.bad_step = torch.where(fresh, self.global_step + 1, self.bad_step)
        return loss

    def configure_optimizers(self) -> Any:
        config = self.training_config
        decayed, exempt = split_parameters(self.model)
        groups = [
            {"params": decayed, "weight_decay": config.weight_decay},
            {"params": exempt, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)
        schedule = LambdaLR(optimizer, lambda step: learning_rate_factor(step, config))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        limit = math.inf if self.training_config.clip_norm is None else self.training_config.clip_norm
        self.gradient_norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    def on_fit_start(self) -> None:
        self.bad_step = self.bad_step.to(self.device)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["finished"] = self.finished


def seed_forward(seed: int, device: torch.device) -> None:
    """Seed the random numbers a scheme draws in forward.

    `torch.manual_seed` would store a stack trace for every unused GPU backend at every step: a millisecond,
    and memory that is never freed.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def batch_loss(model: Backbone, batch: Batch) -> Tensor:
    """Mean cross entropy over the scored tokens of a batch, in nats."""
    if batch.tokens_BT.is_cuda:  # constant shapes, and nothing the host has to wait for
        logits_BTV = model(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
        return F.cross_entropy(
            logits_BTV.flatten(0, 1).float(), batch.labels_BT.flatten(), ignore_index=IGNORE
        )
    parts = micro_batches(batch, model.shape.train_length)
    return torch.stack([_loss_sum(model, part) for part in parts]).sum() / (batch.labels_BT != IGNORE).sum()


def _loss_sum(model: Backbone, batch: Batch) -> Tensor:
    """The summed loss. The head is applied to scored tokens alone, padded to a multiple of SCORED_STEP."""
    hidden_BTD = model.hidden(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
    hidden_ND = hidden_BTD.flatten(0, 1)
    labels_N = batch.labels_BT.flatten()
    scored_n = (labels_N != IGNORE).nonzero()[:, 0]
    filled_n = F.pad(scored_n, (0, rounded_up(len(scored_n), SCORED_STEP) - len(scored_n)))
    labels_n = labels_N[filled_n]
    labels_n[len(scored_n) :] = IGNORE
    logits_nV = model.head(hidden_ND[filled_n]).float()
    return F.cross_entropy(logits_nV, labels_n, ignore_index=IGNORE, reduction="sum")


def split_parameters(model: Backbone) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters with weight decay, and those without: norms, biases and everything of the encoding.

    AdamW would decay rows of a position table that no batch has touched towards zero.
    """
    decayed: list[nn.Parameter] = []
    exempt: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (exempt if parameter.ndim < 2 or name.startswith("encodings") else decayed).append(parameter)
    return decayed, exempt


def learning_rate_factor(step: int, config: TrainingConfig) -> float:
    """Fraction of the learning rate at a step (from 0): linear warm-up, then the schedule."""
    warmup = warmup_steps(config)
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, config.steps - warmup))
    end = config.final_learning_rate
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "linear":
        return 1 - (1 - end) * progress
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * progress))


class _From(IterableDataset):
    """The batches of a stream from a given index on, without end."""

    def __init__(self, batches: TrainingStream, start: int):
        self.batches = batches
        self.start = start

    def __iter__(self) -> Iterator[Batch]:
        index = self.start
        while True:
            yield self.batches.batch(index)
            index += 1


class StreamDataModule(pl.LightningDataModule):
    """Feeds a trainer from a stream and continues at the right batch after a resume."""

    def __init__(self, batches: TrainingStream):
        super().__init__()
        self.batches = batches
        self.start = 0

    def train_dataloader(self) -> DataLoader:
        return DataLoader(_From(self.batches, self.start), batch_size=None)

    def state_dict(self) -> dict[str, Any]:
        assert self.trainer is not None
        return {"consumed_batches": self.trainer.global_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.start = state_dict["consumed_batches"]


class Recorder(Callback):
    """Records the training curve; every ``check_every`` steps evaluates on fresh examples in distribution.

    Args:
        validation: the stream of those examples.
        record: called with each row of ``metrics.csv``.
        show: called after every step with its number.
    """

    def __init__(
        self, validation: TrainingStream, record: Callable[[Row], None], show: Callable[[int], None]
    ):
        self.validation = validation
        self.record = record
        self.show = show

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, TrainingModule)
        config, step = module.training_config, trainer.global_step
        module.last_step = step
        check = step % config.check_every == 0 or step == config.steps
        if check or step % RECORD_EVERY == 0:
            raise_if_diverged(module)
            row: Row = {
                "step": step,
                "loss": float(outputs["loss"].detach()),
                "learning_rate": learning_rate_factor(step - 1, config) * config.learning_rate,
                "gradient_norm": float(module.gradient_norm),
            }
            if check:
                row |= self._check(module)
            if step == config.steps or reached(config.stop_at_exact_match, row.get("exact_match")):
                module.finished = trainer.should_stop = True
            self.record(row)
        self.show(step)

    def _check(self, module: TrainingModule) -> Row:
        module.eval()
        counts = in_distribution_tally(module.model, self.validation, module.training_config.check_examples)
        module.train()
        return {
            "validation_loss": counts.loss,
            "exact_match": counts.exact_match,
            "token_accuracy": counts.token_accuracy,
        }


def reached(threshold: float | None, exact_match: float | None) -> bool:
    return threshold is not None and exact_match is not None and exact_match >= threshold


def raise_if_diverged(module: TrainingModule) -> None:
    if (step := int(module.bad_step)) >= 0:
        raise Diverged(step)
    if module.finished and not all(p.isfinite().all() for p in module.model.parameters()):
        raise Diverged(module.last_step)  # the last update did it, after the last loss


class Checkpointer(Callback):
    """Keeps one checkpoint, replaced atomically every few seconds and at the end."""

    def __init__(self, path: Path):
        self.path = path
        self.due = math.inf

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
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
    path.parent.mkdir(parents=True, exist_ok=True)
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
    """Train the model on a source of examples, from its start or from a checkpoint.

    Args:
        model: with its initial weights; trained in place.
        source: makes the examples; its seed is the run's.
        training: the ``training`` section.
        device: ``cpu`` or ``cuda``.
        checkpoint: file to save to and to resume from.
        first: step of the checkpoint to resume from; 0 starts anew.
        record: called with each row of ``metrics.csv``.
        show: called after every step with its number.

    Returns:
        The last step.

    Raises:
        Diverged: the loss is no longer finite.
        KeyboardInterrupt: Ctrl-C; the last checkpoint is at most a few seconds old.
    """
    module = TrainingModule(model, training, source.seed)
    validation = TrainingStream(source, training.batch_size, "mixed", "validation")
    data = StreamDataModule(TrainingStream(source, training.batch_size, training.batching))
    callbacks = [Recorder(validation, record, show), Checkpointer(checkpoint)]
    train(module, data, device, callbacks, checkpoint if first else None)
    return module.last_step


def train(
    module: TrainingModule,
    data: StreamDataModule,
    device: str,
    callbacks: list[Callback],
    resume_from: Path | None,
) -> None:
    """Fit the module; returns when it is finished.

    Raises:
        Diverged: the loss is no longer finite.
        KeyboardInterrupt: Ctrl-C; the last checkpoint is at most a few seconds old.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
        trainer = pl.Trainer(
            accelerator="gpu" if device == "cuda" else "cpu",
            devices=1,
            max_steps=module.training_config.steps,
            max_epochs=-1,
            precision="bf16-mixed" if module.training_config.precision == "bfloat16" else "32-true",
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            plugins=[LightningEnvironment()],  # one process, also where Slurm's variables suggest several
        )
        on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            trainer.fit(module, datamodule=data, ckpt_path=resume_from, weights_only=True)
        except SystemExit as error:  # Lightning's reaction to Ctrl-C, which also leaves the signal ignored
            signal.signal(signal.SIGINT, on_interrupt)
            raise KeyboardInterrupt from error
    raise_if_diverged(module)
