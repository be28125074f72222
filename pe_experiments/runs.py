"""Where a run lives, how far it is, and how its result is written and read back.

Names come from `identity`: two configurations that train the same thing are one run.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from filelock import FileLock, Timeout

from pe_experiments.config import PARTS, Experiment
from pe_experiments.errors import InUse, UserError
from pe_experiments.files import read_json, write_atomically
from pe_experiments.fingerprints import changed, data_files, evaluation_code
from pe_experiments.identity import Identity, identify, jsonable, short_hash

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # OmegaConf's own takes ten times as long
COMPLETED, DIVERGED, ERROR = "completed", "diverged", "error"
TRAINED = ("finished", "to evaluate", "diverged")  # states in which nothing is left to train
TEXT = ("pe_experiments.text_evaluation",)  # evaluates language models
RESULT_KEYS = ("name", "label", "task", "model", "seed", "steps", "evaluation")  # in every result.json


class RunDirectory:
    """``results_dir/runs/<name>`` and the files in it.

    Args:
        path: the directory; it need not exist.
    """

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.yaml"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.csv"
        self.curve = path / "extrapolation.csv"
        self.figure = path / "extrapolation.png"
        self.checkpoint = path / "checkpoints" / "last.ckpt"
        self.result = path / "result.json"
        self.error_log = path / "error.log"

    @property
    def name(self) -> str:
        return self.path.name

    def evaluation(self, evaluation_hash: str) -> RunDirectory:
        """Where another evaluation of this training lives; the same files, less those of training."""
        return RunDirectory(self.path / "evaluations" / evaluation_hash)

    def read_result(self) -> dict[str, Any] | None:
        """The result, or None where there is none yet.

        Raises:
            UserError: the file is there and is no result.
        """
        if not self.result.exists():
            return None
        try:
            result = read_json(self.result)
            if result["status"] not in (COMPLETED, DIVERGED, ERROR):
                raise KeyError("status")
            for key in RESULT_KEYS:
                result[key]
            for key in ("lengths", "pe"):
                result["evaluation"][key]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.result} is damaged ({type(error).__name__}: {error}); delete it to go on from the "
                f"checkpoint, or add rerun=true to start this run again"
            ) from error
        return result

    def write_result(self, result: dict[str, Any]) -> None:
        """Write the result; the last thing a run does."""
        write_atomically(self.result, json.dumps(result, indent=2) + "\n")

    def read_config(self) -> dict[str, Any]:
        """The saved configuration, with its ``derived`` and ``identity`` sections.

        Raises:
            UserError: it is missing or damaged.
        """
        try:
            saved = yaml.load(self.config.read_text(encoding="utf-8"), Loader=LOADER)
            saved["identity"]["trained"]
        except Exception as error:
            raise UserError(
                f"{self.config} is missing or damaged ({type(error).__name__}); this is no run"
            ) from error
        return {str(key): value for key, value in saved.items()}

    def create(self) -> bool:
        """Make the directory; False where it was there.

        Raises:
            UserError: it cannot be written.
        """
        existed = self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".writable.{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"results_dir={self.path.parents[1]}: cannot write there ({error.strerror})"
            ) from error
        return not existed

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory for this process; the operating system lets go of it when the process ends.

        A killed process therefore leaves no stale lock, also on network file systems that have ``flock`` (NFS
        since Linux 2.6.12, GPFS, Lustre mounted with ``-o flock``). Where there is none, filelock falls back
        to a file with host and process id, and takes it over once that process, on the same host, is gone.

        Raises:
            InUse: another process holds it.
        """
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise InUse(f"{self.path} is in use by another process; wait for it or stop it") from error
        try:
            yield
        finally:
            lock.release()

    def clear(self) -> None:
        """Remove everything in it except the lock."""
        for entry in self.path.iterdir() if self.path.exists() else []:
            if entry.name != ".lock":
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def set_aside(self) -> Path:
        """Move everything except the lock out of the way, until it is dropped or put back."""
        aside = self.path.parent / f".{self.name}.aside"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for entry in self.path.iterdir():
            if entry.name != ".lock":
                entry.rename(aside / entry.name)
        return aside

    def put_back(self, aside: Path) -> None:
        """Undo `set_aside`, dropping what has been written since."""
        self.clear()
        for entry in aside.iterdir():
            entry.rename(self.path / entry.name)
        aside.rmdir()

    def remove(self) -> None:
        """Remove the whole directory."""
        shutil.rmtree(self.path, ignore_errors=True)


@dataclass(frozen=True)
class Plan:
    """What would be run, where, and how far it is.

    ``state`` is ``new``, ``interrupted``, ``failed``, ``diverged``, ``finished``, or ``to evaluate`` where
    the training is finished and was evaluated otherwise.
    """

    identity: Identity
    run: RunDirectory
    state: str


def plan(experiment: Experiment) -> Plan:
    """What an experiment amounts to before anything is done.

    Raises:
        UserError: its ``result.json`` is damaged.
    """
    identity = identify(experiment)
    run = run_directory(experiment.config.results_dir, identity.name)
    if run.name != identity.name and not _is_run_of(run, identity):
        run = RunDirectory(run.path.with_name(identity.name))
    if experiment.config.rerun:
        return Plan(identity, run, "new")
    return Plan(identity, run, state_of(run, evaluated(experiment)))


