"""`pe_experiments.commands.finished_runs.export` as a script."""

from pe_experiments.commands.finished_runs import export

if __name__ == "__main__":
    export()
