"""A real browser, for tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DESK, PHONE = {"width": 1300, "height": 900}, {"width": 390, "height": 844}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        own = Path(running.chromium.executable_path)
        found = next(filter(None, map(shutil.which, BROWSERS)), str(own) if own.exists() else None)
        if not found:
            missing = f"no browser: none of {', '.join(BROWSERS)} is installed"
            (pytest.fail if os.environ.get("REQUIRE_BROWSER") else pytest.skip)(missing)
        started = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


def opened_page(browser: Any, url: str, ready: str, **options: Any) -> Any:
    """The page, when this selector matches, with what it said and asked for."""
    page = browser.new_page(**{"viewport": DESK, **options})
    page.said = []
    page.asked = []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(url)
    page.wait_for_selector(ready)
    return page