def run_directory(results_dir: str | Path, name: str) -> RunDirectory:
    """Where the run of that name lives, or the same run under another label: the hash finds it."""
    runs = Path(results_dir) / "runs"
    if not (runs / name).exists() and runs.is_dir():
        name = _names_by_hash(runs, runs.stat().st_mtime_ns).get(seed_and_hash(name), name)
    return RunDirectory(runs / name)


@lru_cache(maxsize=8)
def _names_by_hash(runs: Path, changed_at: int) -> dict[str, str]:
    """Run names by their end, ``-s<seed>-<hash8>``."""
    return {seed_and_hash(name): name for name in sorted(os.listdir(runs)) if name[0] != "."}


def seed_and_hash(name: str) -> str:
    """What identifies a run, whatever its label."""
    return name[name.rfind("-s") :]


def _is_run_of(run: RunDirectory, identity: Identity) -> bool:
    try:
        saved = run.read_config()["identity"]
    except UserError:
        return False
    return saved["trained"] == identity.trained and saved.get("sources") == identity.sources


def state_of(run: RunDirectory, evaluation: dict[str, Any]) -> str:
    """How far a run is, with this evaluation (see `Plan`).

    Raises:
        UserError: its ``result.json`` is damaged.
    """
    result = run.read_result()
    if result is None:
        return "interrupted" if run.checkpoint.exists() else "new"
    if result["status"] == COMPLETED and result["evaluation"] != evaluation:
        there = run.evaluation(short_hash(evaluation)).read_result()
        same = there and not only_code_differs(result["evaluation"], evaluation)
        return "finished" if same else "to evaluate"
    return {COMPLETED: "finished", DIVERGED: "diverged", ERROR: "failed"}[result["status"]]


def evaluated(experiment: Experiment) -> dict[str, Any]:
    """What identifies one evaluation of a training; the usual decoding and task are left out."""
    scheme = jsonable(experiment.components["pe"].section)
    lengths, examples = list(experiment.evaluation_lengths), experiment.config.evaluation.examples
    said: dict[str, Any] = {"lengths": lengths, "examples": examples, "pe": scheme}
    classes = tuple(cls for group in PARTS for cls in experiment.components[group].classes)
    if experiment.decoding != "teacher_forcing":
        said["decoding"] = experiment.decoding
    if task := experiment.other_task:
        said["task"] = jsonable(task.section) | data_files(
            task.arguments, task.classes, experiment.evaluation_task.data_files
        )
        classes += task.classes
    language = hasattr(experiment.evaluation_task, "decoder_only")
    return said | {"code": evaluation_code(classes, TEXT if language else ())}


def only_code_differs(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two evaluations are the same, carried out by different code."""
    return one != other and one | {"code": None} == other | {"code": None}


def kind_of(config: dict[str, Any]) -> str:
    """Hash of the settings that determine how long a training step takes: not of seed and learning rate."""
    keys = ("batch_size", "min_length", "max_length", "batching", "precision")
    training = {key: config["training"][key] for key in keys}
    return short_hash(jsonable([{group: config[group] for group in (*PARTS, "model")}, training]))


def edited_sources(directory: RunDirectory, identity: Identity) -> dict[str, list[str]]:
    """Runs of the same configuration whose code or data have changed since: run name -> what has changed."""
    found = {}
    for other in sorted(directory.path.parent.glob(f"{glob.escape(identity.prefix)}-????????")):
        try:
            saved = RunDirectory(other).read_config()["identity"]
            if other.name != identity.name and saved["trained"] == identity.trained:
                found[other.name] = changed(saved["sources"], identity.sources)
        except (UserError, KeyError, TypeError, ValueError):  # damaged, or of a version that saved otherwise
            continue
    return found


def list_in_study(results_dir: Path, study: str, *names: str) -> None:
    """Add runs to ``results_dir/<study>/manifest.json``; writers take turns."""
    folder = results_dir / study
    manifest = folder / "manifest.json"
    if manifest.exists() and set(names) <= set(read_manifest(manifest)["runs"]):
        return  # also where nothing can be written any more
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".manifest.lock"):
        there = read_manifest(manifest) if manifest.exists() else {"runs": []}
        listed = [*there.pop("runs"), *names]
        there.pop("study", None)
        write_manifest(results_dir, study, listed, **there)


def write_manifest(results_dir: Path, study: str, names: list[str], **facts: Any) -> None:
    """Make these runs the ones ``results_dir/<study>/manifest.json`` lists."""
    folder = results_dir / study
    folder.mkdir(parents=True, exist_ok=True)
    content = facts | {"study": study, "runs": sorted(set(names))}
    write_atomically(folder / "manifest.json", json.dumps(content, indent=2) + "\n")


def read_manifest(path: Path) -> dict[str, Any]:
    """What a study lists: ``runs``, their names; where settings were tuned, ``tuned`` and ``tuning``.

    Raises:
        UserError: no such study, or its manifest is damaged.
    """
    try:
        content = read_json(path)
        names = content["runs"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError("its runs are no names")
        if not all("scheme" in choice for choice in content.get("tuning", [])):
            raise TypeError("a setting was tuned for no scheme")
        return content
    except FileNotFoundError as error:
        studies = sorted(other.parent.name for other in path.parents[1].glob("*/manifest.json"))
        known = f"; studies there: {', '.join(studies)}" if studies else "; no study has been run there yet"
        raise UserError(f"study={path.parent.name}: {path} does not exist{known}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({type(error).__name__}); delete it and run the sweep again"
        ) from error
