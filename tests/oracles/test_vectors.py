"""The stored vectors equal the loops."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.oracles.cases import expected, expected_outputs
from tests.oracles.loops import LOGITS, VECTORS
from tests.oracles.vectors import FOLDER, stored_case

FILES = sorted(FOLDER.glob("*.json"))


def test_every_loop_has_vectors() -> None:
    missing = sorted({*VECTORS, *LOGITS} - {path.stem for path in FILES})
    assert not missing, f"no vectors of {', '.join(missing)}: run python -m tests.oracles.vectors"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_vectors_equal_the_loops(path: Path) -> None:
    """And so the encodings, which `test_loops` compares with the loops."""
    for entry in json.loads(path.read_text())["cases"]:
        computed = expected(stored_case(path.stem, entry))
        computed = torch.where(computed.isfinite(), computed, torch.nan)
        stored = next(entry[kind] for kind in ("vectors", "logits", "weights") if kind in entry)
        result = torch.tensor(np.array(stored, dtype=float))
        torch.testing.assert_close(computed, result, rtol=1e-12, atol=1e-12, equal_nan=True)
        if "outputs" in entry:
            outputs = expected_outputs(stored_case(path.stem, entry))
            torch.testing.assert_close(outputs, torch.tensor(entry["outputs"], dtype=torch.float64))
