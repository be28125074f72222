"""Schemes x tasks as a table for a paper, with a citation per scheme and what its marks mean."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import pe_experiments.comparison.words as words
from pe_experiments.comparison.citations import cite
from pe_experiments.comparison.result import Comparison
from pe_experiments.comparison.table import best_schemes
from pe_experiments.evaluation.summary import SOLVED, lower_is_better
from pe_experiments.terminal.files import CONFIG_DIR

SIGNS: Any = {"[": "{[}", "<": r"\textless{}", ">": r"\textgreater{}", "–": "--", "\\": r"\textbackslash{}"}
SIGNS |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {sign: f"\\{sign}" for sign in "&%$#_{}"}
# Of the template, in which braces and % are TeX's.
MARKS: Any = dict(zip(("block_start_string", "block_end_string"), ("<%", "%>"), strict=True))
MARKS |= {"variable_start_string": "<<", "variable_end_string": ">>", "trim_blocks": True}


def table_latex(made: Comparison) -> str:
    """A table per model, from ``templates/table.tex.j2``."""
    cells = {}
    for protocol in made.protocols:
        best = best_schemes(protocol, rows := made.rows(protocol))
        for row in rows:
            value, _, ends = words.mean(row, made.metric).partition(" ")
            about = {"value": value, "ends": ends, "bold": row["scheme"] in best}
            cells[row["scheme"], protocol.hash] = row | about | {"learned": words.learned(row)}
    folder = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(loader=folder, undefined=StrictUndefined, finalize=_escaped, **MARKS)
    return environment.get_template("table.tex.j2").render(
        made=made,
        cells=cells,
        cited=cite(made.runs)[0],
        printed=printed,
        words=words,
        lower=lower_is_better(made.metric),
        solved=SOLVED,
    )


def _escaped(value: Any) -> str:
    return str(value).translate(str.maketrans(SIGNS))


def printed(label: str) -> str:
    """As a paper prints it: ``RoPE (base=500), random subset`` for ``rope(base=500)+random_subset``."""
    parts = (part.partition("(") for part in label.split("+"))
    return ", ".join(
        f"{_names().get(name, name)}{' ' * bool(paren)}{paren}{rest}" for name, paren, rest in parts
    )


@cache
def _names() -> dict[str, str]:
    """Of schemes and position policies, from the comment ``# printed:`` of their YAML."""
    texts = {path.stem: path.read_text("utf-8") for path in CONFIG_DIR.glob("p[eo]*/*.yaml")}
    found = {name: re.search(r"^# printed: (.+)$", text, re.MULTILINE) for name, text in texts.items()}
    return {name: said[1] for name, said in found.items() if said}
