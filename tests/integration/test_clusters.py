"""Sweeps on Slurm and Ray: a Slurm of one node and a Ray are started on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pe_experiments.store.directory import RunDirectory
from tests.conftest import ROOT, TINY, TRAIN
from tests.integration.test_sweeps import everything
from tests.processes import Started, run_script, wait_for

pytestmark = pytest.mark.slow
RECENCY = "pe=tests.integration.user_encodings.Recency"
SLURM = ROOT / "tests" / "cluster" / "slurm.sh"
DAEMONS = ("munged", "slurmctld", "slurmd", "srun")
SWEEP = [
    "-m", *TINY, "training.steps=60", "study=s",
    "pe=tests.integration.user_encodings.Slow,tests.integration.user_encodings.Recency",
]  # fmt: skip


# Prints the address that Ray listens at before it ends.
COMMAND = """
from pe_experiments.commands.train import run
from pe_experiments.sweeps.executors import Ray
Ray.poll_seconds = 0.2
stop = Ray.stop
def print_address_and_stop(executor):
    print("address:", executor._ray.util.get_node_ip_address())
    stop(executor)
Ray.stop = print_address_and_stop
run()
"""


def needs(package: str) -> pytest.MarkDecorator:
    """Skip a test if this package, which takes long to import, is not installed."""
    reason = f'{package} is not installed: pip install -e ".[cluster]"'
    return pytest.mark.skipif(not importlib.util.find_spec(package), reason=reason)


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


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the sweep without an engine."""
    results = tmp_path_factory.mktemp("local")
    run_script(TRAIN, *SWEEP, f"results_dir={results}", cwd=ROOT, forks=True)
    tables = everything(results)
    assert len(tables) == 2 * 2 + 2
    return tables


@needs("ray")
def test_ray_gives_the_same_results(tmp_path: Path, local: dict[str, bytes]) -> None:
    """A Ray that the command starts listens only to this machine."""
    arguments = [*SWEEP[:-1], RECENCY, f"results_dir={tmp_path}", "hydra/launcher=ray"]
    done = subprocess.run(  # a process of its own: Ray stays in the one that started it
        [sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 run: 1 finished" in done.stdout
    files = {name: content for name, content in everything(tmp_path).items() if name.startswith("runs/")}
    assert len(files) == 2
    assert files.items() <= local.items()
    assert not list(tmp_path.glob(".launched/*"))
    assert "address: 127.0.0.1\n" in done.stdout


@needs("submitit")
def test_local_submitit_jobs_end_with_their_launcher(tmp_path: Path) -> None:
    arguments = ["-m", *TINY, "training.steps=1000000", f"results_dir={tmp_path}"]
    running = Started(TRAIN, *arguments, "hydra/launcher=submitit_local", cwd=ROOT)
    wait_for(lambda: list(tmp_path.glob("runs/*/metrics.csv")), running)
    (run,) = map(RunDirectory, tmp_path.glob("runs/*"))
    assert run.in_use
    running.kill()
    running.end()
    wait_for(lambda: not run.in_use)


@needs("submitit")
@pytest.mark.usefixtures("slurm")
def test_a_slurm_job_at_its_time_limit_is_requeued_and_resumes(
    tmp_path: Path, local: dict[str, bytes]
) -> None:
    """Slurm's shortest limit is a minute: the test sends the signal that the job asks for instead."""
    slow = tmp_path / "slow"
    slow.touch()
    results = [f"results_dir={tmp_path}", "hydra/launcher=slurm", "hydra.launcher.parameters.mem_gb=2"]
    running = Started(
        TRAIN, *SWEEP, *results, cwd=ROOT, environment=os.environ | {"SLOW_TRAINING": str(slow)}
    )
    wait_for(lambda: list(tmp_path.glob("runs/*Slow*/checkpoints/last.ckpt")), running)
    (submission,) = tmp_path.glob(".launched/*/*_submission.sh")
    assert {"#SBATCH --time=240", "#SBATCH --signal=USR2@30"} <= set(submission.read_text().splitlines())
    (first,) = submission.parent.glob("*_0_submitted.pkl")
    subprocess.run(["scancel", "--signal=USR2", first.name.removesuffix("_submitted.pkl")], check=True)
    (run,) = map(RunDirectory, tmp_path.glob("runs/*Slow*"))
    wait_for(lambda: not run.in_use, running)
    slow.unlink()
    ended = running.end(code=0)
    assert "2 runs: 2 finished" in ended.stdout
    assert "resuming at step" in ended.stdout
    assert everything(tmp_path) == local
    assert not list(tmp_path.glob(".launched/*"))
