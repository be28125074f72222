"""From Python the keys of the command line mean the same, and mistakes are the same sentences."""

from __future__ import annotations

from typing import Any

import pytest

from pe_experiments.composition import composed, configuration
from pe_experiments.config import check
from pe_experiments.errors import UserError

ROPE = "pe_experiments.encodings.rope.Rope"


@pytest.mark.parametrize(
    ("keys", "typed"),
    [
        ({"pe": "rope", "training.steps": 100}, ["pe=rope", "training.steps=100"]),
        ({"pe._target_": ROPE, "+pe.base": 500.0}, [f"pe._target_={ROPE}", "+pe.base=500.0"]),
        ({"pe": "rope", "pe.base": 500.0}, ["pe=rope", "pe.base=500.0"]),
        ({"pe": {"_target_": ROPE}}, [f"pe._target_={ROPE}"]),
        ({"task": "text", "seed": 3}, ["task=text", "seed=3"]),
        ({"training": {"steps": 10}}, ["training.steps=10"]),
    ],
)
def test_keys_from_python_are_those_of_the_command_line(keys: dict[str, Any], typed: list[str]) -> None:
    assert check(configuration(keys)) == check(composed("config", typed))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"learning_rate": 0.1}, "Did you mean training.learning_rate?"),
        ({"steps": 10}, "Did you mean training.steps?"),
        ({"training.step": 10}, "Did you mean steps?"),
        ({"training": {"step": 10}}, "Did you mean steps?"),
        ({"nonsense": 1}, "nonsense is not a setting"),
        ({"dry_run": True}, "dry_run is a setting of train.py; from Python each call makes one run"),
        ({"sweep.jobs": 2}, "sweep.jobs is a setting of train.py"),
        ({"engine": "ray"}, "engine is a setting of train.py"),
    ],
)
def test_what_is_no_setting_of_a_run_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        check(configuration(keys))
