"""Fine-tune a pretrained model on a text, with its own or rescaled RoPE, so that its loss can be compared.

All weights are trained with AdamW, a constant learning rate after a tenth of the steps, and gradients clipped
to a norm of 1, on windows of ``length`` tokens at random places of the text.
"""

import logging
import os
import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytorch_lightning as pl
import torch
from pydantic import Field
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch import Tensor

from pe_experiments.configuration.component import user_errors
from pe_experiments.configuration.schema import Count, Folder, Section, Seed
from pe_experiments.pretrained.model import Block, PretrainedModel
from pe_experiments.store.csv_files import to_csv
from pe_experiments.tasks.text import Text
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import Diverged, UserError
from pe_experiments.terminal.files import write_atomically
from pe_experiments.training.loop import KNOWN_WARNINGS, keyboard_interrupts

BYTES_PER_TOKEN = 32  # read for every token of a window


class FinetuneSettings(Section):
    """The section ``finetune`` of ``configs/evaluate_pretrained.yaml``."""

    steps: Annotated[int, Field(ge=0)]
    text: Folder | None
    length: Annotated[int, Field(ge=2)] | None
    batch_size: Count
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    seed: Seed


class Module(pl.LightningModule):
    """A model of transformers with its loss and optimizer."""

    def __init__(self, network: Any, settings: FinetuneSettings):
        super().__init__()
        self.network = network
        self.settings = settings

    def training_step(self, tokens_BT: Tensor, batch_idx: int) -> Tensor:
        return self.network(tokens_BT, labels=tokens_BT, use_cache=False).loss

    def configure_optimizers(self) -> Any:
        from transformers import get_constant_schedule_with_warmup

        settings = self.settings
        optimizer = torch.optim.AdamW(self.network.parameters(), settings.learning_rate, weight_decay=0.0)
        schedule = get_constant_schedule_with_warmup(optimizer, settings.steps // 10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Losses(Callback):
    """Keep the loss of every step, and show it."""

    def __init__(self, display: Display):
        self.display = display
        self.rows: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = float(outputs["loss"])
        if not torch.isfinite(outputs["loss"]):
            raise Diverged(trainer.global_step)
        self.rows.append({"step": trainer.global_step, "loss": loss})
        self.display.note(f"loss {loss:.3f}")
        self.display.step(trainer.global_step)


class Windows:
    """Windows of ``length`` tokens at random places of a text, the same for every model.

    Raises:
        UserError: the text is shorter than a window, or cannot be tokenized.
    """

    def __init__(self, text: Text, model: PretrainedModel, length: int, settings: FinetuneSettings):
        self.text = text
        self.model = model
        self.length = length
        self.settings = settings
        self._window(random.Random(settings.seed))

    def __iter__(self) -> Iterator[Tensor]:
        generator = random.Random(self.settings.seed)
        while True:
            yield torch.tensor([self._window(generator) for _ in range(self.settings.batch_size)])

    def _window(self, generator: random.Random) -> list[int]:
        total = self.text.ends[-1]
        count = min(total, BYTES_PER_TOKEN * self.length)
        part = self.text.read(generator.randrange(total - count + 1), count).tobytes()
        with user_errors("model", "cannot tokenize the text"):
            tokenized = self.model.tokenizer(part.decode(errors="ignore"), add_special_tokens=False)
        tokens = tokenized.input_ids
        prefix = self.model.prefix()
        needed = self.length - len(prefix)
        if len(tokens) < needed:
            raise UserError(
                f"finetune.text: {count:,} bytes have {len(tokens):,} tokens; allowed: at least "
                f"finetune.length={self.length}"
            )
        start = generator.randrange(len(tokens) - needed + 1)
        return prefix + tokens[start : start + needed]


def finetune(
    model: PretrainedModel,
    jobs: dict[Path, tuple[Block | None, int]],
    text: Text,
    settings: FinetuneSettings,
    device: str,
    display: Display,
) -> None:
    """Fine-tune the model once for each folder that does not exist, and save it there.

    A folder has the weights, the tokenizer and ``losses.csv``. An interrupted training starts anew.

    Args:
        model: has read its configuration and its tokenizer.
        jobs: RoPE parameters and the number of tokens of a window, by folder.
        text: of the windows.

    Raises:
        UserError: the text or the memory is too small, or a loss is not finite.
    """
    missing = {folder: job for folder, job in jobs.items() if not folder.exists()}
    windows = {length: Windows(text, model, length, settings) for _, length in missing.values()}
    if missing:
        longest = max(windows)
        model.refuse_large(longest, longest, device, settings.batch_size)
    for folder, (block, length) in missing.items():
        network = model.load(block, device)
        losses = Losses(display)
        display.start(f"{model.name} fine-tuned, {folder.name}", settings.steps)
        try:
            _fit(network, windows[length], settings, losses, device)
        finally:
            display.stop()
        config = network.config.get_text_config()
        if getattr(config, "max_position_embeddings", length) < length:
            config.max_position_embeddings = length
        draft = folder.with_suffix(".part")
        shutil.rmtree(draft, ignore_errors=True)
        network.save_pretrained(draft)
        model.tokenizer.save_pretrained(draft)
        write_atomically(draft / "losses.csv", to_csv(("step", "loss"), losses.rows))
        os.replace(draft, folder)


def _fit(network: Any, windows: Windows, settings: FinetuneSettings, losses: Losses, device: str) -> None:
    """Train a network in place."""
    network.train()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f".*({KNOWN_WARNINGS})")
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
        trainer = pl.Trainer(
            accelerator="gpu" if device == "cuda" else device,
            devices=1,
            max_steps=settings.steps,
            max_epochs=-1,
            gradient_clip_val=1.0,
            callbacks=[losses],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            plugins=[LightningEnvironment()],
        )
        try:
            with keyboard_interrupts():
                trainer.fit(Module(network, settings), windows)
        except Diverged as error:
            reason = f"the loss is not finite at step {error.step}; try a smaller one"
            raise UserError(f"finetune.learning_rate={settings.learning_rate}: {reason}") from error
