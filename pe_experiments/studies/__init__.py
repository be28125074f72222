"""Published evidence: write finished runs to CSVs, and regenerate pages from CSVs byte for byte.

A study is a folder with the CSVs of `archive`. Its page, ``README.md``, is written by hand; `blocks` fills in
tables and numbers. Its module ``study.py`` declares a `pages.Study`, named ``STUDY``. A study without it gets
the files of a comparison.
"""

from pe_experiments.drawing import markdown_table as markdown_table
from pe_experiments.store.study_folder import read_table as read_table
from pe_experiments.studies.archive import read_archive as read_archive
from pe_experiments.studies.blocks import bits_per_byte as bits_per_byte
from pe_experiments.studies.blocks import encoding_markdown as encoding_markdown
from pe_experiments.studies.blocks import format_change as format_change
from pe_experiments.studies.blocks import format_mean as format_mean
from pe_experiments.studies.blocks import format_test as format_test
from pe_experiments.studies.blocks import table as table
from pe_experiments.studies.blocks import with_options as with_options
from pe_experiments.studies.pages import Study as Study
