"""Every encoding against a loop over single numbers in float64, at positions up to 4,095."""

from __future__ import annotations

import pytest

from pe_experiments.configuration.choices import shipped
from tests.oracles.cases import (
    difference,
    encoding_and_case,
    expected,
    expected_outputs,
    measured,
    measured_outputs,
    specifications,
)
from tests.oracles.loops import LOGITS, OUTPUTS, VECTORS

TOLERANCE = 1e-5
COMPOSED = {"by_head", "by_layer", "rope_nope"}  # their layers or heads have encodings that have loops


def test_every_encoding_has_a_loop() -> None:
    missing = sorted(set(shipped("pe")) - set(VECTORS) - set(LOGITS) - COMPOSED)
    assert not missing, (
        f"{', '.join(missing)}: write the formula as a function (case, head, query, key) -> logit over "
        f"single numbers with its name in a file of its family in tests/oracles/loops, and list its "
        f"hyperparameters in tests/oracles/cases.py"
    )


@pytest.mark.parametrize("choice", [*VECTORS, *LOGITS])
def test_an_encoding_equals_its_loop(choice: str) -> None:
    """With default and other hyperparameters, causal or not, at near and distant positions."""
    for arguments, causal in specifications(choice):
        for seed, heads in ((0, 2), (1, 3)):
            encoding, inputs, case = encoding_and_case(choice, arguments, causal, seed, heads)
            result = measured(encoding, inputs, choice, case.layer)
            assert difference(result, expected(case)) <= TOLERANCE, (arguments, causal, seed)
            assert choice in OUTPUTS or not encoding.acts_on_values, "write the loop of what is read, too"
            if choice in OUTPUTS:
                outputs = measured_outputs(encoding, inputs, case)
                assert difference(outputs, expected_outputs(case)) <= TOLERANCE, (arguments, causal, seed)


# A quarter of five channels is no pair.
@pytest.mark.parametrize("choice", sorted({*VECTORS, *LOGITS} - {"rope_partial"}))
def test_odd_widths_equal_their_loop(choice: str) -> None:
    encoding, inputs, case = encoding_and_case(choice, {}, True, seed=1, heads=3, head_dim=5)
    assert difference(measured(encoding, inputs, choice, case.layer), expected(case)) <= TOLERANCE
