"""Check a task: its examples, its rule and the accuracies it states for guessing.

python scripts/check_task.py task._target_=my_module.MyTask [+task.k=3]
"""

from typing import Any

from pe_experiments.commands.command_line import command
from pe_experiments.configuration.schema import validated


def main(settings: dict[str, Any]) -> None:
    from pe_experiments.checking.check_task import TaskSettings, check_task  # imports torch

    if not check_task(validated(TaskSettings, settings)):
        raise SystemExit(1)


run = command("check_task", __doc__, main)
