"""Find the papers behind the compared encodings in the docstrings of their classes."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pe_experiments.comparison.runs import Runs
from pe_experiments.comparison.statistics import FEWEST
from pe_experiments.configuration.compose import CATALOGUE

ENTRIES = Path(__file__).with_name("references.bib")
STATISTICS = ("1905.06208",)  # Gaffke's interval


def cite(runs: Runs) -> tuple[dict[str, list[str]], str]:
    """Return BibTeX keys of the works behind each encoding and its position policy, and all their entries."""
    entries = known_entries()
    keys: dict[str, list[str]] = {}
    cited: set[str] = set()
    for label, rows in runs.runs.groupby("label"):
        trained = runs.saved[rows["name"].iloc[0]]["identity"]["trained"]
        numbers = {*_cited(trained["pe"]), *_cited(trained["positions"])} & set(entries)
        keys[str(label)] = [entries[number][0] for number in sorted(numbers)]
        cited |= numbers
    if int(runs.runs.groupby(["protocol", "label"]).size().max()) >= FEWEST:
        cited |= set(STATISTICS)
    return keys, "\n\n".join(sorted(entries[number][1] for number in cited)) + "\n"


def known_entries() -> dict[str, tuple[str, str]]:
    """Return the shipped entries by arXiv identifier: key and text."""
    entries = re.findall(r"(^@\w+\{(\S+),$.*?eprint = \{(\S+)\}.*?^}$)", ENTRIES.read_text(), re.M | re.S)
    return {number: (key, text) for text, key, number in entries}


def _cited(component: Any) -> Iterator[str]:
    """Yield the papers cited by the classes of a config section, and by their changed arguments."""
    if isinstance(component, list):
        component = dict(enumerate(component))
    if not isinstance(component, dict):
        return
    for value in component.values():
        yield from _cited(value)
    module, _, name = str(component.get("_target_", "")).rpartition(".")
    if not f"{module}.".startswith(CATALOGUE):
        return  # classes outside this package are not imported just because a run names them
    by_argument = cites(_docstring(module, name))
    yield from by_argument.pop("")
    if any(by_argument.values()):  # late, because these classes import torch
        signature = inspect.signature(getattr(importlib.import_module(module), name))
        defaults = {key: parameter.default for key, parameter in signature.parameters.items()}
        for argument, numbers in by_argument.items():
            if component.get(argument, defaults.get(argument)) != defaults.get(argument):
                yield from numbers


@cache
def _docstring(module: str, name: str) -> str:
    """Return the docstring of a class of the catalogue without importing it; empty for an unknown class."""
    root = Path(__file__).parents[2]
    paths = root.glob("pe_experiments/*/*.py")
    ours = {".".join(path.relative_to(root).with_suffix("").parts): path for path in paths}
    nodes = ast.parse(ours[module].read_bytes()).body if module in ours else []
    classes = (node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name)
    return next((ast.get_docstring(node) or "" for node in classes), "")


def cites(docstring: str) -> dict[str, list[str]]:
    """Return the arXiv identifiers in a class's docstring by argument; ``""`` holds those of the class."""
    description, _, arguments = docstring.partition("\nArgs:")
    described = re.findall(r"^    (\w+)[^:\n]*: (.*?)(?=^ {,4}\S|\Z)", arguments, re.M | re.S)
    return {name: re.findall(r"arXiv:(\d+\.\d+)", text) for name, text in [("", description), *described]}
