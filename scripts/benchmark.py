"""The command of `results/benchmark`."""

import sys
from pathlib import Path

from omegaconf import DictConfig

from pe_experiments.commands.command_line import command
from pe_experiments.configuration.schema import resolved


@command("benchmark")
def main(cfg: DictConfig) -> None:
    """Measure speed against other libraries, by encoding, and for small models.

    python scripts/benchmark.py                    one sentence in at most five minutes
    python scripts/benchmark.py parts=[small,peers,encodings] [repeats=15] [out=DIR]   all, on a CPU
    python scripts/benchmark.py parts=gpu          on a CUDA device
    """
    # The study is beside the package; scripts/results.py would shadow the folder results.
    sys.path[0] = str(Path(__file__).parents[1])
    from results.benchmark.report import benchmark

    benchmark(resolved(cfg))


if __name__ == "__main__":
    main()
