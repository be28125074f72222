"""`pe_experiments.commands.studies.compare` as a script."""

from pe_experiments.commands.studies import compare

if __name__ == "__main__":
    compare()
