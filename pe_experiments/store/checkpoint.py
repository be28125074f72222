"""Read the checkpoint of a run without trusting its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from pe_experiments.terminal.errors import UserError, one_line
from pe_experiments.terminal.files import require_file

MOST_BYTES = 16 << 30  # a model with a billion parameters and the state of its optimizer


def read_checkpoint(path: Path, run_hash: str) -> dict[str, Any]:
    """Return the checkpoint.

    Args:
        path: of the checkpoint.
        run_hash: the hash of the run that must have written it (`Identity.hash`).

    Raises:
        UserError: the checkpoint is damaged or was not written by this run.
    """
    try:
        require_file(path, MOST_BYTES)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        required = {"state_dict", "finished"}
        if type(checkpoint["global_step"]) is not int or not required <= checkpoint.keys():
            raise ValueError("weights or step are missing")
        if checkpoint.get("run") != run_hash:
            raise ValueError("it was written by another run")
    except Exception as error:
        why = one_line(str(error)) if type(error) is ValueError else type(error).__name__
        raise _damaged(path, why) from error
    return checkpoint


def load_weights(model: nn.Module, checkpoint: dict[str, Any], path: Path, mismatch: str) -> None:
    """Load the weights of a checkpoint into an untrained model.

    Raises:
        UserError: the weights do not fit the model (with the message ``mismatch``) or are not finite.
    """
    try:
        weights = {name.removeprefix("model."): value for name, value in checkpoint["state_dict"].items()}
        model.load_state_dict(weights)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise UserError(mismatch) from error
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise _damaged(path, "its weights are NaN or infinite")


def _damaged(path: Path, why: str) -> UserError:
    cure = "delete it to train this run from the start, or add rerun=true"
    return UserError(f"{path} is damaged ({why}); {cure}")
