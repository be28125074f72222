"""Manage the directory of a run: its files, its lock, its state and the files that a rerun replaces."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pe_experiments.terminal.errors import InUse, UserError, allowed, disk_problem, few, one_line, shown
from pe_experiments.terminal.files import read_json, read_yaml, write_atomically

COMPLETED, DIVERGED, ERROR = "completed", "diverged", "error"  # values of ``status`` in ``result.json``
REQUIRED = {"name", "label", "task", "model", "seed", "steps", "evaluation"}  # entries of ``result.json``


class RunDirectory:
    """The directory ``results_dir/runs/<name>`` of a run, which may not exist yet, and its files."""

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
        self._lock_file = path / ".lock"
        self._set_aside_folder = path.parent / f".{path.name}.aside"  # holds files that a rerun replaces

    @property
    def name(self) -> str:
        return self.path.name

    def evaluation(self, evaluation_hash: str) -> RunDirectory:
        """Return the directory of another evaluation, which has no files of training."""
        return RunDirectory(self.path / "evaluations" / evaluation_hash)

    def evaluations(self) -> list[str]:
        """Return the hashes of the other evaluations, which are the names of their directories."""
        return sorted(entry.name for entry in self.path.glob("evaluations/*") if entry.is_dir())

    def state(self, rerun: bool = False) -> str:
        """Return the state of the run: new, in progress, interrupted, failed, diverged or finished.

        With ``rerun``, earlier files are ignored: the state is new or in progress.
        """
        # The configuration is written first, so without it the files are remains of a deleted run.
        started = self.config.exists() and not rerun
        result = self.read_result() if started else None
        if result is None or (result["status"] == COMPLETED and not self.curve.exists()):
            state = "interrupted" if started and self.checkpoint.exists() else "new"
        else:
            state = {COMPLETED: "finished", DIVERGED: "diverged", ERROR: "failed"}[result["status"]]
        if state in ("new", "interrupted", "failed") and self.in_use:
            return "in progress"
        return state

    def read_result(self) -> dict[str, Any] | None:
        """Return the content of ``result.json``, or None if it does not exist yet.

        Raises:
            UserError: the file is damaged.
        """
        if not self.result.exists():
            return None
        try:
            result = read_json(self.result)
            if result["status"] not in (COMPLETED, DIVERGED, ERROR):
                raise ValueError(f"status={shown(result['status'])}")
            missing = REQUIRED - result.keys() or {"lengths", "pe"} - result["evaluation"].keys()
            if missing:
                raise ValueError(f"{few(sorted(missing))} missing")
            return result
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"{self.result} is damaged ({one_line(f'{type(error).__name__}: {error}')})"
            cure = "delete it to go on from the checkpoint, or add rerun=true to start this run again"
            raise UserError(f"{what}; {cure}") from error

    def write_result(self, result: dict[str, Any]) -> None:
        """Write ``result.json``, which marks the run as ended."""
        self.refuse_deleted()
        write_atomically(self.result, json.dumps(result, indent=2) + "\n")

    def read_config(self) -> dict[str, Any]:
        """Return the saved configuration, with its ``derived`` and ``identity`` sections."""
        if not self.config.exists():
            message = "there is no run (config.yaml is missing); finished runs are in results/runs"
            raise UserError(f"run={self.path}: {message}")
        try:
            saved = read_yaml(self.config)
            if not isinstance(saved.get("identity"), dict):
                raise ValueError("section 'identity' is missing")
            if "${" in str(saved):
                raise ValueError("it contains ${, but saved configurations are not interpolated")
        except Exception as error:
            why = one_line(str(error)) if isinstance(error, ValueError) else type(error).__name__
            raise UserError(f"{self.path} is not a valid run directory: config.yaml: {why}") from error
        return {str(key): value for key, value in saved.items()}

    def read_environment(self) -> dict[str, Any]:
        """Return the content of ``environment.json``; empty if it is missing or damaged."""
        try:
            environment = read_json(self.environment)
            return environment if isinstance(environment, dict) else {}
        except (OSError, ValueError):
            return {}

    @contextmanager
    def lock(self, wait: float = 0.2) -> Iterator[None]:
        """Lock the directory for this process; the operating system releases it when the process ends.

        ``wait`` is in seconds. The default is longer than `in_use` of another process holds the lock.
        """
        try:  # where flock is not available, filelock uses a file with host and process id instead
            lock = FileLock(self._lock_file, timeout=wait, poll_interval=0.01).acquire()
        except Timeout as error:
            raise InUse(f"{self.path} is in use by another process; wait for it or stop it") from error
        with lock:
            yield

    @property
    def in_use(self) -> bool:
        """Return whether another process holds the lock, by acquiring it for a moment."""
        try:
            if self._lock_file.exists():
                with self.lock(wait=0.0):
                    pass
        except InUse:
            return True
        except OSError:  # deleted or not writable
            return False
        return False

    @contextmanager
    def create_and_lock(self) -> Iterator[bool]:
        """Create the directory if necessary and lock it; yield whether it is new."""
        created = not self.path.exists()
        self._refuse_links()
        with ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(self.lock())
                # These are left by killed processes, because only the holder of the lock writes here.
                for temporary_file in self.path.glob(".*.tmp"):
                    temporary_file.unlink()
            except OSError as error:
                why = f"cannot write there ({error.strerror})"
                raise UserError(f"results_dir={self.path.parents[1]}: {why}") from error
            yield created

    @contextmanager
    def lock_for_training(self, rerun: bool) -> Iterator[None]:
        """Lock the directory during training, and after an error remove partial files.

        With ``rerun``, the earlier result is set aside. It is restored unless training ends with a new one.
        """
        with self.create_and_lock() as created:
            if not self.config.exists():
                self._clear()
            elif rerun:
                self._set_aside()
            try:
                yield
            except BaseException as error:
                can_resume = self.checkpoint.exists()
                was_deleted = not self._lock_file.exists()  # during the run; files written since are useless
                if was_deleted or (created and (isinstance(error, UserError) or not can_resume)):
                    self.remove()
                elif not can_resume or (rerun and isinstance(error, UserError)):
                    self._put_back()
                if problem := disk_problem(error):
                    safe = "finished results are safe, and the same command resumes from the last checkpoint"
                    raise UserError(f"results_dir={self.path.parents[1]}: {problem}; {safe}") from error
                raise
            with suppress(OSError):  # the next command tries again, in `restore`
                self._conclude_rerun()

    def restore(self) -> None:
        """Complete a killed rerun: restore the earlier result, or delete it if there is a new one."""
        if not (self._set_aside_folder.exists() and self.path.exists()):
            return
        self._refuse_links()
        with suppress(InUse, OSError), self.lock():  # InUse: the rerun is still running
            self._conclude_rerun()

    def _refuse_links(self) -> None:
        """Raise an error for a link, because files of a run are deleted and a link may lead to any folder."""
        for path in (self.path, self._set_aside_folder):
            if path.is_symlink():
                raise UserError(f"{path} is a link, and no run is written through one; delete it")

    def refuse_deleted(self) -> None:
        """Raise an error if the configuration, which a run writes first, has been deleted."""
        if not self.config.exists():
            lost = "was deleted during the run, and its results are gone; repeat it to train again"
            raise UserError(f"{self.path} {lost}")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _clear(self) -> None:
        for entry in reversed(_entries(self.path)):
            _delete(entry)

    # If the process is killed at any moment, no file of the earlier run is lost. While its config.yaml is in
    # the set-aside folder, so are all its other files. Otherwise, those not in that folder are in the run's.

    @property
    def _earlier_run_is_aside(self) -> bool:
        """Return whether all files of the earlier run are in the set-aside folder."""
        return (self._set_aside_folder / self.config.name).exists()

    def _set_aside(self) -> None:
        if self._earlier_run_is_aside:  # by a rerun that was killed
            self._clear()
            return
        self._set_aside_folder.mkdir(exist_ok=True)
        for entry in _entries(self.path):
            entry.rename(self._set_aside_folder / entry.name)

    def _put_back(self) -> None:
        if not self._set_aside_folder.exists():
            return
        if self._earlier_run_is_aside:
            self._clear()
        for entry in reversed(_entries(self._set_aside_folder)):
            entry.rename(self.path / entry.name)
        self._set_aside_folder.rmdir()

    def _conclude_rerun(self) -> None:
        """Delete the earlier result if there is a new one, or restore it if the new run cannot resume."""
        if not self._set_aside_folder.exists():
            return
        status = None
        with suppress(UserError):  # a damaged result does not count
            status = (self.read_result() or {}).get("status")
        earlier_run_is_aside = self._earlier_run_is_aside
        if earlier_run_is_aside and status in (COMPLETED, DIVERGED):
            for entry in _entries(self._set_aside_folder):
                _delete(entry)
            self._set_aside_folder.rmdir()
            return
        can_resume = self.config.exists() and self.checkpoint.exists()
        if not earlier_run_is_aside or status == ERROR or not can_resume:
            if earlier_run_is_aside and self.error_log.exists():  # of the rerun, whose error message names it
                self.error_log.replace(self._set_aside_folder / self.error_log.name)
            self._put_back()


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a run directory except its lock, with config.yaml last."""
    entries = [entry for entry in folder.iterdir() if entry.name != ".lock"]
    return sorted(entries, key=lambda entry: entry.name == "config.yaml")


