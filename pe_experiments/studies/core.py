"""The study ``core``: order and its absence, over five tasks, with and without a causal mask."""

from __future__ import annotations

from pe_experiments.comparison.presentation import plain, to_markdown
from pe_experiments.comparison.presentation import result_table as section_table
from pe_experiments.comparison.protocols import sections_of
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.words import cells_of, summary
from pe_experiments.studies.figures_in_words import Figures, render


def page(runs: Runs) -> str:
    """``README.md`` of the study."""
    figures = Figures(runs)
    sections = []
    for section in sections_of(runs):
        rows, pairs = cells_of(figures.table, section), cells_of(figures.pairs, section, "pairs.csv")
        words, table = plain(summary(rows, pairs)), to_markdown(section_table(section, rows))
        sections.append((section.title, words, table))
    return render("core.md.j2", f=figures, sections=sections)
