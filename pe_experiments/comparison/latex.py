"""Encodings x tasks as a table for a paper, with a citation per encoding and what its marks mean."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import pe_experiments.comparison.words as words
from pe_experiments.comparison.citations import cite
from pe_experiments.comparison.protocols import Protocol
from pe_experiments.comparison.result import Comparison
from pe_experiments.comparison.runs import Row
from pe_experiments.comparison.table import best_encodings
from pe_experiments.evaluation.summary import FARTHEST, SOLVED, lower_is_better
from pe_experiments.terminal.files import CONFIG_DIR

TEMPLATES = Path(__file__).parent / "templates"
ESCAPED = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "[": "{[}", "–": "--", "\\": r"\textbackslash{}",
}  # fmt: skip


def table_latex(comparison: Comparison) -> str:
    """Return a table per model: ``table.tex.j2``, where <% %> and << >> are Jinja's; values are escaped."""
    environment = Environment(
        "<%", "%>", "<<", ">>", trim_blocks=True, undefined=StrictUndefined,
        loader=FileSystemLoader(TEMPLATES),
        finalize=lambda value: "".join(ESCAPED.get(sign, sign) for sign in str(value)),
    )  # fmt: skip
    by_model: dict[str, list[Protocol]] = {}
    for protocol in comparison.protocols:
        by_model.setdefault(protocol.model, []).append(protocol)
    return environment.get_template("table.tex.j2").render(
        models={model: _table(comparison, protocols) for model, protocols in by_model.items()},
        metric=words.metric_in_words(comparison.metric),
        area=comparison.metric.endswith("extrapolation"),
        lower=lower_is_better(comparison.metric),
        tuned=sorted({choice["setting"] for choice in comparison.runs.tuning}),
        solved=SOLVED,
        farthest=f"{FARTHEST:g}",
    )


def _table(comparison: Comparison, protocols: list[Protocol]) -> dict[str, Any]:
    """Return the columns and rows of one table; a cell is None where the encoding was not run."""
    cited = cite(comparison.runs)[0]
    columns = []
    for protocol in protocols:
        rows = comparison.rows(protocol)
        best, _ = best_encodings(protocol, rows)
        columns.append(
            {row["encoding"]: _cell(row, comparison.metric, row["encoding"] in best) for row in rows}
        )
    table_rows = []
    for encoding in comparison.encodings:
        cells = [column.get(encoding) for column in columns]
        seeds = [cell["seeds"] for cell in cells if cell]
        if seeds:
            row = {"name": printed(encoding), "cited": cited[encoding], "cells": cells}
            table_rows.append(row | {"seeds": words.counts_in_words(seeds)})
    every = [cell for column in columns for cell in column.values()]
    return {
        "titles": [
            re.sub("[_=]", " ", ", ".join([protocol.task, *protocol.distinctive])) for protocol in protocols
        ],
        "lengths": [protocol.max_length for protocol in protocols],
        "rows": table_rows,
        **{mark: any(cell[mark] for cell in every) for mark in ("best", "unlearned", "interval", "diverged")},
    }


def _cell(row: Row, metric: str, best: bool) -> dict[str, Any]:
    value, _, interval = words.mean(row, metric).partition(" ")
    unlearned = not words.learned(row)
    return {
        "value": value,
        "interval": interval,
        "unlearned": unlearned,
        "best": best and not unlearned,
        "seeds": row["seeds"],
        "diverged": row["diverged"],
    }


def printed(label: str) -> str:
    """Return ``RoPE (base=500), random subset``, as papers print it, for ``rope(base=500)+random_subset``."""
    parts = []
    for part in label.split("+"):
        name, bracket, arguments = part.partition("(")
        parts.append(f"{_names().get(name, name)}{' ' if bracket else ''}{bracket}{arguments}")
    return ", ".join(parts)


@cache
def _names() -> dict[str, str]:
    """Return the names of encodings and position policies, from the comment ``# printed:`` of their YAML."""
    names = {}
    for path in CONFIG_DIR.glob("p[eo]*/*.yaml"):
        for name in re.findall(r"(?m)^# printed: (.+)$", path.read_text("utf-8")):
            names[path.stem] = name
    return names
