"""The explorer's data are what the package computes, and its page holds them as data."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
import torch

from pe_experiments.analysis.explorer import encoding_view, explorer_page
from pe_experiments.checking.compare import reference_of
from pe_experiments.checking.instances import build
from pe_experiments.configuration.parts import shipped
from pe_experiments.terminal.files import read_json
from results.encodings import study
from tests.conftest import ROOT

FOLDER = ROOT / "results" / "encodings"


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return read_json(FOLDER / "explorer.json")


def view(name: str) -> dict[str, Any]:
    return encoding_view(name, "", build(reference_of(name).build, study.SHAPE))


def test_the_published_encodings_are_shipped(data: dict[str, Any]) -> None:
    """A new one is on the page once `python results/encodings/study.py` was run."""
    names = [one["name"] for one in data["encodings"]]
    assert names == sorted(set(names) & set(shipped("pe")))


def test_the_published_data_are_those_of_this_code(
    data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {name: shipped("pe")[name] for name in ("learned", "rope", "t5", "fox", "hard_alibi", "none")}
    monkeypatch.setattr(study, "shipped", lambda _: some)
    theirs = {one["name"]: one for one in data["encodings"]}
    made = {one["name"]: one for one in study.encodings()}
    assert made.keys() == some.keys()
    for name, mine in made.items():
        same(mine, theirs[name])
    same(study.sentences(), data["sentences"])


def same(mine: Any, theirs: Any) -> None:
    """Equal up to rounding."""
    if isinstance(mine, dict):
        assert mine.keys() == theirs.keys()
        mine, theirs = list(mine.values()), [theirs[key] for key in mine]
    if isinstance(mine, (list, tuple)):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            same(one, other)
    elif isinstance(mine, float):
        assert mine == pytest.approx(theirs, abs=2e-3)
    else:
        assert mine == theirs


def test_a_bias_is_shown_by_head_and_distance() -> None:
    shown = view("alibi")
    assert (shown["action"], shown["content"], shown["parameters"]) == ("bias", False, 0)
    for head, line in enumerate(shown["lines"]):
        assert line == pytest.approx([-(2.0 ** (-2 * (head + 1))) * n for n in range(64)], abs=1e-3)
    assert "vectors" not in shown
    assert "channels" not in shown


def test_a_rotation_is_shown_by_channel_and_distance() -> None:
    shown = view("rope")
    assert shown["action"] == "rotation"
    assert shown["channels"][1] == pytest.approx([math.cos(0.1 * n) for n in range(64)], abs=1e-3)


def test_vectors_are_shown_as_they_enter_the_embedding() -> None:
    shown = view("sinusoidal")
    assert shown["action"] == "nothing"
    assert "lines" not in shown
    assert shown["vectors"][3][:2] == pytest.approx([math.sin(3), math.cos(3)], abs=1e-3)
    beside = build(reference_of("sinusoidal", combine="concat", width=6).build, study.SHAPE)
    assert len(encoding_view("", "", beside)["vectors"][0]) == 6


@pytest.mark.parametrize(
    ("name", "action", "content", "drawn"),
    [
        ("t5", "bias", False, True),
        ("cope", "bias", True, True),
        ("fox", "bias", True, False),
        ("logn", "scale", False, False),
        ("stick_breaking", "weights", True, False),
        ("none", "nothing", False, False),
    ],
)
def test_what_depends_on_content_says_so(name: str, action: str, content: bool, drawn: bool) -> None:
    shown = view(name)
    assert (shown["action"], shown["content"], shown["drawn"]) == (action, content, drawn)


def test_drawing_what_starts_at_zero_leaves_the_encoding_alone() -> None:
    encoding = build(reference_of("t5").build, study.SHAPE)
    assert torch.tensor(encoding_view("", "", encoding)["lines"]).any()
    assert not any(parameter.any() for parameter in encoding.parameters())


def test_masked_keys_are_none() -> None:
    assert view("hard_alibi")["lines"][0][:3] == [0.0, None, None]


def test_asked_encodings_come_first_and_cannot_end_the_script(data: dict[str, Any]) -> None:
    name = "</script><script>document.title='taken'</script>"
    page = explorer_page([view("rope") | {"name": name}, view("none")])
    assert name not in page
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert text
    content = json.loads(text[1])
    assert content["opened"] == [name, "none"]
    assert len(content["encodings"]) == len(data["encodings"]) + 1  # those published, and the asked one
