"""Language modelling on the bytes or tokens of the user's files or of Python's standard library."""

import copy
import glob
import hashlib
import os
import sysconfig
from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from itertools import accumulate, islice
from pathlib import Path
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, Split, Task
from pe_experiments.tasks.byte_pairs import BYTES, MOST_TOKENS, BytePairs
from pe_experiments.tasks.saved_datasets import data_files, dataset_bytes, saved_splits
from pe_experiments.terminal.errors import UserError, one_of

TOLERANCE = 0.025  # share of the corpus by which a cut may move to reach the end of a file
FEWEST_BYTES = 50_000  # so that every split contains windows of 1,250 bytes
CHECKED_BYTES = 8192  # at the start of a file; a zero byte among them means that it is not text
MOST_IN_MEMORY = 1 << 20  # bytes; of larger files only windows are read
MOST_ENTRIES = 200_000  # most files and folders to search for a corpus
DATASET_SPLITS = ("train", "validation", "test")  # of a saved dataset, used for the three splits
SUFFIXES = (".py", ".rst", ".txt")  # of the standard library's sources and documents
EXCLUDED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}

Tokenizer = Literal["bpe"]
TEXT_COLUMN = "text"


class File(NamedTuple):
    """A file of a corpus: path, size in bytes and time of its last change in ns."""

    path: str
    size: int
    changed_at: int
    column: str | None = None  # of texts, if the path is a folder that `datasets` has saved


