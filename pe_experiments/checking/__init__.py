"""Whether an implementation is right: the contract as checks, agreement with ours, known mistakes."""

from pe_experiments.checking import lifecycle  # noqa: F401  (lists its checks)
from pe_experiments.checking.contract import CHECKS, Subject, small_shape

__all__ = ["CHECKS", "Subject", "small_shape"]
