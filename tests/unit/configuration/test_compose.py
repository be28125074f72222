"""From Python the keys of the command line mean the same, and mistakes are the same sentences."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pe_experiments.configuration.compose import _choose, _compose, composed
from pe_experiments.configuration.schema import check
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import CONFIG_DIR

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
    assert check(composed("config", keys)) == check(composed("config", typed))


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
        check(composed("config", keys))


def test_parts_composed_one_by_one_are_those_composed_together(tmp_path: Path) -> None:
    """Also where a file of somebody's own fills more than its own section."""
    typed = ("pe=rope", "task=reverse", "model=encoder", "training=default")
    assert _choose("config", typed, None) == _compose("config", typed, None)
    (tmp_path / "task").mkdir()
    own = "task:\n  _target_: pe_experiments.tasks.copying.Reverse\npositions:\n  max_positions: 7\n"
    (tmp_path / "task" / "mine.yaml").write_text(f"# @package _global_\n{own}")
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "mine.yaml").write_text("# @package _global_\ndefaults:\n- override /pe: alibi\n")
    (tmp_path / "pe").mkdir()
    (tmp_path / "pe" / "mine.yaml").write_text("_target_: mine.X\n")
    for both in (("pe=rope", "task=mine"), ("pe=rope", "sweep=mine"), ("pe=mine", "positions=random_offset")):
        assert _choose("config", both, tmp_path) == _compose("config", both, tmp_path)
    assert _choose("config", ("pe=rope", "task=mine"), tmp_path)["positions"]["max_positions"] == 7


@pytest.mark.parametrize("group", ["pe", "positions"])
def test_shipped_schemes_and_policies_fill_their_own_section_alone(group: str) -> None:
    for path in (CONFIG_DIR / group).glob("*.yaml"):
        assert not re.search("@package|^defaults:", path.read_text(), re.MULTILINE), path


def test_what_is_said_to_a_command_is_no_part_of_a_run() -> None:
    typed = check(composed("config", ["dry_run=true", "sweep.jobs=2"]))
    assert (typed.dry_run, typed.sweep.jobs) == (True, 2)
    assert not {"dry_run", "sweep", "engine"} & set(typed.model_dump())
