"""Time and peak memory of evaluating a few long sequences, in a process of its own.

python -m pe_experiments.benchmark.longest TOKENS OVERRIDES...
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

EXAMPLES = 2


def measure(tokens: int, overrides: list[str]) -> dict[str, float]:
    """Seconds per example, and resident megabytes above those after all imports, in this process."""
    # Everything a run imports, so that none of it counts as memory of the evaluation.
    import pe_experiments.plots
    import pe_experiments.training  # noqa: F401
    from pe_experiments import matmul
    from pe_experiments.benchmark.workloads import experiment
    from pe_experiments.environment import prepare_hardware
    from pe_experiments.evaluation import extrapolation_curve
    from pe_experiments.instantiation import build_model, source_of

    made = experiment(*overrides)
    prepare_hardware(made.config.hardware)
    matmul.set_backend(matmul.float32_errors().backend)
    baseline = _peak_megabytes()
    length = (tokens - made.format.tokens(0, 0)) // 2  # of a copying task: inputs, and as many targets
    started = time.perf_counter()
    for row in extrapolation_curve(
        build_model(made), source_of(made), [length], EXAMPLES, made.config.training.max_length
    ):
        assert abs(row["tokens"] - tokens) <= 1, row
    return {
        "seconds": (time.perf_counter() - started) / EXAMPLES,
        "baseline": baseline,
        "above": _peak_megabytes() - baseline,
    }


def measure_apart(tokens: int, *overrides: str) -> dict[str, float]:
    """`measure` in a new process, so that nothing measured before leaves its mark."""
    command = [sys.executable, "-m", __name__, str(tokens), *overrides]
    answer: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return answer


def _peak_megabytes() -> float:
    if sys.platform == "linux":  # its rusage would begin with the peak of the process that started this one
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), sys.argv[2:])))
