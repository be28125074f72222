"""Build the parts of a validated configuration and derive values from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from pe_experiments.configuration.component import CALLBACKS, Component, load_component, load_function, same
from pe_experiments.configuration.schema import (
    ENCODING_AND_TASK,
    MAX_LENGTH,
    MODEL_SIZES,
    TRAINER_OPTIONS_IN_IDENTITY,
    Config,
)
from pe_experiments.data.batches import Source, TrainingStream
from pe_experiments.data.formats import Format, format_for, refuse_misfit
from pe_experiments.encodings import ModelShape
from pe_experiments.models import Backbone
from pe_experiments.models.initialisation import seeded_model
from pe_experiments.positions import PositionPolicy
from pe_experiments.tasks import Task
from pe_experiments.terminal.errors import NotApplicable, UserError, allowed, shown, user_errors

# Alternatives to callbacks that act at the end of each epoch, because a training is one epoch.
EPOCH_CALLBACKS = {
    "EarlyStopping": "training.stop_at_exact_match (where exact match is measured)",
    "GradientAccumulationScheduler": "trainer.accumulate_grad_batches",
    "StochasticWeightAveraging": "EMAWeightAveraging",
}
# Callbacks of Lightning that show, log or save, and leave the training as it is.
WATCHING_CALLBACKS = {
    "DeviceStatsMonitor",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "RichModelSummary",
    "RichProgressBar",
    "TQDMProgressBar",
    "ThroughputMonitor",
}
IGNORED_ARGUMENTS = ("attention_implementation",)  # arguments of a model that do not change its results


class Experiment:
    """The parts of a validated configuration, each built once and checked with the others.

    Args:
        config: a validated configuration.
        other_task: the section of a task on which to evaluate instead of the task of the training.

    Attributes:
        components: by config group.
        shape: of the model, which its encodings are built for.
        other_task: the evaluation task, if it is not that of the training.
        evaluation_component: builds ``evaluation_task``, which is usually the task of the training.
        longest_ids_1P: position ids of the longest evaluation; None if they follow from the task.
        callbacks: the user's Lightning callbacks.
        training_callbacks: those that may change training.
        metrics: the user's functions and metrics (`evaluation.metrics.Metric`), by the name of their column.

    Raises:
        UserError: a part cannot be built, or the parts do not fit together.
    """

    def __init__(self, config: Config, other_task: dict[str, Any] | None = None):
        self.config = config
        self.components = {
            group: load_component(group, getattr(config, group)) for group in ENCODING_AND_TASK
        }
        model = {"_target_": config.model.target, **(config.model.model_extra or {})}
        self.components["model"] = load_component("model", model)
        self.model_sizes = {key: getattr(config.model, key) for key in MODEL_SIZES}
        self.components["optimizer"] = load_component("optimizer", config.optimizer)
        self.callbacks = tuple(load_component(CALLBACKS, section) for section in config.trainer.callbacks)
        self.training_callbacks = tuple(filter(_may_change_training, self.callbacks))
        self._prepare_training()
        self._prepare_evaluation(other_task)

    def _prepare_training(self) -> None:
        """Build task, positions, format and the shape of the model, and check that they fit together."""
        training = self.config.training
        self.task: Task = self.components["task"].build()
        self.positions: PositionPolicy = self.components["positions"].build()
        name = type(self.task).__name__
        if training.stop_at_exact_match is not None and not self.task.exact:
            problem = f"exact match is not measured on {name}; allowed: null"
            raise NotApplicable(f"training.stop_at_exact_match={training.stop_at_exact_match}: {problem}")
        with user_errors("task"):
            self.format: Format = format_for(self.task, self.config.model.causal)
            if not self.config.model.causal and (why := self.task.decoder_only):
                raise NotApplicable(f"task: {name} needs a decoder, because {why}")
        low, high = training.min_length, training.max_length
        self.train_lengths = tuple(n for n in range(low, high + 1) if self.task.nearest_length(n) == n)
        if not self.train_lengths:
            none = f"{name} makes no input of such a length; its shortest is {shortest_length(self.task)}"
            raise UserError(f"training.min_length={low}, training.max_length={high}: {none}")
        train_length = max(
            self.format.tokens(self.task.input_length(length), self.task.target_length(length))
            for length in self.train_lengths
        )
        with user_errors("positions"):
            self.positions.check(self.task, self.train_lengths)
            train_positions = self.positions.train_positions(train_length)
        self.shape = ModelShape(
            **self.model_sizes,
            train_length=train_length,
            train_positions=train_positions,
            parent_length=self.config.parent.length if self.config.parent else None,
        )

    def _prepare_evaluation(self, other_task: dict[str, Any] | None) -> None:
        """Build the evaluation task and its lengths, longest ids and metrics, and check that they fit."""
        evaluation, causal = self.config.evaluation, self.config.model.causal
        self.other_task = load_component("task", other_task) if other_task else None
        if self.other_task and same(self.other_task.section, self.components["task"].section):
            self.other_task = None
        self.evaluation_component = self.other_task or self.components["task"]
        self.evaluation_task = self.task
        if self.other_task:
            self.evaluation_task = self.other_task.build()
            with user_errors(f"task={self.other_task.choice}"):
                refuse_misfit(format_for(self.evaluation_task, causal), self.format)
                refuse_other_vocabulary(self.evaluation_task, self.task)
                self.positions.check(self.evaluation_task, [shortest_length(self.evaluation_task)])
        task = self.evaluation_task
        self.evaluation_lengths = evaluation_lengths(evaluation.lengths, self.train_lengths, task)
        window = evaluation.window
        if window is not None and not causal:
            raise NotApplicable(
                f"evaluation.window={window}: an encoder reads the whole input; allowed: null"
            )
        if window is not None and self.positions.task_ids:
            why = "position ids of the task do not begin anew"
            raise NotApplicable(f"evaluation.window={window}: {why}; allowed: null")
        self.longest_ids_1P: Tensor | None = None
        if not self.positions.task_ids:
            with user_errors("positions"):  # too few ids would be found only after the training
                longest = task.nearest_length(max(self.evaluation_lengths)) or 1
                tokens = self.format.tokens(task.input_length(longest), task.target_length(longest))
                tokens_1 = torch.tensor([tokens if window is None else min(tokens, window + 1)])
                train_length, generator = self.shape.train_length, torch.Generator()
                self.longest_ids_1P = self.positions.evaluation_ids(tokens_1, train_length, generator)
        self.metrics: dict[str, Callable[..., Any]] = {}
        if (evaluation.metrics or evaluation.save) and not task.exact:
            option = "evaluation.save" if evaluation.save else "evaluation.metrics"
            raise NotApplicable(f"{option}: {type(task).__name__} has no answers to keep or measure")
        for name in evaluation.metrics:
            metric = load_function("evaluation.metrics", name)
            column = getattr(metric, "name", None) or metric.__name__
            if column in self.metrics:
                raise UserError(
                    f"evaluation.metrics={shown(evaluation.metrics)}: two metrics are called {column}"
                )
            self.metrics[column] = metric

    def untrained_model(self) -> Backbone:
        """Return a new model, with initial weights from random streams of the run's seed."""
        build_model = self.components["model"].build
        build_encoding = self.components["pe"].build
        model = seeded_model(
            build_model, build_encoding, self.format.vocab_size, self.shape, self.config.seed
        )
        return model.double() if self.config.trainer.precision == "64-true" else model

    @property
    def source(self) -> Source:
        lengths = self.train_lengths
        longest = self.shape.train_length
        return Source(self.task, self.format, self.positions, lengths, longest, self.config.seed)

    @cached_property  # a stream keeps its latest draw, which serves several steps
    def batches(self) -> TrainingStream:
        """Return the training batches, which follow those that the parent was trained on."""
        training, parent = self.config.training, self.config.parent
        first = parent.batches if parent else 0
        return TrainingStream(self.source, training.batch_size, training.batching, first=first)

    @property
    def evaluation_source(self) -> Source:
        return replace(self.source, task=self.evaluation_task)

    @property
    def model_choice(self) -> str:
        """Return the most similar choice of ``configs/model``, including sizes, or the name of the class."""
        return self.components["model"].closest_choice(**self.model_sizes)[0]

    @property
    def label(self) -> str:
        """Return the configured label, or else one such as ``rope(base=500)+random_subset``.

        It names the encoding and the position policy. After the label of a parent: ``rope -> rope_yarn``.
        """
        label = self.components["pe"].label
        positions = self.components["positions"].label
        if positions != "consecutive":
            label = f"{label}+{positions}"
        if self.config.parent:
            label = f"{self.config.parent.label} -> {label}"
        return self.config.label or label

    @cached_property
    def full_config(self) -> dict[str, Any]:
        """Return the configuration with all arguments of its components, including defaults."""
        config = self.config.model_dump(by_alias=True)
        for group in (*ENCODING_AND_TASK, "optimizer"):
            config[group] = self.components[group].section
        config["model"] = self.components["model"].section | self.model_sizes
        config["trainer"]["callbacks"] = [callback.section for callback in self.training_callbacks]
        return config

    @property
    def decoding(self) -> Literal["teacher_forcing", "greedy"]:
        """Return how answers are decoded: by teacher forcing if the format does not feed answers back."""
        return self.config.evaluation.decoding if self.format.feeds_back else "teacher_forcing"

    @property
    def max_length(self) -> int:
        """Return the longest training input that the task makes, at most ``training.max_length``."""
        return max(self.train_lengths)


