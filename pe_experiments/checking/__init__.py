"""Whether an implementation is right: the contract as checks, agreement with ours, known mistakes."""

from pe_experiments.checking.encoding_contract import CHECKS, Subject
from pe_experiments.checking.instances import small_shape

__all__ = ["CHECKS", "Subject", "small_shape"]
