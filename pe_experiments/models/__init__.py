"""One transformer, causal or not, and its attention."""

from pe_experiments.models.transformer import Transformer

__all__ = ["Transformer"]
