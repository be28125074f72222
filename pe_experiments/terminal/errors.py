"""The errors people see: one sentence that names the key, the value and what is allowed."""

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
    """A request that cannot be carried out as written. Shown as its message alone, without a traceback."""


class NotApplicable(UserError):
    """Parts that are right by themselves and do not go together; a sweep lists them and goes on."""


class Diverged(ArithmeticError):
    """The loss is no longer a finite number."""

    def __init__(self, step: int):
        super().__init__(f"the loss became NaN or infinite at step {step}")
        self.step = step


class InUse(UserError):
    """Another process holds what is needed; it will be free once that process is done."""


def disk_problem(error: BaseException) -> str | None:
    """The trouble with the disk, if the error is about that: full, read-only, over quota."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(error, OSError) and number in _OF_THE_DISK else None


_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EACCES, errno.EPERM)


def allowed(options: Iterable[str]) -> str:
    """The options as words: ``a, b or c``."""
    words = list(options)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}" if words else "nothing"


def sentence(error: BaseException) -> str:
    """An error for people: our sentences as they are, the first two lines of others."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'} cannot be used: {error.strerror or error}"
    return one_line(f"{type(error).__name__}: {' '.join(str(error).splitlines()[:2])}")


LIBRARIES = (  # their code, and this package's, is not the user's
    str(Path(__file__).parents[1]),
    *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    "<frozen",
)


def error_place(error: BaseException) -> str:
    """Where in the user's code it was raised: `` (mine.py:12, in bias)``; nothing if no such code ran."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    if not outside:
        return ""
    last = outside[-1]
    return f" ({Path(last.filename).name}:{last.lineno}, in {last.name})"


def one_line(text: str) -> str:
    """The text with every run of white space as one blank, printable, and its endless words cut."""
    words = (word if len(word) <= LONGEST_WORD else f"{word[:SHOWN]}..." for word in text.split())
    return printable(" ".join(words))


# Control characters, those that turn the direction of what follows, invisible ones, and halves of characters.
_OBEYED = re.compile(
    r"[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    """The text with what a terminal would obey rather than show spelt out; line ends and tabs stay."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


SHOWN = 60  # characters of a value in a sentence
LONGEST_WORD = 300
LISTED = 12  # choices in a sentence


def shown(value: object) -> str:
    """A value as it would be typed, cut where it is long."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    text = one_line(text[: 2 * SHOWN])
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def few(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# What others call our settings and choices.
ALSO_CALLED = {"theta": "base", "rope_theta": "base", "lr": "learning_rate", "hidden_size": "d_model",
               "encoding": "pe", "scheme": "pe", "tasks": "task", "seeds": "seed", "max_steps": "steps",
               "rotary": "rope", "rotary_embedding": "rope", "llama": "rope", "llama3": "rope_llama3",
               "absolute": "sinusoidal", "vaswani": "sinusoidal", "bert": "learned",
               "gpt2": "learned", "relative": "shaw", "yarn": "rope_yarn", "ntk": "rope_ntk",
               "xl": "transformer_xl", "swa": "sliding_window", "pi": "rope_linear",
               "forgetting": "fox"}  # fmt: skip
# Named first where not all options can be: those that matter to most people.
FIRST = ("sinusoidal", "learned", "rope", "alibi", "none", "copy", "reverse", "text", "pe", "task", "model",
         "training", "evaluation", "seed", "steps", "batch_size", "max_length", "learning_rate")  # fmt: skip


def nearest(word: str, options: Iterable[str]) -> str:
    """``Did you mean x?`` where an option resembles the word, and what is allowed in any case."""
    options = sorted(options)
    close = [option for option in options if option == ALSO_CALLED.get(word)]
    close = close or difflib.get_close_matches(word, options, n=2, cutoff=0.55)
    close = close or [option for option in options if len(word) > 2 and option.startswith(word[:3])]
    hint = f" Did you mean {allowed(close)}?" if close else ""
    if len(options) > LISTED:
        options.sort(key=lambda option: FIRST.index(option) if option in FIRST else len(FIRST))
        options = [*options[:LISTED], f"one of {len(options) - LISTED} more"]
    return f"{hint} Allowed: {allowed(options)}."
