"""Train a model with Lightning: the module, its batches, the training curve and checkpoints."""

from __future__ import annotations

import logging
import math
import os
import pickle
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, Checkpoint
from pytorch_lightning.loggers import Logger
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from pe_experiments.configuration.component import Component
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.schema import TrainingConfig
from pe_experiments.data.batches import Batch, TrainingStream
from pe_experiments.data.randomness import named_seed
from pe_experiments.encodings.tensors import at_least_float32
from pe_experiments.evaluation.curve import Row, in_distribution_tally
from pe_experiments.evaluation.evaluate_model import evaluate_at_step
from pe_experiments.models import Backbone
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.console import Observer
from pe_experiments.terminal.errors import Diverged, UserError, few
from pe_experiments.training import cpu
from pe_experiments.training.optimizer import TrainingOptimizer, learning_rate_factor

RECORD_EVERY = 10  # steps between rows of the training curve
CHECKPOINT_SECONDS = 3.0  # between checkpoints; a killed run loses about as much work
CHECKPOINT_SHARE = 0.02  # largest share of the training time for writing them, so large models write fewer
KNOWN_WARNINGS = "isinstance.treespec, LeafSpec|`srun` command is available"


class TrainingModule(pl.LightningModule):
    """A model with its loss, optimizer, learning rate schedule and batches; the model is trained in place."""

    def __init__(self, model: Backbone, experiment: Experiment, first_step: int = 0, run_hash: str = ""):
        super().__init__()
        self.model = model
        self.experiment = experiment
        self.optimizer = experiment.components["optimizer"]
        self.training_config = experiment.config.training
        self.first_step = first_step
        self.run_hash = run_hash
        self.finished = False  # whether training is complete; saved in every checkpoint
        self.gradient_norm: Tensor | None = None  # of the latest step, before clipping

    def train_dataloader(self) -> Iterator[MicroBatch]:
        """Yield the parts of all steps that are left, for this device."""
        accumulated = self.trainer.accumulate_grad_batches
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        for step in count(self.first_step):
            batches = [self.experiment.batches.batch(step * accumulated + i) for i in range(accumulated)]
            scored = sum(int((batch.labels_BT != IGNORE).sum()) for batch in batches)
            for batch in batches:
                rows = batch.rows(slice(rank, None, world_size)) if world_size > 1 else batch
                yield MicroBatch(rows, accumulated * world_size, scored)

    def transfer_batch_to_device(
        self, batch: MicroBatch, device: torch.device, dataloader_idx: int
    ) -> MicroBatch:
        """Move a batch; Lightning would search every part of it for tensors, at every step."""
        return batch._replace(rows=batch.rows.to(device))

    def training_step(self, batch: MicroBatch, batch_idx: int) -> Tensor:
        """Return the loss of a part of a step in nats; the loss of the step is the mean over its parts.

        The parts are the accumulated batches on every device. Lightning averages their gradients.
        """
        rows, parts, scored = batch
        # A resumed run makes the same draws. ``torch.manual_seed`` would store a stack trace for every unused
        # GPU backend at every step, which takes a millisecond and memory that is never freed.
        seed = named_seed(self.experiment.config.seed, f"forward {batch_idx}")
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        elif self.device.type == "mps":
            torch.mps.manual_seed(seed)
        return batch_loss(self.model, rows, scored) * parts

    def configure_optimizers(self) -> Any:
        flat = not isinstance(self.trainer.strategy, FSDPStrategy)
        optimizer = TrainingOptimizer(self.model, self.optimizer, self.training_config, flat)
        schedule = LambdaLR(optimizer, lambda step: learning_rate_factor(step, self.training_config))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the norm of all gradients together and keep the norm before clipping."""
        assert isinstance(optimizer, TrainingOptimizer)
        strategy = self.trainer.strategy
        if isinstance(strategy, FSDPStrategy):  # each device holds a part of every gradient
            norm = strategy.model.clip_grad_norm_(gradient_clip_val or math.inf)  # type: ignore[operator, union-attr]
        else:
            norm = optimizer.clip_gradients(gradient_clip_val)
        self.gradient_norm = norm

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["finished"] = self.finished
        checkpoint["run"] = self.run_hash


def batch_loss(model: Backbone, batch: Batch, scored: int | None = None) -> Tensor:
    """Return the summed cross entropy of a batch in nats by ``scored`` tokens, or else by those it scores."""
    if scored is None:
        scored = int((batch.labels_BT != IGNORE).sum())
    if batch.tokens_BT.device.type == "cpu":
        return cpu.loss_sum(model, batch) / scored
    # Constant shapes, without synchronising with the host.
    logits_NV = at_least_float32(model(*batch.inputs).flatten(0, 1))
    labels_N = batch.labels_BT.flatten()
    return F.cross_entropy(logits_NV, labels_N, ignore_index=IGNORE, reduction="sum") / scored


class MicroBatch(NamedTuple):
    """The part of a step that one device computes in one forward pass: rows of a batch."""

    rows: Batch
    parts: int  # number of parts of the step, on all devices
    scored: int  # scored tokens of the whole step


def is_recorded(step: int, config: TrainingConfig) -> bool:
    return step % RECORD_EVERY == 0 or is_checked(step, config)


def is_checked(step: int, config: TrainingConfig) -> bool:
    return step % config.check_every == 0 or step == config.steps


class Recorder(Callback):
    """Record the training curve, and validate on fresh examples in distribution every ``check_every`` steps.

    Every ``evaluation.every`` steps it also evaluates the lengths, without any effect on the training. With
    several devices the first evaluates, while the others wait for it at the next step.
    """

    def __init__(self, experiment: Experiment, observers: Sequence[Observer]):
        self.experiment = experiment
        self.training = experiment.config.training
        self.validation = TrainingStream(experiment.source, self.training.batch_size, "mixed", "validation")
        self.observers = observers
        # Losses of the batches since the last row, each divided by accumulate_grad_batches. They are read
        # together, because reading waits for a GPU.
        self.losses: list[Tensor] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.losses.append(outputs["loss"])
        if not ends_step(trainer, batch_idx):
            return
        assert isinstance(module, TrainingModule)
        step = trainer.global_step
        for observer in self.observers:
            observer.step(step)
        if is_recorded(step, self.training):
            self._record(trainer, module, step)
        every = self.experiment.config.evaluation.every
        if every and step % every == 0 and trainer.is_global_zero:
            started = time.monotonic()
            rows = evaluate_at_step(self.experiment, module.model, step)
            seconds = time.monotonic() - started
            for observer in self.observers:
                observer.evaluated(rows, seconds)

    def _record(self, trainer: pl.Trainer, module: TrainingModule, step: int) -> None:
        """Give the observers a row of the training curve, and stop the training if it is good enough."""
        assert module.gradient_norm is not None
        losses = trainer.strategy.reduce(torch.stack(self.losses))  # mean over the devices
        self.losses.clear()
        is_finite = losses.isfinite().tolist()
        if not all(is_finite):
            batches_since = len(is_finite) - 1 - is_finite.index(False)
            raise Diverged(step - batches_since // trainer.accumulate_grad_batches)
        row: Row = {
            "step": step,
            "loss": float(losses[-trainer.accumulate_grad_batches :].sum()),
            "learning_rate": learning_rate_factor(step - 1, self.training) * self.training.learning_rate,
            "gradient_norm": float(module.gradient_norm),
        }
        if is_checked(step, self.training):
            module.eval()
            counts = in_distribution_tally(module.model, self.validation, self.training.check_examples)
            module.train()
            if not math.isfinite(counts.loss):  # because of the last update, which no training loss follows
                raise Diverged(step)
            metrics = {"validation_loss": counts.loss}
            if self.validation.source.task.exact:
                metrics["exact_match"] = counts.exact_match
            metrics["token_accuracy"] = counts.token_accuracy
            module.log_dict(metrics, logger=False)
            row |= metrics
            target = self.training.stop_at_exact_match
            if target is not None and metrics.get("exact_match", -1.0) >= target:
                trainer.should_stop = True
        for observer in self.observers:
            observer.row(row)


class Checkpointer(Checkpoint):
    """Save a checkpoint every few seconds, which replaces the last one; at the end save only the weights."""

    def __init__(self, path: Path, experiment: Experiment):
        self.path = path
        self.training = experiment.config.training
        self.next_save = time.monotonic() + CHECKPOINT_SECONDS
        # The state of the user's own classes may be unreadable, which is checked at the first checkpoint.
        parts = [*experiment.callbacks, experiment.components["optimizer"]]
        self.unchecked_parts = [part for part in parts if part.own_classes]

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # The loss is known to be finite only after a recorded step.
        recorded = ends_step(trainer, batch_idx) and is_recorded(trainer.global_step, self.training)
        last = trainer.should_stop or trainer.global_step == self.training.steps
        if recorded and not last and trainer.strategy.broadcast(time.monotonic() >= self.next_save):
            started = time.monotonic()
            self.save(trainer)
            seconds = time.monotonic() - started
            self.next_save = time.monotonic() + max(CHECKPOINT_SECONDS, seconds / CHECKPOINT_SHARE)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        finite = all(bool(parameter.isfinite().all()) for parameter in module.parameters())
        if not trainer.strategy.reduce_boolean_decision(finite):  # FSDP: each device has some parameters
            raise Diverged(trainer.global_step)  # in the last update, which no loss follows
        assert isinstance(module, TrainingModule)
        module.finished = True
        self.save(trainer, weights_only=True)

    def save(self, trainer: pl.Trainer, weights_only: bool = False) -> None:
        """Save a checkpoint so that a kill at any moment leaves either the old or the new file.

        With ``weights_only`` it lacks the state of the optimizer, two thirds of the file.

        Raises:
            UserError: the state of a class of the user makes the checkpoint unreadable.
        """
        self.path.parent.mkdir(exist_ok=True)
        draft = self.path.with_suffix(".tmp")
        try:
            trainer.save_checkpoint(draft, weights_only=weights_only)
            if trainer.is_global_zero:
                if self.unchecked_parts and not weights_only:
                    _require_readable(draft, self.unchecked_parts)
                    self.unchecked_parts = []
                os.replace(draft, self.path)
        finally:
            if trainer.is_global_zero:
                draft.unlink(missing_ok=True)  # exists only after an error, such as a full disk


def ends_step(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Return whether the optimizer steps after this batch, the last of ``accumulate_grad_batches``."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def _require_readable(checkpoint: Path, parts: Sequence[Component]) -> None:
    """Raise a UserError if a checkpoint with the states of these classes cannot be loaded."""
    try:
        torch.load(checkpoint, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        names = few([part.cls.__name__ for part in parts])
        raise UserError(
            f"{parts[0].group}: a run with the state of {names} cannot be resumed; "
            f"allowed in state_dict: numbers, texts, tensors, lists and mappings"
        ) from error


def fit(
    model: Backbone,
    experiment: Experiment,
    device: str,
    checkpoint: Path,
    observers: Sequence[Observer] = (),
    loggers: Sequence[Logger] = (),
    first_step: int = 0,
    run_hash: str = "",
) -> int:
    """Train a model in place and return the last step.

    On several devices every process calls this function; Lightning starts them, unless ``torchrun`` or
    ``srun`` has.

    Args:
        model: with initial weights, or those of the checkpoint.
        device: ``cpu``, ``cuda`` or ``mps``.
        checkpoint: is read if ``first_step``, the step from which to continue, is not 0.
        observers: receive the rows of ``metrics.csv`` and the number of each finished step.
        loggers: for the user's callbacks.
        run_hash: identifies the run in its checkpoints.

    Raises:
        Diverged: the loss is no longer finite.
        KeyboardInterrupt: Ctrl-C; the last checkpoint is a few seconds old (see `CHECKPOINT_SHARE`).
    """
    config, training = experiment.config.trainer, experiment.config.training
    callbacks = [
        *(callback.build() for callback in experiment.callbacks),
        Recorder(experiment, observers),
        Checkpointer(checkpoint, experiment),
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f".*({KNOWN_WARNINGS})")
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
        several = config.devices * config.num_nodes > 1
        strategy: Any = "fsdp" if config.strategy == "fsdp" else "auto"
        if several and config.strategy != "fsdp":  # parameters of long distances may be unused
            strategy = DDPStrategy(find_unused_parameters=True)
        # The profiler of Lightning would create a context for each of a step's 31 hooks.
        profiler, no_context = PassThroughProfiler(), nullcontext()
        profiler.profile = lambda action_name: no_context  # type: ignore[method-assign, assignment, return-value]
        trainer = pl.Trainer(
            accelerator="gpu" if device == "cuda" else device,
            devices=config.devices,
            num_nodes=config.num_nodes,
            strategy=strategy,
            precision=config.precision,
            accumulate_grad_batches=config.accumulate_grad_batches,
            gradient_clip_val=training.clip_norm,
            max_steps=training.steps,
            max_epochs=-1,
            log_every_n_steps=RECORD_EVERY,
            callbacks=callbacks,
            default_root_dir=checkpoint.parents[1] / "lightning",
            logger=list(loggers),
            enable_progress_bar=False,
            enable_model_summary=False,
            profiler=profiler,
            # A job of Slurm with one device is one process, whatever Slurm's variables say.
            plugins=None if several else [LightningEnvironment()],
        )
        module = TrainingModule(model, experiment, first_step, run_hash)
        with keyboard_interrupts():
            trainer.fit(module, ckpt_path=checkpoint if first_step else None, weights_only=True)
    return trainer.global_step


@contextmanager
def keyboard_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt when Lightning's ``fit`` ends because of Ctrl-C or SIGTERM."""
    interrupt_handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as error:
        # How Lightning reacts to Ctrl-C, and to the end of a sweep or of a job.
        if isinstance(error.__context__, KeyboardInterrupt) or isinstance(error, SIGTERMException):
            raise KeyboardInterrupt from error
        raise RuntimeError(f"a part ends the program with {error!r}") from error
    finally:
        if signal.getsignal(signal.SIGINT) is not interrupt_handler:  # Lightning ignores the signal
            signal.signal(signal.SIGINT, interrupt_handler)
