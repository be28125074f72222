"""The explorer in a browser: sliders and keys change what it shows, and it needs no server."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pe_experiments.encodings import ModelShape
from pe_experiments.encodings.alibi import Alibi
from pe_experiments.encodings.forgetting import Forgetting
from pe_experiments.encodings.kerple import KerpleLog
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.rope_extension import ExtendedRope, RopeLinear, RopeNtk, RopeYarn
from pe_experiments.encodings.rope_released import RopeLlama3
from pe_experiments.models.attention_scores import Inputs
from tests.conftest import ROOT
from tests.integration.conftest import opened_page

pytestmark = pytest.mark.slow

URL = f"file://{ROOT / 'results' / 'encodings' / 'explore.html'}"
EXTENSIONS: dict[str, type[ExtendedRope]] = {
    "rope_linear": RopeLinear, "rope_ntk": RopeNtk, "rope_yarn": RopeYarn, "rope_llama3": RopeLlama3,
}  # fmt: skip


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    explorer = opened_page(browser, URL, "#similarity svg")
    yield explorer
    assert explorer.messages == []
    assert [url for url in explorer.requests if not url.startswith("data:")] == [URL]
    explorer.close()


def slide(page: Any, name: str, value: float) -> None:
    move = "(e, value) => { e.value = value; e.dispatchEvent(new Event('input')); }"
    page.get_by_label(name, exact=True).first.evaluate(move, str(value))


def test_sliders_change_vectors_and_similarity(page: Any) -> None:
    before = page.inner_html("#similarity")
    slide(page, "d_model", 16)
    slide(page, "length", 90)
    assert page.locator("#vectors canvas").evaluate("e => [e.width, e.height]") == [16, 90]
    assert page.inner_html("#similarity") != before
    assert page.locator("#similarity circle").count() == 80  # from the tenth position on


def test_hands_turn_with_the_text_and_the_angle_between_them_stays(page: Any) -> None:
    figures = page.locator("#rope figure")
    hands, angle = figures.nth(0).inner_html(), figures.nth(1).inner_html()
    slide(page, "position of the key", 25)
    assert figures.nth(0).inner_html() != hands
    assert figures.nth(1).inner_html() == angle
    assert "Training has not shown it" in page.inner_text("#rope-note")  # distance 30, pair 2
    slide(page, "distance to the query", 20)
    assert "any two words 20 apart. Training has shown it" in page.inner_text("#rope-note")


def test_rescaled_frequencies_are_those_of_the_encodings(page: Any) -> None:
    shape = ModelShape(128, 1, 1, causal=True, train_length=64, train_positions=64)
    at = Inputs(*torch.zeros(2, 1, 1, 2, 128), torch.zeros(1, 2, 128), torch.arange(2)[None]).context(True)
    plain = Rope(shape).frequencies_BR(at)[0]
    for factor, base, length in ((4, 10_000, 2048), (8, 500_000, 8192), (32, 1_000, 32)):
        options = {"factor": factor, "base": base, "length": length}
        for name, cls in EXTENSIONS.items():
            encoding = cls(shape, factor=factor, base=base, original_length=length)
            expected = encoding.frequencies_BR(at)[0] / Rope(shape, base=base).frequencies_BR(at)[0]
            drawn = page.evaluate(
                "([name, options]) => Array.from({length: 64}, (_, m) => RESCALED[name](m, options))",
                [name, options],
            )
            assert drawn == pytest.approx(expected.tolist(), abs=1e-9), (name, options)
    slide(page, "factor", 8)
    page.locator("#extension svg").focus()
    page.keyboard.press("ArrowRight")
    turns = f"pair 0: {2048 * float(plain[0]) / 6.283185:.0f} turns in 2,048 tokens"
    assert turns in page.inner_text("#extension")


def test_penalties_are_those_of_the_encodings(page: Any) -> None:
    slide(page, "a gate of 0.1", 0)
    drawn = page.evaluate(
        "Object.fromEntries(Object.entries(PENALTIES).map(([name, bias]) => [name, [0, 1, 7, 31].map(bias)]))"
    )
    shape = ModelShape(64, 8, 1, causal=True, train_length=32, train_positions=32)
    alibi, kerple, fox = Alibi(shape), KerpleLog(shape), Forgetting(shape, initial_bias=math.log(0.98 / 0.02))
    torch.nn.init.constant_(kerple.p_H, 1.0)
    torch.nn.init.constant_(kerple.a_H, 0.5)
    torch.nn.init.zeros_(fox.gate.weight)
    q = torch.zeros(1, 8, 32, 8)
    at = Inputs(q, q, torch.zeros(1, 32, 64), torch.arange(32)[None]).context(causal=True)
    for name, encoding in {"alibi": alibi, "kerple_log": kerple, "fox": fox}.items():
        bias_BHTS = encoding.bias(q, q, at).expand(1, 8, 32, 32)
        from_last = bias_BHTS[0, 3, -1].flip(-1)[[0, 1, 7, 31]]  # head 3 of ALiBi has the slope 1/16
        assert drawn[name] == pytest.approx(from_last.tolist(), abs=1e-4)


def test_it_fits_a_phone(browser: Any) -> None:
    phone = opened_page(browser, URL, "#similarity svg", viewport={"width": 360, "height": 740})
    assert phone.evaluate("document.documentElement.scrollWidth") == 360
    assert phone.messages == []
    phone.close()


def test_any_two_encodings_can_be_compared(page: Any) -> None:
    menus = page.locator("#encodings select")
    assert [menus.nth(n).input_value() for n in (0, 1)] == ["sinusoidal", "rope"]
    for name in menus.first.locator("option").all_inner_texts():
        menus.first.select_option(name)
        card = page.locator(".encoding").first
        assert card.locator("svg.chart").is_visible() == (name != "none")
        assert card.locator("li").count() >= 2
    menus.nth(1).select_option("fox")
    assert "depends on content" in page.locator(".encoding").nth(1).inner_text()


def test_trained_models_answer_token_by_token(page: Any) -> None:
    slide(page, "input length", 6)
    assert page.locator(".answer.model").all_inner_texts()[0].endswith("all right")
    assert "within" in page.inner_text("#length")
    assert page.locator("#answers b.wrong").count() == 0
    slide(page, "input length", 30)
    assert "past the training lengths" in page.inner_text("#length")
    assert page.locator("#answers b.wrong").count() > 30
