"""Language modelling on the bytes of the user's files or of Python's standard library."""

import copy
import glob
import hashlib
import os
import sysconfig
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, Split, Task

TOLERANCE = 0.025  # share of the corpus by which a cut may move to reach the end of a file
FEWEST_BYTES = 50_000  # so that every split contains windows of 1,250 bytes
CHECKED_BYTES = 8192  # at the start of a file; a zero byte among them means that it is not text
MAPPED_FROM = 1 << 20  # bytes; smaller files are read, because the number of open files is limited
MOST_ENTRIES = 200_000  # most files and folders to search for a corpus
SUFFIXES = (".py", ".rst", ".txt")  # of the standard library's sources and documents
EXCLUDED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


class File(NamedTuple):
    """A file of a corpus: path, size in bytes and time of its last change in ns."""

    path: str
    size: int
    changed_at: int


class Text(Task):
    """Predict the next byte of a text: i m p o r t -> m p o r t, and after the last byte nothing is scored.

    >>> Text().solve(torch.tensor([[105, 109, 112]])).tolist()
    [[109, 112, -100]]

    Files are joined in the order of a hash of their paths (relative to the folder they share); the first 90 %
    are for training, 5 % for validation and 5 % for evaluation. The splits are cut between files; only a file
    larger than a twentieth of the corpus may itself be cut. Examples are windows at random positions and may
    span several files. The corpus belongs to a run's identity: with another Python, ``path=null`` is another
    corpus. Protocol: bytes, trained at 256, evaluated to 8x, after ``train_length_extrapolate.py`` of
    x-transformers and Press et al. 2022, arXiv:2108.12409.

    Args:
        path: a file, a folder, or a glob such as ``books/**/*.txt``; None: the sources and documents of the
            standard library of the running Python, without its tests.
    """

    vocab_size = 256
    data_arguments = ("path",)
    shortest = 2
    formats = ("aligned",)
    decoder_only = "an encoder reads the symbols it should predict"
    exact = False
    # The reason why examples need not contain every symbol that `chance` counts.
    chance_unchecked = "how often a symbol occurs follows from the data"

    def __init__(self, path: str | None = None):
        files = _library_files() if path is None else _user_files(path)
        root = os.path.commonpath([os.path.dirname(os.path.abspath(file.path)) for file in files])
        names = {file: Path(os.path.relpath(file.path, root)).as_posix() for file in files}
        self.files = tuple(sorted(files, key=lambda file: hashlib.sha256(names[file].encode()).digest()))
        self.names = [names[file] for file in self.files]
        self.data_files = tuple(file.path for file in self.files)
        self.ends = list(accumulate(file.size for file in self.files))
        if self.ends[-1] < FEWEST_BYTES:
            hint = "; files whose names begin with a dot are not read" if os.path.isdir(str(path)) else ""
            raise ValueError(
                f"path={path}: {self.ends[-1]} bytes are too short a text; at least {FEWEST_BYTES} are needed"
                f"{hint}"
            )
        training_end = self._cut(0.9)
        validation_end = self._cut(0.95)
        if training_end == validation_end:  # the same end of a file is near both
            validation_end = round(0.95 * self.ends[-1])
        self.bounds: dict[Split, tuple[int, int]] = {
            "training": (0, training_end),
            "validation": (training_end, validation_end),
            "evaluation": (validation_end, self.ends[-1]),
        }
        self.longest = min(stop - start for start, stop in self.bounds.values())
        self.split: Split = "training"

    def _cut(self, share: float) -> int:
        """Return the byte at this share of the corpus, or the nearest end of a file within `TOLERANCE`."""
        target = share * self.ends[-1]
        nearest = min(self.ends, key=lambda end: abs(end - target))
        return nearest if abs(nearest - target) <= TOLERANCE * self.ends[-1] else round(target)

    def solve_row(self, row: list[int]) -> list[int]:
        return [*row[1:], IGNORE]

    def symbol_name(self, symbol: int) -> str:
        return chr(symbol) if chr(symbol).isprintable() else f"\\x{symbol:02x}"

    def for_split(self, split: Split) -> Self:
        task = copy.copy(self)
        task.split = split
        return task

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        start, stop = self.bounds[self.split]
        starts_B = torch.randint(start, stop - length + 1, (batch_size,), generator=generator)
        rows = [self.read(first, length) for first in starts_B.tolist()]
        inputs_BN = torch.from_numpy(np.stack(rows)).long()
        targets_BN = inputs_BN.roll(-1, dims=1)
        targets_BN[:, -1] = IGNORE
        return inputs_BN, targets_BN

    def read(self, start: int, count: int) -> np.ndarray:
        """Return ``count`` bytes of the joined files from byte ``start`` on."""
        contents = _contents(self.files)
        pieces = []
        index = int(np.searchsorted(self.ends, start, side="right"))
        while count:
            offset = start - (self.ends[index] - self.files[index].size)
            pieces.append(contents[index][offset : offset + count])
            start += len(pieces[-1])
            count -= len(pieces[-1])
            index += 1
        return np.concatenate(pieces)

    def listing(self) -> list[dict[str, str | int]]:
        """Return path, size in bytes and splits of each file in order."""
        rows: list[dict[str, str | int]] = []
        for name, file, end in zip(self.names, self.files, self.ends, strict=True):
            start = end - file.size
            splits = []
            for split, (split_start, split_end) in self.bounds.items():
                if max(split_start, start) < min(split_end, end):
                    splits.append(split)
            rows.append({"path": name, "bytes": file.size, "split": " ".join(splits)})
        return rows


