"""Fine-tune a pretrained model on a text, with its own or rescaled RoPE, so that its loss can be compared.

All weights are trained with AdamW, a constant learning rate after a tenth of the steps, and gradients clipped
to a norm of 1, on windows of ``length`` tokens at random places of the text.
"""

import os
import random
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pe_experiments.configuration.schema import Count, Folder, Section, Seed
from pe_experiments.pretrained.model import Block, PretrainedModel
from pe_experiments.store.csv_files import to_csv
from pe_experiments.tasks.text import Text
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import UserError, user_errors
from pe_experiments.terminal.files import write_atomically

BYTES_PER_TOKEN = 32  # read for every token of a window


class FinetuneSettings(Section):
    """The section ``finetune`` of ``configs/evaluate_pretrained.yaml``."""

    steps: Annotated[int, Field(ge=0)]
    text: Folder | None
    length: Annotated[int, Field(ge=2)] | None
    batch_size: Count
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    seed: Seed


def windows(text: Text, model: PretrainedModel, length: int, settings: FinetuneSettings) -> Iterator[Tensor]:
    """Yield batches of windows of ``length`` tokens at random places of a text, the same for every model.

    Raises:
        UserError: the text is shorter than a window, or cannot be tokenized.
    """
    generator = random.Random(settings.seed)
    total = text.ends[-1]
    count = min(total, BYTES_PER_TOKEN * length)
    prefix = model.prefix()
    needed = length - len(prefix)

    def window() -> list[int]:
        part = text.read(generator.randrange(total - count + 1), count).tobytes()
        with user_errors("model", "cannot tokenize the text"):
            tokens = model.tokenizer(part.decode(errors="ignore"), add_special_tokens=False).input_ids
        if len(tokens) < needed:
            raise UserError(
                f"finetune.text: {count:,} bytes have {len(tokens):,} tokens; allowed: at least "
                f"finetune.length={length}"
            )
        start = generator.randrange(len(tokens) - needed + 1)
        return prefix + tokens[start : start + needed]

    while True:
        yield torch.tensor([window() for _ in range(settings.batch_size)])


def finetune(
    model: PretrainedModel,
    jobs: dict[Path, tuple[Block | None, int]],
    text: Text,
    settings: FinetuneSettings,
    device: str,
    display: Display,
) -> None:
    """Fine-tune the model once for each folder that does not exist, and save it there.

    A folder has the weights, the tokenizer and ``losses.csv``. An interrupted training starts anew. ``jobs``
    are RoPE parameters and the number of tokens of a window, by folder.

    Raises:
        UserError: the text or the memory is too small, or a loss is not finite.
    """
    missing = {folder: job for folder, job in jobs.items() if not folder.exists()}
    if missing:
        longest = max(length for _, length in missing.values())
        model.refuse_large(longest, longest, device, settings.batch_size)
        next(windows(text, model, longest, settings))  # an unsuitable text is refused before all trainings
    for folder, (block, length) in missing.items():
        network = model.load(block, device)
        display.start(f"{model.name} fine-tuned, {folder.name}", settings.steps)
        try:
            losses = _fit(network, windows(text, model, length, settings), settings, display)
        finally:
            display.stop()
        config = network.config.get_text_config()
        if getattr(config, "max_position_embeddings", length) < length:
            config.max_position_embeddings = length
        draft = folder.with_suffix(".part")
        shutil.rmtree(draft, ignore_errors=True)
        network.save_pretrained(draft)
        model.tokenizer.save_pretrained(draft)
        write_atomically(draft / "losses.csv", to_csv(("step", "loss"), losses))
        os.replace(draft, folder)


def _fit(
    network: Any, batches: Iterator[Tensor], settings: FinetuneSettings, display: Display
) -> list[dict[str, float]]:
    """Train a network in place, and return the loss of every step."""
    from transformers import get_constant_schedule_with_warmup

    network.train()
    optimizer = torch.optim.AdamW(network.parameters(), settings.learning_rate, weight_decay=0.0)
    schedule = get_constant_schedule_with_warmup(optimizer, settings.steps // 10)
    losses: list[dict[str, float]] = []
    for step, tokens_BT in enumerate(islice(batches, settings.steps), start=1):
        tokens_BT = tokens_BT.to(network.device)
        loss = network(tokens_BT, labels=tokens_BT, use_cache=False).loss
        if not torch.isfinite(loss):
            reason = f"the loss is not finite at step {step}; try a smaller one"
            raise UserError(f"finetune.learning_rate={settings.learning_rate}: {reason}")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append({"step": step, "loss": loss.item()})
        display.note(f"loss {loss.item():.3f}")
        display.step(step)
    return losses
