"""Copying past the training lengths, one setting changed at a time: does the ranking of encodings survive?"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.published import compare_archived, outcome_table, read_archive, with_settings

METRIC = "exact_match_at_2x"
USUAL = "as in core"
pages = partial(compare_archived, metric=METRIC)
# Where a setting is, what is usual, and another value in words.
SETTINGS: dict[str, tuple[str, Any, str]] = {
    "model": ("", "decoder", "model={}"),  # a column of its own
    "symbols": ("task.vocab_size", 10, "{} symbols"),
    "rate": ("training.learning_rate", 0.003, "learning rate {:g}"),
    "length": ("training.max_length", 10, "trained to {}"),
    "dropout": ("model.dropout", 0.0, "dropout {:g}"),
}


def with_changes(runs: Runs) -> pd.DataFrame:
    """The runs with a column ``change``, what differs from the base; the base first."""
    table = with_settings(runs, **{name: where for name, (where, *_) in SETTINGS.items() if where})
    changes = [
        ", ".join(words.format(row[key]) for key, (_, usual, words) in SETTINGS.items() if row[key] != usual)
        or USUAL
        for row in table.to_dict("records")
    ]
    table = table.assign(change=changes, changed=[change != USUAL for change in changes])
    return table.sort_values(["changed", "change"], kind="stable")


def schemes_of(table: pd.DataFrame) -> list[str]:
    """Schemes, the best with the base first."""
    means = table[~table["changed"]].groupby("label")[METRIC].mean()
    return [str(scheme) for scheme in means.sort_values(ascending=False, kind="stable").index]


def blocks(folder: Path) -> dict[str, str]:
    """The table."""
    table = with_changes(read_archive(folder))
    return {"answer": outcome_table(table, "change", schemes_of(table))}
