"""From run directories to statistics, figures and pages."""

from pe_experiments.comparison.compare import Comparison, Options, compare, write_comparison
from pe_experiments.comparison.runs_table import Runs, load_runs

__all__ = ["Comparison", "Options", "Runs", "compare", "load_runs", "write_comparison"]
