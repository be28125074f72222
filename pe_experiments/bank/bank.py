"""A published bank: its runs, what their seeds came to, and whether this machine repeats them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_experiments.bank.verdicts import Outcomes
from pe_experiments.comparison.protocols import Section, sections_of
from pe_experiments.comparison.run_rows import protocol_of
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.errors import UserError, allowed
from pe_experiments.files import CONFIG_DIR
from pe_experiments.identity import short_hash
from pe_experiments.publishing.archive import FILES, joined, only, read_archive
from pe_experiments.publishing.provenance import SCRIPT, more_than_rounding
from pe_experiments.runs import COMPLETED, RunDirectory
from pe_experiments.sweeps.expansion import Overrides
from pe_experiments.tracking import read_curve, read_metrics

METRIC = "exact_match_at_2x"  # what verdicts are about


@dataclass(frozen=True)
class Bank:
    """Attributes:
    study: its name.
    runs: those of its schemes, with their curves.
    """

    study: str
    runs: Runs

    @property
    def schemes(self) -> list[str]:
        return sorted(set(self.runs.runs["label"]))

    def without(self, label: str) -> Bank:
        """The bank without the scheme of that label."""
        rows = self.runs.runs
        return Bank(self.study, only(self.runs, set(rows.loc[rows["label"] != label, "name"])))

    def beside(self, mine: Runs) -> tuple[list[Section], Runs]:
        """The tasks that ``mine`` has been run on, and the runs of both on these.

        Runs under settings that the bank does not have are left out.
        """
        shared = set(mine.runs["protocol"]) & set(self.runs.runs["protocol"])
        both = joined(*(only(runs, _names(runs, shared)) for runs in (self.runs, mine)))
        return sections_of(both), both

    def unlike(self, identity: Mapping[str, Any], examples: int, tuned: Sequence[str]) -> str | None:
        """How a planned run differs from all runs here, so that none may be compared with it; or None."""
        if short_hash(protocol_of(identity, examples, tuned)) in set(self.runs.runs["protocol"]):
            return None
        counts = self.runs.curves.groupby("name")["examples"].first()
        mine = _settings(identity, examples, tuned)
        banked = [_settings(s["identity"], int(counts[n]), tuned) for n, s in self.runs.saved.items()]
        on_task = [other for other in banked if other["task._target_"] == mine["task._target_"]]
        if not on_task:
            return f"the task is not in {self.study}; allowed: {allowed(sorted(set(self.runs.runs['task'])))}"
        nearest = min(on_task, key=lambda other: len(_apart(mine, other)))
        settings = [f"{key}={mine.get(key)} (there: {nearest.get(key)})" for key in _apart(mine, nearest)]
        return (
            ", ".join(settings) or f"trained by other code (commit {self.source(next(iter(counts.index)))})"
        )

    def cheapest(self) -> tuple[str, Overrides]:
        """Name of the run that trained fastest, and what train.py was given for it."""
        trained = {name: saved["identity"]["trained"]["training"] for name, saved in self.runs.saved.items()}
        rows = self.runs.runs[self.runs.runs["status"] == COMPLETED].set_index("name")
        cost = rows["seconds_per_step"] * [trained[name]["steps"] for name in rows.index]
        name = str(cost.idxmin())
        words = [str(word) for word in self.runs.environments[name]["command"]]
        given = words[words.index(SCRIPT) + 1 :]
        return name, tuple(word for word in given if not word.startswith("hydra."))

    def source(self, name: str) -> str:
        """The commit whose code made a run."""
        return str(self.runs.environments[name].get("source", "unknown"))

    def difference(self, name: str, repeated: RunDirectory) -> str | None:
        """How a repetition of a run differs: None for not at all, empty for rounding, else in words."""
        banked: list[Any] = self.runs.curves[self.runs.curves["name"] == name].to_dict("records")
        curve, keys = read_curve(repeated.curve), ("exact_match", "token_accuracy")
        if [[row[key] for key in keys] for row in banked] == [[row[key] for key in keys] for row in curve]:
            return None
        recorded = self.runs.training[self.runs.training["name"] == name].iloc[0]
        here = next(row for row in read_metrics(repeated.metrics) if row["step"] == recorded["step"])
        return more_than_rounding((recorded["loss"], here["loss"]), banked, curve)


def _names(runs: Runs, protocols: set[str]) -> set[str]:
    return set(runs.runs.loc[runs.runs["protocol"].isin(protocols), "name"])


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
    folders = [base / study for base in (results_dir, CONFIG_DIR.parent / "results")]
    folder = next((folder for folder in folders if (folder / FILES[-1]).exists()), None)
    if folder is None:
        raise UserError(f"sweep.against={study}: no published study there ({folders[0]})")
    return Bank(study, read_archive(folder))


def outcomes_of(section: Section) -> dict[str, Outcomes]:
    """What the seeds of each scheme came to, by label."""
    return {
        str(label): Outcomes(
            tuple(rows[METRIC].astype(float)), tuple(rows["solved_in_distribution"].eq(True))
        )
        for label, rows in section.runs.sort_values("seed").groupby("label")
    }
