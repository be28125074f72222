"""How fast is it here: beside other libraries, scheme by scheme, beside a bare loop and over length.

python scripts/benchmark.py [parts=[peers,schemes,loop,lengths]] [repeats=15] [out=DIR]
"""

from pe_experiments.command_line import command
from pe_experiments.composition import composed


def main(arguments: list[str]) -> None:
    config = composed("benchmark", arguments)
    from pe_experiments.benchmark.report import benchmark

    benchmark(config)


run = command("benchmark", __doc__, main)

if __name__ == "__main__":
    run()
