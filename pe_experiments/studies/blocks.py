"""Fill tables and numbers into Markdown pages that are written by hand.

``<!-- from NAME: make results -->`` and ``<!-- end -->``, each on a separate line, enclose a table. Within a
line ``<!-- {NAME:.2f} -->`` and ``<!-- end -->`` enclose a number, in Python's format. A line must not begin
with the mark of a number, because Markdown would treat the whole line as HTML.

The table of answers in ``results/README.md`` has a row for each page that it lists and that has lines between
``<!-- in short -->`` and ``<!-- end of in short -->``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.comparison.sentences import number
from pe_experiments.comparison.statistics import EQUAL_WITHIN, FEWEST
from pe_experiments.drawing import markdown_table
from pe_experiments.store.directory import DIVERGED
from pe_experiments.studies.inference import mean_interval
from pe_experiments.terminal.errors import UserError, few

UNIFORM_BITS = 8.0  # bits per byte of a uniform guess
END = "<!-- end -->"
TABLE = re.compile(rf"(<!-- from ([\w/.]+): make results -->\n)(.*?){END}", re.DOTALL)
NUMBER = re.compile(rf"<!-- (\{{[^{{}}\n]+\}}) -->(.*?){END}")
SHORT = re.compile(r"<!-- in short -->\n(.*?)\n<!-- end of in short -->\n", re.DOTALL)
LISTED = re.compile(r"^\| \[([^]]+)\]\(([\w/]+)/README\.md\)", re.MULTILINE)  # a row of results/README.md


def fill_page(page: str, values: Mapping[str, Any]) -> str:
    """Return the page with its tables and numbers replaced by ``values``.

    Raises:
        UserError: a mark of the page has no value, or a table has no mark.
    """
    table_names = [name for _, name, _ in TABLE.findall(page)]
    number_names = [re.split(r"[:.}]", field[1:])[0] for field, _ in NUMBER.findall(page)]
    unknown = {*table_names, *number_names} - set(values)
    if unknown:
        raise UserError(f"README.md: block {few(sorted(unknown))} is unknown; allowed: {few(sorted(values))}")
    tables = {name for name, value in values.items() if str(value).startswith("| ")}
    unused = tables.difference(table_names)
    if unused:
        raise UserError(f"README.md: no mark for table {few(sorted(unused))}")
    page = TABLE.sub(lambda mark: f"{mark[1]}{values[mark[2]].strip()}\n{END}", page)
    return NUMBER.sub(lambda mark: f"<!-- {mark[1]} -->{mark[1].format_map(values)}{END}", page)


def fill_index(page: str, results_dir: Path) -> str:
    """Return ``results/README.md`` with its table of answers, one for each listed page that marks its own."""
    rows = []
    listed = LISTED.findall(TABLE.sub("", page))  # not in the table of answers itself
    for study, folder in listed:
        short = SHORT.search((results_dir / folder / "README.md").read_text("utf-8"))
        if short:
            answer = NUMBER.sub(lambda mark: mark[2], short[1]).replace("**", "")
            rows.append([f"[{study}]({folder}/README.md)", " ".join(answer.split())])
    answers = markdown_table(["study", "answer"], rows).strip()
    return TABLE.sub(lambda mark: f"{mark[1]}{answers}\n{END}" if mark[2] == "answers" else mark[0], page)


def table(rows: pd.DataFrame) -> str:
    """Return a data frame as a Markdown table without its index."""
    return markdown_table([*rows], rows.astype(str).to_numpy().tolist())


def encoding_markdown(cells: pd.DataFrame) -> str:
    """Return a Markdown table whose first column is the index: names of encodings."""
    return table(cells.rename("`{}`".format).rename_axis("encoding").reset_index())


def with_options(runs: Runs, **keys: str) -> pd.DataFrame:
    """Return `Runs.runs` with a column for each option, as ``with_options(runs, width="model.d_model")``."""
    configs = [runs.saved[name].trained for name in runs.runs["name"]]
    columns = {}
    for column, key in keys.items():
        section, _, setting = key.partition(".")
        columns[column] = [config[section].get(setting) for config in configs]
    return runs.runs.assign(**columns)


def bits_per_byte(runs: Runs, lengths: Sequence[int]) -> pd.DataFrame:
    """Return bits per byte in sliding windows, [runs, context lengths]; diverged runs have `UNIFORM_BITS`."""
    lines = runs.text[(runs.text["windows"] == "sliding") & (runs.text["slice"] == "all")]
    bits = lines.pivot(index="name", columns="length", values="bits_per_byte")
    status = runs.runs.set_index("name")["status"]
    bits = bits.reindex(index=status.index, columns=[*lengths])
    return bits.mask(status == DIVERGED, UNIFORM_BITS)


def format_change(test: Any) -> str:
    """Return a row of `paired_t_tests` or `sign_tests` as ``+0.03 [-0.02, +0.08]``."""
    return f"{test.difference:+z.2f} [{test.low:+z.2f}, {test.high:+z.2f}]"


def format_test(test: Any, style: str = ".2g") -> str:
    """Return `format_change` of a test with its p-value, as ``+0.03 [-0.02, +0.08], p 0.27``."""
    return f"{format_change(test)}, p {test.p:{style}}"


def format_mean(values: Iterable[float], unit: str = "seed") -> str:
    """Return a mean: ``0.32 [0.08, 0.70]``, ``1.00 in all 5 seeds`` or, of few values, ``0.32 (2 seeds)``."""
    numbers = list(values)
    interval = mean_interval(numbers)
    estimate, low, high = map(number, (interval.estimate, interval.low, interval.high))
    if len(numbers) < FEWEST:
        return f"{estimate} ({len(numbers)} {unit if len(numbers) == 1 else unit + 's'})"
    if np.ptp(numbers) <= EQUAL_WITHIN:
        return f"{estimate} in all {len(numbers)} {unit}s"
    return f"{estimate} [{low}, {high}]"