Contents = tuple[list[np.ndarray | None], np.ndarray]  # bytes and end of each file; None for a large file


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

    With ``tokenizer=bpe`` the symbols are byte pairs instead of bytes, and lengths count these tokens. The
    tokenizer is trained on the training split. Losses are divided by the bytes that the tokens stand for, so
    that they can be compared with those of other tokenizers.

    Args:
        path: a file, a folder, a glob such as ``books/**/*.txt``, or a folder that the library ``datasets``
            has saved, whose splits are used if they are ``train``, ``validation`` and ``test``; None: the
            sources and documents of the standard library of the running Python, without its tests.
        tokenizer: ``bpe``, see `BytePairs`; None: bytes.
        vocab_size: number of tokens, 256 to 65,536; 256 with bytes.
        column: the column of a saved dataset.
    """

    vocab_size = BYTES
    data_arguments = ("path",)
    shortest = 2
    formats = ("aligned",)
    decoder_only = "an encoder reads the symbols it should predict"
    exact = False
    # The reason why examples need not contain every symbol that `chance` counts.
    chance_unchecked = "how often a symbol occurs follows from the data"

    def __init__(
        self,
        path: str | None = None,
        tokenizer: Tokenizer | None = None,
        vocab_size: int = BYTES,
        column: str = TEXT_COLUMN,
    ):
        if tokenizer is None and vocab_size != BYTES:
            raise ValueError(f"vocab_size={vocab_size}: bytes are {BYTES} symbols; add tokenizer=bpe")
        if tokenizer is not None:
            one_of(Tokenizer, "tokenizer", tokenizer)
            if not BYTES <= vocab_size <= MOST_TOKENS:
                raise ValueError(f"vocab_size={vocab_size}: expected {BYTES} to {MOST_TOKENS}")
        splits = saved_splits(path) if path else []
        if column != TEXT_COLUMN and not splits:
            raise ValueError(f"column={column}: path={path} is not a folder saved by the library datasets")
        if splits:
            files: Sequence[File] = [_dataset_file(folder, column) for folder in splits]
        else:
            files = _library_files() if path is None else _user_files(path)
        root = os.path.commonpath([os.path.dirname(os.path.abspath(file.path)) for file in files])
        names = {file: Path(os.path.relpath(file.path, root)).as_posix() for file in files}
        has_splits = sorted(names.values()) == sorted(DATASET_SPLITS)
        if has_splits:
            self.files = tuple(sorted(files, key=lambda file: DATASET_SPLITS.index(names[file])))
        else:
            self.files = tuple(sorted(files, key=lambda file: hashlib.sha256(names[file].encode()).digest()))
        self.names = [names[file] for file in self.files]
        self.data_files = tuple(path for folder in splits for path in data_files(folder))
        if not splits:
            self.data_files = tuple(file.path for file in self.files)
        self.ends = list(accumulate(file.size for file in self.files))
        if self.ends[-1] < FEWEST_BYTES:
            raise ValueError(
                f"path={path}: {self.ends[-1]} bytes are too short a text; at least {FEWEST_BYTES} are needed"
            )
        training_end, validation_end = self.ends[:2] if has_splits else (self._cut(0.9), self._cut(0.95))
        if training_end == validation_end:  # the same end of a file is near both
            validation_end = round(0.95 * self.ends[-1])
        if tokenizer:  # cut before a character, which may have several bytes in UTF-8
            training_end, validation_end = map(self._character_start, (training_end, validation_end))
        self.bounds: dict[Split, tuple[int, int]] = {
            "training": (0, training_end),
            "validation": (training_end, validation_end),
            "evaluation": (validation_end, self.ends[-1]),
        }
        self.byte_pairs: BytePairs | None = None
        if tokenizer:
            self.vocab_size = vocab_size
            self.byte_pairs = _byte_pairs(self.files, training_end, vocab_size)
            self.vocabulary = self.byte_pairs.digest
            self.longest = min(len(self._tokens(split)) for split in ("validation", "evaluation"))
        else:
            self.longest = min(stop - start for start, stop in self.bounds.values())
        self.split: Split = "training"

    def _cut(self, share: float) -> int:
        """Return the byte at this share of the corpus, or the nearest end of a file within `TOLERANCE`."""
        target = share * self.ends[-1]
        nearest = min(self.ends, key=lambda end: abs(end - target))
        return nearest if abs(nearest - target) <= TOLERANCE * self.ends[-1] else round(target)

    def _character_start(self, cut: int) -> int:
        while cut < self.ends[-1] and 0x80 <= self.read(cut, 1)[0] < 0xC0:
            cut += 1
        return cut

    def _tokens(self, split: Split) -> np.ndarray:
        return _encoded(self.files, self.bounds["training"][1], self.vocab_size, self.bounds[split])

    def sizes(self, symbols: Tensor) -> Tensor:
        return self.byte_pairs.sizes_V[symbols] if self.byte_pairs else super().sizes(symbols)

    def solve_row(self, row: list[int]) -> list[int]:
        return [*row[1:], IGNORE]

    def symbol_name(self, symbol: int) -> str:
        if self.byte_pairs:
            return self.byte_pairs.text(symbol)
        return chr(symbol) if chr(symbol).isprintable() else f"\\x{symbol:02x}"

    def for_split(self, split: Split) -> Self:
        task = copy.copy(self)
        task.split = split
        return task

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if self.byte_pairs:
            tokens = self._tokens(self.split)
            starts_B = torch.randint(len(tokens) - length + 1, (batch_size,), generator=generator)
            rows = [tokens[start : start + length] for start in starts_B.tolist()]
        else:
            first, stop = self.bounds[self.split]
            starts_B = torch.randint(first, stop - length + 1, (batch_size,), generator=generator)
            rows = [self.read(start, length) for start in starts_B.tolist()]
        inputs_BN = torch.from_numpy(np.stack(rows).astype(np.int64))
        targets_BN = inputs_BN.roll(-1, dims=1)
        targets_BN[:, -1] = IGNORE
        return inputs_BN, targets_BN

    def read(self, start: int, count: int) -> np.ndarray:
        """Return ``count`` bytes of the joined files from byte ``start`` on."""
        return _read_joined(self.files, self._joined, start, count)

    @cached_property  # with thousands of files their look-up takes longer than a read
    def _joined(self) -> Contents:
        return _contents(self.files)

    def listing(self) -> list[dict[str, str | int]]:
        """Return path, size in bytes and splits of each file in order."""
        rows: list[dict[str, str | int]] = []
        for name, file, end in zip(self.names, self.files, self.ends, strict=True):
            start = end - file.size
            splits = [split for split, (first, stop) in self.bounds.items() if first < end and start < stop]
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
    pattern = glob.escape(path) if os.path.exists(path) else path
    if os.path.isdir(path):
        pattern = os.path.join(pattern, "**")
    matches = list(islice(glob.iglob(pattern, recursive=True), MOST_ENTRIES + 1))
    if len(matches) > MOST_ENTRIES:
        raise ValueError(
            f"path={path}: there are more than {MOST_ENTRIES:,} files and folders; name a smaller folder"
        )
    paths = sorted(filter(os.path.isfile, matches))
    if not paths:
        raise ValueError(f"path={path}: there is no such file, or no file in such a folder")
    files = _nonempty_files(paths)
    if not files:
        raise ValueError(f"path={path}: there is no byte in it")
    for file in files:
        with open(file.path, "rb") as content:
            if b"\0" in content.read(CHECKED_BYTES):
                raise ValueError(
                    f"path={path}: {file.path} holds zero bytes, so it is no text in UTF-8; a glob as "
                    f"'texts/*.txt' leaves such files out"
                )
    return files


def _nonempty_files(paths: Sequence[str]) -> Sequence[File]:
    files = [File(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
    return [file for file in files if file.size]


@lru_cache(maxsize=4)
def _contents(files: tuple[File, ...]) -> Contents:
    """Return the bytes of each file, None for a large one, and where each file ends in the joined text."""
    contents: list[np.ndarray | None] = []
    for file in files:
        if file.column is not None:
            contents.append(dataset_bytes(file.path, file.column, file.changed_at))
        else:
            contents.append(_read_file(file, 0, file.size) if file.size < MOST_IN_MEMORY else None)
    return contents, np.cumsum([file.size for file in files])


def _read_joined(files: tuple[File, ...], joined: Contents, start: int, count: int) -> np.ndarray:
    contents, ends = joined
    pieces = []
    index = int(np.searchsorted(ends, start, side="right"))
    while count:
        offset = start - int(ends[index] - files[index].size)
        content = contents[index]
        if content is None:
            pieces.append(_read_file(files[index], offset, count))
        else:
            pieces.append(content[offset : offset + count])
        start += len(pieces[-1])
        count -= len(pieces[-1])
        index += 1
    return np.concatenate(pieces)


def _read_file(file: File, offset: int, count: int) -> np.ndarray:
    """Return at most ``count`` bytes of a file.

    Raises:
        UserError: the file has changed, so that a run would be trained on a mixture.
    """
    problem = f"{file.path} was changed during the run, and its text is part of what a run is"
    cure = "put the earlier text back to resume this run, or repeat the command for a run on the new text"
    try:
        with open(file.path, "rb") as content:
            content.seek(offset)
            piece = np.frombuffer(content.read(count), np.uint8)
            status = os.fstat(content.fileno())
    except FileNotFoundError as error:
        raise UserError(f"{problem}; {cure}") from error
    if (status.st_size, status.st_mtime_ns) != (file.size, file.changed_at):
        raise UserError(f"{problem}; {cure}")
    return piece


@lru_cache(maxsize=4)
def _byte_pairs(files: tuple[File, ...], training_end: int, vocab_size: int) -> BytePairs:
    return BytePairs(_read_joined(files, _contents(files), 0, training_end), vocab_size)


@lru_cache(maxsize=12)
def _encoded(
    files: tuple[File, ...], training_end: int, vocab_size: int, bounds: tuple[int, int]
) -> np.ndarray:
    start, stop = bounds
    return _byte_pairs(files, training_end, vocab_size).encode(
        _read_joined(files, _contents(files), start, stop - start)
    )


def _dataset_file(folder: Path, column: str) -> File:
    """Return a saved dataset as a file of a corpus."""
    changed_at = max((path.stat().st_mtime_ns for path in data_files(folder)), default=0)
    size = len(dataset_bytes(str(folder), column, changed_at))
    return File(str(folder), size, changed_at, column)
