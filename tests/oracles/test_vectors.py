"""The stored vectors are what the loops say, and what the encodings compute from them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from pe_experiments.checking.compare import reference_of
from pe_experiments.checking.instances import build
from pe_experiments.encodings import ModelShape
from pe_experiments.models.attention_scores import Inputs
from tests.oracles.cases import TABLE, apart, expected, measured
from tests.oracles.vectors import FOLDER, stored_case

STORED = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
entries = pytest.mark.parametrize(
    ("choice", "entry"),
    [
        pytest.param(choice, entry, id=f"{choice}-{i}")
        for choice, document in STORED.items()
        for i, entry in enumerate(document["cases"])
    ],
)


def stored_result(entry: dict[str, Any]) -> torch.Tensor:
    result = next(entry[kind] for kind in ("vectors", "logits", "weights") if kind in entry)
    return torch.tensor(np.array(result, dtype=float))


@entries
def test_stored_vectors_are_what_the_loops_say(choice: str, entry: dict[str, Any]) -> None:
    again = expected(stored_case(choice, entry))
    again = torch.where(again.isfinite(), again, torch.nan)
    torch.testing.assert_close(again, stored_result(entry), rtol=1e-12, atol=1e-12, equal_nan=True)


@entries
def test_encodings_reproduce_the_stored_vectors(choice: str, entry: dict[str, Any]) -> None:
    case = stored_case(choice, entry)
    sizes = {"num_layers": 2, "train_positions": TABLE}
    encoding = build(reference_of(choice, **case.arguments).build, ModelShape(**case.shape, **sizes))  # type: ignore
    with torch.no_grad():
        for name, parameter in encoding.named_parameters():
            parameter.copy_(torch.tensor(case.parameters[name]).reshape(parameter.shape))
    q, k, x = (torch.tensor(part)[None].float() for part in (case.q, case.k, case.x))
    got = measured(encoding, Inputs(q, k, x, torch.tensor([case.positions])), choice, case.layer)
    assert apart(got, stored_result(entry)) <= 1e-5
