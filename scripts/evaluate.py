"""`pe_experiments.commands.evaluate` as a script."""

from pe_experiments.commands.evaluate import run

if __name__ == "__main__":
    run()
