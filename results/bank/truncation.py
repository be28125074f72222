"""The best exact match of any predictor that reads only the last tokens, on the tasks of the bank."""

from __future__ import annotations

import numpy as np


def window(task: str, longest: int) -> int:
    """Return how many tokens a model reads of its longest training example when it answers last.

    The mark at the beginning is not counted. On `copy` the end mark is the last answer.
    """
    return {"copy": 2 * longest + 1, "lag": longest, "induction": longest + 1, "flip_flop": longest - 1}[task]


def ceiling(task: str, symbols: int, ignore: float, longest: int, length: int) -> float:
    """Return the exact match at an input length of the best predictor that reads `window` tokens.

    Args:
        task: name of the task.
        symbols: different input symbols of `copy` and fillers of `induction`.
        ignore: probability of an ignored pair of `flip_flop`.
        longest: longest training length.
        length: input length, at least ``longest``.
    """
    if length <= longest or task == "lag":  # all tokens, or the symbol three back
        return 1.0
    if task == "copy":  # each answer repeats the symbol ``length`` tokens before it
        return 1.0 if length < window(task, longest) else float(symbols) ** -length
    if task == "induction":
        # Of length - 2 places of the trigger longest - 2 are read. If the trigger is the last symbol that is
        # not read, the answer is the first symbol that is: the best guess for all other places.
        return (longest - 1 + (length - longest - 1) / symbols) / (length - 2)
    return flip_flop_ceiling(ignore, longest, length)


def flip_flop_ceiling(ignore: float, longest: int, length: int) -> float:
    """Return E[(1/2)^u], where u counts the written bits that a read asks for but that are out of the window.

    All reads of such a bit are right together if its guess is.
    """
    near, pairs = int(longest) // 2 - 1, int(length) // 2  # a bit is read up to ``near`` pairs back
    known = np.zeros(pairs)  # probability, times 1/2 per guess, by the distance of a bit that was not guessed
    known[0] = 1.0
    guessed = 0.0
    for pair in range(1, pairs):
        is_last = pair == pairs - 1
        p_write = 0.0 if is_last else (1 - ignore) / 2
        p_read = 1.0 if is_last else (1 - ignore) / 2
        written = p_write * (known.sum() + guessed)
        known = np.roll(known, 1)  # the last entry is 0: no bit is as many pairs back
        far = known[near + 1 :].sum()
        guessed = guessed * (1 - p_write) + far * p_read / 2
        known[: near + 1] *= 1 - p_write
        known[near + 1 :] *= 1 - p_write - p_read
        known[0] = written
    return float(known.sum() + guessed)
