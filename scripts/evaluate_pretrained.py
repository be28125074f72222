"""`pe_experiments.commands.evaluate_pretrained` as a script."""

from pe_experiments.commands.evaluate_pretrained import run

if __name__ == "__main__":
    run()
