"""`pe_experiments.commands.models.evaluate` as a script."""

from pe_experiments.commands.models import evaluate

if __name__ == "__main__":
    evaluate()
