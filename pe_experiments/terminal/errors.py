"""Errors for users: one sentence that names the key, the value and what is allowed."""

from __future__ import annotations

import difflib
import errno
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path


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
    """Return the problem with the disk if the error has one: full, read-only or over quota."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(error, OSError) and number in _OF_THE_DISK else None


_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EACCES, errno.EPERM)


def allowed(options: Iterable[str]) -> str:
    """Return the options as ``a, b or c``."""
    words = list(options)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}" if words else "nothing"


def sentence(error: BaseException) -> str:
    """Return the message of an error: a `UserError` in full, others cut to two lines."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'} cannot be used: {error.strerror or error}"
    return one_line(f"{type(error).__name__}: {' '.join(str(error).splitlines()[:2])}")


LIBRARIES = (  # code that is not the user's, besides this package
    str(Path(__file__).parents[1]),
    *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    "<frozen",
)


def error_place(error: BaseException) -> str:
    """Return the place in the user's code that raised it, as `` (mine.py:12, in bias)``, or ""."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    if not outside:
        return ""
    last = outside[-1]
    return f" ({Path(last.filename).name}:{last.lineno}, in {last.name})"


def one_line(text: str) -> str:
    """Return printable text in one line, with white space collapsed and long words cut."""
    words = (word if len(word) <= LONGEST_WORD else f"{word[:SHOWN]}..." for word in text.split())
    return printable(" ".join(words))


# Control characters, changes of direction, invisible characters and surrogates.
_OBEYED = re.compile(
    r"[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return the text with control characters escaped, except line ends and tabs."""
    return _OBEYED.sub(lambda match: ascii(match[0])[1:-1], text)


SHOWN = 60  # most characters of a value in a message
LONGEST_WORD = 300
LISTED = 12  # most choices in a message


def shown(value: object) -> str:
    """Return a value as it would be typed, cut if it is long."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    text = one_line(text[: 2 * SHOWN])
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def few(names: Sequence[str]) -> str:
    """Return the first three names and the number of further ones."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# Names of options and choices in other projects.
ALSO_CALLED = {"theta": "base", "rope_theta": "base", "lr": "learning_rate", "hidden_size": "d_model",
               "encoding": "pe", "scheme": "pe", "tasks": "task", "seeds": "seed", "max_steps": "steps",
               "rotary": "rope", "rotary_embedding": "rope", "llama": "rope", "llama3": "rope_llama3",
               "absolute": "sinusoidal", "vaswani": "sinusoidal", "bert": "learned",
               "gpt2": "learned", "relative": "shaw", "yarn": "rope_yarn", "ntk": "rope_ntk",
               "xl": "transformer_xl", "swa": "sliding_window", "pi": "rope_linear",
               "forgetting": "fox"}  # fmt: skip
# Options listed first if not all can be listed.
FIRST = ("sinusoidal", "learned", "rope", "alibi", "none", "copy", "reverse", "text", "pe", "task", "model",
         "training", "evaluation", "seed", "steps", "batch_size", "max_length", "learning_rate")  # fmt: skip


def nearest(word: str, options: Iterable[str]) -> str:
    """Return `` Did you mean x?`` if an option is similar to the word, and the allowed options."""
    options = sorted(options)
    close = [option for option in options if option == ALSO_CALLED.get(word)]
    close = close or difflib.get_close_matches(word, options, n=2, cutoff=0.55)
    close = close or [option for option in options if len(word) > 2 and option.startswith(word[:3])]
    hint = f" Did you mean {allowed(close)}?" if close else ""
    if len(options) > LISTED:
        options.sort(key=lambda option: FIRST.index(option) if option in FIRST else len(FIRST))
        options = [*options[:LISTED], f"one of {len(options) - LISTED} more"]
    return f"{hint} Allowed: {allowed(options)}."
