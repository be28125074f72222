"""Synthetic tasks, one file per family; `base` is the interface."""

from pe_experiments.tasks.base import IGNORE, PositionIds, Task

__all__ = ["IGNORE", "PositionIds", "Task"]
