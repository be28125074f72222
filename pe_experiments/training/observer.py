"""What a training tells about its progress."""

from pe_experiments.terminal.console import Row


class Observer:
    """Receive the progress of a training; by default ignore it."""

    def metrics(self, row: Row) -> None:
        """Record a row of ``metrics.csv``."""

    def step(self, number: int) -> None:
        """Show the number of finished steps."""
