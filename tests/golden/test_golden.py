"""Nobody changes the package's numbers without noticing."""

from __future__ import annotations

import pytest

from pe_experiments import NUMERICS
from tests.golden.numbers import combinations, difference, golden_corpus, measured, read

STORED = read()


def test_the_golden_numbers_are_of_this_version() -> None:
    assert STORED["numerics"] == NUMERICS, "run `make golden`"


def test_everything_shipped_has_golden_numbers() -> None:
    with golden_corpus() as corpus:
        missing = set(combinations(corpus)) ^ set(STORED["runs"])
    assert not missing, f"run `make golden` and commit tests/golden/numbers.json: {sorted(missing)}"


@pytest.mark.parametrize("name", STORED["runs"])
def test_numbers_are_golden(name: str) -> None:
    with golden_corpus() as corpus:
        overrides = combinations(corpus).get(name)
        assert overrides, f"{name} is no longer shipped; run `make golden`"
        message = difference(name, measured(overrides), STORED["runs"][name])
    assert not message, message
