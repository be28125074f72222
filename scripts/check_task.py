"""`pe_experiments.commands.check_task` as a script."""

from pe_experiments.commands.check_task import run

if __name__ == "__main__":
    run()
