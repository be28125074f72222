"""Position policies, which assign position ids to the tokens of a sequence; `base` is the interface."""

from pe_experiments.positions.base import Consecutive, PositionPolicy

__all__ = ["Consecutive", "PositionPolicy"]
