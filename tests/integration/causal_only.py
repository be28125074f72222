"""A scheme of somebody's own that means nothing without a causal mask."""

from pe_experiments.encodings import PositionalEncoding


class CausalOnly(PositionalEncoding):
    causal_only = True
