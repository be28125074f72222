"""A real browser, for tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DESK = {"width": 1300, "height": 900}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        paths = [shutil.which(name) for name in BROWSERS] + [running.chromium.executable_path]
        installed = [path for path in paths if path and Path(path).exists()]
        if not installed and os.environ.get("REQUIRE_BROWSER"):
            pytest.fail("no browser is installed")
        elif not installed:
            pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
        chromium = running.chromium.launch(executable_path=installed[0], args=["--no-sandbox"])
        yield chromium
        chromium.close()


def opened_page(browser: Any, url: str, ready: str, **options: Any) -> Any:
    """The page when this selector matches, with its messages of the console and its requests."""
    page = browser.new_page(**{"viewport": DESK, **options})
    page.messages = []
    page.requests = []
    page.on("console", lambda message: page.messages.append(message.text))
    page.on("pageerror", lambda error: page.messages.append(str(error)))
    page.on("request", lambda request: page.requests.append(request.url))
    page.goto(url)
    page.wait_for_selector(ready)
    return page
