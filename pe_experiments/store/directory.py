"""Manage the directory of a run: its files, its lock, and the sibling directory in which a rerun trains."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from filelock import AcquireReturnProxy, FileLock, Timeout
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pe_experiments.configuration.schema import MAX_COUNT, validated
from pe_experiments.store.names import file_digest
from pe_experiments.terminal.errors import (
    InUse,
    UserError,
    allowed,
    disk_problem,
    is_formula,
    one_line,
    shown,
)
from pe_experiments.terminal.files import (
    inside,
    make_folder,
    read_json,
    read_yaml,
    remove_folder,
    write_atomically,
)

COMPLETED, DIVERGED, ERROR = "completed", "diverged", "error"  # values of ``status`` in ``result.json``


def _fits_a_table(text: str) -> str:
    """Refuse a text that a spreadsheet or a terminal would not show as it is."""
    if is_formula(text):
        raise ValueError(f"{shown(text)} would be a formula in a spreadsheet")
    if not text.isprintable():
        raise ValueError(f"{shown(text)} has characters that cannot be printed")
    return text


def _is_file_name(name: str) -> str:
    """Refuse a text that is no name of a file in a folder."""
    if Path(name).name != name or not name.isprintable() or len(name) > 255:
        raise ValueError(f"{shown(name)} is not the name of a file")
    return name


TableText = Annotated[str, AfterValidator(_fits_a_table)]
FileName = Annotated[str, AfterValidator(_is_file_name)]


class Received(BaseModel):
    """Entries of a file that a stranger may have written, which may have more than these."""

    model_config = ConfigDict(strict=True)


class _Evaluated(Received):
    lengths: list[Any]
    pe: dict[str, Any]


class _Result(Received):
    """The entries of ``result.json`` on which the package relies."""

    status: Literal["completed", "diverged", "error"]
    name: str
    label: TableText
    task: TableText
    model: TableText
    seed: int
    steps: int
    evaluation: _Evaluated
    finished_step: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    checkpoint: str = ""  # digest
    run: str = ""  # hash of the identity
    files: dict[FileName, Any] = Field(default_factory=dict)  # digests by name
    parameters: int | None = None
    encoding_parameters: int | None = None
    validation_loss: float = math.nan


class _Environment(Received):
    pe_experiments: TableText = ""
    commit: TableText | None = None
    device: TableText = ""
    libraries: dict[str, TableText] = Field(default_factory=dict)
    command: list[str] = Field(default_factory=list)
    earlier: list[dict[str, Any]] = Field(default_factory=list)


class State(StrEnum):
    """How far a requested run is."""

    NEW = "new"
    IN_PROGRESS = "in progress"  # another process has the lock
    INTERRUPTED = "interrupted"  # there is a checkpoint
    FAILED = "failed"  # an exception; tried again by the next command
    DIVERGED = "diverged"
    FINISHED = "finished"
    TO_EVALUATE = "to evaluate"  # trained, but not yet evaluated as requested
    PUBLISHED = "published"  # its results are in the published study, so a sweep need not repeat it
    NOT_APPLICABLE = "not applicable"  # valid parts that do not fit together, which a sweep skips


TRAINED = (State.FINISHED, State.TO_EVALUATE, State.DIVERGED)


class _File:
    """The path of a file in the directory of a run; a link out of the directory is refused."""

    def __init__(self, *names: str):
        self.names = names

    def __get__(self, run: RunDirectory, _: type) -> Path:
        return inside(run.path, *self.names)


class RunDirectory:
    """The directory ``results_dir/runs/<name>`` of a run, which may not exist yet, and its files.

    It may come from a stranger, so no link out of it is followed.
    """

    config = _File("config.yaml")
    environment = _File("environment.json")
    metrics = _File("metrics.csv")
    curve = _File("extrapolation.csv")
    by_step = _File("by_step.csv")  # the curve during the training (``evaluation.every``)
    figure = _File("extrapolation.png")
    checkpoint = _File("checkpoints", "last.ckpt")
    result = _File("result.json")
    error_log = _File("error.log")
    _lock_file = _File(".lock")

    def __init__(self, path: Path):
        self.path = path
        self.name = path.name

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    @property
    def results_dir(self) -> Path:
        return self.path.absolute().parent.parent

    @property
    def rerun(self) -> RunDirectory:
        """The sibling directory in which a rerun trains until it has a result."""
        return RunDirectory(self.path.with_name(f".{self.name}.rerun"))

    def evaluation(self, evaluation_hash: str) -> RunDirectory:
        """Return the directory of another evaluation, which has no files of training."""
        return RunDirectory(inside(self.path, "evaluations", evaluation_hash))

    def table(self, name: str) -> Path:
        """Return the path of a CSV of a finished run, if it is that which the run wrote.

        Without a digest in the result it is not compared.
        """
        path = inside(self.path, name)
        digests = (self.read_result() or {}).get("files")
        if digests is not None and not (path.is_file() and digests.get(name) == file_digest(path)):
            raise UserError(f"{path} is not the file that its result.json names; add rerun=true")
        return path

    def evaluations(self) -> list[str]:
        """Return the hashes of the other evaluations, which are the names of their directories."""
        return sorted(entry.name for entry in self.path.glob("evaluations/*") if entry.is_dir())

    def state(self) -> State:
        """Return how far the run is, without regard to how it was evaluated and whether it is in use."""
        result = self.read_result()
        if result is None or (result["status"] == COMPLETED and not self.curve.exists()):
            return State.INTERRUPTED if self.checkpoint.exists() else State.NEW
        if result["status"] == COMPLETED:
            for name in (self.curve.name, *result.get("files", ())):
                if inside(self.path, name).exists():  # a large table may be deleted
                    self.table(name)
        return {COMPLETED: State.FINISHED, DIVERGED: State.DIVERGED, ERROR: State.FAILED}[result["status"]]

    def read_result(self) -> dict[str, Any] | None:
        """Return the content of ``result.json``, or None if it does not exist yet.

        Raises:
            UserError: the file is damaged.
        """
        if not self.result.exists():
            return None
        try:
            result = read_json(self.result)
            validated(_Result, result)
            return result
        except FileNotFoundError:  # replaced by another process in between
            return None
        except ValueError as error:
            what = f"{self.result} is damaged ({one_line(str(error))})"
            cure = "delete it to go on from the checkpoint, or add rerun=true to start this run again"
            raise UserError(f"{what}; {cure}") from error

    def write_result(self, result: dict[str, Any]) -> None:
        """Write ``result.json``, which marks the run as ended."""
        self.refuse_deleted()
        write_atomically(self.result, json.dumps(result, indent=2) + "\n")

    def read_config(self) -> dict[str, Any]:
        """Return the saved configuration, with its ``derived`` and ``identity`` sections."""
        try:
            saved = read_yaml(self.config)
            if not isinstance(saved, dict) or not isinstance(saved.get("identity"), dict):
                raise ValueError("section 'identity' is missing")
            if "${" in str(saved):
                raise ValueError("it contains ${, but saved configurations are not interpolated")
        except FileNotFoundError as error:
            message = "there is no run (config.yaml is missing); finished runs are in results/runs"
            raise UserError(f"run={self.path}: {message}") from error
        except Exception as error:
            why = one_line(str(error)) if isinstance(error, ValueError) else type(error).__name__
            raise UserError(f"{self.path} is not a valid run directory: config.yaml: {why}") from error
        return {str(key): value for key, value in saved.items()}

    def read_environment(self) -> dict[str, Any]:
        """Return the content of ``environment.json``; empty if it is missing or damaged."""
        try:
            environment = read_json(self.environment)
            validated(_Environment, environment)
            return environment
        except (OSError, ValueError):
            return {}

    def lock(self, wait: float = 0.2) -> AcquireReturnProxy:
        """Lock the directory for this process until the end of a ``with`` block or of the process.

        ``wait`` is in seconds. The default is longer than `in_use` of another process holds the lock; -1
        waits as long as it takes. Where flock is not available, filelock uses a file with host and pid.
        """
        try:
            return FileLock(self._lock_file, timeout=wait, poll_interval=0.01).acquire()
        except Timeout as error:
            raise InUse(f"{self.path} is in use by another process; wait for it or stop it") from error

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
    def locked(self, wait: float = 0.2) -> Iterator[None]:
        """Create the directory if necessary and lock it; after an error, delete it if nothing can resume.

        Raises:
            UserError: the directory cannot be written, or the disk is full.
        """
        self.complete_rerun()
        folders = [self.path, self.path.parent] if self.path.parent.name == "evaluations" else [self.path]
        for folder in folders:
            if folder.is_symlink():
                raise link_error(folder)
        try:
            lock = None
            while lock is None:
                created = not self.path.exists()
                self.path.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # removed by another process, which failed
                    lock = self.lock(wait)
            with lock:
                for temporary_file in self.path.glob(".*.tmp"):  # of a killed process
                    temporary_file.unlink()
                try:
                    yield
                except BaseException:
                    if created and not (self.checkpoint.exists() or self.result.exists()):
                        remove_folder(self.path)
                    raise
        except OSError as error:
            if problem := disk_problem(error):
                safe = "finished results are safe, and the same command resumes from the last checkpoint"
                raise UserError(f"{self.path.parent}: cannot write there ({problem}); {safe}") from error
            raise

    def replace_by(self, finished: RunDirectory) -> None:
        """Put a finished rerun in the place of this run; killed in between, `complete_rerun` ends it."""
        earlier = self.path.with_name(f".{self.name}.earlier")
        remove_folder(earlier)
        if self.path.exists():
            self.path.rename(earlier)
        finished.path.rename(self.path)
        remove_folder(earlier)

    def complete_rerun(self) -> None:
        """Put a rerun in its place if the process that finished it was killed before.

        A folder of this name that is not a finished run with the hash of this one is left alone.
        """
        rerun = self.rerun
        if rerun.path.is_symlink() or not rerun.path.exists():
            return
        with suppress(UserError), rerun.lock():
            result = rerun.read_result() or {}
            hashes = {result.get("run"), rerun.read_config()["identity"].get("hash")}
            is_of_this_run = len(hashes) == 1 and str(hashes.pop()).startswith(self.name.rpartition("-")[2])
            if is_of_this_run and rerun.state() in TRAINED:
                self.replace_by(rerun)

    def refuse_deleted(self) -> None:
        """Raise an error if the configuration, which a run writes first, is not there any more."""
        if not self.config.exists():
            lost = "was deleted or moved during the run; repeat the command to train it here"
            raise UserError(f"{self.path} {lost}")


def link_error(folder: Path) -> UserError:
    """Return the error of a run whose folder is a link, which may lead to other files."""
    return UserError(f"{folder} is a link, and no run is written through one; delete it")


def validation_loss(result: Mapping[str, Any]) -> float:
    """Return the last loss on fresh examples of the training lengths from the content of ``result.json``.

    It is infinite if the run diverged and NaN if it is unknown. It is measured before a callback such as
    weight averaging changes the final weights.
    """
    return math.inf if result["status"] == DIVERGED else float(result.get("validation_loss", math.nan))


def run_directory(results_dir: str | Path, name: str) -> RunDirectory:
    """Return the directory of a run, which may exist under another label with the same seed and hash."""
    runs = Path(results_dir) / "runs"
    if not (runs / name).exists() and runs.is_dir():
        name = _names_by_hash(runs, runs.stat().st_mtime_ns).get(_seed_and_hash(name), name)
    return RunDirectory(runs / name)


@lru_cache(maxsize=8)
def _names_by_hash(runs: Path, changed_at: int) -> dict[str, str]:
    """Return the names of all runs by seed and hash, cached until the folder changes."""
    return {_seed_and_hash(name): name for name in sorted(os.listdir(runs)) if name[0] != "."}


def _seed_and_hash(name: str) -> str:
    return name[name.rfind("-s") :]


def find_run(key: str, text: str, folders: Iterable[str | Path]) -> RunDirectory:
    """Return the run of this path or name in the first folder that has it; ``key`` is the option."""
    paths = dict.fromkeys(Path(folder, text) for folder in folders)
    runs = [RunDirectory(path) for path in paths]
    for run in runs:
        if run.config.exists():
            return run
    missing = allowed(str(run.config) for run in runs)
    raise UserError(f"{key}={shown(text)}: there is no run; looked for {missing}")


def output_folder(out: str | Path, results_dir: str | Path) -> Path:
    """Create and return the output folder of a command, which is not among the runs."""
    refuse_among_runs(out, results_dir)
    try:
        return make_folder(Path(out))
    except UserError as error:
        raise UserError(f"out={error}") from error  # which begins with the folder


def refuse_among_runs(out: str | Path, results_dir: str | Path) -> None:
    """Raise an error if an output folder is in the folder of runs, where every folder counts as a run."""
    runs = (Path(results_dir) / "runs").resolve()
    if Path(out).resolve().is_relative_to(runs):
        raise UserError(f"out={shown(out)} is among the runs; allowed: any folder outside {runs}")
