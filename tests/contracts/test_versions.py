"""constraints.txt pins every installed package to a version that pyproject.toml allows."""

from __future__ import annotations

import os
import re
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.conftest import ROOT

PINS = ROOT / "constraints.txt"
UNPINNED = {"pip", "setuptools", "wheel", "pe-experiments"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: Path) -> dict[str, str]:
    pins = re.findall(r"^([\w.-]+)==([^\s#]+)", path.read_text(), re.MULTILINE)
    return {canonical(name): version for name, version in pins}


@pytest.mark.skipif("CI" not in os.environ, reason="your environment may hold more")
def test_everything_installed_is_pinned() -> None:
    installed = {canonical(package.metadata["Name"]) for package in distributions()}
    unpinned = installed - pinned(PINS).keys() - UNPINNED
    assert not unpinned, f"add to constraints.txt: {sorted(unpinned)}"
