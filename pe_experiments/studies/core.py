"""The study ``core``: order and its absence, over five tasks, with and without a causal mask."""

from __future__ import annotations

from pe_experiments.comparison.documents import matrix_table, to_markdown
from pe_experiments.comparison.protocols import sections_of
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.words import rows_of, sentence
from pe_experiments.studies.figures_in_words import Figures, render


def page(runs: Runs) -> str:
    """``README.md`` of the study."""
    figures = Figures(runs)
    sections = []
    for section in sections_of(runs):
        rows, pairs = rows_of(figures.table, section), rows_of(figures.pairs, section)
        own = figures.table[figures.table["protocol"] == section.protocol]
        words, table = sentence(rows, pairs), to_markdown(matrix_table([section], own))
        sections.append((section.title, words, table))
    return render("core.md.j2", f=figures, sections=sections)
