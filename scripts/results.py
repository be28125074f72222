"""`pe_experiments.commands.studies.results` as a script."""

from pe_experiments.commands.studies import results

if __name__ == "__main__":
    results()
