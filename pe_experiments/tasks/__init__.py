"""Synthetic tasks, one file per family; `base` defines the interface."""

from pe_experiments.tasks.base import DEPTHS, IGNORE, PositionIds, Task

__all__ = ["DEPTHS", "IGNORE", "PositionIds", "Task"]
