"""Encodings x tasks as a table for a paper, with a citation per encoding and what its marks mean."""

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import pe_experiments.comparison.words as words
from pe_experiments.comparison.citations import cite
from pe_experiments.comparison.result import Comparison
from pe_experiments.comparison.table import best_encodings
from pe_experiments.evaluation.summary import FARTHEST, SOLVED, lower_is_better
from pe_experiments.terminal.files import CONFIG_DIR

TEMPLATES = FileSystemLoader(Path(__file__).parent / "templates")
NAMED = {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}"}
SIGNS = NAMED | {"[": "{[}", "–": "--", "\\": r"\textbackslash{}"} | {sign: f"\\{sign}" for sign in "&%$#_{}"}


def table_latex(made: Comparison) -> str:
    """A table per model, from ``templates/table.tex.j2``, in which braces and % are TeX's."""
    tex = Environment(
        "<%", "%>", "<<", ">>", trim_blocks=True, undefined=StrictUndefined, loader=TEMPLATES,
        finalize=lambda value: "".join(SIGNS.get(sign, sign) for sign in str(value)),
    )  # fmt: skip
    tex.globals |= {"words": words, "best": best_encodings, "printed": printed}
    tex.globals |= {"solved": SOLVED, "farthest": f"{FARTHEST:g}"}
    lower, cited = lower_is_better(made.metric), cite(made.runs)[0]
    return tex.get_template("table.tex.j2").render(made=made, cited=cited, lower=lower)


def printed(label: str) -> str:
    """As a paper prints it: ``RoPE (base=500), random subset`` for ``rope(base=500)+random_subset``."""
    parts = (re.split(r"(?=\()", part, maxsplit=1) for part in label.split("+"))
    return ", ".join(" ".join([_names().get(name, name), *rest]) for name, *rest in parts)


@cache
def _names() -> dict[str, str]:
    """Of encodings and position policies, from the comment ``# printed:`` of their YAML."""
    texts = {path.stem: path.read_text("utf-8") for path in CONFIG_DIR.glob("p[eo]*/*.yaml")}
    return {name: said for name, text in texts.items() for said in re.findall(r"(?m)^# printed: (.+)$", text)}
