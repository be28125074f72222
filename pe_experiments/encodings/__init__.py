"""Positional encodings: one file per encoding, `base` is the contract."""

from pe_experiments.encodings.base import AttentionContext, ModelShape, PositionalEncoding

__all__ = ["AttentionContext", "ModelShape", "PositionalEncoding"]
