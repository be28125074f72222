"""Define checks: a promise, a function that measures whether it holds, and the usual cause of a failure."""

import os
import pickle
import random
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from pe_experiments.terminal import process
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import NotApplicable, error_place, sentence

Measurement = tuple[bool | None, str]  # whether a promise holds (None: not applicable), and the measurement
WORDS = {True: "holds", False: "FAILS", None: "-"}
UNLIKELY_SEED = 881_723  # unlikely to be used by modules that seed a generator
Measure = TypeVar("Measure", bound=Callable[[Any], Measurement])


class Result(NamedTuple):
    """The result of a check."""

    holds: bool | None  # None: does not apply
    measured: str
    error: BaseException | None = None  # raised by the tested part


class Check(NamedTuple):
    """A promise of the contract of encodings or of tasks."""

    measure: Callable[[Any], Measurement]
    usual_cause: str  # of a failure

    def __call__(self, subject: Any) -> Result:
        try:
            with torch.random.fork_rng(devices=[]):
                return Result(*self.measure(subject))
        except NotApplicable as refusal:
            return Result(None, str(refusal))
        except (Exception, SystemExit) as error:
            return Result(False, sentence(error), error)


class Checks(dict[str, Check]):
    """Checks by promise, in the order in which they run."""

    def add(self, promise: str, usual_cause: str) -> Callable[[Measure], Measure]:
        """Return a decorator that adds a function as the check of a promise."""

        def listed(measure: Measure) -> Measure:
            self[promise] = Check(measure, usual_cause)
            return measure

        return listed


def run_checks(checks: Mapping[str, Check], subjects: Mapping[str, Any]) -> list[str]:
    """Run the checks on every subject and print the results; return the promises that fail."""
    failures: list[tuple[str, str, Result]] = []
    say(f"{'':52}{''.join(f'{name:10}' for name in subjects)}".rstrip())
    for promise, check in checks.items():
        results = {name: check(subject) for name, subject in subjects.items()}
        say(f"{promise:52}{''.join(f'{WORDS[result.holds]:10}' for result in results.values())}".rstrip())
        failures += [(promise, name, result) for name, result in results.items() if result.holds is False]
    _say_errors(failures)
    for promise, name, result in failures:
        if result.error is None:
            say_failure(promise, name, result, checks[promise].usual_cause)
    return list(dict.fromkeys(promise for promise, *_ in failures))


def _say_errors(failures: list[tuple[str, str, Result]]) -> None:
    """Print every exception once, with the checks that raised it."""
    raised: dict[tuple[str, str], list[tuple[str, BaseException]]] = {}
    for promise, _, result in failures:
        if result.error is not None:
            place = error_place(result.error)
            # Errors raised in our code may differ between checks in the sizes they name.
            kind = type(result.error).__name__ if place else re.sub(r"\d+", "n", result.measured)
            raised.setdefault((kind, place), []).append((promise, result.error))
    for (_, place), cases in raised.items():
        promises = dict.fromkeys(promise for promise, _ in cases)
        error = cases[0][1]
        say(f"\nFAILS with {sentence(error)}{place}\n  in: {'; '.join(promises)}")
        if os.environ.get(process.FULL_ERROR) == "1":
            traceback.print_exception(error, file=sys.stderr)


def say_failure(promise: str, name: str, result: Result, usual_cause: str) -> None:
    """Print a failed check with place, measurement and usual cause."""
    say(f"\nFAILS{f' in the {name}' if name else ''}: {promise}")
    say(f"  measured: {result.measured}\n  usually: {usual_cause}")


@contextmanager
def watch_random_draws() -> Iterator[list[str]]:
    """Yield a list that finally names the used global random generators, and restore these."""
    generators: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        "torch's global generator": (
            lambda: torch.get_rng_state().numpy(),  # the pickles of two equal tensors may differ
            lambda state: torch.set_rng_state(torch.from_numpy(state)),
        ),
        "numpy.random": (np.random.get_state, np.random.set_state),
        "Python's random": (random.getstate, random.setstate),
    }

    def states() -> dict[str, bytes]:
        return {name: pickle.dumps(get_state()) for name, (get_state, _) in generators.items()}

    original = states()
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(UNLIKELY_SEED)
    before = states()
    touched: list[str] = []
    try:
        yield touched
        touched += [name for name, state in states().items() if state != before[name]]
    finally:
        for name, (_, set_state) in generators.items():
            set_state(pickle.loads(original[name]))
