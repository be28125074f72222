"""Implement the command check_task: check the contract of a task, and print results and remarks."""

from typing import Any

from pe_experiments.checking.checks import run_checks
from pe_experiments.checking.task_contract import CHECKS, MOST_SYMBOLS, differing_builds, remarks_on
from pe_experiments.configuration.component import load_component
from pe_experiments.configuration.schema import Section
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError, error_place, sentence

AGREEING = """sample and solve are held against each other: a mistake that both make cannot be found here.
Check some answers by hand."""


class TaskSettings(Section):
    """The options of ``configs/check_task.yaml``."""

    task: dict[str, Any]


def check_task(settings: TaskSettings) -> bool:
    """Check a task and print the results; return whether the contract holds."""
    component = load_component("task", settings.task)
    task = component.build()
    if task.vocab_size > MOST_SYMBOLS:
        most = f"expected at most {MOST_SYMBOLS} here, where guessing is counted symbol by symbol"
        raise UserError(f"task: vocab_size={task.vocab_size} of {component.cls.__name__}: {most}")
    say(f"{component.target}\n")
    failed = run_checks(CHECKS, {"": task})
    try:
        difference = differing_builds(component.build)
    except Exception:  # raised by the task, and reported by a check
        difference = ""
    if difference:
        say(f"\nFAILS: a run can be repeated\n  measured: {difference}")
    say("")
    try:
        for remark in remarks_on(task):
            say(remark)
    except Exception as error:  # raised by the task, usually in a check, too
        say(f"It cannot be looked at further: it raises {sentence(error)}{error_place(error)}")
    say(AGREEING)
    return not failed and not difference
