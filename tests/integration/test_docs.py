"""The examples of the documentation work when they are pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

DOCS = ROOT / "docs"
PAGES = [page.name for page in sorted(DOCS.glob("*.md")) if "\n```bash\n" in page.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_first_example_of_a_page_runs(name: str, tmp_path: Path) -> None:
    if name == "pretrained.md":
        pytest.importorskip("transformers")
    (commands, *_) = re.findall(r"```bash\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    defaults = tmp_path / "configs" / "local" / "default.yaml"
    defaults.parent.mkdir(parents=True)
    defaults.write_text("# @package _global_\nevaluation: {examples: 20}\ntraining: {check_examples: 20}\n")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    finished = "pretrained_models/*/report.html" if name == "pretrained.md" else "runs/*/result.json"
    assert list(tmp_path.glob(f"results/{finished}"))


@pytest.mark.slow
def test_the_page_about_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(), re.DOTALL))
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "python.md", "exec"), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notebook", "notebook.png"]
    assert [path.name for path in (tmp_path / "notebook").iterdir()] == ["runs"]  # compare wrote nothing
    assert "exact_match_at_2x" in capsys.readouterr().out


@pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), ROOT / "README.md"], ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
