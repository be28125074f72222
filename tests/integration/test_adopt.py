"""Numbers decide which code counts as the code that published a study: edits, and what each leads to."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import ROOT, TINY
from tests.processes import run_script

pytestmark = pytest.mark.slow

ALL, ALIBI, NOTHING = "all", "alibi", "nothing"
EDITS = {  # file, what is replaced, by what; what is refused, and the sentence
    "a product written otherwise": (
        "encodings/base.py",
        "logits_BHTS = (q_BHTK * self.shape.head_dim**-0.5) @ k_BHSK.mT",
        "logits_BHTS = torch.matmul(q_BHTK * self.shape.head_dim**-0.5, k_BHSK.mT)",
        NOTHING,
        "adopted the training code",
    ),
    "a sum in another order": (
        "encodings/base.py",
        "logits_BHTS = (q_BHTK * self.shape.head_dim**-0.5) @ k_BHSK.mT",
        "logits_BHTS = (q_BHTK @ k_BHSK.mT) / self.shape.head_dim**0.5",
        NOTHING,
        r"small come out as published( up to rounding)?\n(.*\n)*small: adopted the training code",
    ),
    "a class split": (
        "encodings/alibi.py",
        "class Alibi(PositionBias):",
        "class Alibi(PositionBias):\n    pass\n\n\nclass Alibi(Alibi):",
        NOTHING,
        "adopted Alibi",
    ),
    "the initialisation": (
        "models/initialisation.py",
        "uniform_(-bound, bound",
        "uniform_(-1.001 * bound, 1.001 * bound",
        ALL,
        "the training code gives other numbers than published: .* differs from step 6 on: loss .*, published",
    ),
    "Adam's eps": (
        "training/optimizer.py",
        '                group["lr"] = rate\n',
        '                group["lr"], group["eps"] = rate, 1e-5\n',
        ALL,
        "from step 6 on: loss",
    ),
    "the clip norm": (
        "training/optimizer.py",
        "(self.config.clip_norm /",
        "(0.5 * self.config.clip_norm /",
        ALL,
        "from step 6 on: loss",
    ),
    "the end of the schedule": (
        "training/optimizer.py",
        "return end + (1 - end) * 0.5",
        "return 1.1 * end + (1 - 1.1 * end) * 0.5",
        ALL,
        "differs from step (6|12) on",
    ),
    "one slope": (
        "encodings/alibi.py",
        "torch.tensor(slopes[:num_heads]",
        "torch.tensor([1.01 * slopes[0], *slopes[1:num_heads]]",
        ALIBI,
        "Alibi gives other numbers than published: alibi on copy differs from step 6 on: .*, published",
    ),
    "the order of a random stream": (
        "data/randomness.py",
        "_scramble(word ^",
        "_scramble(word + 1 ^",
        ALL,
        "from step 6 on: loss",
    ),
    "a length of the evaluation": (
        "configuration/experiment.py",
        "return tuple(sorted(set(asked)))",
        "return tuple(sorted({length + 1 for length in asked}))",
        ALL,
        "is evaluated at length 5, published not",
    ),
    "a length left out of the evaluation": (
        "evaluation/curve.py",
        "for index, length in enumerate(lengths):",
        "for index, length in enumerate(lengths[1:]):",
        ALL,
        "is not evaluated at length 4, published is",
    ),
    "a comment": (
        "evaluation/curve.py",
        "TOKENS_AT_ONCE = 16_384",
        "TOKENS_AT_ONCE = 16_384  # words",
        NOTHING,
        "2 kinds and 2 whole runs of small come out as published",
    ),
}


def script(tree: Path, name: str, *arguments: str, spawned: bool = False) -> subprocess.CompletedProcess[str]:
    words = (f"scripts/{name}.py", *arguments, "results_dir=results")
    environment = {"PYTHONPATH": str(tree), "PATH": "/usr/bin:/bin", "HOME": str(tree)}
    if spawned:
        command = [sys.executable, *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tree, env=environment)
    return run_script(*words, cwd=tree, path=[tree], environment=environment)


def git(tree: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *who, *words], capture_output=True, text=True, cwd=tree, check=True)
    return done.stdout.strip()


def change(tree: Path, file: str, old: str, new: str) -> None:
    path = tree / "pe_experiments" / file
    assert old in path.read_text(), f"{file} no longer holds {old}"
    path.write_text(path.read_text().replace(old, new))


def known(tree: Path) -> dict[str, dict[str, str]]:
    return json.loads((tree / "pe_experiments" / "store" / "known_code.json").read_text())["parts"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which RoPE and ALiBi are published on copying."""
    tree = tmp_path_factory.mktemp("project")
    for name in ("pe_experiments", "configs", "scripts"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "README.md").touch()
    (tree / ".gitignore").write_text("__pycache__\n/results\n")
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "all")
    done = script(tree, "train", "-m", "pe=rope,alibi", "study=small", "sweep.jobs=1", *TINY)
    assert done.returncode == 0, done.stderr
    done = script(tree, "results", "publish=small")
    assert done.returncode == 0, done.stderr
    return tree


