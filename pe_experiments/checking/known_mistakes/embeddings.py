"""Known mistakes of encodings that add vectors to the embeddings."""

import math

import torch
from torch.nn import functional as F

from pe_experiments.checking.known_mistakes.mistake import (
    Change,
    attribute,
    convention,
    method,
    reported,
    result,
)
from pe_experiments.encodings.sinusoidal import Sinusoidal, sinusoid_vectors


def frequency_per_column(power):
    """Return a replacement with a separate frequency per column, from the base to that power."""

    def vectors(encoding, original, positions):
        columns = torch.arange(encoding.width)
        both = sinusoid_vectors(positions, 2 * encoding.width, encoding.base**power)
        return both[..., 2 * columns + columns % 2].float()

    return vectors


def linear_frequencies(encoding, original, positions):
    pairs = (encoding.width + 1) // 2
    angles = positions.double()[..., None] * (1 - torch.arange(pairs) / pairs)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., : encoding.width].float()


def positions_from_one(encoding, original, positions):
    return original(positions + 1)


def scale_not_applied(encoding, original, positions):
    return Sinusoidal.vectors(encoding, positions) + 0 * encoding.alpha


def id_over_tokens(encoding, original, positions, largest):
    return F.pad((positions / positions.shape[1])[..., None], (0, encoding.width - 1))


MISTAKES: dict[str, dict[str, Change]] = {
    "sinusoidal": {
        "sine and cosine exchanged": convention(
            result("vectors", lambda vectors: vectors.unflatten(-1, (-1, 2)).flip(-1).flatten(-2))
        ),
        "exponents m / (pairs - 1), as in Tensor2Tensor and fairseq": convention(
            attribute("base", lambda e: e.base ** (e.width / (e.width - 2)))
        ),
        "tokens are multiplied by sqrt(d_model) too, as in the paper": convention(
            method("embed", lambda e, original, x, positions: original(x * x.shape[-1] ** 0.5, positions))
        ),
        "tokens and vectors together are multiplied by sqrt(d_model)": method(
            "embed", lambda e, original, x, positions: original(x, positions) * x.shape[-1] ** 0.5
        ),
        "a frequency per column (i instead of 2i)": method("vectors", frequency_per_column(1)),
        "the exponent lacks its factor 2": attribute("base", lambda e: e.base**0.5),
        "the exponent has its factor 2 twice": attribute("base", lambda e: e.base**2),
        "the exponent has its factor 2 twice, and a frequency per column": method(
            "vectors", frequency_per_column(2)
        ),
        "the exponent is inverted": reported("WaveGrad #12", attribute("base", lambda e: 1 / e.base)),
        "frequencies are 1 (integer division)": reported(
            "BERT-pytorch #18", attribute("base", lambda e: 1.0)
        ),
        "frequencies e^-2m (floored)": reported("LoFTR #41", attribute("base", lambda e: math.exp(e.width))),
        "linear frequencies": method("vectors", linear_frequencies),
        "base 1,000": attribute("base", lambda e: e.base / 10),
        "sines in every column": result(
            "vectors", lambda vectors: vectors[..., ::2].repeat_interleave(2, -1)[..., : vectors.shape[-1]]
        ),
        "cosines in every column": result(
            "vectors", lambda vectors: vectors[..., 1::2].repeat_interleave(2, -1)[..., : vectors.shape[-1]]
        ),
        "positions from 1": method("vectors", positions_from_one),
        "position ids are ignored, tokens counted": method(
            "vectors", lambda e, original, positions: original(torch.arange(positions.shape[1])[None])
        ),
        "sequence-first module fed batch-first": method(
            "embed", lambda e, original, x, positions: x + e.vectors(torch.arange(x.shape[0])[:, None])
        ),
    },
    "sinusoidal_scaled": {"the learned scale is not applied": method("vectors", scale_not_applied)},
    "learned": {
        "positions from 1": method(
            "vectors", lambda e, original, positions: original((positions + 1) % len(e.table))
        ),
        "the encoding is never applied": method("embed", lambda e, original, x, positions: x),
    },
    "raw_index": {
        "positions from 1": method("vectors", positions_from_one),
        "in every column (the next layer norm takes it out)": method(
            "vectors", lambda e, original, positions: positions[..., None].float().expand(-1, -1, e.width)
        ),
    },
    "scaled_index": {"divided by the number of tokens": method("_fractions", id_over_tokens)},
    "binary_counter": {"lowest bit first": result("vectors", lambda bits: bits.flip(-1))},
}
