"""The page about notebooks is run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    code = "\n".join(
        re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "notebook.md").read_text(), re.DOTALL)
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "notebook.md", "exec"), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notebook", "notebook.png"]
    assert [path.name for path in (tmp_path / "notebook").iterdir()] == ["runs"]  # compare wrote nothing
    assert "exact_match_at_2x" in capsys.readouterr().out
