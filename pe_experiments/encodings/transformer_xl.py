"""Transformer-XL's relative position encoding (Dai et al. 2019)."""

import math

import torch
from torch import Tensor, nn

from pe_experiments.encodings.base import AttentionContext, ModelShape, PositionalEncoding, at_least_float32
from pe_experiments.encodings.rope import cos_and_sin

FEW = 512  # keys up to which the different distances are looked for


class TransformerXL(PositionalEncoding):
    """Logit (q_i + u) . k_j + (q_i + v) . W R(i - j), over sqrt(head_dim), with sinusoids R of the distance.

    R holds the sines of all frequencies, then the cosines, as in the authors' code. W maps it to the heads; u
    and v are one vector per head: a preference for keys and for distances whatever the query.

    Source: Dai et al. 2019, arXiv:1901.02860, section 3.3. Parameters:
    ``d_model * num_heads * head_dim + 2 * num_heads * head_dim`` per layer. Beyond training: defined
    everywhere, with distances it has never been trained on.

    The term of the distance is computed in one of two ways. Where few different distances occur, as in
    training, R is made for these and gathered. Elsewhere it is a product of what depends on i and what
    depends on j (sines and cosines of a difference split), and no table of distances is ever outgrown.

    Args:
        shape: the model it serves. At an odd ``d_model`` R ends with a sine that has no cosine.
        base: of the sinusoids, greater than 1; 10,000 in the paper.

    Raises:
        ValueError: a ``base`` of 1 or less.
    """

    per_layer = True
    invariant_to = "shift"

    def __init__(self, shape: ModelShape, *, base: float = 10_000.0):
        super().__init__(shape)
        if not 1 < base < math.inf:
            raise ValueError(f"base={base} must be a finite number greater than 1")
        self.base = base
        self.distance = nn.Linear(shape.d_model, shape.d_model, bias=False)  # W
        self.u_HK = nn.Parameter(torch.zeros(shape.num_heads, shape.head_dim))
        self.v_HK = nn.Parameter(torch.zeros(shape.num_heads, shape.head_dim))

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        scale = self.shape.head_dim**-0.5
        of_keys_BH1S = (self.u_HK[:, None] * scale).to(k_BHSK.dtype) @ k_BHSK.mT
        asked_BHTK = (q_BHTK + self.v_HK[:, None]) * scale
        few = at.once(_behind if self.shape.causal else _around)
        of_distances_BHTS = self._split(asked_BHTK, at) if few is None else self._gathered(asked_BHTK, *few)
        return at_least_float32(of_keys_BH1S) + of_distances_BHTS

    def _gathered(self, asked_BHTK: Tensor, distances_R: Tensor, place_BTS: Tensor) -> Tensor:
        """asked . W R(i - j), R made once per different distance."""
        cosine_R, sine_R = (part[0, 0] for part in self._waves(distances_R[None]))
        waves_RD = torch.cat([sine_R, cosine_R[:, : self.shape.d_model // 2]], dim=-1)
        heads = (self.shape.num_heads, self.shape.head_dim)
        with torch.autocast(asked_BHTK.device.type, enabled=False):
            seen_RHK = (waves_RD.to(self.distance.weight.dtype) @ self.distance.weight.T).unflatten(1, heads)
            seen_HKR = seen_RHK.permute(1, 2, 0)
            asked_BHTR = asked_BHTK.to(seen_HKR.dtype) @ seen_HKR
        return asked_BHTR.gather(-1, place_BTS[:, None].expand(*asked_BHTR.shape[:3], -1))

    def _split(self, asked_BHTK: Tensor, at: AttentionContext) -> Tensor:
        map_HKD = self.distance.weight.unflatten(0, (self.shape.num_heads, self.shape.head_dim))
        asked_BHTD = at_least_float32(asked_BHTK @ map_HKD.to(asked_BHTK.dtype))
        with torch.autocast(asked_BHTK.device.type, enabled=False):
            return self._distances(asked_BHTD, at)

    def _distances(self, asked_BHTD: Tensor, at: AttentionContext) -> Tensor:
        """asked . R(i - j), from sin(i - j) = sin i cos j - cos i sin j and cos likewise."""
        sines = (self.shape.d_model + 1) // 2
        sine_BHTR, cosine_BHTR = asked_BHTD.split([sines, self.shape.d_model - sines], dim=-1)
        cosine_BHTR = nn.functional.pad(cosine_BHTR, (0, sines - cosine_BHTR.shape[-1]))
        cos_q, sin_q = self._waves(at.q_positions_BT)
        cos_k, sin_k = at.once(self._key_waves)
        query_BHTW = torch.cat(
            [sine_BHTR * sin_q + cosine_BHTR * cos_q, cosine_BHTR * sin_q - sine_BHTR * cos_q], dim=-1
        )
        return query_BHTW @ torch.cat([cos_k, sin_k], dim=-1).mT.to(query_BHTW.dtype)

    def _key_waves(self, at: AttentionContext) -> tuple[Tensor, Tensor]:
        return self._waves(at.k_positions_BS)

    def _waves(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        even = torch.arange(0, self.shape.d_model, 2, dtype=torch.float64, device=positions_BT.device)
        return cos_and_sin(positions_BT, (self.base ** (-even / self.shape.d_model))[None])


def _behind(at: AttentionContext) -> tuple[Tensor, Tensor] | None:
    """The different distances [R] of keys a decoder sees, and the place [B, T, S] of each pair among them.

    None where rows have positions of their own, or where there are many keys.
    """
    return _different(at, -at.steps_BTS.clamp(max=0)) if _are_few(at) else None


def _around(at: AttentionContext) -> tuple[Tensor, Tensor] | None:
    """The same for an encoder, where keys ahead count."""
    return _different(at, -at.steps_BTS) if _are_few(at) else None


def _are_few(at: AttentionContext) -> bool:
    shared = len(at.q_positions_BT) == len(at.k_positions_BS) == 1
    # On a GPU the host would have to wait for their number.
    return shared and at.k_positions_BS.shape[1] <= FEW and not at.k_positions_BS.is_cuda


def _different(at: AttentionContext, distances_BTS: Tensor) -> tuple[Tensor, Tensor] | None:
    distances_R, place_BTS = distances_BTS.unique(return_inverse=True)
    few = len(distances_R) <= 2 * at.k_positions_BS.shape[1]  # gaps and fractions make more
    return (distances_R, place_BTS) if few else None
