"""The plan of an experiment before anything is done: which run, where, and how far it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.store.directory import COMPLETED, DIVERGED, ERROR, RunDirectory, run_directory, same_label
from pe_experiments.store.identity import Identity, evaluation_key, identify
from pe_experiments.store.names import differences, jsonable, short_hash
from pe_experiments.terminal.errors import UserError, few


@dataclass(frozen=True)
class Plan:
    """A run that is asked for."""

    experiment: Experiment  # what is trained and how it is evaluated
    identity: Identity
    run: RunDirectory
    evaluation: dict[str, Any]  # what identifies it (`identity.evaluation_key`)
    result: dict[str, Any] | None  # of the run, as far as it is
    state: str  # new, in progress, interrupted, failed, diverged, finished, or "to evaluate": only trained
    directory: RunDirectory  # where its evaluation lies or will lie: the run's, or one of its own

    @property
    def trained(self) -> bool:
        return self.state in ("finished", "to evaluate", "diverged")

    @property
    def remark(self) -> str:
        """A dry run's remark besides the state: who has the run, or why it is a new one."""
        if self.state == "in progress":
            return "another process has it"
        return self.not_the_run() if self.state == "new" else ""

    @property
    def saved_config(self) -> dict[str, Any]:
        """Content of ``config.yaml``: everything set, derived and identified; ``rerun`` was this call's."""
        config = jsonable(self.experiment.config.model_dump()) | {"rerun": False}
        identity = asdict(self.identity) | {"name": self.run.name}
        return {**config, "derived": self.experiment.derived, "identity": identity}

    def not_the_run(self) -> str:
        """Return which run of the same label this is not, the nearest, and what differs; or nothing."""
        found: dict[str, list[str]] = {}
        for other in same_label(self.run.path.with_name(self.identity.name)):
            try:
                there = other.read_config()["identity"]["hashed"]
                found[other.name] = differences(self.identity.hashed, there)
            except (UserError, KeyError, TypeError, ValueError):  # damaged, or of an earlier version
                continue
        if not found:
            return ""
        nearest = min(found, key=lambda name: (len(found[name]), name))
        return f"not the run {nearest}: {few(found[nearest])}"


def plan(experiment: Experiment) -> Plan:
    """Return the plan for an experiment; its run may lie under another label."""
    identity = identify(experiment)
    return plan_in(run_directory(experiment.config.results_dir, identity.name), experiment, identity)


def plan_in(run: RunDirectory, experiment: Experiment, identity: Identity) -> Plan:
    """Return the plan for an experiment in this directory."""
    evaluation, state, directory = evaluation_key(experiment), "finished", run
    # The configuration is written first: without it, what lies there is left of a deleted run.
    begun = run.config.exists() and not experiment.config.rerun
    result = run.read_result() if begun else None
    if result is None or (result["status"] == COMPLETED and not run.curve.exists()):
        state = "interrupted" if begun and run.checkpoint.exists() else "new"
    elif result["status"] != COMPLETED:
        state = {DIVERGED: "diverged", ERROR: "failed"}[result["status"]]
    elif result["evaluation"] != evaluation:
        directory = run.evaluation(short_hash(evaluation))
        state = "finished" if directory.read_result() else "to evaluate"
    if state in ("new", "interrupted", "failed") and run.in_use:
        state = "in progress"
    return Plan(experiment, identity, run, evaluation, result, state, directory)
