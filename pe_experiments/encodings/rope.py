"""Rotary position embedding (Su et al. 2021): queries and keys turn with their position."""

import math

import torch
from torch import Tensor

from pe_experiments.encodings.base import AttentionContext, ModelShape, PositionalEncoding


def frequencies(base: float, pairs: int, device: torch.device | None = None) -> Tensor:
    """theta_m = base^(-m/pairs) for m = 0 .. pairs - 1, in float64."""
    return base ** (-torch.arange(pairs, dtype=torch.float64, device=device) / pairs)


class Rope(PositionalEncoding):
    """RoPE: pair m of the channels of q and k turns by p * theta_m, theta_m = base^(-2m/d_r), m < d_r/2.

    The logit of query i and key j then depends on i - j alone. Channels are paired in halves (m with m +
    d_r/2, as in GPT-NeoX and Llama); pairing neighbours, as in the paper, is the same up to a permutation of
    the channels.

    Source: Su et al. 2021, arXiv:2104.09864. Parameters: none. Beyond training: defined everywhere; slow
    pairs meet angles they have never been trained on. In decoders and encoders.

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

    invariant_to = "shift"

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
        self.pairs = int(rotary_fraction * shape.head_dim) // 2
        if self.pairs == 0:
            raise ValueError(
                f"rotary_fraction={rotary_fraction} of head_dim={shape.head_dim} leaves no pair of channels"
            )
        if int(rotary_fraction * shape.head_dim) % 2:
            self.remark = f"channels turn in pairs, so one of each head's {shape.head_dim} is left unrotated"
        self.base = base
        self.turning = round(kept_frequencies * self.pairs)

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        of_queries, of_keys = at.once(self._tables)
        return turn(q_BHTK, *of_queries), turn(k_BHSK, *of_keys)

    def frequencies_BR(self, at: AttentionContext) -> Tensor:
        """How far each pair turns per position, in float64; B is 1 unless rows turn differently."""
        frequencies_R = frequencies(self.base, self.pairs, at.q_positions_BT.device)
        frequencies_R[self.turning :] = 0
        return frequencies_R[None]

    def _tables(self, at: AttentionContext) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """What `turn` takes, for the queries and for the keys."""
        queries, keys = self._turns(at)
        of_queries = both_halves(*queries)
        return of_queries, of_queries if keys is queries else both_halves(*keys)

    def _turns(self, at: AttentionContext) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        frequencies_BR = self.frequencies_BR(at)
        queries = cos_and_sin(at.q_positions_BT, frequencies_BR)
        if at.k_positions_BS is at.q_positions_BT:
            return queries, queries
        return queries, cos_and_sin(at.k_positions_BS, frequencies_BR)


def cos_and_sin(positions_BT: Tensor, frequencies_BR: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B, 1, T, R] of the angles, taken in float64 and rounded to float32."""
    angles_B1TR = positions_BT.to(torch.float64)[:, None, :, None] * frequencies_BR[:, None, None]
    return angles_B1TR.cos().float(), angles_B1TR.sin().float()


def both_halves(cos_B1TR: Tensor, sin_B1TR: Tensor) -> tuple[Tensor, Tensor]:
    """Factors [B, 1, T, 2 R] of a channel itself and of its partner in the other half of the channels."""
    return torch.cat([cos_B1TR, cos_B1TR], dim=-1), torch.cat([-sin_B1TR, sin_B1TR], dim=-1)


def turn(x_BHTK: Tensor, own_B1TC: Tensor, partner_B1TC: Tensor) -> Tensor:
    """Rotate channel m against channel m + C/2 by the angles of `both_halves`; from C on they pass unchanged.

    In three passes, halves swapped and two products, over memory in order: heads cut out of one projection
    are strided, and products with strided factors take six times as long.
    """
    turning = own_B1TC.shape[-1]
    moving, rest = x_BHTK.split([turning, x_BHTK.shape[-1] - turning], dim=-1)
    moving = moving.contiguous()
    swapped = moving.roll(turning // 2, dims=-1)
    turned = torch.addcmul(moving * own_B1TC, swapped, partner_B1TC).to(x_BHTK.dtype)
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned
