"""Published studies: from finished runs to CSVs, and from CSVs to pages, byte for byte.

A study is a folder with the CSVs of `archive`. Its page, ``README.md``, is written by hand; `blocks` says how
tables and numbers get into it. Code of its own stands in ``study.py`` (and what that imports from its folder,
``from .other import ...``): any of these functions.

measure(folder, runs, results_dir)  writes more CSVs when the study is published, from the runs themselves
pages(folder)                       draws figures from the CSVs; without this and the next, the comparison
blocks(folder) -> {name: value}     tables (as text) and numbers of the page, by the names of their marks
"""

from pe_experiments.drawing import markdown_table as markdown_table
from pe_experiments.published.archive import read_archive as read_archive
from pe_experiments.published.archive import read_table as read_table
from pe_experiments.published.blocks import mean_in_words as mean_in_words
from pe_experiments.published.blocks import rate_in_words as rate_in_words
from pe_experiments.published.blocks import table as table
from pe_experiments.published.blocks import with_settings as with_settings
from pe_experiments.published.pages import compare_archived as compare_archived
