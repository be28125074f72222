"""The page in a real browser: it works from disk, asks no server, and every value is a cell of a CSV."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_experiments.comparison import compare
from pe_experiments.composition import composed
from pe_experiments.config import Experiment, check, resolve
from tests.conftest import TINY
from tests.synthetic import fading, write_run, write_study

SCRIPT = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("page") / "results"

    def make(*overrides: str) -> Experiment:
        return resolve(check(composed("config", [*TINY, f"results_dir={results}", *overrides])))

    write_study(make, seeds=3)
    for seed in range(3):
        write_run(make("pe=rope", "task=reverse", f"seed={seed}"), fading(1, 0.05), result={"label": SCRIPT})
    write_run(make("pe=rope", "task=reverse", "model=encoder"), fading(0.2, 0.05), "diverged")
    (results / "runs" / SCRIPT.replace("/", "_")).mkdir()
    compare(results, out=results / "comparison")
    return results / "comparison"


@pytest.fixture(scope="module")
def page(written: Path) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        own = Path(running.chromium.executable_path)
        found = next(filter(None, map(shutil.which, BROWSERS)), str(own) if own.exists() else None)
        if not found:
            missing = f"no browser: none of {', '.join(BROWSERS)} is installed"
            (pytest.fail if os.environ.get("REQUIRE_BROWSER") else pytest.skip)(missing)
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        opened = browser.new_page()
        opened.said, opened.asked = [], []
        opened.on("console", lambda message: opened.said.append(message.text))
        opened.on("pageerror", lambda error: opened.said.append(str(error)))
        opened.on("request", lambda request: opened.asked.append(request.url))
        opened.goto(f"file://{written / 'report.html'}")
        opened.wait_for_function("window.comparisonView !== undefined")
        opened.wait_for_function("document.querySelector('#chart-note').textContent !== ''")
        yield opened
        browser.close()


def chart(page: Any) -> str:
    return page.inner_html("#chart svg")


def test_it_opens_without_an_error_or_a_request(page: Any, written: Path) -> None:
    assert page.said == []
    assert [url for url in page.asked if not url.startswith("data:")] == [f"file://{written / 'report.html'}"]
    assert page.title() == "Comparison of positional encodings"


def test_filters_change_the_chart(page: Any) -> None:
    seen = [chart(page)]
    for choose in (
        lambda: page.select_option("#metric", "token_accuracy"),
        lambda: page.select_option("#task", "reverse"),
        lambda: page.select_option("#model", "encoder"),
        lambda: page.select_option("#task", "copy"),
    ):
        choose()
        page.wait_for_timeout(200)
        seen.append(chart(page))
    assert len(set(seen[:-1])) == len(seen) - 1
    assert seen[-1] == seen[1]  # back where the metric had been changed
    assert page.input_value("#model") == "decoder"
    assert "token accuracy, copy, decoder" in page.inner_text("#chart-note")
    assert page.said == []


def test_schemes_are_switched_by_click_and_by_keyboard(page: Any) -> None:
    page.select_option("#task", "copy")
    button = page.locator("#schemes button", has_text="alibi")
    before = chart(page)
    button.click()
    page.wait_for_timeout(200)
    without = chart(page)
    assert len(without) < len(before)
    assert button.get_attribute("aria-pressed") == "false"
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_timeout(200)
    assert button.get_attribute("aria-pressed") == "true"
    assert len(chart(page)) == len(before)


def test_hovering_shows_the_interval_of_a_mean(page: Any) -> None:
    page.select_option("#task", "copy")
    page.select_option("#metric", "exact_match")
    page.wait_for_timeout(200)
    page.locator("#chart svg .points_marks path, #chart svg path[aria-roledescription='point']").last.hover()
    page.wait_for_selector("#vg-tooltip-element.visible")
    shown = page.inner_text("#vg-tooltip-element")
    assert {"scheme", "length", "accuracy", "interval from"} <= set(re.findall(r"[a-z]+(?: from)?", shown))


def test_a_script_in_a_label_stays_text(page: Any) -> None:
    assert page.title() == "Comparison of positional encodings"
    assert SCRIPT in page.inner_text("main")
    assert page.locator("img[src=x]").count() == 0


def test_everything_has_a_name_for_those_who_cannot_see_it(page: Any) -> None:
    assert page.locator("img:not([alt]), img[alt='']").count() == 0
    for control in page.locator("select").all():
        assert control.evaluate("e => e.labels.length") == 1
    assert page.get_attribute("html", "lang") == "en"


def test_every_figure_is_the_cell_it_says_it_is(page: Any, written: Path) -> None:
    rows = {}
    for name in ("table.csv", "pairs.csv"):
        with (written / name).open(newline="") as file:
            rows[name] = list(csv.DictReader(file))
    cells = page.eval_on_selector_all(
        "data",
        "all => all.map(e => [e.value, e.dataset.file, e.dataset.row, e.dataset.column, e.textContent])",
    )
    assert len(cells) > 200
    assert {name for _, name, *_ in cells} == set(rows)
    for value, name, row, column, text in cells:
        assert float(rows[name][int(row) - 1][column]) == float(value)
        digits = len(text.partition(".")[2]) if "e" not in text else 20
        assert float(text) == pytest.approx(float(value), abs=0.51 * 10**-digits if digits < 20 else 0.1)


def test_no_figure_in_words_and_tables_is_without_a_cell(page: Any) -> None:
    """Digits outside ``data`` elements belong to headings (lengths), names and settings."""
    left = page.evaluate(
        """() => [...document.querySelectorAll('.summary, section td, section li')].map((e) => {
            const copy = e.cloneNode(true);
            copy.querySelectorAll('data, a').forEach((d) => d.remove());
            return copy.textContent;
        }).filter((text) => /\\d/.test(text))"""
    )
    assert left == []


def test_the_means_in_the_chart_are_those_of_the_table(page: Any, written: Path) -> None:
    with (written / "table.csv").open(newline="") as file:
        rows = {(row["protocol"], row["scheme"]): row for row in csv.DictReader(file)}
    page.select_option("#task", "copy")
    page.select_option("#metric", "exact_match")
    page.wait_for_timeout(200)
    drawn = page.evaluate(
        """() => Object.keys(comparisonView.getState({data: () => true}).data)
            .flatMap((name) => comparisonView.data(name)).filter((d) => 'seeds' in d && 'low' in d)"""
    )
    assert drawn
    for point in drawn:
        row = rows[point["section"], point["scheme"]]
        for key, ending in (("value", ""), ("low", "_low"), ("high", "_high")):
            cell = row[f"{point['accuracy']}@{point['length']}{ending}"]
            assert (point[key] is None and cell == "") or float(cell) == point[key]
