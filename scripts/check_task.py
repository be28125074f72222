"""`pe_experiments.commands.encodings.check_task` as a script."""

from pe_experiments.commands.encodings import check_task

if __name__ == "__main__":
    check_task()
