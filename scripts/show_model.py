"""`pe_experiments.commands.finished_runs.show_model` as a script."""

from pe_experiments.commands.finished_runs import show_model

if __name__ == "__main__":
    show_model()
