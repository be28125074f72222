"""A published bank: its runs, and what their seeds came to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison.protocols import Protocol, protocols_of
from pe_experiments.comparison.runs import Runs
from pe_experiments.published.archive import FILES, SHIPPED, joined, read_archive, read_witness, where
from pe_experiments.published.kinds import Kind, kinds_of
from pe_experiments.published.pages import with_settings
from pe_experiments.published.verdicts import Outcomes
from pe_experiments.terminal.errors import UserError, allowed

METRIC = "exact_match_at_2x"  # what verdicts are about


@dataclass(frozen=True)
class Bank:
    """Attributes:
    study: its name.
    runs: those of its schemes, with their curves.
    witnessed: as `archive.read_witness` reads it.
    """

    study: str
    runs: Runs
    witnessed: pd.DataFrame

    @property
    def schemes(self) -> list[str]:
        return sorted(set(self.runs.runs["label"]))

    def without(self, label: str) -> Bank:
        """The bank without the scheme of that label."""
        return replace(self, runs=where(self.runs, self.runs.runs["label"] != label))

    def beside(self, mine: Runs) -> tuple[list[Protocol], Runs]:
        """The tasks that ``mine`` has been run on, and the runs of both on these.

        Runs under settings that the bank does not have are left out.
        """
        shared = set(mine.runs["protocol"]) & set(self.runs.runs["protocol"])
        both = joined(*(where(runs, runs.runs["protocol"].isin(shared)) for runs in (self.runs, mine)))
        return protocols_of(both), both

    def unlike(self, identity: Mapping[str, Any], examples: int, tuned: Sequence[str]) -> str | None:
        """The settings in which a planned run differs from all runs here, so that none compares; or None."""
        counts = self.runs.curves.groupby("name")["examples"].first()
        mine = _settings(identity, examples, tuned)
        banked = [_settings(s["identity"], int(counts[n]), tuned) for n, s in self.runs.saved.items()]
        on_task = [other for other in banked if other["task._target_"] == mine["task._target_"]]
        if not on_task:
            return f"the task is not in {self.study}; allowed: {allowed(sorted(set(self.runs.runs['task'])))}"
        nearest = min(on_task, key=lambda other: len(_apart(mine, other)))
        settings = [f"{key}={mine.get(key)} (there: {nearest.get(key)})" for key in _apart(mine, nearest)]
        return ", ".join(settings) or None

    def kinds(self, labels: Collection[str], targets: Collection[str]) -> list[Kind]:
        """The kinds of run of these schemes on the tasks of these classes."""
        rows = with_settings(self.runs, target="task._target_")
        return kinds_of(
            where(self.runs, rows["label"].isin(labels) & rows["target"].isin(targets)), self.witnessed
        )


def _settings(identity: Mapping[str, Any], examples: int, tuned: Sequence[str]) -> dict[str, Any]:
    sections = {group: identity["trained"][group] for group in ("task", "model", "training")}
    flat = {f"{group}.{key}": value for group, section in sections.items() for key, value in section.items()}
    flat["evaluation.examples"] = examples
    return {key: value for key, value in flat.items() if key not in tuned}


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]


def read_bank(study: str, results_dir: Path) -> Bank:
    """The bank in ``results_dir``, or else the one that came with the project.

    Raises:
        UserError: there is none.
    """
    folders = [base / study for base in (results_dir, SHIPPED)]
    folder = next((folder for folder in folders if (folder / FILES[-1]).exists()), None)
    if folder is None:
        raise UserError(f"sweep.against={study}: no published study there ({folders[0]})")
    return Bank(study, read_archive(folder), read_witness(folder))


def outcomes_of(protocol: Protocol) -> dict[str, Outcomes]:
    """What the seeds of each scheme came to, by label."""
    return {
        str(label): Outcomes(
            tuple(rows[METRIC].astype(float)), tuple(rows["solved_in_distribution"].eq(True))
        )
        for label, rows in protocol.runs.sort_values("seed").groupby("label")
    }
