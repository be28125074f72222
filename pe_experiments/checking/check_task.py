"""Implement the command check_task: run the contract of a task, and print results and remarks."""

from typing import Any

from pe_experiments.checking.checks import run_checks
from pe_experiments.checking.task_contract import (
    CHECKS,
    LENGTHS,
    MOST_SYMBOLS,
    SPLITS,
    SURE,
    accuracy_from,
    answers_that_move,
    deciding_symbols,
    draw,
    share_of_mode,
    some_lengths,
)
from pe_experiments.configuration.parts import load_component
from pe_experiments.configuration.schema import Section
from pe_experiments.tasks import IGNORE, Task
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
    say("")
    try:
        for remark in remarks_on(task):
            say(remark)
    except Exception as error:  # of the task; a check has said so, as a rule
        say(f"It cannot be looked at further: it raises {sentence(error)}{error_place(error)}")
    say(AGREEING)
    return not failed


def remarks_on(task: Task) -> list[str]:
    """Return remarks on shortcuts that may be intended, and on how much there is to learn."""
    length = some_lengths(task, (9, 12))[-1]
    if length > max(LENGTHS):
        shortest = some_lengths(task)[0]
        return [f"The shortest input has {shortest:,} symbols; checks of short inputs do not apply."]
    remarks = []
    inputs, targets = draw(task, length, SPLITS, 31)
    every_target = list(range(targets.shape[1]))
    decided = {target: symbol for symbol, target in reversed(deciding_symbols(inputs, targets))}
    if sorted(decided) == every_target:
        remarks.append(f"Each target follows from one input symbol (target 0 from symbol {decided[0]}).")
    # Number of repetitions of the last symbol at the end of each input.
    padding = (inputs.flip(1) == inputs[:, -1].mode().values).long().cumprod(1).sum(1)
    if padding.unique().numel() > 2:
        told = [t for t in every_target if accuracy_from(padding, targets[:, t]) >= SURE]
        if told == every_target and all(share_of_mode(answers) < 0.9 for answers in targets.T):
            remarks.append("How often the last symbol is repeated (padding?) tells target 0.")
    answered = (targets != IGNORE).sum(1)
    if answered.unique().numel() > 1 and accuracy_from(padding, answered) >= SURE:
        remarks.append("How often the last symbol is repeated (padding?) tells the length of the answer.")
    moved = answers_that_move(task, inputs[:400], targets[:400])[(targets != IGNORE)[:400]].float().mean()
    if task.order_sensitive and float(moved) < 0.1:
        remarks.append(f"The order of the input decides {float(moved):.1%} of the targets only.")
    return remarks
