"""Runs that end at a step."""

from __future__ import annotations

from pe_experiments.terminal.console import Display


class StopAt(Display):
    """Raises an error at a step, as a crash or Ctrl-C would."""

    def __init__(self, step: int, error: BaseException):
        self.last_step = step
        self.error = error

    def step(self, done: int) -> None:
        if done == self.last_step:
            raise self.error
