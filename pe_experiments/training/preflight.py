"""Check the memory, the examples and the model of a run before it writes anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.groups import read_choice
from pe_experiments.configuration.parts import shipped, user_errors
from pe_experiments.configuration.schema import TrainingConfig
from pe_experiments.data.batches import BLOCK_EXAMPLES, Batch, Source
from pe_experiments.data.formats import FORMATS
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.base import overridden_hooks
from pe_experiments.models import Backbone
from pe_experiments.models.initialisation import initialise_backbone
from pe_experiments.tasks import IGNORE, Task
from pe_experiments.terminal.errors import NotApplicable, UserError, allowed, sentence
from pe_experiments.training.optimizer import TrainingOptimizer

PARAMETER_BYTES = 16  # weight, gradient and AdamW's two averages
DRAWN_BYTES = 16 * 24  # per token: 16 batches are drawn at once, with labels and positions
CHECKED_TOKENS = 1024  # of a longer evaluation row
ROWS = 8  # checked examples, and rows whose later tokens are changed
LOOK_AHEAD = 1e-4  # larger changes, relative to the largest logit, count as look-ahead
SOLVED_LENGTH = 20  # largest length at which `Task.solve`, which may be slow, checks answers


def preflight(experiment: Experiment) -> list[str]:
    """Raise an error for a run that would fail later or give wrong results; return remarks of its encodings.

    The run must fit into memory, the model must pass `check_model`, and the optimizer must need no more than
    gradients.

    Raises:
        UserError: the run must not start.
    """
    refuse_large(experiment)
    _refuse_unused_rate(experiment.config.training)
    model = check_model(experiment)
    _refuse_optimizer(experiment, model)
    encodings = [part for part in model.encodings.modules() if isinstance(part, PositionalEncoding)]
    remarks: dict[str, None] = {}
    for encoding in encodings:
        remark = encoding.remark or overridden_hooks(encoding)[1]
        if remark:
            remarks[f"{type(encoding).__name__}: {remark}"] = None
    return list(remarks)


def check_model(experiment: Experiment) -> Backbone:
    """Return an untrained model of the experiment, or raise an error if its results would be wrong.

    Targets must agree with `Task.solve`. The model must give finite logits for a training batch and for a row
    of the longest evaluation, and in a decoder no token may depend on later ones. ``check_encoding.py`` also
    finds edits in place and stray random draws.
    """
    source = experiment.source
    for task in dict.fromkeys((source.task, experiment.evaluation_task)):
        _refuse_wrong_answers(task, source.train_lengths)
    with user_errors("task, positions or training.batch_size", "make no batch"):
        batch = experiment.batches.batch(0)
        _refuse_revealing_ids(source)
    longest = experiment.evaluation_task.nearest_length(max(experiment.evaluation_lengths)) or 0
    last_block = (experiment.config.evaluation.examples - 1) // BLOCK_EXAMPLES
    with user_errors("evaluation", "makes no examples"):
        row = _shortened_row(experiment.evaluation_source.evaluation_block(longest, last_block))
    model = experiment.untrained_model()
    for training, examples, where in (
        (True, batch, "on a training batch"), (False, row, f"at evaluation length {longest}")
    ):  # fmt: skip
        with user_errors("pe", f"fails {where}"), torch.no_grad():
            _require_finite(model.train(training), examples, where)
    with user_errors("pe", "fails in evaluation"), torch.no_grad():
        _refuse_looking_ahead(model.eval(), batch.rows(torch.arange(ROWS) % len(batch.tokens_BT)), source)
    return model


def _refuse_unused_rate(training: TrainingConfig) -> None:
    """Raise an error if a final learning rate is set that a constant schedule does not use."""
    default = read_choice("training", "default")["final_learning_rate"]
    if training.schedule == "constant" and training.final_learning_rate != default:
        raise NotApplicable(
            f"training.final_learning_rate={training.final_learning_rate}: training.schedule=constant ends "
            f"at the rate it has; allowed: {default}"
        )


def refuse_large_model(experiment: Experiment) -> None:
    """Raise an error if the weights of a trained model do not fit into the memory of this machine."""
    needed = 4 * parameters(experiment)
    available = memory_bytes(gpu=False)
    if available is not None and needed > available:
        raise UserError(
            f"the model needs about {needed / 1e9:,.1f} GB of memory, this machine has {available / 1e9:,.1f}"
        )


def refuse_large(experiment: Experiment) -> None:
    """Raise an error if training needs too much memory, estimated to a factor of two or three."""
    gpu = experiment.config.trainer.accelerator in ("auto", "gpu") and torch.cuda.is_available()
    needed = needed_bytes(experiment)
    available = memory_bytes(gpu)
    if available is not None and needed > available:
        parameter_bytes = PARAMETER_BYTES * parameters(experiment)
        raise UserError(
            f"training needs about {needed / 1e9:,.1f} GB of memory ({parameter_bytes / 1e9:,.1f} for the "
            f"parameters, the rest for a batch), this machine has {available / 1e9:,.1f}; lower "
            f"model.d_model, model.num_layers, task.vocab_size, training.batch_size, training.max_length "
            f"or pe's own sizes"
        )


def _refuse_optimizer(experiment: Experiment, model: Backbone) -> None:
    """Raise an error if a step of the optimizer needs more than gradients, such as a closure."""
    component = experiment.components["optimizer"]
    if component.choice in shipped("optimizer"):
        return
    gpu = experiment.config.trainer.accelerator in ("auto", "gpu") and torch.cuda.is_available()
    try:
        model.to("cuda" if gpu else "cpu")
        TrainingOptimizer(model, component, experiment.config.training).step()
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"optimizer._target_={component.target}: it needs more than the gradients of a batch "
            f"({sentence(error)}); allowed: one that does not, such as torch.optim.AdamW"
        ) from error


def parameters(experiment: Experiment) -> int:
    """Return about the number of parameters: the backbone by formula, the encoding built without memory."""
    shape = experiment.shape
    vocabulary = experiment.format.vocab_size
    backbone_size = 2 * vocabulary * shape.d_model + shape.num_layers * 12 * shape.d_model**2
    with suppress(Exception), torch.device("meta"):  # some encodings cannot be built on this device
        encoding = experiment.components["pe"].build(shape)
        encoding_size = sum(values.numel() for values in (*encoding.parameters(), *encoding.buffers()))
        return backbone_size + encoding_size * (shape.num_layers if encoding.per_layer else 1)
    return backbone_size


def needed_bytes(experiment: Experiment) -> int:
    """Return the memory of parameters, optimizer, batches and activations in bytes."""
    shape = experiment.shape
    batch_size = experiment.config.training.batch_size
    tokens = shape.train_length / 2  # mean length of a row with mixed lengths
    per_token = shape.num_layers * (20 * shape.d_model + 6 * shape.num_heads * tokens) * 4
    per_token += experiment.format.vocab_size * 8  # logits and probabilities of scored tokens
    return round(PARAMETER_BYTES * parameters(experiment) + batch_size * tokens * (per_token + DRAWN_BYTES))


def memory_bytes(gpu: bool) -> int | None:
    """Return the memory of the GPU or the machine in bytes; None if unknown."""
    if gpu:
        return torch.cuda.get_device_properties(0).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _refuse_wrong_answers(task: Task, lengths: Sequence[int]) -> None:
    """Raise an error if examples of a task at two of these lengths break a rule, see `broken_rule`."""
    short = [length for length in lengths if length <= SOLVED_LENGTH] or lengths[:1]
    for length in {task.nearest_length(short[0]), task.nearest_length(short[-1])} - {None, 0}:
        assert length
        with user_errors("task", f"fails at length {length}"), suppress(NotImplementedError):
            examples = task.sample(length, ROWS, torch.Generator().manual_seed(length))
            mistake = broken_rule(task, length, *examples)
            if mistake:
                raise ValueError(f"{type(task).__name__} at length {length}: {mistake}")


def broken_rule(task: Task, length: int, inputs: Tensor, targets: Tensor) -> str:
    """Return the first mistake in examples (shape, dtype, symbol or target), or an empty string."""
    scored = targets != IGNORE
    width = task.target_length(length)
    unknown_formats = set(task.formats) - set(FORMATS)
    if unknown_formats:
        return f"formats {allowed(sorted(unknown_formats))}, expected {allowed(FORMATS)}"
    if inputs.shape != (len(targets), task.input_length(length)):
        return f"inputs of shape {tuple(inputs.shape)}"
    if targets.shape != (len(inputs), width):
        return f"targets of shape {tuple(targets.shape)}, M={width}"
    if not inputs.dtype == targets.dtype == torch.int64:
        return f"{inputs.dtype} and {targets.dtype}, expected torch.int64"
    if not scored.any():
        return "no target is scored"
    symbols = torch.cat([inputs.flatten(), targets[scored]])
    if symbols.min() < 0 or symbols.max() >= task.vocab_size:
        return f"symbols {int(symbols.min())} to {int(symbols.max())} of {task.vocab_size}"
    if "aligned" not in task.formats and (scored.long().diff(dim=1) > 0).any():
        return "targets of -100 before others"
    answers = task.solve(inputs)
    if torch.equal(answers, targets):
        return ""
    row = 0
    if answers.shape == targets.shape:
        row = int((answers != targets).any(dim=1).nonzero()[0])
    return f"{inputs[row].tolist()} -> {targets[row].tolist()}, and solve says {answers[row].tolist()}"


def _refuse_revealing_ids(source: Source) -> None:
    """Raise an error if the position ids of a task depend on its answers."""
    task = source.task
    if not source.positions.task_ids:
        return
    inputs_BN, targets_BM = task.sample(max(source.train_lengths), ROWS, torch.Generator().manual_seed(0))
    changed_BM = torch.where(targets_BM == IGNORE, IGNORE, (targets_BM + 1) % task.vocab_size)
    ids = task.position_ids(inputs_BN, targets_BM)
    changed_ids = task.position_ids(inputs_BN, changed_BM)
    for kind in set(ids) & set(source.positions.task_ids):
        pairs = zip(ids[kind], changed_ids[kind], strict=True)
        if not all(torch.equal(torch.as_tensor(first), torch.as_tensor(second)) for first, second in pairs):
            raise UserError(
                f"task: the {kind} ids of {type(task).__name__} depend on the values of its answers; they "
                f"may depend only on the inputs and the number of targets"
            )


def _require_finite(model: Backbone, batch: Batch, where: str) -> None:
    """Raise an error if the logits of a token are NaN or infinite; padding is ignored."""
    real_BT = torch.arange(batch.tokens_BT.shape[1]) < batch.lengths_B[:, None]
    if not _logits(model, batch)[real_BT].isfinite().all():
        raise ValueError(f"its outputs {where} are NaN or infinite before any training")


def _refuse_looking_ahead(model: Backbone, batch: Batch, source: Source) -> None:
    """Raise an error if later tokens change the predictions of a decoder at earlier tokens."""
    encodings = [part for part in model.encodings.modules() if isinstance(part, PositionalEncoding)]
    if not model.shape.causal or any(encoding.looks_ahead for encoding in encodings):
        return
    # At initialisation attention adds little to the logits, and a gate may be closed.
    initialise_backbone(model, "pytorch", model.shape.num_layers, source.seed)
    generator = torch.Generator().manual_seed(source.seed)
    for parameter in model.encodings.parameters():
        noise = 0.1 * torch.randn(parameter.shape, generator=generator)
        parameter.copy_(torch.where(parameter == 0, noise.to(parameter.dtype), parameter))
    cuts_B = 1 + torch.arange(ROWS) * (batch.lengths_B - 2).clamp(min=0) // (ROWS - 1)
    unchanged_BT = torch.arange(batch.tokens_BT.shape[1]) < cuts_B[:, None]
    vocabulary = source.format.vocab_size
    tokens_BT = batch.tokens_BT
    others_BT = (tokens_BT + torch.randint(1, vocabulary, tokens_BT.shape, generator=generator)) % vocabulary
    changed = batch._replace(tokens_BT=torch.where(unchanged_BT, tokens_BT, others_BT))
    torch.manual_seed(0)
    logits = _logits(model, batch)
    torch.manual_seed(0)
    difference = (logits - _logits(model, changed))[unchanged_BT].abs().max() / logits.abs().max()
    if difference > LOOK_AHEAD:
        names = allowed(dict.fromkeys(type(part).__name__ for part in encodings))
        raise ValueError(
            f"{names} looks ahead: in a decoder, later tokens change earlier predictions (by "
            f"{float(difference):.1g} of the largest logit); if this is intended, set looks_ahead = True"
        )


def _shortened_row(batch: Batch) -> Batch:
    """Return the first row, or the first and the last four tokens of a long row, with their position ids."""
    tokens_BT, labels_BT, lengths_B, _, positions_BP = batch.rows(slice(1))
    index = torch.arange(int(lengths_B[0]))
    if len(index) > CHECKED_TOKENS:
        index = torch.cat([index[: CHECKED_TOKENS - 4], index[-4:]])
    length_B = torch.tensor([len(index)])
    return Batch(tokens_BT[:, index], labels_BT[:, index], length_B, length_B, positions_BP[:, index])


def _logits(model: Backbone, batch: Batch) -> Tensor:
    """Return the logits [B, T, V] of a batch; raise an error if the model returns another shape."""
    logits_BTV = model(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
    if logits_BTV.shape[:2] != batch.tokens_BT.shape:
        shape = tuple(logits_BTV.shape[:2])
        expected = tuple(batch.tokens_BT.shape)
        raise ValueError(f"its hidden states are [batch, tokens] = {shape}, expected {expected}")
    return logits_BTV
