"""Check a task: its examples, its rule and the accuracies it states for guessing.

python scripts/check_task.py task._target_=my_module.MyTask [+task.k=3]
"""

from omegaconf import DictConfig

from pe_experiments.commands.command_line import command, required_choice
from pe_experiments.configuration.schema import validated


@command("check_task", __doc__)
def run(cfg: DictConfig) -> None:
    required_choice("task", "mine.MyTask")
    from pe_experiments.checking.task_contract import TaskSettings, check_task  # imports torch

    if not check_task(validated(TaskSettings, cfg)):
        raise SystemExit(1)
