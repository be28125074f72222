"""Mistakes by name: our schemes, each broken in a way people break it.

The tests must catch every one of them, and the checker names the one it finds.
"""

from pe_experiments.checking.mutants import absolute, biases, content, rotations
from pe_experiments.checking.mutants.registry import MUTANTS, scheme_of

__all__ = ["MUTANTS", "absolute", "biases", "content", "rotations", "scheme_of"]
