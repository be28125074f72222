"""Every encoding against a loop over single numbers in float64, at positions up to 4,095."""

from __future__ import annotations

import pytest

from pe_experiments.checking.compare import reference_of
from pe_experiments.checking.instances import build
from pe_experiments.checking.known_mistakes import MISTAKES
from pe_experiments.checking.parameter_sharing import assignments
from pe_experiments.configuration.parts import shipped
from tests.oracles.cases import difference, encoding_and_case, expected, measured, specifications
from tests.oracles.loops import LOGITS, VECTORS

TOLERANCE = 1e-5
COMPOSED = {"by_head", "by_layer", "rope_nope"}  # their layers or heads have encodings that have loops


def test_every_encoding_has_a_loop() -> None:
    missing = sorted(set(shipped("pe")) - set(VECTORS) - set(LOGITS) - COMPOSED)
    assert not missing, (
        f"{', '.join(missing)}: write the formula as a function (case, head, query, key) -> logit over "
        f"single numbers in a file of its family in tests/oracles/loops, list it under its name in "
        f"tests/oracles/loops/__init__.py, and its hyperparameters in tests/oracles/cases.py"
    )


@pytest.mark.parametrize("choice", [*VECTORS, *LOGITS])
def test_an_encoding_equals_its_loop(choice: str) -> None:
    """With default and other hyperparameters, causal or not, at near and distant positions."""
    for arguments, causal in specifications(choice):
        for seed, heads in ((0, 2), (1, 3)):
            encoding, inputs, case = encoding_and_case(choice, arguments, causal, seed, heads)
            result = measured(encoding, inputs, choice, case.layer)
            assert difference(result, expected(case)) <= TOLERANCE, (arguments, causal, seed)


@pytest.mark.parametrize(
    "choice", ["sinusoidal", "rope", "pope", "transformer_xl", "shaw", "deberta", "xpos"]
)
def test_odd_widths_equal_their_loop(choice: str) -> None:
    encoding, inputs, case = encoding_and_case(choice, {}, True, seed=1, heads=3, head_dim=5)
    assert difference(measured(encoding, inputs, choice, case.layer), expected(case)) <= TOLERANCE


# Visible only with cached keys, padded rows or tokens other than 0: test_checking covers these mistakes.
ELSEWHERE = (
    "while decoding", "of a cached step", "left of the text", "serve all rows", "tokens are multiplied",
    "the extra heads", "one too large",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [name for name in MISTAKES if not name.startswith("rope_nope") and not any(map(name.count, ELSEWHERE))],
)
def test_no_mutant_equals_the_loop(name: str) -> None:
    """So the tests above notice each known mistake."""
    choice = MISTAKES[name].encoding
    worst = 0.0
    for arguments, causal in specifications(choice):
        for seed, heads in ((0, 2), (1, 3)):
            encoding, inputs, case = encoding_and_case(choice, arguments, causal, seed, heads)
            mutant = build(MISTAKES[name].make_in(reference_of(choice, **arguments).build), encoding.shape)
            for _ in assignments(encoding, mutant):
                result = measured(mutant, inputs, choice, case.layer)
                worst = max(worst, difference(result, expected(case)))
    assert worst > TOLERANCE