@pytest.mark.parametrize("edit", EDITS)
def test_what_an_edit_leads_to(project: Path, tmp_path: Path, edit: str) -> None:
    file, old, new, refused, sentence = EDITS[edit]
    tree = shutil.copytree(project, tmp_path / "tree")
    change(tree, file, old, new)
    before = known(tree)
    done = script(tree, "results", "adopt=small")
    assert done.returncode == (refused != NOTHING), done.stdout + done.stderr
    assert re.search(sentence, done.stdout), done.stdout
    moved = {part.rpartition(".")[2] for part, entry in known(tree).items() if entry != before[part]}
    assert moved == ({sentence.split()[-1].replace("code", "training")} if "adopted" in sentence else set())
    if refused == ALIBI:
        assert "1 kinds and 1 whole runs of small come out as published" in done.stdout


def test_a_file_renamed_and_a_function_moved_change_nothing_for_a_user(project: Path, tmp_path: Path) -> None:
    tree = shutil.copytree(project, tmp_path / "tree")
    package = tree / "pe_experiments"
    (package / "data" / "batches.py").rename(package / "drawn.py")
    moved = "def rounded_up(count: int, step: int) -> int:\n"
    source = (package / "drawn.py").read_text()
    start, end = source.index(moved), source.index("\n\n\n", source.index(moved))
    (package / "drawn.py").write_text(
        source[:start] + "from pe_experiments.data.randomness import rounded_up  # noqa\n" + source[end:]
    )
    with (package / "data" / "randomness.py").open("a") as file:
        file.write("\n\n" + source[start:end] + "\n")
    for path in package.rglob("*.py"):
        path.write_text(path.read_text().replace("pe_experiments.data.batches", "pe_experiments.drawn"))
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "rooms")
    again = ("train", "-m", "pe=rope,alibi", "study=small", "sweep.jobs=1", *TINY)
    assert "2 new" in script(tree, *again, "dry_run=true").stdout  # not known yet
    done = script(tree, "results", "adopt=all", spawned=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kinds and 2 whole runs of small come out as published" in done.stdout
    assert "2 finished" in script(tree, *again, "dry_run=true").stdout
    content = json.loads((package / "store" / "known_code.json").read_text())
    said = "2 kinds and 2 whole runs of small come out as published"
    assert content["parts"]["training"]["replayed"].startswith(said)


@pytest.mark.parametrize("edit", ["one slope", "Adam's eps"])
def test_a_comparison_with_a_bank_asks_the_numbers(project: Path, tmp_path: Path, edit: str) -> None:
    file, old, new, refused, _ = EDITS[edit]
    tree = shutil.copytree(project, tmp_path / "tree")
    own = (
        "pe=none",
        "sweep.against=small",
        "sweep.tune=null",
        "training.learning_rate=0.003",
        'sweep.cases=[["task=copy"]]',
        "seed=0",
    )
    words = ("train", "sweep=versus", *TINY, *own)
    change(tree, file, old, new)
    done = script(tree, *words)
    if refused == ALIBI:
        assert "small: changed since: Alibi" in done.stdout, done.stdout + done.stderr
        assert "left out of the comparison: alibi" in done.stdout
        assert done.returncode == 0, done.stderr
        assert set(pd.read_csv(next(tree.glob("results/versus/*/verdicts.csv")))["baseline"]) == {"rope"}
    else:
        assert done.returncode == 1
        assert "sweep.against=small: no baseline is left" in done.stderr
        assert not (tree / "results" / "versus").exists()


def test_an_unknown_study_is_named(project: Path) -> None:
    done = script(project, "results", "adopt=smal")
    assert done.returncode == 1
    assert "adopt=smal: no such published study. Did you mean small" in done.stderr
