"""`pe_experiments.commands.show_model` as a script."""

from pe_experiments.commands.show_model import run

if __name__ == "__main__":
    run()
