"""Scale-invariant attention (Anson et al. 2025): every range of distances keeps its share of attention."""

import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.tensors import in_float64
from pe_experiments.terminal.errors import above


class ScaleInvariant(PositionalEncoding):
    """Logit a_t z - 2 l_t, where z is the scaled logit, t = |i - j|, l_t = ln(1 + t/tau), a_t^2 = 1 + 2 l_t.

    If z is standard normal, the expected weight before normalisation is proportional to 1 / (1 + t/tau), so
    keys 10 to 100 and 100 to 1,000 tokens away get about equal shares of the attention and contribute about
    equally to its entropy. The source composes it with p-RoPE and normalises q and k.

    Source: Anson, Wang and Aitchison 2025, arXiv:2505.17083, section 3. Parameters: none. Beyond training:
    defined at every distance, and designed for it. In decoders and encoders (where it cannot tell left from
    right).

    Args:
        tau: distance above 0, in positions, below which logits stay about as they are; 10 in the paper.
    """

    invariant_to = "shift"

    def __init__(self, shape: ModelShape, *, tau: float = 10.0):
        super().__init__(shape)
        self.tau = above(0, "tau", tau)

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        gain_B1TS, shift_B1TS = at.once(self._gain_and_shift)
        logits_BHTS = self.scaled_logits(q_BHTK, k_BHSK)
        return torch.addcmul(shift_B1TS, gain_B1TS - 1, logits_BHTS)

    def _gain_and_shift(self, at: AttentionContext) -> tuple[Tensor, Tensor]:
        relative_BTS = at.relative_positions_BTS
        log_B1TS = torch.log1p(in_float64(relative_BTS.abs()) / self.tau)[:, None]
        gain_B1TS = (1 + 2 * log_B1TS).sqrt()
        shift_B1TS = -2 * log_B1TS
        return gain_B1TS.float().to(relative_BTS.device), shift_B1TS.float().to(relative_BTS.device)