@cache
def _library_files() -> Sequence[File]:
    """Return the sources and documents of the standard library, without its tests."""
    paths = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = sorted(set(folders) - EXCLUDED_FOLDERS)
        paths += [os.path.join(folder, name) for name in names if name.endswith(SUFFIXES)]
    return _nonempty_files(paths)


def _user_files(path: str) -> Sequence[File]:
    """Return the files that ``task.path`` names, except hidden files in a folder."""
    _refuse_too_many_entries(path)
    pattern = os.path.join(glob.escape(path), "**") if os.path.isdir(path) else path
    matches = [path] if os.path.isfile(path) else glob.glob(pattern, recursive=True)
    paths = sorted(filter(os.path.isfile, matches))
    if not paths:
        raise ValueError(f"path={path}: there is no such file, or no file in such a folder")
    files = _nonempty_files(paths)
    if not files:
        raise ValueError(f"path={path}: {'it is' if len(paths) == 1 else 'all its files are'} empty")
    for file in files:
        with open(file.path, "rb") as content:
            if b"\0" in content.read(CHECKED_BYTES):
                raise ValueError(
                    f"path={path}: {file.path} holds zero bytes, so it is no text in UTF-8; a glob as "
                    f"'texts/*.txt' leaves such files out"
                )
    return files


def _refuse_too_many_entries(path: str) -> None:
    """Raise a ValueError if more than `MOST_ENTRIES` files and folders would have to be searched."""
    root = Path(path).absolute()
    depth = len(root.parts) - 1
    count = 0
    recursive = os.path.isdir(path) or "**" in path
    while not os.path.isdir(path) and glob.has_magic(str(root)):
        root = root.parent
    for folder, folders, names in os.walk(root, followlinks=True):
        count += len(folders) + len(names)
        if count > MOST_ENTRIES:
            raise ValueError(
                f"path={path}: there are more than {MOST_ENTRIES:,} files and folders; name a smaller folder"
            )
        if not recursive and len(Path(folder).parts) >= depth:
            folders.clear()


def _nonempty_files(paths: Sequence[str]) -> Sequence[File]:
    files = []
    for path in paths:
        stat = os.stat(path)
        if stat.st_size:
            files.append(File(path, stat.st_size, stat.st_mtime_ns))
    return files


@lru_cache(maxsize=4)
def _contents(files: tuple[File, ...]) -> list[np.ndarray]:
    """Return the bytes of each file; large files are mapped into memory."""
    return [
        np.memmap(file.path, np.uint8, "r") if file.size >= MAPPED_FROM else np.fromfile(file.path, np.uint8)
        for file in files
    ]
