"""Which positional encoding should I use, and does it extrapolate?

In Python: `run_experiment`, `evaluate_run`, `load_model`, `load_runs` and `compare`, which
``docs/python.md`` shows.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
NUMERICS = 1  # raised when results of the package change on purpose; see tests/golden
_HOMES = {
    "run_experiment": "run",
    "evaluate_run": "run",
    "load_model": "store.trained_model",
    "load_runs": "comparison",
    "compare": "comparison",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import the public functions on first use, because importing torch and pandas takes seconds."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
