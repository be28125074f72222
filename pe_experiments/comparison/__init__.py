"""Compare runs: read their directories, compute statistics, write tables, figures and pages."""

from pe_experiments.comparison.compare_runs import compare, write_comparison
from pe_experiments.comparison.protocols import load_runs
from pe_experiments.comparison.result import Comparison, build_comparison
from pe_experiments.comparison.runs import Runs

__all__ = ["Comparison", "Runs", "build_comparison", "compare", "load_runs", "write_comparison"]
