"""`pe_experiments.commands.benchmark` as a script."""

from pe_experiments.commands.benchmark import run

if __name__ == "__main__":
    run()
