"""The layout of ``results_dir``: a run's directory with its files, and the list of runs of each study."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pe_experiments.terminal.errors import InUse, UserError, disk_problem, one_line, shown
from pe_experiments.terminal.files import read_json, read_yaml, write_atomically

COMPLETED, DIVERGED, ERROR = "completed", "diverged", "error"
TEXTS = ("name", "label", "task", "model")  # of a result, shown as cells and titles
_HELD: dict[Path, int] = {}  # which file the lock of a directory is that this process has opened


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

    @property
    def name(self) -> str:
        return self.path.name

    def evaluation(self, evaluation_hash: str) -> RunDirectory:
        """Where another evaluation of this training lives; the same files, less those of training."""
        path = self.path / "evaluations" / evaluation_hash
        _refuse_links(path.parent, path)
        return RunDirectory(path)

    def evaluations(self) -> list[str]:
        _refuse_links(folder := self.path / "evaluations")
        return sorted(entry.name for entry in folder.glob("*") if entry.is_dir())

    def read_result(self) -> dict[str, Any] | None:
        """The result, or None where there is none yet."""
        _refuse_links(self.path)
        if not self.result.exists():
            return None
        try:
            result = read_json(self.result)
            if result["status"] not in (COMPLETED, DIVERGED, ERROR):
                raise KeyError("status")
            for key in TEXTS:
                if not isinstance(result[key], str):
                    raise ValueError(f"{key}={shown(result[key])} is no name")
            result["seed"], result["steps"], result["evaluation"]["lengths"], result["evaluation"]["pe"]
            if not isinstance(step := result.get("finished_step", 0), int):
                raise ValueError(f"finished_step={shown(step)}")
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
        """The saved configuration, with its ``derived`` and ``identity`` sections."""
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
        """Make the directory and hold it; gives whether it was made, or was there."""
        created = not self.path.exists()
        _refuse_links(self.path, *self.path.glob("*"), *self.checkpoint.parent.glob("*"))
        with ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(self.lock())
                _HELD[self.path] = self._lock_file.stat().st_ino
            except OSError as error:
                why = f"cannot write there ({error.strerror})"
                raise UserError(f"results_dir={self.path.parents[1]}: {why}") from error
            yield created

    @contextmanager
    def held(self, rerun: bool) -> Iterator[None]:
        """Hold it while it is trained: nothing half-written is left there, and nothing finished is lost.

        Under ``rerun`` an earlier result is moved aside, and comes back unless there is a new one.
        """
        with self.opened() as created:
            if not self.config.exists():
                self._clear()
            aside = self._set_aside() if rerun else None
            try:
                yield
                if aside and (self.read_result() or {})["status"] == ERROR:
                    self._put_back(aside)
            except (UserError, KeyboardInterrupt, OSError) as error:
                self.refuse_deleted()
                if isinstance(error, UserError) or not self.checkpoint.exists():  # nothing new to go on from
                    if created:
                        self.remove()
                    elif aside:
                        self._put_back(aside)
                if problem := disk_problem(error):
                    safe = "what is finished is safe, and the same command goes on from the last checkpoint"
                    raise UserError(f"results_dir={self.path.parents[1]}: {problem}; {safe}") from error
                raise
            finally:
                if aside:
                    shutil.rmtree(aside, ignore_errors=True)

    def refuse_deleted(self, *files: Path) -> None:
        """Refuse to go on where somebody has deleted these files, or the directory that is held."""
        locked = self._lock_file.exists()
        mine = locked and self._lock_file.stat().st_ino == _HELD[self.path]  # or made anew by another process
        if not (mine and all(path.exists() for path in files)):
            if not locked:
                self.remove()  # what was written since
            lost = "was deleted during the run, and its results are gone; repeat it to train again"
            raise UserError(f"{self.path} {lost}")

    def _clear(self) -> None:
        for entry in self.path.iterdir() if self.path.exists() else []:
            if entry.name != ".lock":
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def _set_aside(self) -> Path:
        aside = self.path.parent / f".{self.name}.aside"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for entry in self.path.iterdir():
            if entry.name != ".lock":
                entry.rename(aside / entry.name)
        return aside

    def _put_back(self, aside: Path) -> None:
        self._clear()
        for entry in aside.iterdir():
            entry.rename(self.path / entry.name)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _refuse_links(*paths: Path) -> None:
    for path in paths:
        if path.is_symlink():
            raise UserError(f"{path} is a link, and no link to or inside a run is followed; delete it")


def run_directory(results_dir: str | Path, name: str) -> RunDirectory:
    """Where the run of that name lives, or the same run under another label: seed and hash find it."""
    runs = Path(results_dir) / "runs"
    if not (runs / name).exists() and runs.is_dir():
        name = _names(runs, runs.stat().st_mtime_ns).get(seed_and_hash(name), name)
    return RunDirectory(runs / name)


def same_label(run: Path) -> list[RunDirectory]:
    """The other runs there that are called like this one but for the hash."""
    runs = run.parent
    names = _names(runs, runs.stat().st_mtime_ns).values() if runs.is_dir() else ()
    return [RunDirectory(runs / name) for name in names if name[:-8] == run.name[:-8] and name != run.name]


@lru_cache(maxsize=8)
def _names(runs: Path, changed_at: int) -> dict[str, str]:
    return {seed_and_hash(name): name for name in sorted(os.listdir(runs)) if name[0] != "."}


def seed_and_hash(name: str) -> str:
    """The part of a name that identifies a run, whatever its label."""
    return name[name.rfind("-s") :]


def refuse_among_runs(out: str | Path, results_dir: str | Path) -> None:
    """Refuse to write to a folder among the runs, where everything is taken for one."""
    runs, folder = (Path(results_dir) / "runs").resolve(), Path(out).resolve()
    if runs in (folder, *folder.parents):
        raise UserError(f"out={shown(out)} lies among the runs; allowed: any folder outside {runs}")


def list_in_study(results_dir: Path, study: str, *names: str) -> None:
    """Add runs to ``results_dir/<study>/manifest.json``; writers take turns."""
    manifest = results_dir / study / "manifest.json"
    if manifest.exists() and set(names) <= set(read_manifest(manifest)["runs"]):
        return  # also where nothing can be written any more
    manifest.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(manifest.with_name(".manifest.lock")):
        there = read_manifest(manifest) if manifest.exists() else {"runs": []}
        facts = {key: fact for key, fact in there.items() if key not in ("runs", "study")}
        write_manifest(results_dir, study, [*there["runs"], *names], **facts)


def write_manifest(results_dir: Path, study: str, names: list[str], **facts: Any) -> None:
    """Make these runs the ones ``results_dir/<study>/manifest.json`` lists."""
    manifest = results_dir / study / "manifest.json"
    manifest.parent.mkdir(parents=True, exist_ok=True)
    content = facts | {"study": study, "runs": sorted(set(names))}
    write_atomically(manifest, json.dumps(content, indent=2) + "\n")


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a study: ``runs``, their names; where settings were tuned, ``tuned`` and ``tuning``."""
    try:
        content = read_json(path)
        names = content["runs"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError("its runs are no names")
        for choice in content.get("tuning", []):
            choice["seed"], *texts = (
                choice[k] for k in ("seed", "encoding", "task", "model", "setting", "chosen")
            )
            kinds = all(isinstance(choice.get(key, {}), dict) for key in ("tried", "settings"))
            if not (kinds and all(isinstance(text, str) for text in texts)):
                raise TypeError("a setting was tuned for no encoding")
        return content
    except FileNotFoundError as error:
        studies = sorted(other.parent.name for other in path.parents[1].glob("*/manifest.json"))
        known = f"; studies there: {', '.join(studies)}" if studies else "; no study has been run there yet"
        raise UserError(f"study={path.parent.name}: {path} does not exist{known}") from error
    except (ValueError, KeyError, TypeError) as error:
        cure = "delete it and run the sweep again"
        raise UserError(f"{path} is damaged ({type(error).__name__}); {cure}") from error
