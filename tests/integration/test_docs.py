"""The examples of the documentation work as written."""

from __future__ import annotations

import doctest
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image, ImageChops

from pe_experiments.configuration.choices import shipped
from tests.conftest import ROOT, Script
from tests.processes import run_script

DOCS = ROOT / "docs"
EXAMPLES = [  # file and index of every ```bash block, of which each runs by itself
    (page.name, index)
    for page in sorted(DOCS.glob("*.md"))
    for index in range(page.read_text().count("\n```bash\n"))
]
LIBRARIES = {"pretrained": "transformers", "=bpe": "tokenizers", "=submitit": "submitit", "=optuna": "optuna"}
# Appended to a command: of a key that is typed twice the last counts.
SHORT = {
    "train.py": (
        "training.steps=10", "training.check_examples=20", "evaluation.examples=20",
        "evaluation.lengths=[6,12,48]", "seed=0", "logger=none",
    ),
    "evaluate_pretrained.py": ("logger=none", "rope=[as_is,yarn]", "lengths=[16,128]"),
}  # fmt: skip


def shell(command: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path}
    ended = subprocess.run(["bash", "-e", "-c", command], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "index"), EXAMPLES)
def test_examples_of_pages_run(
    name: str, index: int, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts run in this process with shorter trainings, everything else in a shell."""
    example = re.findall(r"```bash\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)[index]
    for words, library in LIBRARIES.items():
        if words in example:
            pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    commands = re.split(r"^(python scripts/.*\n)", example, flags=re.MULTILINE)
    for command in filter(str.strip, commands):
        if not command.startswith("python scripts/"):
            shell(command)
            continue
        words = shell(f"printf '%s\\0' {command.removeprefix('python scripts/')}").split("\0")[:-1]
        text = [f"task.path='{DOCS}/*.md'"] if "task=text" in words else []  # a short one
        arguments = (*words[1:], *SHORT.get(words[0], ()), *text)
        if "trainer=ddp" in words:  # would leave a group of processes in this process
            run_script(ROOT / "scripts" / words[0], *arguments, cwd=tmp_path)
        else:
            script(words[0].removesuffix(".py"), *arguments).succeeded()
    finished = "pretrained_models/*/report.html" if name == "pretrained.md" else "runs/*/result.json"
    assert list(tmp_path.glob(f"results/{finished}"))


@pytest.mark.slow
def test_the_page_about_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(), re.DOTALL))
    monkeypatch.chdir(tmp_path)
    steps = '"training.steps": 200'
    assert steps in code
    exec(compile(code.replace(steps, '"training.steps": 20'), "python.md", "exec"), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notebook", "notebook.png"]
    assert [path.name for path in (tmp_path / "notebook").iterdir()] == ["runs"]  # compare wrote nothing
    assert "exact_match_at_2x" in capsys.readouterr().out


def notebook_code(name: str) -> str:
    cells = json.loads((DOCS / f"{name}.ipynb").read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


STRICT = """
import warnings
import matplotlib
matplotlib.use("Agg")
warnings.simplefilter("error")
"""


def run_as_script(code: str, folder: Path) -> None:
    (folder / "notebook.py").write_text(STRICT + code)
    run_script(folder / "notebook.py", cwd=folder, path=[ROOT])


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    code = notebook_code("notebook")
    for slow, quick in {
        '"training.steps": 300': '"training.steps": 30',
        '"evaluation.examples": 200': '"evaluation.examples": 20',
    }.items():
        assert slow in code
        code = code.replace(slow, quick)
    run_as_script(code, tmp_path)
    results = [json.loads(path.read_text()) for path in tmp_path.glob("notebook/runs/*/result.json")]
    assert sorted(result["label"] for result in results) == sorted(3 * ["none", "rope", "alibi", "Recency"])


# What the text between the cells and the answers say, at input lengths by their index.
COURSE = {
    "course_1_order_and_length": """
assert scores(encoders["none"])[1] < 0.6 and scores(encoders["sinusoidal"])[1] > 0.9
assert max(scores(last["sinusoidal"])[2:]) < 0.3 < 0.9 < scores(last["rope"])[2]
assert scores(last["rope"])[3] > scores(last["alibi"])[3]
assert all(rows[1]["exact_match"] > 0.95 > 0.7 > rows[4]["exact_match"] for rows in last.values())
assert scores(first["alibi"])[4] > 0.95 > scores(first["rope"])[4]
assert scores(random_positions)[2] > 0.6
""",
    "course_2_own_encoding": """
assert with_slopes["last"][4] > 0.95 and with_slopes["first"][4] < 0.5
assert scores(unchanged)[2] > max(scores(result)[2] for result in without_training.values())
assert scores(without_training["RopeYarn"])[3] > scores(unchanged)[3]
rope, linear, yarn = (scores(extended[pe]) for pe in ("rope", "rope_linear", "rope_yarn"))
assert min(rope[2], linear[2], yarn[2]) > 0.9 and rope[3] < 0.5 < 0.9 < yarn[3]
assert rope[4] < linear[4] < yarn[4]
assert min(both["last"][4], both["first"][4]) > 0.95
assert scores(ten_steps)[3] > 0.8 and scores(removed)[0] > 0.9
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COURSE)
def test_the_course_and_its_answers_show_what_they_say(name: str, tmp_path: Path) -> None:
    part = re.search(r"_(\d)_", name)[1]  # type: ignore[index]
    answers = (
        (DOCS / "course.md").read_text().partition(f"## Answers, part {part}\n")[2].partition("\n## ")[0]
    )
    solutions = "\n".join(re.findall(r"```python\n(.*?)```", answers, re.DOTALL))
    assert solutions
    run_as_script(f"{notebook_code(name)}\n{solutions}\n{COURSE[name]}", tmp_path)


