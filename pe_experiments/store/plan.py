"""The plan of an experiment before anything is done: which run, where, and how far it is."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.store.directory import COMPLETED, DIVERGED, ERROR, RunDirectory, alike, run_directory
from pe_experiments.store.identity import Identity, changed, evaluated, identify, jsonable
from pe_experiments.store.names import only_code_differs, short_hash
from pe_experiments.terminal.errors import UserError, few


@dataclass(frozen=True)
class Plan:
    """A run that is asked for."""

    experiment: Experiment  # what is trained and how it is evaluated
    identity: Identity
    run: RunDirectory
    evaluation: dict[str, Any]  # what identifies it (`identity.evaluated`)
    result: dict[str, Any] | None  # of the run, as far as it is
    state: str  # new, in progress, interrupted, failed, diverged, finished, or "to evaluate": only trained
    directory: RunDirectory  # where its evaluation lies or will lie: the run's, or one of its own

    @property
    def trained(self) -> bool:
        return self.state in ("finished", "to evaluate", "diverged")

    @property
    def remark(self) -> str:
        """A dry run's remark besides the state: who has the run, or why it is a new one."""
        edited = self.edited_since() if self.state == "new" else {}
        changes = [f"changed since {other}: {few(names)}" for other, names in edited.items()]
        return "another process has it" if self.state == "in progress" else "; ".join(changes)

    @property
    def saved_config(self) -> dict[str, Any]:
        """Content of ``config.yaml``: everything set, derived and identified; ``rerun`` was this call's."""
        config = jsonable(self.experiment.config.model_dump()) | {"rerun": False}
        identity = self.identity.as_dict() | {"name": self.run.name}
        return {**config, "derived": self.experiment.derived, "identity": identity}

    def edited_since(self) -> dict[str, list[str]]:
        """Runs of the same configuration whose code or data differ: what has changed, by the run's name."""
        found, identity = {}, self.identity
        for other in alike(self.run.path.with_name(identity.name)):
            try:
                saved = other.read_config()["identity"]
                if saved["trained"] == identity.trained:
                    found[other.name] = changed(saved["sources"], identity.sources)
            except (UserError, KeyError, TypeError, ValueError):  # damaged, or an earlier version's
                continue
        return found


def plan(experiment: Experiment) -> Plan:
    """The run of an experiment, also where it lies under another label."""
    identity = identify(experiment)
    run = run_directory(experiment.config.results_dir, identity.name)
    if run.name != identity.name and not _is_run_of(run, identity):
        run = RunDirectory(run.path.with_name(identity.name))
    return plan_in(run, experiment, identity)


def plan_in(run: RunDirectory, experiment: Experiment, identity: Identity) -> Plan:
    """How far an experiment is that lies, or will lie, in this directory."""
    evaluation, state, directory = evaluated(experiment), "finished", run
    # The configuration is written first: without it, what lies there is left of a deleted run.
    begun = run.config.exists() and not experiment.config.rerun
    result = run.read_result() if begun else None
    if result is None or (result["status"] == COMPLETED and not run.curve.exists()):
        state = "interrupted" if begun and run.checkpoint.exists() else "new"
    elif result["status"] != COMPLETED:
        state = {DIVERGED: "diverged", ERROR: "failed"}[result["status"]]
    elif only_code_differs(result["evaluation"], evaluation):
        state = "to evaluate"
    elif result["evaluation"] != evaluation:
        directory = run.evaluation(short_hash(evaluation))
        state = "finished" if directory.read_result() else "to evaluate"
    if state in ("new", "interrupted", "failed") and run.in_use:
        state = "in progress"
    return Plan(experiment, identity, run, evaluation, result, state, directory)


def _is_run_of(run: RunDirectory, identity: Identity) -> bool:
    with suppress(UserError):
        saved = run.read_config()["identity"]
        return saved["trained"] == identity.trained and saved.get("sources") == identity.sources
    return False