def _delete(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def run_directory(results_dir: str | Path, name: str) -> RunDirectory:
    """Return the directory of a run, which may exist under another label with the same seed and hash."""
    runs = Path(results_dir) / "runs"
    if not (runs / name).exists() and runs.is_dir():
        name = _names_by_hash(runs, runs.stat().st_mtime_ns).get(seed_and_hash(name), name)
    return RunDirectory(runs / name)


def find_run(key: str, text: str, folders: Iterable[str | Path]) -> RunDirectory:
    """Return the run with a path or name, from the first folder that contains it; ``key`` is the option."""
    paths = dict.fromkeys(Path(folder, text) for folder in folders)
    runs = [RunDirectory(path) for path in paths]
    for run in runs:
        if run.config.exists():
            return run
    missing = allowed(str(run.config) for run in runs)
    raise UserError(f"{key}={shown(text)}: there is no run; looked for {missing}")


def runs_with_same_label(run: Path) -> list[RunDirectory]:
    """Return the other runs whose names differ from this one only in the hash."""
    runs = run.parent
    if not runs.is_dir():
        return []
    names = _names_by_hash(runs, runs.stat().st_mtime_ns).values()
    return [RunDirectory(runs / name) for name in names if name[:-8] == run.name[:-8] and name != run.name]


@lru_cache(maxsize=8)
def _names_by_hash(runs: Path, changed_at: int) -> dict[str, str]:
    """Return the names of all runs by seed and hash, cached until the folder changes."""
    return {seed_and_hash(name): name for name in sorted(os.listdir(runs)) if name[0] != "."}


def seed_and_hash(name: str) -> str:
    """Return the part of a name that identifies a run independently of its label."""
    return name[name.rfind("-s") :]


def refuse_among_runs(out: str | Path, results_dir: str | Path) -> None:
    """Raise an error if an output folder is in the folder of runs, where every folder counts as a run."""
    runs = (Path(results_dir) / "runs").resolve()
    folder = Path(out).resolve()
    if runs in (folder, *folder.parents):
        raise UserError(f"out={shown(out)} is among the runs; allowed: any folder outside {runs}")


def output_folder(out: str | Path, results_dir: str | Path) -> Path:
    """Create and return the output folder of a command."""
    refuse_among_runs(out, results_dir)
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out={folder}: cannot write there ({error.strerror})") from error
    return folder
