"""RoPE that also rotates the values, so that what is read carries the distance (DeepSeek-V4)."""

from torch import Tensor

from pe_experiments.encodings import AttentionContext
from pe_experiments.encodings.rope import Rope, apply_rotary


class RopeValues(Rope):
    """RoPE on queries, keys and values: o_i = R(-i) sum_j w_ij R(j) v_j, with the rotations R of RoPE.

    Each value is read rotated by j - i, on the channels that rotate in queries and keys; the other channels
    are summed as they are.

    Source: García-Castellanos, Weiler and Bekkers 2026, arXiv:2606.11275 (RoVE), and DeepSeek-V4 (2026),
    where one vector serves as key and value. Parameters: none. Beyond training: defined everywhere; slow
    pairs reach untrained angles. In decoders and encoders.
    """

    def values(self, v_BHSK: Tensor, at: AttentionContext) -> Tensor:
        _, key_tables = at.once(self._tables)
        return apply_rotary(v_BHSK, *key_tables)

    def outputs(self, o_BHTK: Tensor, at: AttentionContext) -> Tensor:
        (cos_B1TC, signed_sin_B1TC), _ = at.once(self._tables)
        return apply_rotary(o_BHTK, cos_B1TC, -signed_sin_B1TC)
