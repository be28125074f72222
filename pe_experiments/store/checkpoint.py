"""Read the checkpoint of a run without trusting its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor, nn

from pe_experiments.terminal.errors import UserError, one_line
from pe_experiments.terminal.files import require_file

MOST_BYTES = 16 << 30  # a model of a billion parameters with the optimizer's averages


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """Return the checkpoint, or None if there is none.

    Raises:
        UserError: the checkpoint is damaged or was not written by a run.
    """
    if path.parent.is_symlink() or (path.parent.exists() and not path.parent.is_dir()):
        what = "link" if path.parent.is_symlink() else "file"
        raise UserError(f"{path.parent} is a {what} where a directory belongs; delete it")
    if not path.exists():
        return None
    try:
        require_file(path, MOST_BYTES)
        with ZipFile(path) as archive:  # torch never compresses, but would inflate
            if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                raise ValueError("it is compressed, which runs never do")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if type(checkpoint["global_step"]) is not int or "state_dict" not in checkpoint:
            raise ValueError("weights or step are missing")
        if not checkpoint["finished"] and not checkpoint["lr_schedulers"]:
            raise ValueError("it was written by an earlier version")
    except Exception as error:
        why = one_line(str(error)) if type(error) is ValueError else type(error).__name__
        raise _damaged(path, why) from error
    return checkpoint


def load_weights(model: nn.Module, checkpoint: dict[str, Any], path: Path, misfit: str) -> None:
    """Load the weights of a checkpoint into an untrained model.

    Raises:
        UserError: the weights do not fit the model (message ``misfit``) or are not finite real numbers.
    """
    try:
        weights = {name.removeprefix("model."): value for name, value in checkpoint["state_dict"].items()}
        if any(isinstance(value, Tensor) and value.is_complex() for value in weights.values()):
            raise _damaged(path, "its weights are complex")
        model.load_state_dict(weights)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise UserError(misfit) from error
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise _damaged(path, "its weights are NaN or infinite")


def _damaged(path: Path, why: str) -> UserError:
    cure = "delete it to train this run from the start, or add rerun=true"
    return UserError(f"{path} is damaged ({why}); {cure}")
