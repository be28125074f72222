"""The page of a comparison in a browser: it needs no server, sorts, selects, and shows table.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_experiments.comparison import compare
from tests.conftest import tiny_in
from tests.integration.conftest import opened_page
from tests.synthetic import fading, write_run, write_study

pytestmark = pytest.mark.slow

SCRIPT = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("page") / "results"
    make = tiny_in(results)
    write_study(make, seeds=3)
    for seed in range(3):
        write_run(make("pe=rope", "task=reverse", f"seed={seed}"), fading(1, 0.05), result={"label": SCRIPT})
    write_run(make("pe=none", "task=reverse"), fading(0.2, 0.05))
    write_run(make("pe=rope", "task=reverse", "model=encoder"), fading(0.2, 0.05), "diverged")
    (results / "runs" / SCRIPT.replace("/", "_")).mkdir()
    return results


@pytest.fixture(scope="module")
def written(results: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:  # figures for papers take long and are not part of the page
        patch.setattr("pe_experiments.comparison.compare_runs.draw_all", lambda *_: [])
        compare(results, out=results / "comparison")
    return results / "comparison"


@pytest.fixture
def page(browser: Any, written: Path) -> Iterator[Any]:
    report = opened_page(browser, f"file://{written / 'report.html'}", "#curves svg")
    yield report
    assert report.messages == []
    report.close()


def column(page: Any, index: int) -> list[str]:
    """The values of a task, from top to bottom."""
    return page.eval_on_selector_all(
        f"#matrix td[data-column='{index}'] > span", "all => all.map(e => e.textContent)"
    )


def head(page: Any, task: str) -> Any:
    return page.locator("#matrix thead th", has_text=task).first


def test_the_page_needs_no_server_and_a_script_in_a_label_stays_text(page: Any, written: Path) -> None:
    assert [url for url in page.requests if not url.startswith("data:")] == [
        f"file://{written / 'report.html'}"
    ]
    assert page.title() == "Comparison of positional encodings"
    assert SCRIPT in page.locator("#matrix tbody").text_content()
    assert SCRIPT.replace("/", "_") in page.locator("#left-out").text_content()
    assert page.locator("img, main script").count() == 0


def test_the_matrix_shows_the_cells_of_the_table(page: Any, written: Path) -> None:
    with (written / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shown = page.eval_on_selector_all("#matrix td[title]", "all => all.map(e => e.title)")
    assert len(shown) == len(rows) == 6
    for row in rows:
        value = float(row["exact_match_extrapolation"])
        ends = ""
        if row["exact_match_extrapolation_low"]:
            low, high = (float(row[f"exact_match_extrapolation_{end}"]) for end in ("low", "high"))
            ends = f" [{low:.2f}, {high:.2f}]"
        (cell,) = [
            text for text in shown if text.startswith(f"{row['encoding']}, {row['task']}, {row['model']}: ")
        ]
        assert f": {value:.2f}{ends}; {row['seeds']} seed" in cell.replace("-0.00", "0.00")
        if row["reached@12"]:
            assert f"; {int(float(row['reached@12']))} of {row['seeds']} " in cell
        assert ("did not learn" in cell) == (int(row["solved"]) < int(row["seeds"]) / 2)
        assert ("1 diverged" in cell) == (row["diverged"] == "1")


def test_a_task_sorts_and_is_selected_by_a_click(page: Any) -> None:
    values = [float(text) for text in column(page, 0)]
    assert values == sorted(values, reverse=True)
    before = page.inner_html("#curves")
    head(page, "reverse").click()
    assert "reverse, decoder" in page.inner_text("#curve-title")
    assert page.inner_html("#curves") != before
    index = int(head(page, "reverse").get_attribute("data-column"))
    falling = column(page, index)
    assert falling == sorted(falling, reverse=True)
    head(page, "reverse").click()
    assert head(page, "reverse").get_attribute("aria-sort") == "ascending"
    assert column(page, index) == falling[::-1]
    page.locator("#multiples button").nth(0).click()
    assert page.url.endswith("#copy-decoder")


def test_the_page_works_from_the_keyboard(page: Any) -> None:
    page.locator("#matrix th").first.focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert "reverse, decoder" in page.inner_text("#curve-title")
    page.locator("#curves svg").first.focus()
    page.keyboard.press("ArrowRight")
    assert "length 4" in page.inner_text("#tip")
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    page.locator("summary", has_text="Tables").press("Enter")
    assert page.locator("#tables table").first.is_visible()
