"""Compute bag ceilings, the best token accuracy of an order-blind predictor."""

from collections.abc import Sequence
from functools import cache

import numpy as np

EXACT_UP_TO = 256  # tokens; longer lengths are interpolated


@cache
def mode_share(length: int, vocab_size: int) -> float:
    """Return E[max_c n_c] / n for n independent tokens, uniform over ``vocab_size`` symbols.

    The best guess from a bag is its most frequent symbol, right with probability max_c n_c / n. The counts
    are independent Poisson variables given their sum, so P(max <= m) is a coefficient of the V-th power of a
    truncated Poisson series; that power is one FFT.
    """
    if length == 1 or vocab_size == 1:
        return 1.0
    counts = np.arange(length + 1)
    log_factorial = log_factorials(length)
    rate = length / vocab_size
    poisson = np.exp(counts * np.log(rate) - rate - log_factorial)
    total = np.exp(length * np.log(length) - length - log_factorial[length])
    expected = 0.0
    for limit in range(length):  # E[max] = sum over m of P(max > m)
        if limit * vocab_size < length:
            expected += 1.0  # counts this small cannot add up to the length
            continue
        size = 1 << int(limit * vocab_size).bit_length()
        spectrum = np.fft.rfft(poisson[: limit + 1], size)
        at_most_limit = np.fft.irfft(spectrum**vocab_size, size)[length] / total  # P(max <= limit)
        expected += max(0.0, 1.0 - at_most_limit)
        if at_most_limit > 1 - 1e-9:  # the transform is exact to about 1e-10
            break
    return float(expected / length)


def mode_shares(lengths: Sequence[int] | np.ndarray, vocab_size: int) -> np.ndarray:
    """Return the `mode_share` of each length (at least 1), interpolated for lengths above `EXACT_UP_TO`."""
    requested = np.asarray(lengths)
    points = np.unique(requested[requested <= EXACT_UP_TO])
    if requested.max() > EXACT_UP_TO:
        long_points = np.geomspace(max(requested.min(), EXACT_UP_TO), requested.max(), 24)
        points = np.unique(np.concatenate([points, long_points.round().astype(int)]))
    return np.interp(requested, points, [mode_share(int(n), vocab_size) for n in points])


def mean_mode_share(shortest: int, longest: int, vocab_size: int) -> float:
    """Return the mean `mode_share` of ``shortest .. longest`` tokens: each answer leaves one token fewer."""
    return float(mode_shares(np.arange(shortest, longest + 1), vocab_size).mean())


def bag_share(bag: int, targets: int, vocab_size: int, prefix: bool) -> float:
    """Return the best accuracy for ``targets`` of the ``bag`` random symbols that a predictor knows.

    A decoder (``prefix``) has seen the earlier targets; each leaves one symbol fewer in the bag.
    """
    if prefix:
        return mean_mode_share(bag - targets + 1, bag, vocab_size)
    return mode_share(bag, vocab_size)


def log_factorials(largest: int) -> np.ndarray:
    """Return ln n! for n = 0 .. ``largest``."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, largest + 1)))])


def coin_flips(length: int, share: float = 0.5) -> np.ndarray:
    """Return P(k heads in ``length`` independent coin flips) for k = 0 .. length; ``share`` is P(heads)."""
    heads = np.arange(length + 1)
    log_factorial = log_factorials(length)
    log_ways = log_factorial[-1] - log_factorial[heads] - log_factorial[length - heads]
    return np.exp(log_ways + heads * np.log(share) + (length - heads) * np.log1p(-share))


def mean_signs(length: int, first: int) -> np.ndarray:
    """Return E[(-1)^h], h heads in the ``first`` of ``length`` coin flips, given 0 .. ``length`` heads.

    Where so many heads are too rare for a float64, it is 0.
    """
    ways_first = coin_flips(first)
    ways_later = coin_flips(length - first)
    signed = ways_first * (-1.0) ** np.arange(first + 1)
    ways = np.convolve(ways_first, ways_later)
    return np.divide(np.convolve(signed, ways_later), ways, out=np.zeros(length + 1), where=ways > 0)
