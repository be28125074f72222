"""Published studies: from finished runs to CSVs, and from CSVs to pages, byte for byte.

A study is a folder with the four CSVs of `archive`. Code of its own stands beside them in ``study.py`` (and
what that imports from its folder, ``from .other import ...``): any of these functions.

measure(folder, runs, results_dir)  writes more CSVs when the study is published, from the runs themselves
pages(folder, runs)                 writes everything that follows from the CSVs; without it, the comparison
pages_without_runs(folder)          the same where the facts are JSON files and there are no runs
readme(folder) -> str               the lines of README.md under ``<!-- from results/STUDY: make results -->``
"""

from pe_experiments.publishing.archive import read_archive, read_table
from pe_experiments.publishing.pages import compare_archived, markdown_table, mean_in_words, with_settings

__all__ = [
    "compare_archived",
    "markdown_table",
    "mean_in_words",
    "read_archive",
    "read_table",
    "with_settings",
]
