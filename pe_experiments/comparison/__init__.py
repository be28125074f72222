"""From run directories to statistics and figures."""

from pe_experiments.comparison.compare import Comparison, compare
from pe_experiments.comparison.runs_table import Runs, load_runs

__all__ = ["Comparison", "Runs", "compare", "load_runs"]