def trained_sections(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a full configuration, perhaps read from a file, that affect training."""
    groups = (*ENCODING_AND_TASK, "model", "optimizer", "training")
    for section in (*groups, "trainer"):
        if not isinstance(config.get(section), Mapping):
            raise ValueError(f"{section}={shown(config.get(section))} is not a section of a configuration")
    sections = {group: dict(config[group]) for group in groups}
    for argument in IGNORED_ARGUMENTS:
        sections["model"].pop(argument, None)
    sections["trainer"] = {key: config["trainer"][key] for key in TRAINER_OPTIONS_IN_IDENTITY}
    sections["seed"] = config["seed"]
    if parent := config.get("parent"):
        sections["parent"] = {"run": parent["run"], "family": parent["family"]}
    return sections


def _may_change_training(callback: Component) -> bool:
    """Return False for `WATCHING_CALLBACKS` and for classes with ``trains = False``.

    Raises:
        UserError: the callback is one of Lightning that acts at the ends of epochs.
    """
    lightnings = {
        cls.__name__ for cls in callback.cls.__mro__ if cls.__module__.startswith("pytorch_lightning.")
    }
    for name in lightnings & EPOCH_CALLBACKS.keys():
        why = "acts at the ends of epochs, and a training is one epoch"
        raise UserError(f"{CALLBACKS}: {name} {why}; allowed instead: {EPOCH_CALLBACKS[name]}")
    only_watches = callback.cls.__name__ in lightnings & WATCHING_CALLBACKS
    return getattr(callback.cls, "trains", True) and not only_watches


def evaluation_lengths(requested: list[int] | None, trained: tuple[int, ...], task: Task) -> tuple[int, ...]:
    """Return the evaluation lengths in ascending order, by default multiples of the longest trained length.

    A default length is left out if it is below the trained lengths, or if the task makes no input of this
    length or at most a tenth shorter.
    """
    cannot = f"evaluation.lengths: {type(task).__name__} cannot make an input of length"
    if requested is not None:
        for length in requested:
            nearest = task.nearest_length(length)
            if nearest is None:
                raise UserError(f"{cannot} {length}; its shortest is {shortest_length(task)}")
            if nearest < length and task.nearest_length(2 * length) == nearest:
                raise UserError(f"{cannot} {length}; its longest is {nearest}")
        return tuple(sorted(set(requested)))
    ratios = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
    grid = sorted({min(MAX_LENGTH, max(1, round(ratio * max(trained)))) for ratio in ratios})
    candidates = [(length, task.nearest_length(length)) for length in grid]
    lengths = tuple(
        length for length, nearest in candidates if nearest and nearest >= max(0.9 * length, min(trained))
    )
    if not lengths:
        raise UserError(f"{cannot} {allowed(map(str, grid))}; say which lengths")
    return lengths


def refuse_other_vocabulary(task: Task, trained: Task) -> None:
    """Raise a ValueError if the symbols of a task are not those that a model was trained with."""
    if task.vocabulary != trained.vocabulary:
        raise ValueError(
            "its tokens differ from those of the training, since each text has a tokenizer of its own; "
            "allowed: the text of the training, or a model that was trained with tokenizer=null"
        )


def shortest_length(task: Task) -> int:
    """Return the length of the shortest inputs of a task, at most 100,000."""
    return next((n for n in range(1, 100_000) if task.nearest_length(n) == n), 100_000)
