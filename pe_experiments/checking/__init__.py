"""Check implementations: the contract, agreement with the shipped encodings, and known mistakes."""

from pe_experiments.checking.encoding_contract import CHECKS
from pe_experiments.checking.subject import Subject, small_shape

__all__ = ["CHECKS", "Subject", "small_shape"]
