"""From run directories to statistics, figures and pages."""

from pe_experiments.comparison.compare import compare, write_comparison
from pe_experiments.comparison.result import Comparison, Options, compared
from pe_experiments.comparison.runs_table import Runs, load_runs

__all__ = ["Comparison", "Options", "Runs", "compare", "compared", "load_runs", "write_comparison"]
