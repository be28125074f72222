"""What a training tells about its progress."""

from collections.abc import Sequence
from typing import Any

from pe_experiments.terminal.console import Row


class Observer:
    """Receive the progress of a training; by default ignore it."""

    loggers: Sequence[Any] = ()  # Lightning's, for the user's callbacks

    def begin_training(self, device: str, first_step: int) -> None:
        """Begin a training, or go on with it at a step."""

    def metrics(self, row: Row) -> None:
        """Record a row of ``metrics.csv``."""

    def evaluated(self, rows: list[Row], seconds: float) -> None:
        """Record the rows of ``by_step.csv`` of one step, whose evaluation took some seconds."""

    def step(self, number: int) -> None:
        """Show the number of finished steps."""

    def say(self, text: str) -> None:
        """Print a remark."""
