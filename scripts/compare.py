"""`pe_experiments.commands.compare` as a script."""

from pe_experiments.commands.compare import run

if __name__ == "__main__":
    run()
