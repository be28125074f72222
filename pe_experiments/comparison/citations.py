"""Which works the compared encodings come from: what the docstrings of their classes cite."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from pe_experiments.comparison.runs import Runs
from pe_experiments.comparison.statistics import FEWEST
from pe_experiments.configuration.compose import CATALOGUE

ENTRIES = Path(__file__).with_name("references.bib")
STATISTICS = ("1905.06208",)  # Gaffke's interval


def cite(runs: Runs) -> tuple[dict[str, list[str]], str]:
    """BibTeX keys by encoding of the works behind it and its position policy, and all their entries."""
    entries = known_entries()
    keys: dict[str, list[str]] = {}
    used: set[str] = set()
    for label, rows in runs.runs.groupby("label"):
        trained = runs.saved[rows["name"].iloc[0]]["identity"]["trained"]
        found = {number for group in ("pe", "positions") for number in _cited(trained[group])} & set(entries)
        used |= found
        keys[str(label)] = [entries[number][0] for number in sorted(found)]
    if int(runs.runs.groupby(["protocol", "label"]).size().max()) >= FEWEST:
        used |= set(STATISTICS)
    return keys, "\n\n".join(sorted(entries[number][1] for number in used)) + "\n"


def known_entries() -> dict[str, tuple[str, str]]:
    """The shipped entries by arXiv identifier: key and text."""
    found = re.findall(r"(^@\w+\{(\S+),$.*?eprint = \{(\S+)\}.*?^}$)", ENTRIES.read_text(), re.M | re.S)
    return {number: (key, text) for text, key, number in found}


def _cited(component: Any) -> Iterable[str]:
    """The papers that classes of a config section cite: for themselves, and for changed arguments."""
    if isinstance(component, list):
        component = dict(enumerate(component))
    if not isinstance(component, dict):
        return
    for value in component.values():
        yield from _cited(value)
    module, _, name = str(component.get("_target_", "")).rpartition(".")
    if not f"{module}.".startswith(CATALOGUE):
        return  # a class from elsewhere is not imported merely because a run's file names it
    told = cites(_docstring(module, name))
    yield from told.pop("")
    if any(told.values()):  # only now, since the classes bring torch
        signature = inspect.signature(getattr(importlib.import_module(module), name))
        defaults = {key: parameter.default for key, parameter in signature.parameters.items()}
        for argument, numbers in told.items():
            if component.get(argument, defaults.get(argument)) != defaults.get(argument):
                yield from numbers


@cache
def _docstring(module: str, name: str) -> str:
    """Of a class of the catalogue, read without an import; empty for one of an earlier version."""
    files = (root := Path(__file__).parents[2]).glob("pe_experiments/*/*.py")
    ours = {".".join(path.relative_to(root).with_suffix("").parts): path for path in files}
    nodes = ast.parse(ours[module].read_bytes()).body if module in ours else []
    classes = (node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name)
    return next((ast.get_docstring(node) or "" for node in classes), "")


def cites(docstring: str) -> dict[str, list[str]]:
    """The arXiv identifiers in the docstring of a class: its own under ``""``, and those of each argument."""
    told, _, rest = docstring.partition("\nArgs:")
    arguments = re.findall(r"^    (\w+)[^:\n]*: (.*?)(?=^ {,4}\S|\Z)", rest, re.M | re.S)
    return {name: re.findall(r"arXiv:(\d+\.\d+)", text) for name, text in [("", told), *arguments]}
