"""The errors people see: one sentence that names the key, the value and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A request that cannot be carried out as written. Shown as its message alone, without a traceback."""


def allowed(options: Iterable[str]) -> str:
    """The options as words: ``a, b or c``."""
    words = list(options)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}" if words else "nothing"


def nearest(word: str, options: Iterable[str]) -> str:
    """``Did you mean x?`` where an option resembles the word, and what is allowed in any case."""
    options = sorted(options)
    close = difflib.get_close_matches(word, options, n=2, cutoff=0.55)
    close = close or [option for option in options if len(word) > 2 and option.startswith(word[:3])]
    hint = f" Did you mean {allowed(close)}?" if close else ""
    return f"{hint} Allowed: {allowed(options)}."
