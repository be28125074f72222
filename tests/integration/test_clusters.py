"""Slurm and Ray, really run: a Slurm of one node and a Ray are started on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, TINY, Script
from tests.integration.test_sweeps import TRAIN, everything

pytestmark = pytest.mark.slow
SLURM = ROOT / "tests" / "cluster" / "slurm.sh"
DAEMONS = ("munged", "slurmctld", "slurmd", "srun")
LIBRARIES = {"submitit_local": "submitit", "slurm": "submitit", "ray": "ray"}
SETTINGS = {"slurm": ["hydra.launcher.parameters.mem_gb=2"]}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Slurm cluster that sbatch finds, until the last of these tests."""
    missing = [name for name in DAEMONS if not shutil.which(name)]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed: apt-get install slurm-wlm munge")
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([SLURM, "start", folder], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        yield
    subprocess.run([SLURM, "stop", folder], check=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    """The name of an engine that can be started here."""
    if not importlib.util.find_spec(LIBRARIES[request.param]):
        pytest.skip(f'{LIBRARIES[request.param]} is not installed: pip install -e ".[cluster]"')
    if request.param == "slurm":
        request.getfixturevalue("slurm")
    return request.param


def train(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: Ray stays in the one that started it."""
    return subprocess.run(
        [*TRAIN, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, env=os.environ | environment
    )


@pytest.mark.parametrize("engine", LIBRARIES, indirect=True)
def test_every_engine_gives_the_same_tables(engine: str, tmp_path: Path, script: Script) -> None:
    arguments = [*TINY, "training.steps=30", "-m", "pe=none,learned", "study=s"]
    assert script("train", *arguments, f"results_dir={tmp_path / 'local'}").code == 0
    done = train(
        *arguments, *SETTINGS.get(engine, []), f"results_dir={tmp_path / engine}", f"hydra/launcher={engine}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": trained, finished") == 2
    assert everything(tmp_path / engine) == everything(tmp_path / "local")
    assert len(everything(tmp_path / engine)) == 2 * 2 + 2
    assert not list((tmp_path / engine).glob(".launched/*"))


@pytest.mark.parametrize("engine", ["slurm"], indirect=True)
def test_a_job_that_hits_its_time_limit_is_queued_again_and_resumes(
    engine: str, tmp_path: Path, script: Script
) -> None:
    """The limit of a minute is Slurm's shortest; the training takes forty seconds and more, asleep."""
    arguments = [*TINY, "training.steps=220", "-m", "pe._target_=tests.integration.outside.Slow", "study=s"]
    assert script("train", *arguments, f"results_dir={tmp_path / 'whole'}").code == 0
    limits = ["hydra.launcher.timeout_min=1", "hydra.launcher.parameters.slurm_signal_delay_s=25"]
    results = [f"results_dir={tmp_path / engine}", f"hydra/launcher={engine}", *SETTINGS[engine], *limits]
    done = train(*arguments, *results, SLOW_TRAINING="yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": resumed, finished" in done.stdout
    assert "resuming at step" in done.stdout
    assert everything(tmp_path / engine) == everything(tmp_path / "whole")
    assert len(everything(tmp_path / engine)) == 2 + 2
