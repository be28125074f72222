"""Tests of single modules, in the folders of the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # tests of modules that need no PyTorch do not wait for its import
    from pe_experiments.configuration.experiment import Experiment

Tiny = Callable[..., "Experiment"]  # the fixture `tiny`
