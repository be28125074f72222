"""Positional encodings. Each file defines one encoding; `base` defines the interface."""

from pe_experiments.encodings.base import AttentionContext, ModelShape, PositionalEncoding

__all__ = ["AttentionContext", "ModelShape", "PositionalEncoding"]
