"""`pe_experiments.commands.results` as a script."""

from pe_experiments.commands.results import run

if __name__ == "__main__":
    run()
