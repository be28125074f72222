"""The result of a comparison: its numbers and the sentences derived from them."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison.protocols import Protocol, protocols_of
from pe_experiments.comparison.runs import Row, Runs
from pe_experiments.comparison.table import encoding_table, pair_table
from pe_experiments.comparison.words import caveats, result_in_words
from pe_experiments.drawing import Style, styles
from pe_experiments.store.directory import DIVERGED
from pe_experiments.tasks import DEPTHS


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        table: one row per protocol and encoding.
        pairs: one row per protocol and pair of encodings.
        runs: the tables of runs, of curves and of training, and the excluded runs.
        protocols: the runs that were compared with each other.
        metric: the column in which encodings are compared.
        baseline: the encoding against which the others are tested; None if all pairs are tested.
        files: the written files.
    """

    table: pd.DataFrame
    pairs: pd.DataFrame
    runs: Runs
    protocols: list[Protocol]
    metric: str
    baseline: str | None = None
    files: list[Path] = field(default_factory=list)

    @property
    def encodings(self) -> list[str]:
        """Return the encodings in the order of the table."""
        return list(map(str, self.table["encoding"].unique()))

    @cached_property
    def styles(self) -> dict[str, Style]:
        """Return colour and marker by encoding."""
        return styles(self.encodings)

    def rows(self, protocol: Protocol, pairs: bool = False) -> list[Row]:
        """Return the rows of a protocol in the table of encodings, or of pairs."""
        table = self.pairs if pairs else self.table
        rows: list[Any] = table[table["protocol"] == protocol.hash].to_dict("records")
        return rows

    def depths(self, protocol: Protocol) -> dict[str, pd.DataFrame]:
        """Return mean exact match over seeds by encoding, depth and length; diverged runs count as 0."""
        if self.runs.depth.empty:
            return {}
        runs = protocol.runs[["name", "label", "status"]]
        measured = runs.merge(self.runs.depth, on="name")
        cells = measured[["length", "depth"]].drop_duplicates()
        diverged = runs[runs["status"] == DIVERGED].merge(cells, how="cross").assign(exact_match=0.0)
        rows = pd.concat([measured, diverged])
        labels = [label for label in self.encodings if label in set(rows["label"])]
        of_label = (rows[rows["label"] == label] for label in labels)
        return {
            label: part.pivot_table("exact_match", "depth", "length").reindex(DEPTHS)
            for label, part in zip(labels, of_label, strict=True)
        }

    @cached_property
    def sentences(self) -> dict[str, str]:
        """Return the result of each protocol in one sentence, by its title."""
        return {protocol.title: result_in_words(protocol, self.rows(protocol)) for protocol in self.protocols}

    @cached_property
    def notes(self) -> list[str]:
        """Return the caveats, each preceded by its tasks."""
        titles: dict[str, list[str]] = {}
        for protocol in self.protocols:
            for caveat in caveats(protocol, self.rows(protocol), self.runs.tuning):
                titles.setdefault(caveat, []).append(protocol.title)
        everywhere = len(self.protocols) if len(self.protocols) > 1 else None
        return [
            f"{'all tasks' if len(about) == everywhere else '; '.join(about)}: {caveat}"
            for caveat, about in titles.items()
        ]


def compared(runs: Runs, metric: str | None = None, baseline: str | None = None) -> Comparison:
    """Return the comparison of these runs without writing files; see `compare` for the arguments."""
    protocols = protocols_of(runs)
    if metric is None:
        metric = "exact_match_extrapolation" if any(protocol.exact for protocol in protocols) else "loss"
    if metric == "loss":
        metric = "loss_extrapolation"
    table = encoding_table(protocols, metric)
    pairs = pair_table(protocols, table, metric, baseline)
    return Comparison(table, pairs, runs, protocols, metric, baseline)
