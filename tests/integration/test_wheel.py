"""An installed wheel works in an empty folder, without the repository."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from hatchling.build import build_wheel

from pe_experiments.terminal.files import read_json
from tests.conftest import ROOT, TINY
from tests.processes import run_script


@pytest.mark.slow
def test_a_wheel_trains_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with zipfile.ZipFile(tmp_path / build_wheel(str(tmp_path))) as wheel:
        wheel.extractall(tmp_path / "site")
    analysis = tmp_path / "site" / "pe_experiments" / "analysis"
    assert (analysis / "explorer.json").exists()
    assert (analysis / "templates" / "explore.js").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    command = "from pe_experiments.commands.train import run\nif __name__ == '__main__':\n    run()\n"
    (tmp_path / "pe-train").write_text(command)
    options: dict[str, Any] = {"cwd": empty, "path": [tmp_path / "site"], "forks": True}
    run_script(tmp_path / "pe-train", "pe=rope", *TINY, **options)
    assert {path.name for path in empty.iterdir()} == {"results"}
    (run,) = (empty / "results" / "runs").iterdir()
    assert (run / "result.json").exists()
    assert '"commit": null' in (run / "environment.json").read_text()
    assert read_json(run / "environment.json")["command"][:2] == ["pe-train", "pe=rope"]
    swept = run_script(tmp_path / "pe-train", "-m", "pe=rope", "seed=0,1", *TINY, **options)
    assert "1 of 2 runs are finished already" in swept.stdout
