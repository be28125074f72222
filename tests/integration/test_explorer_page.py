"""The explorer in a browser: sliders and keys change what it shows, and it needs no server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.integration.conftest import opened_page

pytestmark = pytest.mark.slow

URL = f"file://{ROOT / 'results' / 'encodings' / 'explore.html'}"


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


def test_sliders_change_vectors_similarity_and_circle(page: Any) -> None:
    before = [page.inner_html(part) for part in ("#similarity", "#circle")]
    slide(page, "d_model", 16)
    slide(page, "length", 90)
    assert page.locator("#vectors canvas").evaluate("e => [e.width, e.height]") == [16, 90]
    after = [page.inner_html(part) for part in ("#similarity", "#circle")]
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert page.locator("#similarity circle").count() == 80  # from the tenth position on
    slide(page, "start position of the dots", 80)
    assert page.locator("#similarity circle").count() == 10


def test_any_two_encodings_can_be_compared(page: Any) -> None:
    menus = page.locator("#encodings select")
    assert [menus.nth(n).input_value() for n in (0, 1)] == ["sinusoidal", "rope"]
    for name in menus.first.locator("option").all_inner_texts():
        menus.first.select_option(name)
        card = page.locator(".encoding").first
        assert card.locator("svg.chart").is_visible() == (name != "none")
        assert card.locator("li").count() >= 2
    menus.nth(1).select_option("alibi")
    chart = page.locator(".encoding").nth(1).locator("svg.chart")
    chart.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert "distance 2: mean −0.16" in page.locator(".encoding").nth(1).inner_text()
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
    page.locator("#map canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator("#answers .input b").count() == 3
    assert "none, length 3: 100 %" in page.inner_text("#map")
