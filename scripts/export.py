"""`pe_experiments.commands.models.export` as a script."""

from pe_experiments.commands.models import export

if __name__ == "__main__":
    export()
