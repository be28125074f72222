"""How fast is it here: beside other libraries, scheme by scheme, beside a bare loop and over length.

python scripts/benchmark.py [parts=[peers,schemes,loop,lengths]] [repeats=15] [out=DIR]
"""

import sys

from pe_experiments.command_line import composed, run_script, wants_help


def main() -> None:
    if wants_help(__doc__, "benchmark"):
        return
    config = composed("benchmark", sys.argv[1:])
    from pe_experiments.benchmark.report import benchmark

    benchmark(config)


def run() -> None:
    """The command; ends the process."""
    sys.exit(run_script(main))


if __name__ == "__main__":
    run()
