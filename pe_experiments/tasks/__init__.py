"""Synthetic tasks, one small file per family; `base` is the contract."""

from pe_experiments.tasks.base import IGNORE, Task

__all__ = ["IGNORE", "Task"]
