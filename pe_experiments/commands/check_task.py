"""Is this task right? Its contract: examples, the rule behind them, what guessing reaches.

python scripts/check_task.py task._target_=my_module.MyTask [+task.k=3]
"""

from pe_experiments.commands.command_line import command
from pe_experiments.configuration.compose import composed
from pe_experiments.configuration.schema import validated


def main(arguments: list[str]) -> int:
    settings = composed("check_task", arguments)
    from pe_experiments.checking.task_contract import TaskSettings, check_task  # brings torch

    return 0 if check_task(validated(TaskSettings, settings)) else 1


run = command("check_task", __doc__, main)
