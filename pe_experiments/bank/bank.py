"""A published bank: its runs, what their seeds came to, and whether this machine repeats them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_experiments.bank.verdicts import Outcomes
from pe_experiments.comparison.protocols import Section, sections_of
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.errors import UserError
from pe_experiments.files import CONFIG_DIR
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

        Raises:
            UserError: the bank has no runs of the same protocol.
        """
        protocols = set(mine.runs["protocol"])
        if strange := protocols - set(self.runs.runs["protocol"]):
            task = mine.runs.loc[mine.runs["protocol"].isin(strange), "task"].iloc[0]
            raise UserError(f"{self.study} has no runs on {task} with these settings; see sweep.cases")
        banked = self.runs.runs.loc[self.runs.runs["protocol"].isin(protocols), "name"]
        both = joined(only(self.runs, set(banked)), mine)
        return sections_of(both), both

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
        """The commit that a run was made by."""
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
