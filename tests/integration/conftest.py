"""A real browser, for tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
