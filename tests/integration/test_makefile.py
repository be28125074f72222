"""What ``make`` installs, as ``make -n`` prints it; nothing is installed here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
@pytest.mark.parametrize(
    ("target", "packages"), [("train", ["."]), ("test", [".", '".[dev,oracle]"'])], ids=["train", "test"]
)
def test_a_target_installs_what_it_needs(
    target: str, packages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    # Set if make runs this test.
    for variable in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "EXTRAS", "PIP_ARGS"):
        monkeypatch.delenv(variable, raising=False)
    command = ["make", "-n", target]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    lines = [line for line in printed.splitlines() if " pip install " in line]
    assert [line.split(" -e ")[1] for line in lines] == packages
