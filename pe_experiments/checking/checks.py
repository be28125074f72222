"""Define checks of the contracts of encodings and tasks, run them, and print their results."""

import os
import pickle
import random
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from pe_experiments.terminal import process
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import NotApplicable, error_place, sentence

Measurement = tuple[bool | None, str]  # whether a promise holds (None: not applicable), and the measurement
OUTCOMES = {True: "holds", False: "FAILS", None: "-"}
UNLIKELY_SEED = 881_723  # unlikely to be used by modules that seed a generator
GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {  # how states are read and set
    "torch's global generator": (
        lambda: torch.get_rng_state().numpy(),  # the pickles of two equal tensors may differ
        lambda state: torch.set_rng_state(torch.from_numpy(state)),
    ),
    "numpy.random": (np.random.get_state, np.random.set_state),
    "Python's random": (random.getstate, random.setstate),
}
Measure = Callable[[Any], Measurement]  # of a subject: an encoding or a task


class CheckResult(NamedTuple):
    holds: bool | None  # None: does not apply
    measured: str
    error: BaseException | None = None  # raised by the tested encoding or task


class Check(NamedTuple):
    """A function that measures whether a promise of a contract holds.

    Args:
        name: short name, the key in `Checks`.
        promise: what is promised, as it is printed.
        measure: function of a subject.
        usual_cause: the usual cause of a failure.
        gate: whether all later checks depend on this one.
    """

    name: str
    promise: str
    measure: Measure
    usual_cause: str
    gate: bool = False

    def __call__(self, subject: Any) -> CheckResult:
        try:
            with torch.random.fork_rng(devices=[]):
                return CheckResult(*self.measure(subject))
        except NotApplicable as refusal:
            return CheckResult(None, str(refusal))
        except (Exception, SystemExit) as error:
            return CheckResult(False, sentence(error), error)


class Checks(dict[str, Check]):
    """Checks by their short names, in the order in which they run."""

    def add(
        self, name: str, promise: str, usual_cause: str, gate: bool = False
    ) -> Callable[[Measure], Measure]:
        """Return a decorator that adds a function as the check of a promise."""

        def register(measure: Measure) -> Measure:
            self[name] = Check(name, promise, measure, usual_cause, gate)
            return measure

        return register


def run_checks(checks: Mapping[str, Check], subjects: Mapping[str, Any]) -> list[str]:
    """Run the checks on every subject, up to a gate that fails, and print the results.

    Args:
        checks: checks by name.
        subjects: encodings or tasks by the name in the heading of their column.

    Returns:
        The names of the checks that fail for some subject.
    """
    failures: list[tuple[Check, str, CheckResult]] = []
    say(f"{'':52}{''.join(f'{name:10}' for name in subjects)}".rstrip())
    for check in checks.values():
        results = {name: check(subject) for name, subject in subjects.items()}
        words = "".join(f"{OUTCOMES[result.holds]:10}" for result in results.values())
        say(f"{check.promise:52}{words}".rstrip())
        failures += [(check, name, result) for name, result in results.items() if result.holds is False]
        if failures and check.gate:
            break
    promises_by_error: dict[tuple[str, str], list[str]] = {}  # an exception is printed once
    errors: dict[tuple[str, str], BaseException] = {}
    for check, name, result in failures:
        if result.error is None:
            where = f" in the {name}" if name else ""
            say(f"\nFAILS{where}: {check.promise}")
            say(f"  measured: {result.measured}\n  usually: {check.usual_cause}")
            continue
        place = error_place(result.error)
        # An error raised in this package has no place; its message may name sizes, which checks vary.
        kind = type(result.error).__name__ if place else re.sub(r"\d+", "n", result.measured)
        promises_by_error.setdefault((kind, place), []).append(check.promise)
        errors.setdefault((kind, place), result.error)
    for (kind, place), promises in promises_by_error.items():
        error = errors[kind, place]
        say(f"\nFAILS with {sentence(error)}{place}\n  in: {'; '.join(dict.fromkeys(promises))}")
        if os.environ.get(process.FULL_ERROR) == "1":
            traceback.print_exception(error, file=sys.stderr)
    failed = dict.fromkeys(check.name for check, *_ in failures)
    if any(checks[name].gate for name in failed):
        say("\nAll other checks depend on this one; none was run.")
    return list(failed)


@contextmanager
def watch_global_generators() -> Iterator[list[str]]:
    """Name the global generators that the block draws from or seeds, in the yielded list, after the block.

    Their states are restored on exit.
    """
    original = {name: read_state() for name, (read_state, _) in GENERATORS.items()}
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(UNLIKELY_SEED)
    before = {name: pickle.dumps(read_state()) for name, (read_state, _) in GENERATORS.items()}
    sources: list[str] = []
    try:
        yield sources
        sources += [name for name, (read, _) in GENERATORS.items() if pickle.dumps(read()) != before[name]]
    finally:
        for name, (_, set_state) in GENERATORS.items():
            set_state(original[name])
