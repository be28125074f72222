"""`pe_experiments.commands.models.evaluate_pretrained` as a script."""

from pe_experiments.commands.models import evaluate_pretrained

if __name__ == "__main__":
    evaluate_pretrained()
