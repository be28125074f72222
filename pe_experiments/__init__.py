"""Compare positional encodings and how they extrapolate to longer inputs.

The public functions are `run_experiment`, `evaluate_run`, `load_model`, `load_runs` and `compare`; see
``docs/python.md``.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
NUMERICS = 1  # raised when results of the package change on purpose; see tests/golden
_MODULES = {  # of the public functions
    "run_experiment": "run",
    "evaluate_run": "run",
    "load_model": "analysis.trained_model",
    "load_runs": "comparison",
    "compare": "comparison",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public function on first use, because importing torch and pandas takes seconds."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
