"""Slurm and Ray, really run: a Slurm of one node and a Ray are started on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pe_experiments.store.directory import RunDirectory
from tests.conftest import ROOT, TINY, Script
from tests.integration.test_sweeps import TRAIN, everything, wait_for

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


@pytest.mark.parametrize("engine", ["submitit_local"], indirect=True)
def test_jobs_of_this_machine_end_with_their_launcher(engine: str, tmp_path: Path) -> None:
    arguments = [*TINY, "training.steps=1000000", "-m", "pe=none,learned", f"results_dir={tmp_path}"]
    command = [*TRAIN, *arguments, f"hydra/launcher={engine}"]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(list(tmp_path.glob("runs/*/metrics.csv"))) == 2, running)
    runs = [RunDirectory(path) for path in tmp_path.glob("runs/*")]
    assert all(run.in_use for run in runs)
    running.kill()
    running.wait()
    end = time.monotonic() + 20
    while any(run.in_use for run in runs):
        assert time.monotonic() < end, "a job goes on without its launcher"
        time.sleep(0.2)


@pytest.mark.parametrize("engine", ["ray"], indirect=True)
def test_a_ray_of_ours_listens_to_this_machine_alone(engine: str) -> None:
    code = (
        "from pe_experiments.configuration.schema import RayConfig\n"
        "from pe_experiments.sweeps.engines import RayEngine\n"
        "engine = RayEngine(RayConfig(max_runs=1, jobs=1, address=None), 1)\n"
        "import ray\n"
        "print(ray.util.get_node_ip_address())\n"
        "engine.end()\n"
    )
    done = subprocess.run([TRAIN[0], "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "127.0.0.1\n", done.stderr


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
