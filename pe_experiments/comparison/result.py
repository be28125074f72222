"""The result of a comparison: its numbers, and the sentences that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison.pairs import pair_table, with_groups
from pe_experiments.comparison.protocols import Section, sections_of
from pe_experiments.comparison.run_rows import Row
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.table import scheme_table
from pe_experiments.comparison.words import caveats, result_in_words
from pe_experiments.errors import UserError, allowed
from pe_experiments.losses import lower_is_better
from pe_experiments.plots import WIDTHS, Look, styles


@dataclass(frozen=True)
class Options:
    """How runs are compared and drawn.

    Attributes:
        metric: column that schemes are compared in, such as ``exact_match_at_2x``; ``loss`` is
            ``loss_extrapolation``. None is ``exact_match_extrapolation``, or ``loss_extrapolation`` where no
            run has an exact match.
        baseline: test only the differences from the scheme of this label; None tests all pairs.
        order: schemes to list first, in this order; the others follow, the best first.
        labels: other names for schemes, by label.
        attention: names of runs whose attention by distance is drawn.
        width: of the figures: ``single``, ``double`` (columns of a journal), or millimetres.
    """

    metric: str | None = None
    baseline: str | None = None
    order: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    attention: Sequence[str] = ()
    width: str | float = "double"

    def __post_init__(self) -> None:
        self.inches  # noqa: B018  # a wrong width raises before anything is read

    @property
    def inches(self) -> float:
        """The width in inches.

        Raises:
            UserError: it is neither a name nor a sensible number.
        """
        if isinstance(self.width, str) and self.width in WIDTHS:
            return WIDTHS[self.width]
        if isinstance(self.width, int | float) and 50 <= self.width <= 500:
            return self.width / 25.4
        raise UserError(f"width={self.width}: expected {allowed(WIDTHS)}, or 50 to 500 (millimetres)")


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        table: one row per section and scheme.
        pairs: one row per section and pair of schemes.
        runs: one row per run, per length and per training step, and the runs left out.
        sections: the runs that were compared with each other.
        options: how.
        folder: where it was written, or None.
        files: the files written.
    """

    table: pd.DataFrame
    pairs: pd.DataFrame
    runs: Runs
    sections: list[Section]
    options: Options
    folder: Path | None = None
    files: list[Path] = field(default_factory=list)

    @property
    def metric(self) -> str:
        """The column that schemes are compared in."""
        return str(self.table["metric"].iloc[0])

    @property
    def lower(self) -> bool:
        """Whether the best scheme has the lowest value."""
        return lower_is_better(self.metric)

    @property
    def schemes(self) -> list[str]:
        """In the order of the table."""
        return list(map(str, self.table["scheme"].unique()))

    @cached_property
    def looks(self) -> dict[str, Look]:
        """Colour and marker by scheme, whatever it is renamed to."""
        return styles(self.schemes, {text: label for label, text in self.options.labels.items()})

    def rows(self, section: Section) -> list[Row]:
        """The rows of a section in the table."""
        return _rows(self.table, section)

    def pairs_of(self, section: Section) -> list[Row]:
        """The rows of a section in the pairs."""
        return _rows(self.pairs, section)

    @cached_property
    def sentences(self) -> dict[str, str]:
        """The result of each section in one sentence, by its title."""
        return {s.title: result_in_words(self.rows(s), self.pairs_of(s)) for s in self.sections}

    @cached_property
    def notes(self) -> list[str]:
        """Its caveats."""
        found = (caveats(section, self.rows(section), self.runs.tuning) for section in self.sections)
        return list(dict.fromkeys(note for notes in found for note in notes))


def _rows(table: pd.DataFrame, section: Section) -> list[Any]:
    return table[table["protocol"] == section.protocol].to_dict("records")


def compared(runs: Runs, options: Options) -> Comparison:
    """The comparison of these runs; writes nothing.

    Raises:
        UserError: an option that matches no run.
    """
    sections, named = sections_of(runs), options.labels.get
    baseline = None if options.baseline is None else named(options.baseline, options.baseline)
    metric = options.metric or ("exact_match_extrapolation" if any(s.exact for s in sections) else "loss")
    metric = "loss_extrapolation" if metric == "loss" else metric
    table = scheme_table(sections, metric, [named(label, label) for label in options.order])
    pairs = pair_table(sections, table, metric, baseline)
    return Comparison(with_groups(table, pairs), pairs, runs, sections, options)
