"""Shared fixtures: small configurations, an empty results directory, wandb files in a temporary folder."""

from __future__ import annotations

import copy
import logging
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.processes import CONTEXT

if TYPE_CHECKING:  # tests of modules that need no PyTorch do not wait for its import
    from pe_experiments.configuration.experiment import Experiment

ROOT = Path(__file__).parents[1]
TRAIN = ROOT / "scripts" / "train.py"
# Two layers of 16 columns on inputs of up to 6 symbols: a run takes a second or two.
TINY = (
    "model.d_model=16",
    "model.num_heads=2",
    "training.max_length=6",
    "training.batch_size=8",
    "training.steps=12",
    "training.check_every=6",
    "training.check_examples=16",
    "evaluation.examples=20",
    "evaluation.lengths=[4,6,9]",
    "logger=none",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first: most wait for processes, while the other workers compute."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_runtest_setup() -> None:
    """Use one PyTorch thread, fork processes (`tests.processes`), and poll workers often."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if executors := sys.modules.get("pe_experiments.sweeps.executors"):
        executors.SPAWN = CONTEXT
        executors.Processes.poll_seconds = 0.05


@pytest.fixture(scope="session", autouse=True)
def _wandb_in_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    home = tmp_path_factory.mktemp("wandb_home")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CACHE", "DATA", "CONFIG"):
            patch.setenv(f"WANDB_{name}_DIR", str(home))
        patch.delenv("WANDB_MODE", raising=False)
        patch.setenv("PE_EXPERIMENTS_CACHE", os.devnull)  # no folder, so no test measures the processor
        yield


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@cache
def composed(overrides: tuple[str, ...], folder: str) -> dict[str, Any]:
    """Return a configuration, which Hydra takes a tenth of a second to compose.

    Args:
        overrides: of the configuration.
        folder: the working directory, which may add choices.
    """
    from pe_experiments.configuration.compose import compose_config
    from pe_experiments.configuration.schema import resolved

    return resolved(compose_config(overrides))


Tiny = Callable[..., "Experiment"]


def tiny_in(results: Path, sizes: tuple[str, ...] = TINY) -> Tiny:
    """Return a function that resolves an experiment of these sizes with overrides on top.

    Experiments that differ in their seed, results directory and shipped encoding alone are composed once.
    """
    from pe_experiments.configuration.choices import shipped
    from pe_experiments.configuration.experiment import Experiment
    from pe_experiments.configuration.schema import Config, validated

    def make(*overrides: str) -> Experiment:
        plain = [text for text in overrides if re.fullmatch(r"seed=\d{1,9}|results_dir=/[\w/.-]+", text)]
        if not any("pe." in text for text in overrides):
            plain += [text for text in overrides if text.startswith("pe=") and text[3:] in shipped("pe")]
        others = tuple(text for text in overrides if text not in plain)
        config = copy.deepcopy(composed((*sizes, *others), os.getcwd()))
        values: dict[str, Any] = dict(text.split("=") for text in plain)
        if not any(text.startswith("results_dir=") for text in overrides):
            values["results_dir"] = str(results)
        if "seed" in values:
            values["seed"] = int(values["seed"])
        if "pe" in values:
            values["pe"] = copy.deepcopy(shipped("pe")[values["pe"]])
        return Experiment(validated(Config, config | values))

    return make


@pytest.fixture
def tiny(results: Path) -> Tiny:
    return tiny_in(results)


@pytest.fixture
def checkpoint_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from pe_experiments.training import loop

    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(loop, "CHECKPOINT_SHARE", 1e9)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    def succeeded(self) -> str:
        """Return the output of a command that must have succeeded."""
        assert self.code == 0, self.out + self.err
        return self.out


Script = Callable[..., Outcome]


def assert_one_sentence(outcome: Outcome, *words: str) -> None:
    """Assert that a command failed with one line of error that contains these words."""
    assert outcome.code == 1, outcome.err
    assert outcome.err.startswith("error: "), outcome.err
    assert outcome.err.count("\n") == 1, outcome.err
    for word in words:
        assert word in outcome.err, outcome.err


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Return a function that runs a script in this process, as ``python scripts/NAME.py ARGUMENTS`` would."""
    import pe_experiments.sweeps.executors  # noqa: F401  # pytest_runtest_setup changes it

    pytest_runtest_setup()

    def run(name: str, *arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", [str(ROOT / "scripts" / f"{name}.py"), *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(sys.argv[0], run_name="__main__")
        logging.getLogger().setLevel(logging.WARNING)  # a command may have set hydra.verbose
        logging.getLogger("hydra").setLevel(logging.WARNING)
        out, err = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), out, err)

    return run
