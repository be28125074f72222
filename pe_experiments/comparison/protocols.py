"""What was held fixed: the settings of each protocol, how protocols differ, and what a section is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from pe_experiments.comparison.runs_table import Runs
from pe_experiments.identity import safe_name, short_hash

SOURCE = "task.source"  # shown as a setting where an edit of the task made another protocol


@dataclass(frozen=True)
class Section:
    """One task x model x protocol: what may be compared with each other.

    Attributes:
        protocol: its hash.
        slug: name of its files.
        title: for people; names the settings in which it differs from others of the same task and model.
        runs, curves: its rows of `Runs`.
        settings: every setting of the protocol by its key.
        differs: the settings that tell it from others of the same task and model.
    """

    protocol: str
    slug: str
    title: str
    runs: pd.DataFrame
    curves: pd.DataFrame
    settings: dict[str, str]
    differs: dict[str, str]

    @property
    def task(self) -> str:
        return str(self.runs["task"].iloc[0])

    @property
    def model(self) -> str:
        return str(self.runs["model"].iloc[0])

    @property
    def one_token(self) -> bool:
        """Whether every answer is one token, so that exact match and token accuracy are the same."""
        tokens = self.curves.reindex(columns=["answer_tokens"])["answer_tokens"].dropna()
        return len(tokens) > 0 and bool((tokens == 1).all())

    @property
    def family(self) -> str:
        """Shared by sections that differ in the task alone."""
        return str(self.runs["family"].iloc[0])

    @property
    def max_length(self) -> int:
        return int(self.runs["max_length"].iloc[0])


def sections_of(runs: Runs) -> list[Section]:
    """The sections by task, model and protocol."""
    settings = {}
    for protocol, rows in runs.runs.groupby("protocol"):
        examples = runs.curves.loc[runs.curves["protocol"] == protocol, "examples"].dropna().unique()
        by_label = dict(zip(rows["label"].astype(str), rows["name"].astype(str), strict=True))
        settings[str(protocol)] = {
            **protocol_settings({label: runs.saved[name] for label, name in by_label.items()}),
            "evaluation.examples": ", ".join(f"{count:g}" for count in examples),
        }
    groups = runs.runs.groupby(["task", "model", "protocol"], sort=True)
    names = [tuple(map(str, key)) for key, _ in groups]
    made = []
    for (task, model, protocol), (_, rows) in zip(names, groups, strict=True):
        others = [settings[p] for t, m, p in names if (t, m) == (task, model)]
        differs = {
            key: value
            for key, value in settings[protocol].items()
            if any(other.get(key) != value for other in others)
        }
        several = len(others) > 1
        title = f"{task}, {model}" + (f" ({_in_words(differs)})" if several else "")
        made.append(
            Section(
                protocol,
                safe_name(f"{task}-{model}") + (f"-{protocol[:4]}" if several else ""),
                title,
                rows,
                runs.curves[runs.curves["protocol"] == protocol],
                settings[protocol],
                differs,
            )
        )
    return made


def protocol_settings(saved: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Every setting of a protocol as ``key -> value``; a tuned one as ``value (scheme)`` of each scheme.

    Args:
        saved: the configuration of a run by scheme.
    """
    by_key: dict[str, dict[str, list[str]]] = {}
    for label, run in saved.items():
        trained = run["identity"]["trained"]
        found = {f"{g}.{key}": v for g in ("task", "model", "training") for key, v in trained[g].items()}
        sources = run["identity"]["sources"]
        code = short_hash([sources["task"], sources.get("shared")])
        for key, value in {**found, SOURCE: code}.items():
            by_key.setdefault(key, {}).setdefault("null" if value is None else str(value), []).append(label)
    return {
        key: ", ".join(
            value + (f" ({', '.join(labels)})" if len(values) > 1 else "") for value, labels in values.items()
        )
        for key, values in by_key.items()
    }


def differences_sentence(section: Section) -> str | None:
    """What tells this protocol from the others of its task and model, or None where there is no other."""
    if not section.differs:
        return None
    return (
        f"There is more than one protocol for {section.task} with the {section.model}; they are never "
        f"pooled. This one has {_in_words(section.differs)}."
    )


def families_of(sections: list[Section]) -> list[list[Section]]:
    """Sections that differ in the task alone, together: what a figure or a mean over tasks may hold."""
    families: dict[tuple[str, str], list[Section]] = {}
    for section in sections:
        families.setdefault((section.model, section.family), []).append(section)
    return list(families.values())


def panel_title(section: Section, family: list[Section]) -> str:
    """The task, as far as that tells the sections of a family apart."""
    alone = sum(other.task == section.task for other in family) == 1
    return section.task if alone else section.title


def family_slug(family: list[Section], families: list[list[Section]]) -> str:
    """Name of a family's files."""
    first = family[0]
    several = sum(other[0].model == first.model for other in families) > 1
    return safe_name(first.model) + (f"-{first.family[:4]}" if several else "")


def _in_words(settings: dict[str, str]) -> str:
    shown = {key: value for key, value in settings.items() if key not in (SOURCE, "task._target_")}
    if settings and not shown:
        return "edited training code (" + settings.get(SOURCE, "its class") + ")"
    return ", ".join(f"{key}={value}" for key, value in shown.items())
