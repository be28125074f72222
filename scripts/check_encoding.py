"""`pe_experiments.commands.check_encoding` as a script."""

from pe_experiments.commands.check_encoding import run

if __name__ == "__main__":
    run()
