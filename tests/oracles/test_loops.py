"""Every encoding against a loop over single numbers in float64, at positions up to 4,095."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

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
from tests.oracles.vectors import FOLDER, stored_case

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


FILES = sorted(FOLDER.glob("*.json"))


def test_every_loop_has_vectors() -> None:
    missing = sorted({*VECTORS, *LOGITS} - {path.stem for path in FILES})
    assert not missing, f"no vectors of {', '.join(missing)}: run python -m tests.oracles.vectors"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_vectors_equal_the_loops(path: Path) -> None:
    """And so the encodings, which are compared with the loops."""
    for entry in json.loads(path.read_text())["cases"]:
        computed = expected(stored_case(path.stem, entry))
        computed = torch.where(computed.isfinite(), computed, torch.nan)
        stored = next(entry[kind] for kind in ("vectors", "logits", "weights") if kind in entry)
        result = torch.tensor(np.array(stored, dtype=float))
        torch.testing.assert_close(computed, result, rtol=1e-12, atol=1e-12, equal_nan=True)
        if "outputs" in entry:
            outputs = expected_outputs(stored_case(path.stem, entry))
            torch.testing.assert_close(outputs, torch.tensor(entry["outputs"], dtype=torch.float64))
