"""Check the user's own classes before a run writes anything; shipped classes are held by the tests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from pe_experiments.checking.subject import look_ahead, perturbed
from pe_experiments.checking.task_contract import CHECKS, broken_rule, draw_examples, possible_lengths
from pe_experiments.configuration.choices import shipped
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.data.batches import BLOCK_EXAMPLES, Batch
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.evaluation.curve import CURVE_COLUMNS, point
from pe_experiments.evaluation.metrics import user_metrics
from pe_experiments.evaluation.tables import metric_values
from pe_experiments.models import Backbone
from pe_experiments.models.initialisation import initialise_backbone
from pe_experiments.tasks import Task
from pe_experiments.terminal.errors import UserError, allowed, sentence, user_errors
from pe_experiments.training.optimizer import TrainingOptimizer

CHECKED_TOKENS = 1024  # of a longer evaluation row
ROWS = 8  # checked examples, and rows whose later tokens are changed
LOOK_AHEAD = 1e-4  # larger changes, relative to the largest logit, count as look-ahead
# Columns of by_step.csv and of comparisons, and of a summary of exact match (solved_in_distribution).
RESERVED = ("step", "name", "label", "seed", "task", "model", "protocol", "status", "in_summary", "solved")
SOLVED_LENGTH = 64  # largest length at which `Task.solve`, which may be slow, checks answers


def check_own_classes(experiment: Experiment) -> None:
    """Raise an error for classes from outside the package that would give wrong results.

    The answers of a task must agree with `Task.solve`, and its examples must follow from the generator. The
    model must give finite logits for a training batch and for a row of the longest evaluation, and in a
    decoder no token may depend on later ones. A step of the optimizer must need no more than gradients.
    ``check_encoding.py`` and ``check_task.py`` check more.

    Raises:
        UserError: the run must not start.
    """
    own_groups = {group for group, component in experiment.components.items() if component.own_classes}
    if "task" in own_groups:
        _check_task(experiment.task, experiment.train_lengths)
    if experiment.evaluation_component.own_classes:
        _check_task(experiment.evaluation_task, experiment.evaluation_lengths)
    if own_groups:
        _check_model(experiment)
    if experiment.components["optimizer"].choice not in shipped("optimizer"):
        _check_optimizer(experiment)
    if experiment.metrics:
        _check_metrics(experiment)


def _check_model(experiment: Experiment) -> None:
    """Raise an error if the results of the model would be wrong."""
    source = experiment.source
    with user_errors("task, positions or training.batch_size", "make no batch"):
        batch = experiment.batches.batch(0)
    if source.positions.task_ids:
        ids = CHECKS["position_ids"](source.task)
        if ids.holds is False:
            raise UserError(f"task: {ids.measured}")
    longest = experiment.evaluation_task.nearest_length(max(experiment.evaluation_lengths)) or 0
    last_block = (experiment.config.evaluation.examples - 1) // BLOCK_EXAMPLES
    with user_errors("evaluation", "makes no examples"):
        row = _shortened_row(experiment.evaluation_source.evaluation_block(longest, last_block))
    model = experiment.untrained_model()
    for training, examples, where in (
        (True, batch, "on a training batch"),
        (False, row, f"at evaluation length {longest}"),
    ):
        with user_errors("pe", f"fails {where}"), torch.no_grad():
            logits_BTV = _logits(model.train(training), examples)
            real_BT = torch.arange(logits_BTV.shape[1]) < examples.lengths_B[:, None]  # without padding
            if not logits_BTV[real_BT].isfinite().all():
                raise ValueError(f"its outputs {where} are NaN or infinite before any training")
    with user_errors("pe", "fails in evaluation"), torch.no_grad():
        rows = batch.rows(torch.arange(ROWS) % len(batch.tokens_BT))
        # At initialisation attention adds little to the logits, and a gate may be closed.
        initialise_backbone(model, "pytorch", model.shape.num_layers, source.seed)
        perturbed(model.encodings, by=0.1)
        if not torch.equal(_logits(model.eval(), rows), _logits(model, rows)):
            names = allowed(dict.fromkeys(type(part).__name__ for part in model.encodings))
            raise ValueError(
                f"{names}: two equal calls give different results; draw while self.training alone"
            )
        _refuse_looking_ahead(model, rows, source.format.vocab_size)


def _check_metrics(experiment: Experiment) -> None:
    """Raise an error if a metric fails on right answers, or has the name of a column of the curve."""
    shortest = experiment.evaluation_task.nearest_length(min(experiment.evaluation_lengths)) or 0
    source = experiment.evaluation_source
    batch = source.evaluation_block(shortest, 0).rows(slice(ROWS))
    taken = {*CURVE_COLUMNS, *RESERVED}
    for metric in user_metrics(experiment.metrics):
        columns = {*metric.columns, *([metric.guess_column] if metric.guess else [])}
        if clash := taken & columns:
            raise UserError(f"evaluation.metrics: {min(clash)} is a column of a result; rename the metric")
        taken |= columns
        with user_errors("evaluation.metrics", f"{metric.name} fails on right answers"):
            metric_values(metric, batch, batch.labels_BT)
        if metric.guess:
            row = dict.fromkeys(CURVE_COLUMNS, 0.0) | point(
                source, shortest, shortest, experiment.max_length, 0
            )
            with user_errors("evaluation.metrics", f"{metric.name}: guess fails"):
                float(metric.guess(row))


def _check_optimizer(experiment: Experiment) -> None:
    """Raise an error if a step of the optimizer needs more than gradients, such as a closure."""
    component = experiment.components["optimizer"]
    try:
        TrainingOptimizer(experiment.untrained_model(), component, experiment.config.training).step()
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"optimizer._target_={component.target}: it needs more than the gradients of a batch "
            f"({sentence(error)}); allowed: one that does not, such as torch.optim.AdamW"
        ) from error


def _check_task(task: Task, lengths: Sequence[int]) -> None:
    """Raise an error if examples of a task break a rule (`broken_rule`) or do not follow from their seed."""
    short = [length for length in lengths if length <= SOLVED_LENGTH] or lengths[:1]
    for length in possible_lengths(task, short):
        with user_errors("task", f"fails at length {length}"), suppress(NotImplementedError):
            examples = draw_examples(task, length, ROWS, seed=length)
            mistake = broken_rule(task, length, *examples)
            if not all(map(torch.equal, examples, draw_examples(task, length, ROWS, seed=length))):
                mistake = "two calls with the same generator give different examples; draw from it alone"
            if mistake:
                raise ValueError(f"{type(task).__name__} at length {length}: {mistake}")


def _refuse_looking_ahead(model: Backbone, batch: Batch, vocabulary: int) -> None:
    """Raise an error if later tokens change the predictions of a decoder at earlier tokens."""
    encodings = [part for part in model.encodings.modules() if isinstance(part, PositionalEncoding)]
    if not model.shape.causal or any(encoding.looks_ahead for encoding in encodings):
        return

    def call(tokens_BT: Tensor) -> Tensor:
        return _logits(model, batch._replace(tokens_BT=tokens_BT))

    cuts_B = 1 + torch.arange(ROWS) * (batch.lengths_B - 2).clamp(min=0) // (ROWS - 1)
    difference = look_ahead(call, batch.tokens_BT, cuts_B, vocabulary)
    if difference > LOOK_AHEAD:
        names = allowed(dict.fromkeys(type(part).__name__ for part in encodings))
        raise ValueError(
            f"{names} looks ahead: in a decoder, later tokens change earlier predictions (by "
            f"{difference:.1g} of the largest logit); if this is intended, set looks_ahead = True"
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
