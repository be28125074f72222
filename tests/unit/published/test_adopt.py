"""How a replayed run is held against a published one."""

from __future__ import annotations

from typing import Any

import pytest

from pe_experiments.published.adopt import DOUBLE, adopt, apart, witnessed
from pe_experiments.published.archive import SHIPPED
from pe_experiments.published.replay import Kind, Numbers, weightless
from pe_experiments.terminal.errors import UserError


def replay(until: int | None = 30, **changes: Any) -> Numbers:
    """Three recorded rows and a curve of two lengths."""
    rows = [
        {"step": step, "loss": 3 / step, "exact_match": None, "learning_rate": 1} for step in (10, 20, 30)
    ]
    curve = [
        {"length": n, "content_length": n, "split": "in_distribution", "loss": 0.1, "chance": 1 / n}
        for n in (4, 5)
    ]
    made = {"run": "one", "until": until, "rows": rows, "curve": curve, "lengths": [4, 5]}
    return made | changes


def published(**cells: Any) -> Numbers:
    """The same, as a table holds it; with other values in the last row of the training or of the curve."""
    made = replay()
    rows = [row | {"step": float(row["step"]), "exact_match": float("nan")} for row in made["rows"]]
    for key, value in cells.items():
        last = made["curve"][-1] if key in ("chance", "split") else rows[-1]
        last[key] = value
    return {"rows": rows, "curve": made["curve"]}


@pytest.mark.parametrize("until", [30, None])
def test_the_same_numbers_agree(until: int | None) -> None:
    assert apart(replay(until), published()) == ""
    assert apart(replay(until), published(loss=0.1 + 1e-11), DOUBLE) == ""


def test_another_number_is_told_with_its_place() -> None:
    assert apart(replay(), published(loss=0.2), DOUBLE) == "differs from step 30 on: loss 0.1, published 0.2"
    assert apart(replay(), published(exact_match=1.0)).startswith("differs from step 30 on: exact match None")
    assert apart(replay(), published(chance=0.3)) == "differs at length 5: chance 0.2, published 0.3"
    assert apart(replay(), published(split="extrapolation")).startswith("differs at length 5: split")


def test_steps_and_lengths_that_are_not_there_are_told() -> None:
    mine, there = replay(None), published()
    assert apart(mine | {"rows": mine["rows"][:2]}, there) == "ends at step 20, published at 30"
    assert "differs from step 20 on: loss None" in apart(mine | {"rows": mine["rows"][::2]}, there)
    assert apart(replay(curve=mine["curve"][1:]), there) == "is not evaluated at length 4, published is"
    assert apart(mine, there | {"curve": there["curve"][:1]}) == "is evaluated at length 5, published not"


def test_a_beginning_is_held_against_what_depends_on_no_weights() -> None:
    """Evaluated earlier than the witnessed one, it has other weights."""
    mine = replay(20, rows=replay()["rows"][:2])
    mine["curve"][0]["loss"] = 9.0
    assert apart(mine, published(), DOUBLE) == ""
    assert "chance" in apart(mine, published(chance=0.3), DOUBLE)
    assert "loss" not in weightless(mine)["curve"][0]


def test_what_rounding_is_carried_to_is_allowed_where_it_is() -> None:
    mine = replay()
    mine["rows"][-1]["rounding"] = 1e-3
    assert apart(mine, published(loss=0.1 + 1e-5), DOUBLE) == ""
    assert apart(mine, published(loss=0.1 + 1e-3), DOUBLE) != ""


def test_a_replay_that_failed_agrees_with_nothing() -> None:
    failed = replay(rows=[], curve=[], error="the loss became NaN")
    assert apart(failed, published()) == "cannot be replayed: the loss became NaN"
    with pytest.raises(UserError, match="one cannot be replayed: the loss became NaN"):
        witnessed([failed])


def test_beginnings_are_written_as_rows_of_steps_and_lengths() -> None:
    table = witnessed([replay()])
    assert list(table) == ["name", "step", "length", "loss", "exact_match", "token_accuracy"]
    assert table["step"].dropna().tolist() == [10, 20, 30]
    assert table["length"].dropna().tolist() == [4, 5]


def test_a_study_whose_data_are_elsewhere_is_left_out_and_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Kind, "has_data", False)
    assert adopt("text", [SHIPPED / "text"], SHIPPED) == 0
    assert capsys.readouterr().out.startswith("text: left out, since the data files")
