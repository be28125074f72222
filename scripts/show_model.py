"""`pe_experiments.commands.models.show_model` as a script."""

from pe_experiments.commands.models import show_model

if __name__ == "__main__":
    show_model()
