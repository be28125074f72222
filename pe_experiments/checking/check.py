"""One check: a promise, a function that measures whether it holds, and the usual cause of a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from pe_experiments.configuration.parts import no_part_exits
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import NotApplicable, sentence

Measurement = tuple[bool | None, str]  # whether a promise holds (None: does not apply), and what was measured
WORDS = {True: "holds", False: "FAILS", None: "-"}


class Result(NamedTuple):
    holds: bool | None  # None: does not apply
    measured: str
    raised: bool = False  # the part under test ended the check with an exception


class Check(NamedTuple):
    """One promise of the contract of schemes or of that of tasks."""

    run: Callable[[Any], Measurement]
    usually: str  # the usual cause of a failure

    def __call__(self, subject: Any) -> Result:
        try:
            with torch.random.fork_rng(devices=[]), no_part_exits():
                return Result(*self.run(subject))
        except NotApplicable as refusal:
            return Result(None, str(refusal))
        except Exception as error:
            return Result(False, sentence(error), raised=True)


def listed(checks: dict[str, Check]) -> Callable[[str, str], Callable[[Callable[[Any], Measurement]], None]]:
    """A decorator ``(name, usual cause of a failure)`` that lists a function in ``checks``."""
    return lambda name, usually: lambda run: checks.update({name: Check(run, usually)})


def run_checks(checks: Mapping[str, Check], subjects: Mapping[str, Any]) -> list[str]:
    """Run the checks on every subject and print what they find; the names of those that fail."""
    failed: list[tuple[str, str, Result]] = []
    say(f"{'':52}{''.join(f'{name:10}' for name in subjects)}".rstrip())
    for promise, check in checks.items():
        results = {name: check(subject) for name, subject in subjects.items()}
        say(f"{promise:52}{''.join(f'{WORDS[result.holds]:10}' for result in results.values())}".rstrip())
        failed += [(promise, name, result) for name, result in results.items() if result.holds is False]
    for error in dict.fromkeys(result.measured for *_, result in failed if result.raised):
        several = dict.fromkeys(promise for promise, _, result in failed if result.measured == error)
        say(f"\nFAILS with {error}\n  in: {'; '.join(several)}")
    for promise, name, result in failed:
        if not result.raised:
            say_failure(promise, name, result, checks[promise].usually)
    return list(dict.fromkeys(promise for promise, *_ in failed))


def say_failure(promise: str, name: str, result: Result, usually: str) -> None:
    say(f"\nFAILS{f' in the {name}' if name else ''}: {promise}")
    say(f"  measured: {result.measured}\n  usually: {usually}")
