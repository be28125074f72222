"""The stored vectors equal the loops and the encodings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pe_experiments.checking.compare import reference_of
from pe_experiments.checking.instances import build
from pe_experiments.encodings import ModelShape
from pe_experiments.models.attention_scores import Inputs
from tests.oracles.cases import TABLE, difference, expected, measured
from tests.oracles.loops import LOGITS, VECTORS
from tests.oracles.vectors import FOLDER, stored_case

FILES = sorted(FOLDER.glob("*.json"))


def test_every_loop_has_vectors() -> None:
    missing = sorted({*VECTORS, *LOGITS} - {path.stem for path in FILES})
    assert not missing, f"no vectors of {', '.join(missing)}: run python -m tests.oracles.vectors"


def stored_result(entry: dict[str, Any]) -> torch.Tensor:
    result = next(entry[kind] for kind in ("vectors", "logits", "weights") if kind in entry)
    return torch.tensor(np.array(result, dtype=float))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_vectors_equal_loops_and_encodings(path: Path) -> None:
    """Encodings are built from the file alone, as another framework would."""
    choice = path.stem
    for entry in json.loads(path.read_text())["cases"]:
        case = stored_case(choice, entry)
        stored = stored_result(entry)
        computed = expected(case)
        computed = torch.where(computed.isfinite(), computed, torch.nan)
        torch.testing.assert_close(computed, stored, rtol=1e-12, atol=1e-12, equal_nan=True)
        sizes = {"num_layers": 2, "train_positions": TABLE}
        shape = ModelShape(**case.shape, **sizes)  # type: ignore[arg-type]
        encoding = build(reference_of(choice, **case.arguments).build, shape)
        with torch.no_grad():
            for name, parameter in encoding.named_parameters():
                parameter.copy_(torch.tensor(case.parameters[name]).reshape(parameter.shape))
        q, k, x = (torch.tensor(part)[None].float() for part in (case.q, case.k, case.x))
        result = measured(encoding, Inputs(q, k, x, torch.tensor([case.positions])), choice, case.layer)
        assert difference(result, stored) <= 1e-5, case.arguments
