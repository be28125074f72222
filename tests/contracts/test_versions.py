"""constraints.txt pins every installed package to a version that pyproject.toml allows."""

from __future__ import annotations

import itertools
import os
import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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


def test_pinned_versions_are_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = dict(project["optional-dependencies"])
    for unpinned in ("tune",):  # it needs a pre-release of Hydra
        del extras[unpinned]
    pins = pinned(PINS)
    for text in itertools.chain(project["dependencies"], *extras.values()):
        requirement = Requirement(text)
        name = canonical(requirement.name)
        assert name in pins, f"add to constraints.txt: {name}"
        assert requirement.specifier.contains(pins[name]), f"{text}, but {name}=={pins[name]} is pinned"
