"""Which position ids the tokens of a sequence get: the contract; one file per family of policies."""

from pe_experiments.positions.base import Consecutive, PositionPolicy

__all__ = ["Consecutive", "PositionPolicy"]
