"""The result of a comparison: its numbers and the sentences derived from them."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison.protocols import Protocol, protocols_of
from pe_experiments.comparison.runs import Row, Runs
from pe_experiments.comparison.sentences import caveats, result_sentence, seeds_sentence
from pe_experiments.comparison.table import encoding_table, pair_table, summary_of
from pe_experiments.drawing import Style, styles
from pe_experiments.evaluation.summary import Summary
from pe_experiments.store.directory import DIVERGED
from pe_experiments.tasks import DEPTHS
from pe_experiments.terminal.errors import few

DIFFERENCE = 0.1  # of two means: smaller ones seldom matter for a choice


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of `compare`.

    Attributes:
        table: one row per protocol and encoding.
        pairs: one row per protocol and pair of encodings.
        runs: the tables of runs, curves and training, and the excluded runs.
        protocols: the groups of runs that were compared with each other.
        summary: the metric, and the lengths, in which encodings are compared; `metric` is its column.
        baseline: the encoding against which the others are tested; None if all pairs are tested.
        difference: the difference of means for which `plans` says how many seeds it takes.
        files: the files that were written.
    """

    table: pd.DataFrame
    pairs: pd.DataFrame
    runs: Runs
    protocols: list[Protocol]
    summary: Summary
    baseline: str | None = None
    difference: float = DIFFERENCE
    files: list[Path] = field(default_factory=list)

    def __repr__(self) -> str:
        tasks = few([protocol.title for protocol in self.protocols])
        return f"<Comparison of {few(self.encodings)} on {tasks}: {len(self.runs.runs)} runs, {self.metric}>"

    @property
    def metric(self) -> str:
        """Return the column of ``table`` in which encodings are compared."""
        return self.summary.column

    @property
    def encodings(self) -> list[str]:
        """Return the labels of the encodings in the order of the table."""
        return list(map(str, self.table["encoding"].unique()))

    @cached_property
    def styles(self) -> dict[str, Style]:
        """Return the colour and marker of each encoding."""
        return styles(self.encodings, self.runs.own_labels)

    def rows(self, protocol: Protocol, pairs: bool = False) -> list[Row]:
        """Return the rows of a protocol in ``table``, or with ``pairs`` in the table of pairs."""
        table = self.pairs if pairs else self.table
        rows: list[Any] = table[table["protocol"] == protocol.hash].to_dict("records")
        return rows

    def depths(self, protocol: Protocol) -> dict[str, pd.DataFrame]:
        """Return mean exact match [depth, length] for each encoding; diverged runs count as 0."""
        if self.runs.depth.empty:
            return {}
        runs = protocol.runs[["name", "label", "status"]]
        measured = runs.merge(self.runs.depth, on="name")
        cells = measured[["length", "depth"]].drop_duplicates()
        diverged = runs[runs["status"] == DIVERGED].merge(cells, how="cross").assign(exact_match=0.0)
        rows = pd.concat([measured, diverged])
        tables = {}
        for label in self.encodings:
            of_encoding = rows[rows["label"] == label]
            if len(of_encoding):
                tables[label] = of_encoding.pivot_table("exact_match", "depth", "length").reindex(DEPTHS)
        return tables

    def by_step(self, protocol: Protocol) -> dict[str, pd.DataFrame]:
        """Return the mean over seeds [step, length] of the first drawn metric for each encoding.

        Steps that not all runs of an encoding have are left out. Diverged runs are not included.
        """
        if self.runs.by_step.empty:
            return {}
        metric = protocol.drawn(self.summary)[0].name
        rows = protocol.runs[["name", "label"]].merge(self.runs.by_step, on="name")
        tables = {}
        for label in self.encodings:
            of_encoding = rows[rows["label"] == label]
            if metric in of_encoding and of_encoding[metric].notna().any():
                runs_at_step = of_encoding.groupby("step")["name"].transform("nunique")
                shared = of_encoding[runs_at_step == of_encoding["name"].nunique()]
                tables[label] = shared.pivot_table(metric, "step", "length")
        return tables

    @cached_property
    def sentences(self) -> dict[str, str]:
        """Return a sentence with the result of each protocol, by the title of the protocol."""
        return {
            protocol.title: result_sentence(protocol, self.rows(protocol), self.summary)
            for protocol in self.protocols
        }

    @cached_property
    def plans(self) -> dict[str, str]:
        """Return how many seeds `difference` takes, by the title of the protocol, where it can be said."""
        plans = {}
        for protocol in self.protocols:
            pairs = self.rows(protocol, pairs=True)
            plan = seeds_sentence(self.rows(protocol), pairs, self.summary, self.difference)
            if plan:
                plans[protocol.title] = plan
        return plans

    @cached_property
    def notes(self) -> list[str]:
        """Return the caveats, each preceded by the protocols to which it applies."""
        titles: dict[str, list[str]] = {}
        for protocol in self.protocols:
            for caveat in caveats(protocol, self.rows(protocol), self.runs.tuning):
                titles.setdefault(caveat, []).append(protocol.title)
        notes = []
        for caveat, affected in titles.items():
            applies_to_all = len(affected) == len(self.protocols) > 1
            notes.append(f"{'all tasks' if applies_to_all else '; '.join(affected)}: {caveat}")
        return notes


def build_comparison(
    runs: Runs, metric: str | None = None, baseline: str | None = None, difference: float = DIFFERENCE
) -> Comparison:
    """Return the comparison of these runs without writing files; see `compare` for the arguments."""
    protocols = protocols_of(runs)
    summary = summary_of(protocols, metric)
    table = encoding_table(protocols, summary)
    pairs = pair_table(protocols, table, summary, baseline)
    return Comparison(table, pairs, runs, protocols, summary, baseline, difference)
