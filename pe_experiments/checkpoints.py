"""What is left of a training: the checkpoint, read without the library that wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pe_experiments.errors import UserError


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """The checkpoint, or None where there is none.

    Raises:
        UserError: the file is damaged.
    """
    if not path.exists():
        return None
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        checkpoint["state_dict"], checkpoint["global_step"], checkpoint["finished"]
    except Exception as error:
        raise UserError(
            f"{path} is damaged ({type(error).__name__}); delete it to train this run from the start, "
            f"or add rerun=true"
        ) from error
    return checkpoint


def model_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """The transformer's state dict inside a checkpoint of `TrainingModule`."""
    return {name.removeprefix("model."): value for name, value in checkpoint["state_dict"].items()}
