"""Check implementations: the contract, agreement with the shipped encodings, and known mistakes."""

from pe_experiments.checking.encoding_contract import CHECKS, Subject
from pe_experiments.checking.instances import small_shape

__all__ = ["CHECKS", "Subject", "small_shape"]
