"""`pe_experiments.commands.train` as a script."""

from pe_experiments.commands.train import run

if __name__ == "__main__":
    run()
