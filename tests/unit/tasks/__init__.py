"""Tests of tasks."""

from __future__ import annotations

import torch

from pe_experiments.tasks import Task


def draw(task: Task, length: int, rows: int = 1000) -> tuple[torch.Tensor, torch.Tensor]:
    return task.sample(length, rows, torch.Generator().manual_seed(length))
