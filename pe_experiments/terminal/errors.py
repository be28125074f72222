"""Errors for users, one sentence that names the key, the value and what is allowed; checks of arguments."""

from __future__ import annotations

import difflib
import errno
import math
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

Number = TypeVar("Number", int, float)


class UserError(ValueError):
    """An invalid request, shown as its message without a traceback."""


class NotApplicable(UserError):
    """An invalid combination of valid parts, which a sweep lists and skips."""


class Diverged(ArithmeticError):
    """The loss is no longer a finite number."""

    def __init__(self, step: int):
        super().__init__(f"the loss became NaN or infinite at step {step}")
        self.step = step


class InUse(UserError):
    """A resource is locked by another process until that process ends."""


def disk_problem(error: BaseException) -> str | None:
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return os.strerror(error.errno)
    return None


_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EACCES, errno.EPERM)


def join_names(names: Sequence[str], conjunction: str = "and") -> str:
    """Return names as a list in a sentence, such as ``a, b and c``."""
    return f" {conjunction} ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def allowed(options: Iterable[str]) -> str:
    """Return the options as ``a, b or c``."""
    return join_names(list(options), "or") or "nothing"


def sentence(error: BaseException) -> str:
    """Return the message of an error: in full for a `UserError`, otherwise cut to two lines."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'} cannot be used: {error.strerror or error}"
    return one_line(f"{type(error).__name__}: {' '.join(str(error).splitlines()[:2])}")


LIBRARIES = (  # where code is that the user did not write: this package, Python and installed packages
    *(f"{path}{os.sep}" for path in (Path(__file__).parents[1], *map(
        sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))),
    "<frozen",
)  # fmt: skip
INSTALLED = {"site-packages", "dist-packages"}  # folders of installed packages


def is_library(file: str) -> bool:
    """Return whether the file of a module belongs to this package, Python or an installed package."""
    return file.startswith(LIBRARIES) or not INSTALLED.isdisjoint(Path(file).parts)


def error_place(error: BaseException) -> str:
    """Return where the user's code raised the error, as `` (mine.py:12, in bias)``, or ""."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if not is_library(frame.filename)]
    if not user_frames:
        return ""
    last = user_frames[-1]
    return f" ({Path(last.filename).name}:{last.lineno}, in {last.name})"


@contextmanager
def user_errors(where: str, failing: str = "cannot be built") -> Iterator[None]:
    """Convert exceptions in the block to a `UserError` that begins with ``where``, a key of a configuration.

    ``failing`` completes the sentence for other exceptions than a `ValueError`.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # SystemExit: raised by an imported script
        what = "" if isinstance(error, ValueError) else f" {failing}: {type(error).__name__}"
        raise UserError(f"{where}{what}: {error}{error_place(error)}") from error


def one_line(text: str) -> str:
    """Return a text in one printable line, with white space collapsed and long words cut."""
    words = (word if len(word) <= LONGEST_WORD else f"{word[:SHOWN]}..." for word in text.split())
    return printable(" ".join(words))


# Control characters, changes of text direction, invisible characters and surrogates.
_UNPRINTABLE = re.compile(
    r"[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return the text with unprintable characters escaped, except line ends and tabs."""
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def is_formula(value: object) -> bool:
    """Return whether a spreadsheet would take a text for a formula."""
    # Some spreadsheets skip white space before the sign.
    return isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@"))


SHOWN = 60  # maximum number of characters of a value in a message
LONGEST_WORD = 300  # characters
LISTED = 12  # maximum number of choices in a message


def shown(value: object) -> str:
    """Return a value as it is written in an override, cut if it is long."""
    text = str(value)
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = text.lower()
    text = one_line(text[: 2 * SHOWN])
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def few(names: Sequence[str]) -> str:
    """Return the first three names and the number of the others, as ``a, b, c and 2 more``."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def nearest(word: str, options: Iterable[str]) -> str:
    """Return the end of an error message: `` Did you mean a?`` if an option is similar, then the options."""
    options = list(options)
    similar = [word] if word in options else difflib.get_close_matches(word, options, n=2, cutoff=0.55)
    if not similar and len(word) > 2:
        similar = [option for option in options if option.startswith(word[:3]) or word in option][:2]
    hint = f" Did you mean {allowed(similar)}?" if similar else ""
    if len(options) > LISTED:
        options = [*options[:LISTED], f"one of {len(options) - LISTED} more"]
    return f"{hint} Allowed: {allowed(options)}."


# Each of these returns an argument of a class, or raises a ValueError that states what is allowed.


def at_least(minimum: float, name: str, value: Number) -> Number:
    """Return a finite value that is at least ``minimum``."""
    if not minimum <= value < math.inf:
        finite = "a finite number of " if isinstance(value, float) else ""
        raise ValueError(f"{name}={value} must be {finite}at least {minimum}")
    return value


def above(minimum: float, name: str, value: float) -> float:
    """Return a finite value that is greater than ``minimum``."""
    if not minimum < value < math.inf:
        raise ValueError(f"{name}={value} must be a finite number greater than {minimum}")
    return value


def one_of(choices: Any, name: str, value: str) -> Any:
    """Return a value that is one of ``choices``, a ``Literal`` type."""
    if value not in get_args(choices):
        raise ValueError(f"{name}={value} is not one of the choices: {', '.join(get_args(choices))}")
    return value
