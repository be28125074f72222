"""What ``make`` installs, as it says itself; nothing is installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="there is no make")


def installed(target: str, folder: Path) -> list[str]:
    """What pip is to install for a target in a fresh clone."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    # Variables of a make that runs these tests are not those of this one.
    env = {
        key: value
        for key, value in os.environ.items()
        if "MAKE" not in key and key not in ("EXTRAS", "PIP_ARGS")
    }
    said = subprocess.run(
        ["make", "-n", target], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    lines = [line for line in said.stdout.splitlines() if " pip install " in line]
    assert not any("--quiet" in line for line in lines)  # minutes, in which something should move
    return [line.split(" -e ")[1] for line in lines]


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("train", ["."]),
        ("test", [".", '".[dev,oracle]"']),
        ("results", [".", '".[dev,oracle]"']),
    ],
)
def test_a_target_installs_what_it_needs(target: str, what: list[str], tmp_path: Path) -> None:
    assert installed(target, tmp_path) == what
