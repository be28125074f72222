"""Hydra's flags, launchers and sweepers work, and no output directory of Hydra's is left behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.conftest import TINY, TRAIN, Script, assert_one_sentence
from tests.processes import run_script


def train_in(cwd: Path, *arguments: str, path: Sequence[Path] = ()) -> str:
    """Run train.py in a process of its own with this working directory, and return its output."""
    done = run_script(TRAIN, *arguments, cwd=cwd, path=path, forks=True)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_hydras_flags_answer(script: Script, tmp_path: Path) -> None:
    job = script("train", "--cfg", "job", "pe=rope", "seed=3")
    shown = yaml.safe_load(job.out)
    assert (shown["pe"]["base"], shown["seed"]) == (10_000.0, 3)
    package = script("train", "--cfg", "job", "--resolve", "--package", "training", "task=text")
    assert yaml.safe_load(package.out)["min_length"] == 256
    assert "hydra/launcher" in train_in(tmp_path, "--info", "all")  # through logging
    assert "processes" in script("train", "--hydra-help").out
    assert_one_sentence(script("train", "--nope"), "--nope is not a flag of this command")


@pytest.mark.slow
def test_hydra_leaves_no_output_directory_unless_asked(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script("train", *TINY, "pe=none").succeeded()
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    script("train", *TINY, "pe=none", "hydra.output_subdir=.hydra", "hydra.run.dir=mine").succeeded()
    assert (tmp_path / "mine" / ".hydra" / "overrides.yaml").exists()


@pytest.mark.slow
@pytest.mark.parametrize("many", [[], ["-m", "hydra.launcher.jobs=1"]], ids=["run", "sweep"])
def test_hydra_full_error_prints_the_traceback(
    many: list[str], script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*many, *TINY, "pe=tests.integration.user_encodings.Fails", f"results_dir={tmp_path}"]
    plain = script("train", *arguments)
    assert plain.code == 1
    assert "Traceback" not in plain.out + plain.err
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    full = script("train", *arguments)
    assert full.code == 1
    assert "Traceback" in full.out + full.err
    assert "user_encodings.py" in full.out + full.err


SEARCH = '''
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper


class Search(Sweeper):
    """Tries two learning rates, one after the other, as a search would."""

    def __init__(self, start):
        self.start = start

    def setup(self, *, hydra_context, task_function, config):
        self.launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)
        self.folder = config.hydra.sweep.dir

    def sweep(self, arguments):
        losses = []
        for number, rate in enumerate((self.start, 10 * self.start)):
            (job,) = self.launcher.launch([[*arguments, f"training.learning_rate={rate}"]], number)
            losses.append(job.return_value)
        with open(f"{self.folder}/best.txt", "w") as file:  # as Optuna's sweeper
            file.write(str(min(losses)))
        print("losses:", losses, flush=True)


node = {"_target_": f"{__name__}.Search", "start": 0.001}
ConfigStore.instance().store(group="hydra/sweeper", name="search", node=node, provider="test")
'''


@pytest.fixture
def search(tmp_path: Path) -> Path:
    """A folder with a user's Hydra plugin."""
    package = tmp_path / "plugins" / "hydra_plugins" / "search"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SEARCH)
    return package.parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["processes", "basic"])
def test_a_users_sweeper_receives_the_validation_loss(launcher: str, tmp_path: Path, search: Path) -> None:
    """With our launcher and one of Hydra's."""
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    arguments = ["-m", *TINY, "study=s", "hydra/sweeper=search", f"hydra/launcher={launcher}"]
    out = train_in(cwd, *arguments, path=[search])
    losses = json.loads(out.partition("losses: ")[2].splitlines()[0])
    assert len(set(losses)) == 2
    results = [json.loads(path.read_text()) for path in cwd.glob("results/runs/*/result.json")]
    assert sorted(losses) == sorted(result["validation_loss"] for result in results)
    assert (cwd / "results" / "s" / "report.html").exists()
    assert float((cwd / "results" / "multirun" / "best.txt").read_text()) == min(losses)
    assert [path.name for path in cwd.iterdir()] == ["results"]
