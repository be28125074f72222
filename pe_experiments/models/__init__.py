"""A transformer (decoder or encoder), its attention, and the interface of other models."""

from pe_experiments.models.backbone import Backbone
from pe_experiments.models.transformer import Transformer

__all__ = ["Backbone", "Transformer"]
