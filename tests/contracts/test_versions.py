"""What is installed is pinned, and what is pinned is allowed."""

from __future__ import annotations

import os
import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT

PINS = ROOT / "constraints.txt"
OF_PIP = {"pip", "setuptools", "wheel"}  # what a new virtual environment holds


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: Path) -> dict[str, str]:
    lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines) if name}


@pytest.mark.skipif("CI" not in os.environ, reason="your environment may hold more")
def test_everything_installed_is_pinned() -> None:
    installed = {canonical(one.metadata["Name"]): one.version for one in distributions()}
    unpinned = installed.keys() - pinned(PINS).keys() - OF_PIP - {"pe-experiments"}
    assert not unpinned, f"add to constraints.txt: {sorted(unpinned)}"


def test_pins_are_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    stated = [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]
    pins = pinned(PINS)
    assert {one.name for one in stated if canonical(one.name) not in pins} == set()
    assert [str(one) for one in stated if not one.specifier.contains(pins[canonical(one.name)])] == []
