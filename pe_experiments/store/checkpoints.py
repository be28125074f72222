"""What is left of a training: the checkpoint, read without the library that wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor, nn

from pe_experiments.terminal.errors import UserError, one_line
from pe_experiments.terminal.files import require_file

MOST_BYTES = 16 << 30  # a model of a thousand million parameters with the optimiser's averages


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """The checkpoint, or None where there is none; a damaged one is a `UserError`."""
    if path.parent.is_symlink() or (path.parent.exists() and not path.parent.is_dir()):
        what = "link" if path.parent.is_symlink() else "file"
        raise UserError(f"{path.parent} is a {what} where a directory belongs; delete it")
    if not path.exists():
        return None
    try:
        require_file(path, MOST_BYTES)
        with ZipFile(path) as archive:  # torch would inflate what it never writes
            if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                raise ValueError("it is compressed, as no run writes it")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        checkpoint["state_dict"], int(checkpoint["global_step"])
        if not checkpoint["finished"] and checkpoint["lr_schedulers"]:
            raise ValueError("an earlier version began it")
    except Exception as error:
        why = one_line(str(error)) if type(error) is ValueError else type(error).__name__
        raise UserError(
            f"{path} is damaged ({why}); delete it to train this run from the start, or add rerun=true"
        ) from error
    return checkpoint


def load_weights(model: nn.Module, checkpoint: dict[str, Any], otherwise: str) -> None:
    """Give an untrained model the weights of a checkpoint; ``otherwise`` is said where they do not fit."""
    try:
        model.load_state_dict(model_weights(checkpoint))
    except (RuntimeError, AttributeError, TypeError) as error:
        raise UserError(otherwise) from error


def model_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """The transformer's state dict inside a checkpoint of `TrainingModule`."""
    return {name.removeprefix("model."): value for name, value in checkpoint["state_dict"].items()}
