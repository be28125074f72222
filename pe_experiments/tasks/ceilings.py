"""What a predictor can reach that sees independent uniform tokens only as a bag."""

from functools import cache

import numpy as np

EXACT_UP_TO = 256  # tokens; above, the curve is smooth enough to be read between computed points


@cache
def mode_share(length: int, vocab_size: int) -> float:
    """E[max_c n_c] / n for n independent tokens, uniform over ``vocab_size`` symbols.

    The best guess from a bag is its most frequent symbol, right with probability max_c n_c / n. The counts
    are independent Poisson variables given their sum, so P(max <= m) is a coefficient of the V-th power of a
    truncated Poisson series; that power is one FFT.
    """
    if length == 1 or vocab_size == 1:
        return 1.0
    counts = np.arange(length + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, length + 1)))])
    rate = length / vocab_size
    poisson = np.exp(counts * np.log(rate) - rate - log_factorial)
    total = np.exp(length * np.log(length) - length - log_factorial[length])
    expected = 0.0
    for most in range(length):  # E[max] = sum over m of P(max > m)
        if most * vocab_size < length:
            expected += 1.0  # so few of each cannot add up to the length
            continue
        size = 1 << int(most * vocab_size).bit_length()
        spectrum = np.fft.rfft(poisson[: most + 1], size)
        below = np.fft.irfft(spectrum**vocab_size, size)[length] / total
        expected += max(0.0, 1.0 - below)
        if below > 1 - 1e-9:  # the transform itself is exact to about 1e-10
            break
    return float(expected / length)


def mean_mode_share(shortest: int, longest: int, vocab_size: int) -> float:
    """Mean of `mode_share` over ``shortest .. longest`` tokens: as answers are seen, the bag empties."""
    lengths = np.arange(shortest, longest + 1)
    points = lengths[lengths <= EXACT_UP_TO]
    if longest > EXACT_UP_TO:
        spread = np.geomspace(max(shortest, EXACT_UP_TO), longest, 24)
        points = np.unique(np.concatenate([points, spread.round().astype(int)]))
    shares = [mode_share(int(n), vocab_size) for n in points]
    return float(np.interp(lengths, points, shares).mean())
