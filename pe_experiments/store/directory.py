"""The directory of a run: its files, its lock, how far the run is, and its earlier result during a rerun."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pe_experiments.terminal.errors import InUse, UserError, disk_problem, one_line, shown
from pe_experiments.terminal.files import make_folder, read_json, read_yaml, write_atomically

COMPLETED, DIVERGED, ERROR = "completed", "diverged", "error"  # the status in a result
TEXTS = ("name", "label", "task", "model")  # of a result, shown as cells and titles


class RunDirectory:
    """``results_dir/runs/<name>`` and the files in it; it need not exist."""

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
        self._locked_inode = 0  # of the lock file that this object has opened
        self._earlier = path.parent / f".{path.name}.aside"  # the files that a rerun replaces

    @property
    def name(self) -> str:
        return self.path.name

    def evaluation(self, evaluation_hash: str) -> RunDirectory:
        """Return the directory of another evaluation: the same files, less those of training."""
        path = self.path / "evaluations" / evaluation_hash
        _refuse_links(path.parent, path)
        return RunDirectory(path)

    def evaluations(self) -> list[str]:
        """Return the names of the other evaluations."""
        folder = self.path / "evaluations"
        _refuse_links(folder)
        return sorted(entry.name for entry in folder.glob("*") if entry.is_dir())

    def state(self, rerun: bool = False) -> str:
        """Return how far the run is: new, in progress, interrupted, failed, diverged or finished.

        Under ``rerun`` it is new whatever lies there.
        """
        # The configuration is written first: without it, what lies there is left of a deleted run.
        begun = self.config.exists() and not rerun
        result = self.read_result() if begun else None
        if result is None or (result["status"] == COMPLETED and not self.curve.exists()):
            state = "interrupted" if begun and self.checkpoint.exists() else "new"
        else:
            state = {COMPLETED: "finished", DIVERGED: "diverged", ERROR: "failed"}[result["status"]]
        waits = state in ("new", "interrupted", "failed")
        return "in progress" if waits and self.in_use else state

    def read_result(self) -> dict[str, Any] | None:
        """Return the result, or None where there is none yet."""
        _refuse_links(self.path)
        if not self.result.exists():
            return None
        try:
            result = read_json(self.result)
            _require_result(result)
            return result
        except (ValueError, KeyError, TypeError) as error:
            what = f"{self.result} is damaged ({one_line(f'{type(error).__name__}: {error}')})"
            cure = "delete it to go on from the checkpoint, or add rerun=true to start this run again"
            raise UserError(f"{what}; {cure}") from error

    def write_result(self, result: dict[str, Any]) -> None:
        """Write the result; the last thing a run does, while it holds the directory."""
        self.refuse_deleted(self.config)
        write_atomically(self.result, json.dumps(result, indent=2) + "\n")

    def read_config(self) -> dict[str, Any]:
        """Return the saved configuration, with its ``derived`` and ``identity`` sections."""
        _refuse_links(self.path)
        if not self.config.exists():
            there = "there is no run (no config.yaml); finished ones lie under results/runs"
            raise UserError(f"run={self.path}: {there}")
        try:
            saved = read_yaml(self.config)
            identity = saved["identity"]
            if not all(isinstance(identity.get(part, {}), dict) for part in ("trained", "hashed")):
                raise ValueError("a section that is none")
            if "${" in str(saved):
                raise ValueError("it holds ${, and nothing in a saved configuration is interpolated")
        except Exception as error:
            why = one_line(str(error)) if isinstance(error, ValueError) else type(error).__name__
            raise UserError(f"{self.config} is damaged ({why}); this is no run") from error
        return {str(key): value for key, value in saved.items()}

    def read_environment(self) -> dict[str, Any]:
        """Return what ``environment.json`` records; nothing where it is missing or damaged."""
        try:
            environment = read_json(self.environment)
            return environment if isinstance(environment, dict) else {}
        except (OSError, ValueError):
            return {}

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory for this process; the operating system lets go of it when the process ends."""
        try:  # without flock filelock writes a file with host and process id, taken over once that is gone
            lock = FileLock(self._lock_file, timeout=0).acquire()
        except Timeout as error:
            raise InUse(f"{self.path} is in use by another process; wait for it or stop it") from error
        with lock:
            yield

    @property
    def in_use(self) -> bool:
        """Whether another process holds the directory; to find out, this one does for a moment."""
        try:
            with self.lock() if self._lock_file.exists() else nullcontext():
                return False
        except (InUse, OSError) as error:  # or it is gone, or nothing can be written there
            return isinstance(error, InUse)

    @contextmanager
    def opened(self) -> Iterator[bool]:
        """Make the directory and hold it; gives whether it is new."""
        created = not self.path.exists()
        _refuse_links(self.path, self._earlier, *self.path.glob("*"), *self.checkpoint.parent.glob("*"))
        with ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(self.lock())
                self._locked_inode = self._lock_file.stat().st_ino
                for draft in self.path.glob(".*.tmp"):
                    draft.unlink()  # of a process that was killed: nobody else writes here
            except OSError as error:
                why = f"cannot write there ({error.strerror})"
                raise UserError(f"results_dir={self.path.parents[1]}: {why}") from error
            yield created

    @contextmanager
    def held(self, rerun: bool) -> Iterator[None]:
        """Hold it while it is trained: nothing half-written is left there, and nothing finished is lost.

        Under ``rerun`` the earlier result is set aside. It comes back unless there is a new one.
        """
        with self.opened() as created:
            if not self.config.exists():
                self._clear()
            elif rerun:
                self._set_aside()
            try:
                yield
            except BaseException as error:
                self.refuse_deleted()
                begun = self.checkpoint.exists()  # there is something to go on from
                if created and (isinstance(error, UserError) or not begun):
                    self.remove()
                elif not begun or (rerun and isinstance(error, UserError)):
                    self._put_back()
                if problem := disk_problem(error):
                    safe = "what is finished is safe, and the same command goes on from the last checkpoint"
                    raise UserError(f"results_dir={self.path.parents[1]}: {problem}; {safe}") from error
                raise
            with suppress(OSError):  # else the next command does it
                self._settle()

    def restore(self) -> None:
        """Put back the result that a rerun had set aside, if that was killed before there was a new one."""
        if not (self._earlier.exists() and self.path.exists()):
            return
        _refuse_links(self.path, self._earlier, self._lock_file)
        with suppress(InUse, OSError), self.lock():  # InUse: the rerun is at work
            self._settle()

    def refuse_deleted(self, *files: Path) -> None:
        """Refuse to go on where somebody has deleted these files, or the directory that is held."""
        exists = self._lock_file.exists()
        # Another process may have made the directory anew.
        held = exists and self._lock_file.stat().st_ino == self._locked_inode
        if not (held and all(path.exists() for path in files)):
            if not exists:
                self.remove()  # what was written since
            lost = "was deleted during the run, and its results are gone; repeat it to train again"
            raise UserError(f"{self.path} {lost}")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _clear(self) -> None:
        for entry in reversed(_entries(self.path)):
            _delete(entry)

    # A kill at any moment leaves the earlier run whole: if its config.yaml lies in ``_earlier``, all of it
    # does; if not, the rest of it is here.

    def _set_aside(self) -> None:
        if (self._earlier / self.config.name).exists():  # by a rerun that was killed
            self._clear()
            return
        self._earlier.mkdir(exist_ok=True)
        for entry in _entries(self.path):
            entry.rename(self._earlier / entry.name)

    def _put_back(self) -> None:
        if not self._earlier.exists():
            return
        if (self._earlier / self.config.name).exists():
            self._clear()
        for entry in reversed(_entries(self._earlier)):
            entry.rename(self.path / entry.name)
        self._earlier.rmdir()

    def _settle(self) -> None:
        """Delete the earlier result if there is a new one, or put it back if the new run cannot go on."""
        if not self._earlier.exists():
            return
        status = None
        with suppress(UserError):  # a damaged result is none
            status = (self.read_result() or {}).get("status")
        is_whole = (self._earlier / self.config.name).exists()
        if is_whole and status in (COMPLETED, DIVERGED):
            for entry in _entries(self._earlier):
                _delete(entry)
            self._earlier.rmdir()
        elif not is_whole or status == ERROR or not (self.config.exists() and self.checkpoint.exists()):
            self._put_back()


