"""Published studies: from finished runs to CSVs, and from CSVs to pages, byte for byte.

A study is a folder with the four CSVs of `archive`. Code of its own stands beside them in ``study.py`` (and
what that imports from its folder, ``from .other import ...``): any of these functions.

measure(folder, runs, results_dir)  writes more CSVs when the study is published, from the runs themselves
pages(folder)                       draws figures from the CSVs; without this and the next, the comparison
blocks(folder) -> {name: text}      what stands in its README.md under ``<!-- from NAME: make results -->``;
                                    ``answer`` also in the project's, under ``from results/STUDY``
"""

from pe_experiments.drawing import markdown_table as markdown_table
from pe_experiments.published.archive import read_archive as read_archive
from pe_experiments.published.archive import read_table as read_table
from pe_experiments.published.pages import compare_archived as compare_archived
from pe_experiments.published.pages import mean_in_words as mean_in_words
from pe_experiments.published.pages import rate_in_words as rate_in_words
from pe_experiments.published.pages import with_settings as with_settings
