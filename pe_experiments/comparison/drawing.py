"""Every figure of a comparison, one after the other: drawn, written, and said in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.attention import attention_figure
from pe_experiments.comparison.figures import section_figure, tasks_figure
from pe_experiments.comparison.presentation import metric_in_words
from pe_experiments.comparison.protocols import Section, families_of, family_slug
from pe_experiments.comparison.report import DrawnFigure
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.style import Look, drawing, save
from pe_experiments.comparison.summary_figures import cost_figure, heat_map, horizon_figure, training_figure
from pe_experiments.comparison.words import cells_of
from pe_experiments.console import Display
from pe_experiments.identity import safe_name

DOTS = "Lines are means over seeds, dots the seeds"


@dataclass(frozen=True)
class Drawer:
    """What the figures are made from.

    Attributes:
        runs, sections, table: of the comparison.
        metric: what schemes are compared in.
        looks: colour and marker by scheme.
        width: of the figures, in inches.
    """

    runs: Runs
    sections: Sequence[Section]
    table: pd.DataFrame
    metric: str
    looks: Mapping[str, Look]
    width: float

    def draw_all(
        self, attention: pd.DataFrame, folder: Path, display: Display
    ) -> tuple[list[DrawnFigure], list[Path]]:
        """Draw and write everything there is data for.

        Returns:
            What was drawn, and the files.
        """
        drawn: list[DrawnFigure] = []
        paths: list[Path] = []
        families = families_of(list(self.sections))
        runs = attention["run"].nunique()
        display.start("drawing figures", len(self.sections) + 5 * len(families) + runs)
        with drawing():
            for figure, what in chain(
                self._by_section(), self._by_family(families), _attention(attention, self.width)
            ):
                drawn.append(what)
                paths += save(figure, folder, what.slug)
                display.step(len(drawn))
        display.stop()
        return drawn, paths

    def _by_section(self) -> Iterator[tuple[Figure, DrawnFigure]]:
        for section in self.sections:
            if section.curves.empty:
                continue
            caption = f"Exact match and token accuracy over input length, {section.title}. {DOTS}."
            figure = section_figure(section, cells_of(self.table, section), self.looks, self.width)
            yield figure, DrawnFigure(section.slug, caption, section.protocol)

    def _by_family(self, families: list[list[Section]]) -> Iterator[tuple[Figure, DrawnFigure]]:
        metric, looks, width = self.metric, self.looks, self.width
        for members in families:
            slug = family_slug(members, families)
            family = [
                (section, cells_of(self.table, section)) for section in members if not section.curves.empty
            ]
            if not family:
                continue
            tasks = ", ".join(section.title for section, _ in family)
            words = metric_in_words(metric)
            if len(family) > 1:
                caption = f"Exact match and token accuracy over input length for {tasks}. {DOTS}."
                yield tasks_figure(family, looks, width), DrawnFigure(f"tasks-{slug}", caption)
                caption = f"Mean {words} by scheme and task, with its 95 % interval: {tasks}."
                yield heat_map(family, metric, width), DrawnFigure(f"heatmap-{slug}", caption)
            caption = (
                f"Horizon of every run by scheme for {tasks}; bars are medians, hollow arrowheads censored."
            )
            yield horizon_figure(family, looks, width), DrawnFigure(f"horizon-{slug}", caption)
            caption = f"{words.capitalize()} against time per step and parameters for {tasks}."
            yield (
                cost_figure(family, metric, self.runs.runs, looks, width),
                DrawnFigure(f"cost-{slug}", caption),
            )
            if not self.runs.training.empty:
                caption = f"Training loss and exact match on the training lengths over steps for {tasks}."
                figure = training_figure(family, self.runs.training, looks, width)
                yield figure, DrawnFigure(f"training-{slug}", caption)


def _attention(attention: pd.DataFrame, width: float) -> Iterator[tuple[Figure, DrawnFigure]]:
    for run in attention["run"].unique():
        caption = (
            f"Mean attention weight by distance, layer and head of {run}; the values are in attention.csv."
        )
        yield attention_figure(attention, run, width), DrawnFigure(f"attention-{safe_name(run)}", caption)
