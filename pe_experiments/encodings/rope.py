"""Rotary position embedding (Su et al. 2021): queries and keys rotate with their position."""

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.tensors import float64_device, in_float64
from pe_experiments.terminal.errors import above

Rotations = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]  # (cosines, sines) of queries and of keys


def frequencies(base: float, pairs: int, device: torch.device | None = None) -> Tensor:
    """Return theta_m = base^(-m/pairs) for m = 0 .. pairs - 1, in float64 on `float64_device`."""
    return base ** (-torch.arange(pairs, dtype=torch.float64, device=float64_device(device)) / pairs)


class Rope(PositionalEncoding):
    """RoPE: at position p, pair m of the channels of q and k rotates by p * theta_m, m < d_r/2.

    theta_m = base^(-2m/d_r). The logit of query i and key j then depends on positions through i - j alone.
    Channel m is paired with m + d_r/2, as in GPT-NeoX and Llama; the paper pairs neighbours, which is the
    same up to a permutation of the channels.

    Source: Su et al. 2021, arXiv:2104.09864. Parameters: none. Beyond training: defined everywhere; slow
    pairs reach untrained angles. In decoders and encoders.

    Args:
        base: greater than 1; 10,000 in the paper.
        rotary_fraction: share of the head's channels that rotate (partial rotary, as in GPT-J and GPT-NeoX),
            above 0 and at most 1; the other channels carry no position. ``d_r`` is that share of head_dim,
            rounded down to an even number, at least 2.
        kept_frequencies: share of these pairs that keep their frequency, above 0 and at most 1, fastest
            first; the other pairs get frequency 0 (p-RoPE, Barbero et al. 2024, arXiv:2410.06205). Unlike
            ``rotary_fraction`` it does not change the frequencies of the pairs that rotate.
    """

    invariant_to = "shift"
    inherits_length = False
    trained_arguments = ("base", "rotary_fraction", "kept_frequencies")

    def __init__(
        self,
        shape: ModelShape,
        *,
        base: float = 10_000.0,
        rotary_fraction: float = 1.0,
        kept_frequencies: float = 1.0,
    ):
        super().__init__(shape)
        self.base = above(1, "base", base)
        for name, share in (("rotary_fraction", rotary_fraction), ("kept_frequencies", kept_frequencies)):
            if not 0 < share <= 1:
                raise ValueError(f"{name}={share} must be above 0 and at most 1")
        self.pairs = int(rotary_fraction * shape.head_dim) // 2
        if self.pairs == 0:
            raise ValueError(
                f"rotary_fraction={rotary_fraction} of head_dim={shape.head_dim} leaves no pair of channels"
            )
        if int(rotary_fraction * shape.head_dim) % 2:
            self.remark = f"channels rotate in pairs, so one of each head's {shape.head_dim} does not rotate"
        self.rotated_pairs = round(kept_frequencies * self.pairs)

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        query_tables, key_tables = at.once(self._tables)
        return apply_rotary(q_BHTK, *query_tables), apply_rotary(k_BHSK, *key_tables)

    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        """Return the radians per position of each pair, in float64; B is 1 unless rows differ."""
        frequencies_R = frequencies(self.base, self.pairs, at.q_positions_BT.device)
        frequencies_R[self.rotated_pairs :] = 0
        return frequencies_R[None]

    def _tables(self, at: AttentionContext) -> Rotations:
        """Return the arguments of `apply_rotary` for queries and keys."""
        queries, keys = self._rotations(at)
        query_tables = half_split_tables(*queries)
        if keys is queries:
            return query_tables, query_tables
        return query_tables, half_split_tables(*keys)

    def _rotations(self, at: AttentionContext) -> Rotations:
        """Return cosines and sines [B, 1, T, R] of the queries' angles, and of the keys'."""
        frequencies_BR = self.frequencies_BR(at)
        queries = cos_and_sin(at.q_positions_BT, frequencies_BR)
        if at.k_positions_BS is at.q_positions_BT:
            return queries, queries
        return queries, cos_and_sin(at.k_positions_BS, frequencies_BR)


def pairs_of(shape: ModelShape) -> int:
    """Return the number of pairs of channels of a head; raise a ValueError if there is none."""
    if shape.head_dim < 2:
        raise ValueError(f"head_dim={shape.head_dim} has no pair of channels to rotate")
    return shape.head_dim // 2


def cos_and_sin(positions_BT: Tensor, frequencies_BR: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [B, 1, T, R] of position times frequency, in float32 (computed in float64)."""
    angles_B1TR = in_float64(positions_BT)[:, None, :, None] * frequencies_BR[:, None, None]
    device = positions_BT.device
    return angles_B1TR.cos().float().to(device), angles_B1TR.sin().float().to(device)


def half_split_tables(cos_B1TR: Tensor, sin_B1TR: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines [B, 1, T, C = 2 R] of all rotated channels, for `apply_rotary`.

    Sines are negative in the first half: the sign of ``rotate_half``, which maps (x1, x2) to (-x2, x1).
    """
    return torch.cat([cos_B1TR, cos_B1TR], dim=-1), torch.cat([-sin_B1TR, sin_B1TR], dim=-1)


def apply_rotary(x_BHTK: Tensor, cos_B1TC: Tensor, signed_sin_B1TC: Tensor) -> Tensor:
    """Return ``x cos + rotate_half(x) sin``, which rotates channel m with m + C/2.

    Channels from C on stay unchanged.
    """
    rotated_channels = cos_B1TC.shape[-1]
    x_BHTC, unrotated_BHTC = x_BHTK.split([rotated_channels, x_BHTK.shape[-1] - rotated_channels], dim=-1)
    # Heads are strided slices of one projection, and products with strided factors take six times as long.
    x_BHTC = x_BHTC.contiguous()
    swapped_BHTC = x_BHTC.roll(rotated_channels // 2, dims=-1)
    rotated_BHTC = torch.addcmul(x_BHTC * cos_B1TC, swapped_BHTC, signed_sin_B1TC).to(x_BHTK.dtype)
    if unrotated_BHTC.shape[-1] == 0:
        return rotated_BHTC
    return torch.cat([rotated_BHTC, unrotated_BHTC], dim=-1)


def rotate_by_angles(
    angles_BHSR: Tensor, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext
) -> tuple[Tensor, Tensor]:
    """Return queries and keys rotated by the angles of their tokens, which are in float64."""
    cos_BHSR, sin_BHSR = angles_BHSR.cos().float(), angles_BHSR.sin().float()
    cos, sin = half_split_tables(cos_BHSR.to(q_BHTK.device), sin_BHSR.to(q_BHTK.device))
    return apply_rotary(q_BHTK, cos[:, :, at.queries], sin[:, :, at.queries]), apply_rotary(k_BHSK, cos, sin)
