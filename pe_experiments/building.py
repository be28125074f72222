"""What is estimated and tried before anything is written, and how large the model is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pe_experiments.components import user_errors
from pe_experiments.config import Experiment
from pe_experiments.data import BLOCK_EXAMPLES, Batch, Source, TrainingStream
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.errors import UserError, allowed
from pe_experiments.instantiation import build_model, source_of
from pe_experiments.models import Backbone
from pe_experiments.models.initialisation import initialise_backbone
from pe_experiments.tasks import IGNORE

PARAMETER_BYTES = 16  # weight, gradient and AdamW's two averages
DRAWN_BYTES = 16 * 24  # a token drawn: 16 batches at once, with label and position
OPERATIONS_PER_SECOND = {"cpu": 1e10, "cuda": 1e13}  # per thread of a processor; on the low side
LONGEST_HOURS = 24.0  # that measuring a model may take by this estimate
TRIED_TOKENS = 1024  # of a longer row the first ones and the last four are tried
CUTS = 8  # indices after which the tokens of a row are changed to see what moves before them
MOVED = 1e-4  # of the largest logit; ours move nothing at all, and a looser scheme may round


def evaluation_source_of(experiment: Experiment) -> Source:
    """What the examples it is evaluated on are made from."""
    return replace(source_of(experiment), task=experiment.evaluation_task)


def preflight(experiment: Experiment) -> list[str]:
    """Try what would otherwise fail after minutes or go unnoticed, on an untrained model.

    A training batch and the longest evaluation must give finite logits, and in a decoder no token may depend
    on later ones.

    Returns:
        What the schemes remark on.

    Raises:
        UserError: it cannot be carried out, or its numbers would mean nothing.
    """
    refuse_long_measurements(experiment)
    model, source, training = build_model(experiment), source_of(experiment), experiment.config.training
    with user_errors("task, positions or training.batch_size", "make no batch"):
        batch = TrainingStream(source, training.batch_size, training.batching).batch(0)
    with user_errors("pe", "fails on a training batch"), torch.no_grad():
        logits_BTV = model(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
        if logits_BTV.shape[:2] != batch.tokens_BT.shape:
            shape, expected = tuple(logits_BTV.shape[:2]), tuple(batch.tokens_BT.shape)
            raise ValueError(f"its hidden states are [batch, tokens] = {shape}, expected {expected}")
        inside_BT = torch.arange(batch.tokens_BT.shape[1]) < batch.lengths_B[:, None]
        _require_finite(logits_BTV[inside_BT], "on a training batch")
    _try_longest(experiment, model)
    _refuse_telling_ids(experiment)
    with user_errors("pe", "fails on a training batch"):
        _refuse_looking_ahead(model, batch, experiment)
    said = (f"{type(scheme).__name__}: {scheme.remark}" for scheme in _schemes(model) if scheme.remark)
    return list(dict.fromkeys(said))


def _try_longest(experiment: Experiment, model: Backbone) -> None:
    longest = experiment.evaluation_task.nearest_length(max(experiment.evaluation_lengths))
    assert longest is not None
    last_block = (experiment.config.evaluation.examples - 1) // BLOCK_EXAMPLES
    with user_errors("evaluation", "makes no examples"):
        block = evaluation_source_of(experiment).evaluation_block(longest, last_block)
    with user_errors("pe", f"fails at evaluation length {longest}"), torch.no_grad():
        model.embed(block.tokens_BT[:1], block.positions_BP[:1], block.declared_B[:1])
        tried = torch.arange(int(block.lengths_B[0]))
        if len(tried) > TRIED_TOKENS:  # both ends: far apart, fractional where the rest is
            tried = torch.cat([tried[: TRIED_TOKENS - 4], tried[-4:]])
        logits_1TV = model(block.tokens_BT[:1, tried], block.positions_BP[:1, tried])
        _require_finite(logits_1TV, f"at evaluation length {longest}")


def _require_finite(logits: Tensor, where: str) -> None:
    if not logits.isfinite().all():
        raise ValueError(f"its outputs {where} are NaN or infinite before any training")


def _refuse_telling_ids(experiment: Experiment) -> None:
    """Refuse position ids that depend on the answer: they would reveal it."""
    task = experiment.task
    if not experiment.positions.task_ids:
        return
    inputs_BN, targets_BM = task.sample(experiment.max_length, CUTS, torch.Generator().manual_seed(0))
    others_BM = torch.where(targets_BM == IGNORE, IGNORE, (targets_BM + 1) % task.vocab_size)
    ids, other = task.position_ids(inputs_BN, targets_BM), task.position_ids(inputs_BN, others_BM)
    for kind in set(ids) & set(experiment.positions.task_ids):
        pairs = zip(ids[kind], other[kind], strict=True)
        if not all(torch.equal(torch.as_tensor(one), torch.as_tensor(two)) for one, two in pairs):
            raise UserError(
                f"task: the {kind} ids of {type(task).__name__} change with what its answers say, which they "
                f"may not; they may follow from the inputs and the number of targets"
            )


def _refuse_looking_ahead(model: Backbone, batch: Batch, experiment: Experiment) -> None:
    """Change a decoder's tokens from some index on, another in every row: nothing before it may move.

    The model is left with other weights, under which every path through it is open: as initialised, attention
    adds little to the logits and a gate may be shut.

    Raises:
        ValueError: something moves, and no class says that it means to (``looks_ahead``).
    """
    if not model.shape.causal or any(part.looks_ahead for part in _schemes(model)):
        return
    seed = experiment.config.seed
    generator = torch.Generator().manual_seed(seed)
    initialise_backbone(model, "pytorch", model.shape.num_layers, seed)
    with torch.no_grad():
        for parameter in model.encodings.parameters():
            noise = 0.1 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(torch.where(parameter == 0, noise.to(parameter.dtype), parameter))
    rows_b = torch.arange(CUTS) % len(batch.tokens_BT)
    tokens_bT, lengths_b = batch.tokens_BT[rows_b], batch.lengths_B[rows_b]
    positions_bP = batch.positions_BP.expand(len(batch.tokens_BT), -1)[rows_b]
    cuts_b = 1 + torch.arange(CUTS) * (lengths_b - 2).clamp(min=0) // (CUTS - 1)
    before_bT = torch.arange(tokens_bT.shape[1]) < cuts_b[:, None]
    vocabulary = experiment.format.vocab_size
    others_bT = tokens_bT + torch.randint(1, vocabulary, tokens_bT.shape, generator=generator)
    logits = []
    for variant_bT in (tokens_bT, torch.where(before_bT, tokens_bT, others_bT % vocabulary)):
        with torch.random.fork_rng(devices=[]):  # a scheme that draws in forward draws the same twice
            torch.manual_seed(seed)
            logits.append(model(variant_bT, positions_bP, lengths_b, batch.declared_B[rows_b]).detach())
    moved, largest = (logits[0] - logits[1])[before_bT].abs().max(), logits[0].abs().max()
    if moved > MOVED * largest:
        names = allowed(dict.fromkeys(type(scheme).__name__ for scheme in _schemes(model)))
        raise ValueError(
            f"{names} looks ahead: in a decoder, other tokens later on change what is predicted before them "
            f"(by {float(moved / largest):.1g} of the largest logit); a class that means to says "
            f"looks_ahead = True"
        )


def _schemes(model: Backbone) -> list[PositionalEncoding]:
    return [part for part in model.encodings.modules() if isinstance(part, PositionalEncoding)]


def describe_model(model: Backbone, experiment: Experiment) -> dict[str, Any]:
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


def refuse_large_training(experiment: Experiment) -> None:
    """Refuse a training whose memory, estimated to a factor of two or three, exceeds this machine's.

    Raises:
        UserError: it cannot fit.
    """
    need, have = training_bytes(experiment), memory_bytes(_on_gpu(experiment))
    if have is not None and need > have:
        of_parameters = _size(PARAMETER_BYTES * parameters(experiment))
        raise UserError(
            f"training needs about {_size(need)} of memory ({of_parameters} for the parameters, the rest for "
            f"a batch) and this machine has {_size(have)}; lower model.d_model, model.num_layers, "
            f"task.vocab_size, training.batch_size or training.max_length"
        )


def refuse_long_measurements(experiment: Experiment) -> None:
    """Refuse an evaluation estimated to take more than a day; training has no limit.

    Raises:
        UserError: one would take longer.
    """
    config = experiment.config
    threads = config.hardware.threads
    speed = OPERATIONS_PER_SECOND["cuda"] if _on_gpu(experiment) else OPERATIONS_PER_SECOND["cpu"] * threads
    evaluated, checked = config.evaluation.examples, config.training.check_examples
    for examples, lengths, keys in (
        (evaluated, experiment.evaluation_lengths, ("evaluation.examples", "evaluation.lengths")),
        (checked, experiment.train_lengths[-1:], ("training.check_examples", "training.max_length")),
    ):
        hours = examples * forward_operations(experiment, lengths) / speed / 3600
        if hours > LONGEST_HOURS:
            raise UserError(
                f"{keys[0]}={examples} with {keys[1]} up to {max(lengths)} takes about {hours:.2g} hours by "
                f"an estimate, and the limit is {LONGEST_HOURS:.0f}; lower either"
            )


def _on_gpu(experiment: Experiment) -> bool:
    return experiment.config.hardware.accelerator != "cpu" and torch.cuda.is_available()


def parameters(experiment: Experiment) -> int:
    """Number of parameters of the backbone: embedding and head, attention and MLP of every layer."""
    shape, vocabulary = experiment.shape, experiment.format.vocab_size
    return 2 * vocabulary * shape.d_model + shape.num_layers * 12 * shape.d_model**2


def training_bytes(experiment: Experiment) -> int:
    """Memory of parameters, optimiser, batches, and what is kept for the backward pass."""
    shape, batch_size = experiment.shape, experiment.config.training.batch_size
    tokens = shape.train_length / 2  # of a row, on average over mixed lengths
    kept = shape.num_layers * (20 * shape.d_model + 6 * shape.num_heads * tokens) * 4  # per token
    return round(PARAMETER_BYTES * parameters(experiment) + batch_size * tokens * (kept + DRAWN_BYTES))


def forward_operations(experiment: Experiment, lengths: Sequence[int]) -> float:
    """Floating-point operations of one forward pass over one example of each length."""
    shape, task, total = experiment.shape, experiment.task, 0.0
    for length in lengths:
        tokens = experiment.format.tokens(length, task.target_length(task.nearest_length(length) or length))
        total += 2 * tokens * parameters(experiment)
        total += 4 * tokens**2 * shape.d_model * shape.num_layers
    return total


def memory_bytes(on_gpu: bool) -> int | None:
    """Memory of the GPU or of the machine, in bytes; None where the system does not say."""
    if on_gpu:
        return torch.cuda.get_device_properties(0).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"
