"""From run directories to statistics, figures and pages."""

from pe_experiments.comparison.compare import compare, write_comparison
from pe_experiments.comparison.result import Comparison, compared
from pe_experiments.comparison.runs import Runs, load_runs

__all__ = ["Comparison", "Runs", "compare", "compared", "load_runs", "write_comparison"]
