"""The settings of each protocol, and the names of a comparison's sections."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pe_experiments.comparison.runs_table import Runs
from pe_experiments.identity import safe_name, short_hash
from pe_experiments.losses import lower_is_better

SOURCE = "task.source"  # shown as a setting where an edit of the task made another protocol
CODE = (SOURCE, "task._target_")
SHORT = {"d_model": "d", "learning_rate": "lr", "vocab_size": "symbols", "num_layers": "layers"}
LONGEST = 80  # characters of a slug


@dataclass(frozen=True)
class Section:
    """One task x model x protocol: the runs that may be compared with each other.

    Attributes:
        protocol: its hash.
        slug: name of its files, as ``copy-decoder-d64``.
        told_apart_by: the settings in which it differs from others of its task and model, as ``d_model=64``.
        runs, curves: its rows of `Runs`.
        settings: every setting of the protocol by its key.
    """

    protocol: str
    slug: str
    told_apart_by: tuple[str, ...]
    runs: pd.DataFrame
    curves: pd.DataFrame
    settings: dict[str, str]

    @property
    def task(self) -> str:
        return str(self.runs["task"].iloc[0])

    @property
    def model(self) -> str:
        return str(self.runs["model"].iloc[0])

    @property
    def title(self) -> str:
        """For people: ``copy, decoder, d_model=64``."""
        return ", ".join([self.task, self.model, *self.told_apart_by])

    @property
    def one_token(self) -> bool:
        """Whether every answer is one token, so that exact match and token accuracy are the same."""
        tokens = self.curves.reindex(columns=["answer_tokens"])["answer_tokens"].dropna()
        return len(tokens) > 0 and bool((tokens == 1).all())

    @property
    def exact(self) -> bool:
        """Whether exact match was measured; it is not of language models."""
        return bool(self.curves["exact_match"].notna().any())

    def shown(self, metric: str) -> tuple[str, ...]:
        """One or two columns of the curves to draw where schemes are compared in this metric."""
        if not self.exact:
            return ("loss", "token_accuracy")
        accuracies = ("exact_match",) if self.one_token else ("exact_match", "token_accuracy")
        return ("loss", "exact_match") if lower_is_better(metric) else accuracies

    @property
    def max_length(self) -> int:
        return int(self.runs["max_length"].iloc[0])

    @property
    def lengths(self) -> list[int]:
        """The lengths that all runs share, which summaries use."""
        return _sorted(self.curves.loc[self.curves["in_summary"], "content_length"])

    @property
    def lengths_left_out(self) -> list[int]:
        """Lengths at which only some runs were measured."""
        return _sorted(self.curves.loc[~self.curves["in_summary"], "content_length"])


def _sorted(lengths: pd.Series) -> list[int]:
    return sorted(int(length) for length in lengths.unique())


def sections_of(runs: Runs) -> list[Section]:
    """The sections by task, model and protocol."""
    rows: dict[Any, pd.DataFrame] = dict(list(runs.runs.groupby("protocol")))
    curves = {protocol: runs.curves[runs.curves["protocol"] == protocol] for protocol in rows}
    settings: dict[Any, dict[str, str]] = {}
    groups: dict[tuple[str, str], list[Any]] = {}
    for protocol, own in rows.items():
        saved = {label: runs.saved[name] for label, name in zip(own["label"], own["name"], strict=True)}
        counts = (f"{count:g}" for count in curves[protocol]["examples"].dropna().unique())
        settings[protocol] = protocol_settings(saved) | {"evaluation.examples": ", ".join(counts)}
        groups.setdefault((own["task"].iloc[0], own["model"].iloc[0]), []).append(protocol)
    made: list[Section] = []
    for (task, model), protocols in sorted(groups.items()):
        words = told_apart([settings[protocol] for protocol in protocols])
        for protocol, by in sorted(zip(protocols, words, strict=True), key=lambda pair: _natural(pair[1])):
            slug = safe_name("-".join([task, model, *map(_short, by)]))[:LONGEST]
            if any(section.slug == slug for section in made):
                slug += f"-{sum(section.slug.startswith(slug) for section in made) + 1}"
            made.append(Section(protocol, slug, by, rows[protocol], curves[protocol], settings[protocol]))
    return made


def told_apart(protocols: Sequence[dict[str, str]]) -> list[tuple[str, ...]]:
    """For each protocol of one task and model the fewest settings that no other has, as ``d_model=64``.

    Protocols that differ in code alone, or in what was tuned, are numbered.
    """

    def values(keys: Sequence[str]) -> list[tuple[str, ...]]:
        return [tuple(protocol.get(key, "unset") for key in keys) for protocol in protocols]

    kinds = {key: len(set(values([key]))) for key in dict.fromkeys(k for p in protocols for k in p)}
    options = [key for key, count in kinds.items() if count > 1 and key not in CODE]
    options = [key for key in options if not any(" (" in value for (value,) in values([key]))]
    chosen: list[str] = []
    while options and len(set(values(chosen))) < len(protocols):
        chosen.append(max(options, key=lambda key: len(set(values([*chosen, key])))))
        options.remove(chosen[-1])
    if len(set(values(chosen))) == len(protocols):
        return [tuple(map(_setting, chosen, own)) for own in values(chosen)]
    numbered = enumerate(values(chosen), start=1)
    return [(*map(_setting, chosen, own), f"code={number}") for number, own in numbered]


def _setting(key: str, value: str) -> str:
    return f"{key.rpartition('.')[2]}={value}"


def _short(setting: str) -> str:
    """``d64`` for ``d_model=64``; a word alone where it says enough."""
    key, _, value = setting.partition("=")
    alone = re.fullmatch(r"[a-z]\w*", value) and value not in ("unset", "null")
    return value if alone else SHORT.get(key, key) + value


def _natural(words: Sequence[str]) -> list[tuple[float, str]]:
    """Numbers in the order of their values."""
    numbers = [re.fullmatch(r"\w+=(\d+(?:\.\d+)?)", word) for word in words]
    return [(float(n[1]) if n else 0.0, word) for n, word in zip(numbers, words, strict=True)]


def protocol_settings(saved: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Every setting of a protocol by key, from a run's configuration by scheme; tuned: ``value (scheme)``."""
    by_key: dict[str, dict[str, list[str]]] = {}
    for label, run in saved.items():
        trained, sources = run["identity"]["trained"], run["identity"]["sources"]
        found = {f"{g}.{key}": v for g in ("task", "model", "training") for key, v in trained[g].items()}
        found[SOURCE] = short_hash([sources["task"], sources.get("shared")])
        for key, value in found.items():
            by_key.setdefault(key, {}).setdefault("null" if value is None else str(value), []).append(label)
    return {
        key: ", ".join(
            value + (f" ({', '.join(labels)})" if len(values) > 1 else "") for value, labels in values.items()
        )
        for key, values in by_key.items()
    }
