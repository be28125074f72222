"""`pe_experiments.commands.finished_runs.evaluate` as a script."""

from pe_experiments.commands.finished_runs import evaluate

if __name__ == "__main__":
    evaluate()