def _entries(folder: Path) -> list[Path]:
    """Return what lies in the directory of a run but for its lock, config.yaml last."""
    entries = [entry for entry in folder.iterdir() if entry.name != ".lock"]
    return sorted(entries, key=lambda entry: entry.name == "config.yaml")


def _require_result(result: Any) -> None:
    """Raise a ValueError, KeyError or TypeError unless this is the content of a ``result.json``."""
    if result["status"] not in (COMPLETED, DIVERGED, ERROR):
        raise KeyError("status")
    for key in TEXTS:
        if not isinstance(result[key], str):
            raise ValueError(f"{key}={shown(result[key])} is no name")
    result["seed"], result["steps"], result["evaluation"]["lengths"], result["evaluation"]["pe"]
    step = result.get("finished_step", 0)
    if not isinstance(step, int):
        raise ValueError(f"finished_step={shown(step)}")


def _delete(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def _refuse_links(*paths: Path) -> None:
    for path in paths:
        if path.is_symlink():
            raise UserError(f"{path} is a link, and no link to or inside a run is followed; delete it")


def run_directory(results_dir: str | Path, name: str) -> RunDirectory:
    """Return where the run of that name lies, or the same run under another label: seed and hash find it."""
    runs = Path(results_dir) / "runs"
    if not (runs / name).exists() and runs.is_dir():
        name = _names(runs, runs.stat().st_mtime_ns).get(seed_and_hash(name), name)
    return RunDirectory(runs / name)


def same_label(run: Path) -> list[RunDirectory]:
    """Return the other runs there that are called like this one but for the hash."""
    runs = run.parent
    names = _names(runs, runs.stat().st_mtime_ns).values() if runs.is_dir() else ()
    return [RunDirectory(runs / name) for name in names if name[:-8] == run.name[:-8] and name != run.name]


@lru_cache(maxsize=8)
def _names(runs: Path, changed_at: int) -> dict[str, str]:
    return {seed_and_hash(name): name for name in sorted(os.listdir(runs)) if name[0] != "."}


def seed_and_hash(name: str) -> str:
    """Return the part of a name that identifies a run, whatever its label."""
    return name[name.rfind("-s") :]


def refuse_among_runs(out: str | Path, results_dir: str | Path) -> None:
    """Refuse to write to a folder among the runs, where everything is taken for one."""
    runs, folder = (Path(results_dir) / "runs").resolve(), Path(out).resolve()
    if runs in (folder, *folder.parents):
        raise UserError(f"out={shown(out)} lies among the runs; allowed: any folder outside {runs}")


def output_folder(out: str | Path, results_dir: str | Path) -> Path:
    """Make the folder that a command writes to; inside ``results_dir`` no link is followed."""
    refuse_among_runs(out, results_dir)
    folder = Path(out)
    root = Path(results_dir) if folder.is_relative_to(results_dir) else folder
    try:
        return make_folder(folder, root)
    except OSError as error:
        raise UserError(f"out={folder}: cannot write there ({error.strerror})") from error
