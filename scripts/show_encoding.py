"""`pe_experiments.commands.show_encoding` as a script."""

from pe_experiments.commands.show_encoding import run

if __name__ == "__main__":
    run()