@pytest.mark.parametrize("name", ["why.md", "questions.md"])
def test_snippets_print_true(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They share names, as the page says, and may write files to the working directory."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    snippets = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
    assert sum("print(" in snippet for snippet in snippets) >= 6
    for snippet in snippets:
        exec(compile(snippet, name, "exec"), names)
        assert set(capsys.readouterr().out.split()) <= {"True"}, snippet


def test_the_table_of_why_has_the_numbers_of_the_bank() -> None:
    ranking = pd.read_csv(ROOT / "results" / "bank" / "ranking.csv", index_col="encoding")
    rows = re.findall(
        r"^\| .*`(.+)` \|.*\| ([\d.]+) \| ([\d.]+) \|.*\|$", (DOCS / "why.md").read_text(), re.MULTILINE
    )
    assert len(rows) == 9
    for name, score, cost in rows:
        assert (score, cost) == tuple(f"{ranking.at[name, column]:.2f}" for column in ("mean", "cost"))


def test_pictures_are_those_that_the_command_draws(tmp_path: Path) -> None:
    drawn = runpy.run_path(str(DOCS / "pictures.py"))["draw_all"]
    drawn(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in DOCS.glob("why_*.png")}
    for path in tmp_path.iterdir():
        with Image.open(path) as new, Image.open(DOCS / path.name) as published:
            assert ImageChops.difference(new.convert("RGB"), published.convert("RGB")).getbbox() is None


def test_the_example_of_statistics_prints_what_it_says() -> None:
    page = (DOCS / "statistics.md").read_text().replace("```", "")  # a blank line ends what is printed
    examples = doctest.DocTestParser().get_doctest(page, {}, "statistics.md", None, 0)
    failures: list[str] = []
    ended = doctest.DocTestRunner().run(examples, out=failures.append)
    assert ended.attempted > 0
    assert failures == []


def test_features_counts_what_is_shipped() -> None:
    page = (DOCS / "features.md").read_text()
    for row, group in {"Positional encodings": "pe", "Tasks": "task"}.items():
        assert f"| {row} | {len(shipped(group))} |" in page


LINKED = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", *sorted(ROOT.glob("configs/*/README.md"))]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
