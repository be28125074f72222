"""Find the papers behind the compared encodings in the docstrings of their classes."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pe_experiments.comparison.runs import Runs
from pe_experiments.comparison.statistics import FEWEST
from pe_experiments.configuration.compose import OURS

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
    cls = _shipped_class(str(component.get("_target_", "")))
    if cls is None:
        return
    by_argument = cites(inspect.cleandoc(cls.__doc__ or ""))
    yield from by_argument.pop("")
    parameters = inspect.signature(cls).parameters
    for argument, numbers in by_argument.items():
        default = parameters[argument].default if argument in parameters else None
        if component.get(argument, default) != default:
            yield from numbers


def _shipped_class(target: str) -> type | None:
    """Return a class of this package; others are not imported just because a run names them."""
    module, _, name = target.rpartition(".")
    if not OURS.fullmatch(target):
        return None
    try:
        cls: type | None = getattr(importlib.import_module(module), name, None)
    except ImportError:  # of a version of the package that had the module
        return None
    return cls


def cites(docstring: str) -> dict[str, list[str]]:
    """Return the arXiv identifiers in a class's docstring by argument; ``""`` holds those of the class."""
    description, _, arguments = docstring.partition("\nArgs:")
    described = re.findall(r"^    (\w+)[^:\n]*: (.*?)(?=^ {,4}\S|\Z)", arguments, re.M | re.S)
    return {name: re.findall(r"arXiv:(\d+\.\d+)", text) for name, text in [("", description), *described]}
