"""How fast is it here: beside other libraries, encoding by encoding, beside a bare loop and over length.

python scripts/benchmark.py [parts=[small,peers,encodings,loop,lengths]] [repeats=15] [out=DIR]
"""

import sys
from pathlib import Path

from omegaconf import DictConfig

from pe_experiments.commands.command_line import command, settings_of


def main(config: DictConfig) -> None:
    # What it runs is a study beside the package; in the folder of this script results.py would hide it.
    sys.path[0] = str(Path(__file__).parents[1])
    from results.benchmark.report import benchmark

    benchmark(settings_of(config))


if __name__ == "__main__":
    command("benchmark", __doc__, main)()
