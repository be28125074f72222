"""Write a LaTeX table of encodings by tasks, with a citation for each encoding and a legend."""

from pathlib import Path
from typing import Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import pe_experiments.comparison.sentences as sentences
from pe_experiments.comparison.citations import cite
from pe_experiments.comparison.result import Comparison
from pe_experiments.comparison.table import best_encodings
from pe_experiments.drawing import printed_name
from pe_experiments.evaluation.summary import FARTHEST, SOLVED

Spread = Literal["sd", "interval"]
TEMPLATES = Path(__file__).parent / "templates"
ESCAPED = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "[": "{[}", "–": "--", "\\": r"\textbackslash{}",
}  # fmt: skip


def table_latex(comparison: Comparison, spread: Spread = "sd") -> str:
    """Return one table per model from ``table.tex.j2``, in which Jinja's delimiters are <% %> and << >>."""
    environment = Environment(
        "<%", "%>", "<<", ">>", trim_blocks=True, undefined=StrictUndefined,
        loader=FileSystemLoader(TEMPLATES),
        finalize=lambda value: "".join(ESCAPED.get(sign, sign) for sign in str(value)),
    )  # fmt: skip
    metric, table = comparison.metric, comparison.table
    rows = {(row["protocol"], row["encoding"]): row for row in table.to_dict("records")}
    best = {
        protocol.hash: best_encodings(protocol, comparison.rows(protocol), comparison.summary)[0]
        for protocol in comparison.protocols
    }
    return environment.get_template("table.tex.j2").render(
        comparison=comparison,
        words=sentences,
        printed_name=printed_name,
        cited=cite(comparison.runs)[0],
        rows=rows,
        best=best,
        lower=comparison.summary.lower_is_better,
        area=comparison.summary.span == "extrapolation" and comparison.summary.metric.guess is not None,
        spread=spread,
        spread_known=table[f"{metric}_{'sd' if spread == 'sd' else 'low'}"].notna().any(),
        unlearned=not all(sentences.learned(row) for row in rows.values()),
        diverged=table["diverged"].any(),
        solved=SOLVED,
        farthest=f"{FARTHEST:g}",
    )
