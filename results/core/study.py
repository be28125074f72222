"""Five tasks with and without a causal mask, by encoding; copying with two vocabularies and three learning rates."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.published import compare_archived, outcome_table, read_archive, with_settings

SCHEMES = ("none", "sinusoidal", "learned", "rope", "alibi", "t5")
SHOWN = "10 symbols, rate 0.003"  # of copying, in the figure
QUESTIONS = {
    "copy": "copy, {:g} different symbols",
    "reverse": "copy backwards (`reverse`)",
    "lag": "repeat the symbol three tokens back (`lag`)",
    "precedence": "which of two marks comes first (`precedence`)",
    "majority": "which bit is more frequent (`majority`)",
}


def with_questions(runs: Runs) -> pd.DataFrame:
    """The runs with columns ``question`` and ``setting``, decoders first."""
    table = with_settings(runs, symbols="task.vocab_size", rate="training.learning_rate")
    table = table.assign(order=table["task"].map(list(QUESTIONS).index))
    table = table.sort_values(["model", "order", "symbols", "rate"], kind="stable")
    rows: list[Any] = list(table.itertuples())
    return table.assign(
        question=[
            QUESTIONS[row.task].format(row.symbols) + ", encoder" * (row.model == "encoder") for row in rows
        ],
        setting=[f"{row.symbols:g} symbols, rate {row.rate:g}" for row in rows],
    )


def copied(table: pd.DataFrame) -> pd.DataFrame:
    """Copying in a decoder."""
    return table[(table["task"] == "copy") & (table["model"] == "decoder")]


def pages(folder: Path) -> None:
    """The comparison, and one of its figures as ``answer.png``."""
    sections = compare_archived(folder).table.set_index("protocol")["section"].to_dict()
    shown = copied(with_questions(read_archive(folder))).set_index("setting")["protocol"][SHOWN].iloc[0]
    shutil.copy(folder / "figures" / f"{sections[shown]}.png", folder / "figures" / "answer.png")


def blocks(folder: Path) -> dict[str, str]:
    """The answer, and copying by setting."""
    table = with_questions(read_archive(folder))
    return {
        "answer": outcome_table(table, "question", SCHEMES),
        "settings": outcome_table(copied(table), "setting", SCHEMES),
    }
