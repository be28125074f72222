"""Cite the papers behind the compared encodings, as BibTeX entries and in a LaTeX table.

The papers are found in the docstrings of the classes.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import pe_experiments.comparison.sentences as sentences
from pe_experiments.comparison.result import Comparison
from pe_experiments.comparison.runs import Runs
from pe_experiments.configuration.foreign import OURS
from pe_experiments.drawing import printed_name
from pe_experiments.evaluation.metrics import FARTHEST, SOLVED

Spread = Literal["sd", "interval"]
ENTRIES = Path(__file__).with_name("references.bib")
TEMPLATES = Path(__file__).parent / "templates"
ESCAPED = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "[": "{[}", "–": "--", "\\": r"\textbackslash{}",
}  # fmt: skip


def cite(runs: Runs) -> tuple[dict[str, list[str]], str]:
    """Return the BibTeX keys of the papers behind each encoding, by label, and the text of all entries.

    The papers are those cited by the classes of the encoding and of its position policy.
    """
    entries = known_entries()
    keys: dict[str, list[str]] = {}
    cited: set[str] = set()
    for label, rows in runs.runs.groupby("label"):
        trained = runs.saved[rows["name"].iloc[0]].trained
        numbers = {*_cited_papers(trained["pe"]), *_cited_papers(trained["positions"])} & set(entries)
        keys[str(label)] = [entries[number][0] for number in sorted(numbers)]
        cited |= numbers
    return keys, "\n\n".join(sorted(entries[number][1] for number in cited)) + "\n"


def known_entries() -> dict[str, tuple[str, str]]:
    """Return key and text of the shipped BibTeX entries by arXiv identifier."""
    entries = re.findall(r"(^@\w+\{(\S+),$.*?eprint = \{(\S+)\}.*?^}$)", ENTRIES.read_text(), re.M | re.S)
    return {number: (key, text) for text, key, number in entries}


def _cited_papers(component: Any) -> Iterator[str]:
    """Yield the papers cited by the classes in a config section and by their arguments, if not at default."""
    if isinstance(component, list):
        component = dict(enumerate(component))
    if not isinstance(component, dict):
        return
    for value in component.values():
        yield from _cited_papers(value)
    target = str(component.get("_target_", ""))
    if not OURS.fullmatch(target):  # other modules are not imported
        return
    module, _, name = target.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):  # the run is from a version of the package that had this class
        return
    by_argument = cites(inspect.cleandoc(cls.__doc__ or ""))
    yield from by_argument.pop("")
    parameters = inspect.signature(cls).parameters
    for argument, numbers in by_argument.items():
        default = parameters[argument].default if argument in parameters else None
        if component.get(argument, default) != default:
            yield from numbers


def cites(docstring: str) -> dict[str, list[str]]:
    """Return the arXiv identifiers in a class's docstring by argument, outside the arguments under ``""``."""
    description, _, arguments = docstring.partition("\nArgs:")
    texts = {"": description}
    texts |= dict(re.findall(r"^    (\w+)[^:\n]*: (.*?)(?=^ {,4}\S|\Z)", arguments, re.M | re.S))
    return {argument: re.findall(r"arXiv:(\d+\.\d+)", text) for argument, text in texts.items()}


def table_latex(comparison: Comparison, spread: Spread) -> str:
    """Return one table per model from ``table.tex.j2``, in which Jinja's delimiters are <% %> and << >>."""
    environment = Environment(
        "<%", "%>", "<<", ">>", trim_blocks=True, undefined=StrictUndefined,
        loader=FileSystemLoader(TEMPLATES),
        finalize=lambda value: "".join(ESCAPED.get(sign, sign) for sign in str(value)),
    )  # fmt: skip
    metric, table = comparison.metric, comparison.table
    rows = {(row["protocol"], row["encoding"]): row for row in table.to_dict("records")}
    best = {protocol.hash: comparison.best(protocol)[0] for protocol in comparison.protocols}
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
