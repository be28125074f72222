"""What an experiment amounts to before anything is done: which run, where, and how far it is.

Names come from `identity`: two configurations that train the same thing are one run.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass
from typing import Any

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.store.directory import COMPLETED, DIVERGED, ERROR, RunDirectory, run_directory
from pe_experiments.store.identity import (
    Identity,
    changed,
    evaluated,
    identify,
    jsonable,
    only_code_differs,
    short_hash,
)
from pe_experiments.terminal.errors import UserError


@dataclass(frozen=True)
class Plan:
    """A run that is asked for.

    Attributes:
        experiment: what is trained and how it is evaluated.
        identity: what was or will be trained, and the name that follows from it.
        run: its directory.
        evaluation: what identifies its evaluation (`identity.evaluated`).
        state: ``new``, ``interrupted``, ``failed``, ``diverged``, ``finished``, or ``to evaluate`` where the
            training is finished and was evaluated otherwise.
    """

    experiment: Experiment
    identity: Identity
    run: RunDirectory
    evaluation: dict[str, Any]
    state: str

    @property
    def trained(self) -> bool:
        """Whether nothing is left to train."""
        return self.state in ("finished", "to evaluate", "diverged")

    @property
    def saved_config(self) -> dict[str, Any]:
        """What ``config.yaml`` says: everything set, derived and identified; ``rerun`` was this call's."""
        config = jsonable(self.experiment.config.model_dump()) | {"rerun": False}
        identity = self.identity.as_dict() | {"name": self.run.name}
        return {**config, "derived": self.experiment.derived, "identity": identity}

    def edited_since(self) -> dict[str, list[str]]:
        """Runs of the same configuration whose code or data differ: what has changed, by the run's name."""
        found, identity = {}, self.identity
        for other in sorted(self.run.path.parent.glob(f"{glob.escape(identity.prefix)}-????????")):
            try:
                saved = RunDirectory(other).read_config()["identity"]
                if other.name != identity.name and saved["trained"] == identity.trained:
                    found[other.name] = changed(saved["sources"], identity.sources)
            except (UserError, KeyError, TypeError, ValueError):  # damaged, or an earlier version's
                continue
        return found


def plan(experiment: Experiment) -> Plan:
    """The run of an experiment.

    Raises:
        UserError: its ``result.json`` is damaged.
    """
    identity, evaluation = identify(experiment), evaluated(experiment)
    run = run_directory(experiment.config.results_dir, identity.name)
    if run.name != identity.name and not _is_run_of(run, identity):
        run = RunDirectory(run.path.with_name(identity.name))
    state = "new" if experiment.config.rerun else _state(run, evaluation)
    return Plan(experiment, identity, run, evaluation, state)


def _is_run_of(run: RunDirectory, identity: Identity) -> bool:
    try:
        saved = run.read_config()["identity"]
    except UserError:
        return False
    return saved["trained"] == identity.trained and saved.get("sources") == identity.sources


def _state(run: RunDirectory, evaluation: dict[str, Any]) -> str:
    if not run.config.exists():  # written first: what lies there is left of a deleted run
        return "new"
    result = run.read_result()
    if result is None or (result["status"] == COMPLETED and not run.curve.exists()):
        return "interrupted" if run.checkpoint.exists() else "new"
    if result["status"] == COMPLETED and result["evaluation"] != evaluation:
        there = run.evaluation(short_hash(evaluation)).read_result()
        same = there and not only_code_differs(result["evaluation"], evaluation)
        return "finished" if same else "to evaluate"
    return {COMPLETED: "finished", DIVERGED: "diverged", ERROR: "failed"}[result["status"]]
