"""The untrained model of a resolved experiment, and the source of its examples."""

from __future__ import annotations

import torch

from pe_experiments.config import Experiment
from pe_experiments.data import Source
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.models import Backbone
from pe_experiments.randomness import named_seed


def build_model(experiment: Experiment) -> Backbone:
    """The untrained model: backbone and encoding from named streams of the seed.

    Raises:
        UserError: the scheme refuses its arguments or the model.
    """
    seed, made = experiment.config.seed, 0

    def make_encoding(shape: ModelShape) -> PositionalEncoding:
        nonlocal made
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(named_seed(seed, f"encoding {made}"))
            made += 1
            return experiment.components["pe"].build(shape)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(named_seed(seed, "backbone"))
        return experiment.components["model"].build(
            experiment.format.vocab_size, experiment.shape, make_encoding, seed
        )


def source_of(experiment: Experiment) -> Source:
    """The source of an experiment's examples."""
    return Source(
        experiment.task,
        experiment.format,
        experiment.positions,
        experiment.train_lengths,
        experiment.shape.train_length,
        experiment.config.seed,
    )
