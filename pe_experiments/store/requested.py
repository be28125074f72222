"""A requested run: its built components, its identity, and its directory, whose state it reads."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.schema import Config, warmup_steps
from pe_experiments.store.directory import COMPLETED, TRAINED, RunDirectory, State, link_error, run_directory
from pe_experiments.store.identity import Identity, Record, evaluation_key, identify
from pe_experiments.store.names import config_differences, full_hash, jsonable, short_hash
from pe_experiments.terminal.errors import UserError, few


class Run:
    """The requested training and evaluation of one configuration.

    Attributes:
        experiment: the components, each built once, and derived values.
        identity: what makes two trainings the same run.
        evaluation: what makes two evaluations of the run the same (`identity.evaluation_key`).
        directory: of the run; with ``rerun=true`` the sibling directory in which it trains again.
    """

    def __init__(
        self,
        config: Config,
        experiment: Experiment | None = None,
        identity: Identity | None = None,
        directory: RunDirectory | None = None,
    ):
        self.config = config
        self.experiment = experiment or Experiment(config)
        self.identity = identity or identify(self.experiment)
        self.final_directory = directory or run_directory(config.results_dir, self.identity.name)
        self.name = self.final_directory.name
        self.directory = self.final_directory.rerun if config.rerun else self.final_directory

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        return evaluation_key(self.experiment)

    @property
    def evaluation_directory(self) -> RunDirectory:
        """The directory of the curve: that of the run, or of one of its later evaluations."""
        result = self.directory.read_result()
        if result is None or result["status"] != COMPLETED:
            return self.directory
        encoding = self.experiment.components["pe"]
        earlier = {**result["evaluation"], "pe": encoding.with_defaults(result["evaluation"]["pe"])}
        # An evaluation that also kept its predictions has the same curve. As hashes, since 1 and 1.0 differ.
        same_curve = (full_hash(self.evaluation), full_hash(self.evaluation | {"save": True}))
        if full_hash(jsonable(earlier)) in same_curve:
            return self.directory
        return self.directory.evaluation(short_hash(self.evaluation))

    @property
    def state(self) -> State:
        """How far training and evaluation are, read from disk."""
        if self.config.rerun and self.directory.path.is_symlink():
            raise link_error(self.directory.path)
        state = self.directory.state()
        if state not in TRAINED:
            return state
        evaluated = self.evaluation_directory
        for directory in (self.directory, evaluated):
            result = directory.read_result()
            if result and result.get("run") != self.identity.hash:
                raise UserError(f"{directory.result} belongs to another run; delete it or add rerun=true")
        if state is State.FINISHED and evaluated.state() is not State.FINISHED:
            return State.TO_EVALUATE
        return state

    @property
    def shown_state(self) -> State:
        """The state for users: in progress if another process is training the run."""
        state = self.state
        return State.IN_PROGRESS if state not in TRAINED and self.directory.in_use else state

    @property
    def remark(self) -> str:
        """What a dry run prints: another process has the run, or why it is new."""
        if self.shown_state is State.IN_PROGRESS:
            return "in use by another process"
        return self.difference_to_cached_run() if self.state is State.NEW else ""

    @property
    def saved_config(self) -> dict[str, Any]:
        """The content of ``config.yaml``: the configuration, derived values and the identity."""
        identity = {key: getattr(self.identity, key) for key in ("hash", "numerics", "data", "classes")}
        if self.identity.classes or self.experiment.training_callbacks:  # comparisons do not import them
            identity["config"] = self.identity.config
        experiment, training = self.experiment, self.config.training
        derived: dict[str, Any] = {
            "vocab_size": experiment.format.vocab_size,
            "format": type(experiment.format).__name__.removesuffix("Format").lower(),
            "train_length": experiment.shape.train_length,
            "train_positions": experiment.shape.train_positions,
            "warmup_steps": warmup_steps(training.steps, training.warmup_steps),
            "train_lengths": list(experiment.train_lengths),
            "evaluation_lengths": list(experiment.evaluation_lengths),
        }
        if experiment.other_task:
            derived["evaluation_task"] = experiment.other_task.section
        return {**experiment.full_config, "rerun": False, "derived": derived, "identity": identity}

    def difference_to_cached_run(self) -> str:
        """Return the differences from the most similar run with the same label, or an empty string."""
        changes_by_run: dict[str, list[str]] = {}
        for path in Path(self.config.results_dir, "runs").glob(f"{self.identity.stem}-*"):
            try:
                earlier = Record.read(RunDirectory(path)).identity
                changes = config_differences(self.identity.hashed, earlier.hashed)
            except (UserError, KeyError, TypeError, ValueError):  # damaged
                continue
            if changes:  # else it is this run, killed at its start
                changes_by_run[path.name] = changes
        if not changes_by_run:
            return ""
        nearest = min(changes_by_run, key=lambda name: (len(changes_by_run[name]), name))
        return f"not the run {nearest}: {few(changes_by_run[nearest])}"

    @property
    def header(self) -> dict[str, Any]:
        """The entries of ``result.json`` that do not depend on the outcome."""
        experiment = self.experiment
        header = {
            "name": self.name,
            "run": self.identity.hash,
            "label": experiment.label,
            "task": experiment.components["task"].choice,
            "model": experiment.model_choice,
            "seed": self.config.seed,
            "steps": self.config.training.steps,
            "evaluation": self.evaluation,
        }
        if self.config.parent:
            header["parent"] = self.config.parent.name
        return jsonable(header)
