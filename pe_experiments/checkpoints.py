"""What is left of a training: the checkpoint, read without the library that wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pe_experiments.errors import UserError


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """The checkpoint, or None where there is none.

    Raises:
        UserError: the file is damaged, or there is a file where its directory belongs.
    """
    if path.parent.exists() and not path.parent.is_dir():
        raise UserError(f"{path.parent} is a file where a directory belongs; delete it")
    if not path.exists():
        return None
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        checkpoint["state_dict"], int(checkpoint["global_step"]), checkpoint["finished"]
    except Exception as error:
        raise UserError(
            f"{path} is damaged ({type(error).__name__}); delete it to train this run from the start, "
            f"or add rerun=true"
        ) from error
    return checkpoint


def load_weights(model: nn.Module, checkpoint: dict[str, Any], path: Path) -> None:
    """Give an untrained model the weights of its own checkpoint.

    Raises:
        UserError: they are another model's.
    """
    try:
        model.load_state_dict(model_weights(checkpoint))
    except (RuntimeError, AttributeError, TypeError) as error:
        raise UserError(
            f"{path} holds the weights of another model; delete it to train this run from the start, or add "
            f"rerun=true"
        ) from error


def model_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """The transformer's state dict inside a checkpoint of `TrainingModule`."""
    return {name.removeprefix("model."): value for name, value in checkpoint["state_dict"].items()}
