"""Transformer-XL's relative position encoding (Dai et al. 2019)."""

from functools import partial

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.rope import cos_and_sin
from pe_experiments.encodings.tensors import at_least_float32, by_distance, float64_device
from pe_experiments.terminal.errors import above

MAX_GATHERED_KEYS = 512  # with more keys, distinct distances are not searched


class TransformerXL(PositionalEncoding):
    """Logit (q_i + u) . k_j + (q_i + v) . W R(i - j), over sqrt(head_dim), with sinusoids R of the distance.

    R holds the sines of all frequencies, then the cosines, as in the authors' code. W maps it to the heads. u
    and v are one vector per head: biases towards keys and towards distances that do not depend on the query.

    Source: Dai et al. 2019, arXiv:1901.02860, section 3.3. Parameters:
    ``d_model * num_heads * head_dim + 2 * num_heads * head_dim`` per layer. Beyond training: defined
    everywhere, at untrained distances.

    The distance term is computed in one of two ways. If few distinct distances occur, as in training, R is
    computed for each of them and gathered; else the sines and cosines of i - j are expanded into products of
    functions of i and of j. Distances are unlimited.

    Args:
        base: base of the sinusoids R, greater than 1; 10,000 in the paper. At an odd ``d_model`` R has one
            cosine fewer than sines.
    """

    per_layer = True
    invariant_to = "shift"

    def __init__(self, shape: ModelShape, *, base: float = 10_000.0):
        super().__init__(shape)
        self.base = above(1, "base", base)
        self.distance = nn.Linear(shape.d_model, shape.d_model, bias=False)  # W
        self.u_HK = nn.Parameter(torch.zeros(shape.num_heads, shape.head_dim))
        self.v_HK = nn.Parameter(torch.zeros(shape.num_heads, shape.head_dim))

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        scale = self.shape.head_dim**-0.5
        key_term_BH1S = (self.u_HK[:, None] * scale).to(k_BHSK.dtype) @ k_BHSK.mT
        query_BHTK = (q_BHTK + self.v_HK[:, None]) * scale
        distances = at.once(_distances_behind if self.shape.causal else _distances)
        if distances is None:
            distance_term_BHTS = self._split(query_BHTK, at)
        else:
            distance_term_BHTS = self._gathered(query_BHTK, *distances)
        return at_least_float32(key_term_BH1S) + distance_term_BHTS

    def _gathered(self, query_BHTK: Tensor, distances_R: Tensor, index_BTS: Tensor) -> Tensor:
        """Return query . W R(i - j), with R computed once per distinct distance."""
        cosine_RW, sine_RW = (wave[0, 0] for wave in self._waves(distances_R[None]))
        waves_RD = torch.cat([sine_RW, cosine_RW[:, : self.shape.d_model // 2]], dim=-1)
        heads = (self.shape.num_heads, self.shape.head_dim)
        with torch.autocast(query_BHTK.device.type, enabled=False):
            table_RHK = (waves_RD.to(self.distance.weight.dtype) @ self.distance.weight.T).unflatten(1, heads)
            table_HKR = table_RHK.permute(1, 2, 0)
            scores_BHTR = query_BHTK.to(table_HKR.dtype) @ table_HKR
        return by_distance(scores_BHTR, index_BTS)

    def _split(self, query_BHTK: Tensor, at: AttentionContext) -> Tensor:
        """Return query . W R(i - j) by sin(i - j) = sin i cos j - cos i sin j, and cos likewise."""
        map_HKD = self.distance.weight.unflatten(0, (self.shape.num_heads, self.shape.head_dim))
        query_BHTD = at_least_float32(query_BHTK @ map_HKD.to(query_BHTK.dtype))
        sines = (self.shape.d_model + 1) // 2
        sine_BHTR, cosine_BHTR = query_BHTD.split([sines, self.shape.d_model - sines], dim=-1)
        with torch.autocast(query_BHTK.device.type, enabled=False):
            cosine_BHTR = nn.functional.pad(cosine_BHTR, (0, sines - cosine_BHTR.shape[-1]))
            cos_q, sin_q = self._waves(at.q_positions_BT)
            wave_S2R = torch.cat(self._waves(at.k_positions_BS), dim=-1)
            # Coefficients of cos j and of sin j.
            cos_j_BHTR = sine_BHTR * sin_q + cosine_BHTR * cos_q
            sin_j_BHTR = cosine_BHTR * sin_q - sine_BHTR * cos_q
            query_BHTW = torch.cat([cos_j_BHTR, sin_j_BHTR], dim=-1)
            return query_BHTW @ wave_S2R.mT.to(query_BHTW.dtype)

    def _waves(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of the positions at all frequencies."""
        device = float64_device(positions_BT.device)
        even = torch.arange(0, self.shape.d_model, 2, dtype=torch.float64, device=device)
        return cos_and_sin(positions_BT, (self.base ** (-even / self.shape.d_model))[None])


def _distances(at: AttentionContext, ahead: bool = True) -> tuple[Tensor, Tensor] | None:
    """Return distinct distances [R] and their index [B, T, S]; None if rows differ or R is large."""
    rows_agree = len(at.q_positions_BT) == len(at.k_positions_BS) == 1
    keys = at.k_positions_BS.shape[1]
    # On a GPU the host would have to wait for the number of distances.
    if not rows_agree or keys > MAX_GATHERED_KEYS or at.k_positions_BS.device.type != "cpu":
        return None
    relative_BTS = at.relative_positions_BTS if ahead else at.relative_positions_BTS.clamp(max=0)
    distances_R, index_BTS = (-relative_BTS).unique(return_inverse=True)
    if len(distances_R) > 2 * keys:  # positions with gaps or fractions
        return None
    return distances_R, index_BTS


_distances_behind = partial(_distances, ahead=False)  # for a decoder, in which later keys are masked
