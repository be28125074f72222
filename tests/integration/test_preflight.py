"""What the start of a run refuses before anything is trained or written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from pe_experiments.building import preflight
from pe_experiments.components import load_component, shipped
from pe_experiments.config import Experiment
from pe_experiments.errors import NotApplicable, UserError

Tiny = Callable[..., Experiment]


def outside(group: str, name: str) -> str:
    return f"{group}._target_=tests.integration.outside.{name}"


@pytest.mark.parametrize("model", ["decoder", "encoder"])
@pytest.mark.parametrize("scheme", shipped("pe"))
def test_every_scheme_may_start(scheme: str, model: str, tiny: Tiny) -> None:
    causal_only = model == "encoder" and load_component("pe", shipped("pe")[scheme]).cls.causal_only
    with pytest.raises(NotApplicable) if causal_only else nullcontext():
        preflight(tiny(f"pe={scheme}", f"model={model}"))


@pytest.mark.parametrize("name", ["PoolsAll", "SeesOneKeyTooMany", "GatedByTheFuture"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_decoder_that_looks_ahead_is_refused(name: str, batch_size: int, tiny: Tiny) -> None:
    options = ("pe=none", outside("pe", name), f"training.batch_size={batch_size}")
    with pytest.raises(UserError, match=f"pe: {name} looks ahead.*looks_ahead = True"):
        preflight(tiny(*options))
    preflight(tiny(*options, "model=encoder"))


@pytest.mark.parametrize("name", ["MeansToPool", "Noisy", "Recency"])
def test_what_means_to_or_draws_random_numbers_may_start(name: str, tiny: Tiny) -> None:
    assert preflight(tiny("pe=none", outside("pe", name))) == []  # and nothing to remark on


def test_ids_that_tell_the_answer_are_refused(tiny: Tiny) -> None:
    preflight(tiny("positions=task"))
    with pytest.raises(UserError, match="coupling ids of TellingIds change with what its answers say"):
        preflight(tiny(outside("task", "TellingIds"), "positions=task"))


@pytest.mark.parametrize("length", [60, 1000])
def test_outputs_that_are_no_numbers_where_it_is_evaluated_are_refused(length: int, tiny: Tiny) -> None:
    options = ("pe=none", outside("pe", "NotANumberFar"))
    preflight(tiny(*options))
    with pytest.raises(UserError, match=f"at evaluation length {length} are NaN or infinite"):
        preflight(tiny(*options, f"evaluation.lengths=[{length}]"))
