"""Find the run of an experiment and determine its state."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.store.directory import RunDirectory, run_directory, runs_with_same_label
from pe_experiments.store.identity import Identity, evaluation_key, identify
from pe_experiments.store.names import differences, jsonable, short_hash
from pe_experiments.terminal.errors import UserError, few


@dataclass(frozen=True)
class RunStatus:
    """The requested run and its state on disk."""

    experiment: Experiment  # training and evaluation
    identity: Identity
    evaluation: dict[str, Any]  # key of the evaluation (`identity.evaluation_key`)
    run: RunDirectory
    state: str  # as `RunDirectory.state`, or "to evaluate": trained but not yet evaluated like this
    result: dict[str, Any] | None  # result of the run; None until it has ended
    directory: RunDirectory  # directory of the evaluation: the run's or one of its ``evaluations``

    @property
    def trained(self) -> bool:
        return self.state in ("finished", "to evaluate", "diverged")

    @property
    def remark(self) -> str:
        """Return the remark that a dry run prints: another process has the run, or why it is new."""
        if self.state == "in progress":
            return "in use by another process"
        return self.difference_to_cached_run() if self.state == "new" else ""

    @property
    def saved_config(self) -> dict[str, Any]:
        """Return the content of ``config.yaml``: the configuration, derived values and the identity."""
        config = jsonable(self.experiment.config.model_dump()) | {"rerun": False}
        identity = asdict(self.identity) | {"name": self.run.name}
        return {**config, "derived": self.experiment.derived, "identity": identity}

    def difference_to_cached_run(self) -> str:
        """Return the differences from the most similar run with the same label, or an empty string."""
        changes_by_run: dict[str, list[str]] = {}
        for candidate in runs_with_same_label(self.run.path.with_name(self.identity.name)):
            try:
                hashed = candidate.read_config()["identity"]["hashed"]
                changes_by_run[candidate.name] = differences(self.identity.hashed, hashed)
            except (UserError, KeyError, TypeError, ValueError):  # damaged
                continue
        if not changes_by_run:
            return ""
        nearest = min(changes_by_run, key=lambda name: (len(changes_by_run[name]), name))
        return f"not the run {nearest}: {few(changes_by_run[nearest])}"

    def updated(self) -> RunStatus:
        """Return the status after reading its state from disk again."""
        directory = self.run
        state = self.run.state(self.experiment.config.rerun)
        result = self.run.read_result() if state in ("finished", "diverged", "failed") else None
        if state == "finished" and result and result["evaluation"] != self.evaluation:
            directory = self.run.evaluation(short_hash(self.evaluation))
            state = "finished" if directory.read_result() else "to evaluate"
        return replace(self, result=result, state=state, directory=directory)


def run_status(experiment: Experiment) -> RunStatus:
    """Return the status of the run of an experiment, which may exist under another label."""
    identity = identify(experiment)
    run = run_directory(experiment.config.results_dir, identity.name)
    return status_in(run, experiment, identity)


def status_in(run: RunDirectory, experiment: Experiment, identity: Identity) -> RunStatus:
    """Return the status of the run of an experiment in a directory, after completing a killed rerun."""
    run.restore()
    return RunStatus(experiment, identity, evaluation_key(experiment), run, "new", None, run).updated()
