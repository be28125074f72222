"""Define known mistakes in encodings that add vectors to the embeddings."""

import math

import torch
from torch.nn import functional as F

from pe_experiments.checking.known_mistakes.mistake import (
    Change,
    as_convention,
    change_attribute,
    change_method,
    change_result,
    reported_in,
)
from pe_experiments.encodings.sinusoidal import Sinusoidal, sinusoid_vectors


def frequency_per_column(power):
    """Return a replacement of ``vectors`` in which every column has its own frequency.

    The base of the frequencies is raised to ``power``.
    """

    def vectors(encoding, original, positions):
        columns = torch.arange(encoding.width)
        sines_and_cosines = sinusoid_vectors(positions, 2 * encoding.width, encoding.base**power)
        return sines_and_cosines[..., 2 * columns + columns % 2].float()

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
        "sine and cosine exchanged": as_convention(
            change_result("vectors", lambda vectors: vectors.unflatten(-1, (-1, 2)).flip(-1).flatten(-2))
        ),
        "exponents m / (pairs - 1), as in Tensor2Tensor and fairseq": as_convention(
            change_attribute("base", lambda e: e.base ** (e.width / (e.width - 2)))
        ),
        "tokens are multiplied by sqrt(d_model) too, as in the paper": as_convention(
            change_method(
                "embed", lambda e, original, x, positions: original(x * x.shape[-1] ** 0.5, positions)
            )
        ),
        "tokens and vectors together are multiplied by sqrt(d_model)": change_method(
            "embed", lambda e, original, x, positions: original(x, positions) * x.shape[-1] ** 0.5
        ),
        "a frequency per column (i instead of 2i)": change_method("vectors", frequency_per_column(1)),
        "the exponent lacks its factor 2": change_attribute("base", lambda e: e.base**0.5),
        "the exponent has its factor 2 twice": change_attribute("base", lambda e: e.base**2),
        "the exponent has its factor 2 twice, and a frequency per column": change_method(
            "vectors", frequency_per_column(2)
        ),
        "the exponent is inverted": reported_in(
            "WaveGrad #12", change_attribute("base", lambda e: 1 / e.base)
        ),
        "frequencies are 1 (integer division)": reported_in(
            "BERT-pytorch #18", change_attribute("base", lambda e: 1.0)
        ),
        "frequencies e^-2m (floored)": reported_in(
            "LoFTR #41", change_attribute("base", lambda e: math.exp(e.width))
        ),
        "linear frequencies": change_method("vectors", linear_frequencies),
        "base 1,000": change_attribute("base", lambda e: e.base / 10),
        "sines in every column": change_result(
            "vectors", lambda vectors: vectors[..., ::2].repeat_interleave(2, -1)[..., : vectors.shape[-1]]
        ),
        "cosines in every column": change_result(
            "vectors", lambda vectors: vectors[..., 1::2].repeat_interleave(2, -1)[..., : vectors.shape[-1]]
        ),
        "positions from 1": change_method("vectors", positions_from_one),
        "position ids are ignored, tokens counted": change_method(
            "vectors", lambda e, original, positions: original(torch.arange(positions.shape[1])[None])
        ),
        "sequence-first module fed batch-first": change_method(
            "embed", lambda e, original, x, positions: x + e.vectors(torch.arange(x.shape[0])[:, None])
        ),
    },
    "sinusoidal_scaled": {"the learned scale is not applied": change_method("vectors", scale_not_applied)},
    "learned": {
        "positions from 1": change_method(
            "vectors", lambda e, original, positions: original((positions + 1) % len(e.table))
        ),
        "the encoding is never applied": change_method("embed", lambda e, original, x, positions: x),
    },
    "raw_index": {
        "positions from 1": change_method("vectors", positions_from_one),
        "in every column (the next layer norm takes it out)": change_method(
            "vectors", lambda e, original, positions: positions[..., None].float().expand(-1, -1, e.width)
        ),
    },
    "scaled_index": {"divided by the number of tokens": change_method("_fractions", id_over_tokens)},
    "binary_counter": {"lowest bit first": change_result("vectors", lambda bits: bits.flip(-1))},
}
