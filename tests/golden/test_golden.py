"""A change of what users' runs compute fails here; CONTRIBUTING.md says what to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pe_experiments import NUMERICS
from tests.golden.numbers import combinations, difference, golden_corpus, measured, read

STORED = read()


@pytest.fixture(scope="module")
def shipped_runs() -> Iterator[dict[str, list[str]]]:
    with golden_corpus() as corpus:
        yield combinations(corpus)


def test_the_golden_numbers_are_of_this_version() -> None:
    assert STORED["numerics"] == NUMERICS, "run `make golden`"


def test_everything_shipped_has_golden_numbers(shipped_runs: dict[str, list[str]]) -> None:
    missing = set(shipped_runs) ^ set(STORED["runs"])
    assert not missing, f"run `make golden` and commit tests/golden/numbers.json: {sorted(missing)}"


# Tasks are slow tests: only their files change them, and a change anywhere may change the others.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name.startswith("task ") else name
        for name in STORED["runs"]
    ],
)
def test_numbers_are_golden(name: str, shipped_runs: dict[str, list[str]]) -> None:
    assert name in shipped_runs, f"{name} is no longer shipped; run `make golden`"
    message = difference(name, measured(shipped_runs[name]), STORED["runs"][name])
    assert not message, message
