"""`pe_experiments.commands.export` as a script."""

from pe_experiments.commands.export import run

if __name__ == "__main__":
    run()
