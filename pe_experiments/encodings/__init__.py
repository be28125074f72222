"""Positional encodings. Each file defines one encoding; `base` defines the interface."""

from pe_experiments.encodings.attention_context import AttentionContext
from pe_experiments.encodings.base import ModelShape, PositionalEncoding, PositionBias

__all__ = ["AttentionContext", "ModelShape", "PositionBias", "PositionalEncoding"]
