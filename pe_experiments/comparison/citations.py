"""Which works the compared schemes come from: the attribute ``cites`` of their classes."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.statistics import FEWEST

ENTRIES = Path(__file__).with_name("references.bib")
STATISTICS = ("1905.06208", "2108.13264")  # Gaffke's interval, probability of improvement
OWN = "pe_experiments."  # a class from elsewhere is not imported merely because a run's file names it


def cite(runs: Runs) -> tuple[dict[str, list[str]], str]:
    """The works behind every scheme and position policy that was compared, and behind the statistics.

    The latter are cited only if some scheme has at least three seeds.

    Returns:
        BibTeX keys by scheme, and the entries they stand for.
    """
    entries = known_entries()
    keys: dict[str, list[str]] = {}
    used: set[str] = set()
    for label, rows in runs.runs.groupby("label"):
        trained = runs.saved[rows["name"].iloc[0]]["identity"]["trained"]
        found = {number for group in ("pe", "positions") for number in _cited(trained[group])}
        used |= found
        keys[str(label)] = [_entry(number, entries)[0] for number in sorted(found)]
    if int(runs.runs.groupby(["protocol", "label"]).size().max()) >= FEWEST:
        used |= set(STATISTICS)
    return keys, "\n\n".join(sorted(_entry(number, entries)[1] for number in used)) + "\n"


@cache
def known_entries() -> dict[str, tuple[str, str]]:
    """The shipped entries by arXiv identifier: key and text."""
    entries = {}
    for text in re.findall(r"^@.*?^}$", ENTRIES.read_text(), re.MULTILINE | re.DOTALL):
        key, number = re.search(r"@\w+\{(\S+),", text), re.search(r"eprint = \{(\S+)\}", text)
        assert key, f"no key: {text[:60]}"
        assert number, f"no eprint: {text[:60]}"
        entries[number[1]] = (key[1], text)
    return entries


def _entry(number: str, entries: dict[str, tuple[str, str]]) -> tuple[str, str]:
    key = f"arxiv{number.replace('.', '')}"
    bare = f"@misc{{{key},\n  eprint = {{{number}}},\n  archiveprefix = {{arXiv}},\n}}"
    return entries.get(number, (key, bare))


def _cited(component: Any) -> Iterable[str]:
    """What the classes of a config section cite: for themselves, and for arguments not at their default."""
    if isinstance(component, list):
        component = dict(enumerate(component))
    if not isinstance(component, dict):
        return
    for value in component.values():
        yield from _cited(value)
    module, _, name = str(component.get("_target_", "")).rpartition(".")
    if not module.startswith(OWN):
        return
    try:
        cls = getattr(importlib.import_module(module), name)
        defaults = {key: p.default for key, p in inspect.signature(cls).parameters.items()}
    except (ImportError, AttributeError, TypeError, ValueError):
        return  # of an earlier version
    for argument, numbers in vars(cls).get("cites", {}).items():
        if not argument or component.get(argument, defaults.get(argument)) != defaults.get(argument):
            yield from numbers.split()
