"""What is tried before anything is written, and how large the model is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from pe_experiments.components import user_errors
from pe_experiments.config import Experiment
from pe_experiments.data import BLOCK_EXAMPLES, Source, TrainingStream
from pe_experiments.instantiation import build_model, source_of
from pe_experiments.models import Transformer


def evaluation_source_of(experiment: Experiment) -> Source:
    """What the examples it is evaluated on are made from."""
    return replace(source_of(experiment), task=experiment.evaluation_task)


def preflight(experiment: Experiment) -> None:
    """Try what would otherwise fail after minutes: a training batch, and the longest evaluation's positions.

    Raises:
        UserError: either fails.
    """
    model, source, training = build_model(experiment), source_of(experiment), experiment.config.training
    with user_errors("task, positions or training.batch_size", "make no batch"):
        batch = TrainingStream(source, training.batch_size, training.batching).batch(0)
    with user_errors("pe", "fails on a training batch"), torch.no_grad():
        logits = model(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
        if logits.shape[:2] != batch.tokens_BT.shape:
            shape, expected = tuple(logits.shape[:2]), tuple(batch.tokens_BT.shape)
            raise ValueError(f"its hidden states are [batch, tokens] = {shape}, expected {expected}")
    longest = experiment.evaluation_task.nearest_length(max(experiment.evaluation_lengths))
    assert longest is not None
    last_block = (experiment.config.evaluation.examples - 1) // BLOCK_EXAMPLES
    with user_errors("evaluation", "makes no examples"):
        block = evaluation_source_of(experiment).evaluation_block(longest, last_block)
    with user_errors("pe", f"fails at evaluation length {longest}"), torch.no_grad():
        model.embed(block.tokens_BT[:1], block.positions_BP[:1], block.declared_B[:1])
        # The hooks of the layers too, at both ends of the sequence: far apart, fractional where the rest is.
        tokens = block.tokens_BT.shape[1]
        ends = sorted({*range(min(4, tokens)), *range(max(0, tokens - 4), tokens)})
        model(block.tokens_BT[:1, ends], block.positions_BP[:1, ends])


def describe_model(model: Transformer, experiment: Experiment) -> dict[str, Any]:
    """Size of the model, and the length of position vectors beside token vectors (a known confound)."""
    batch = TrainingStream(source_of(experiment), 64, "mixed", "validation").batch(0)
    model = model.cpu()
    with torch.no_grad():
        tokens_BTD = model.embedding(batch.tokens_BT)
        hidden_BTD = model.embed(batch.tokens_BT, batch.positions_BP, batch.declared_B)
        ratio = None
        if hidden_BTD.shape == tokens_BTD.shape:
            ratio = float((hidden_BTD - tokens_BTD).norm(dim=-1).mean() / tokens_BTD.norm(dim=-1).mean())
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "encoding_parameters": sum(p.numel() for p in model.encodings.parameters()),
        "position_to_token_norm": ratio,
    }
