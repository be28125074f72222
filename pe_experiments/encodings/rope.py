"""Rotary position embedding (Su et al. 2021): queries and keys turn with their position."""

import math

import torch
from torch import Tensor

from pe_experiments.encodings.base import AttentionContext, ModelShape, PositionalEncoding


class Rope(PositionalEncoding):
    """RoPE: pair m of the channels of q and k turns by p * theta_m, theta_m = base^(-2m/d_r), m < d_r/2.

    The logit of query i and key j then depends on i - j alone. Channels are paired in halves (m with m +
    d_r/2, as in GPT-NeoX and Llama); pairing neighbours, as in the paper, is the same up to a permutation of
    the channels.

    Source: Su et al. 2021, arXiv:2104.09864. Parameters: none. Beyond training: defined everywhere; slow
    pairs meet angles they have never been trained on.

    Args:
        shape: the model it serves.
        base: greater than 1; 10,000 in the paper.
        rotary_fraction: share of the head's channels that turn (GPT-J, GPT-NeoX: partial rotary); the others
            carry no position. ``d_r`` is that share of head_dim, rounded down to an even number.
        kept_frequencies: share of the pairs that turn, the fastest first; the slow rest stands still (p-RoPE,
            Barbero et al. 2024, arXiv:2410.06205). Unlike ``rotary_fraction`` it leaves the frequencies as
            they are.

    Raises:
        ValueError: a share outside 0 .. 1, or heads too narrow to hold a pair.
    """

    frequencies_R: Tensor

    def __init__(
        self,
        shape: ModelShape,
        *,
        base: float = 10_000.0,
        rotary_fraction: float = 1.0,
        kept_frequencies: float = 1.0,
    ):
        super().__init__(shape)
        if not 1 < base < math.inf:
            raise ValueError(f"base={base} must be a finite number greater than 1")
        for name, share in (("rotary_fraction", rotary_fraction), ("kept_frequencies", kept_frequencies)):
            if not 0 < share <= 1:
                raise ValueError(f"{name}={share} must be more than 0 and at most 1")
        pairs = int(rotary_fraction * shape.head_dim) // 2
        if pairs == 0:
            raise ValueError(
                f"rotary_fraction={rotary_fraction} of head_dim={shape.head_dim} leaves no pair of channels"
            )
        frequencies_R = base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
        frequencies_R[round(kept_frequencies * pairs) :] = 0
        self.register_buffer("frequencies_R", frequencies_R, persistent=False)

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        (cos_q, sin_q), (cos_k, sin_k) = at.once(self._turns)
        return turn(q_BHTK, cos_q, sin_q), turn(k_BHSK, cos_k, sin_k)

    def _turns(self, at: AttentionContext) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        queries = self._cos_sin(at.q_positions_BT)
        return queries, queries if at.k_positions_BS is at.q_positions_BT else self._cos_sin(
            at.k_positions_BS
        )

    def _cos_sin(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        angles_B1TR = positions_BT.to(torch.float64)[:, None, :, None] * self.frequencies_R
        return angles_B1TR.cos().float(), angles_B1TR.sin().float()


def turn(x_BHTK: Tensor, cos_B1TR: Tensor, sin_B1TR: Tensor) -> Tensor:
    """Rotate channel m against channel m + R by the given angles; channels from 2 R on pass unchanged."""
    pairs = cos_B1TR.shape[-1]
    first, second, rest = x_BHTK.split([pairs, pairs, x_BHTK.shape[-1] - 2 * pairs], dim=-1)
    turned = [first * cos_B1TR - second * sin_B1TR, second * cos_B1TR + first * sin_B1TR, rest]
    return torch.cat(turned, dim=-1).to(x_BHTK.dtype)
