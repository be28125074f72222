"""The protocols of a comparison: their runs, their settings, and the names that tell them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison.runs import Runs, read_runs
from pe_experiments.evaluation.summary import lower_is_better
from pe_experiments.store.names import safe_name, short_hash
from pe_experiments.terminal.errors import UserError

SOURCE = "task.source"  # shown as a setting where an edit of the user's task made another protocol
CODE = (SOURCE, "task._target_")
MACHINE = ("processor", "device", "threads")  # of an environment: on others a step takes another time
LONGEST = 80  # characters of a slug


@dataclass(frozen=True)
class Protocol:
    """Settings that runs must share to be compared (task, model, training, evaluation), and these runs."""

    hash: str  # what identifies it, the column ``protocol`` of every table
    task: str
    model: str
    told_apart_by: tuple[str, ...]  # settings that no other of its task and model has, as ``d_model=64``
    max_length: int  # of the training
    runs: pd.DataFrame  # its rows of `Runs`
    curves: pd.DataFrame
    settings: dict[str, str]  # every one by its key
    timed: bool  # whether all runs had the same kind of machine, so that their times can be compared

    @property
    def title(self) -> str:
        """For people: ``copy, decoder, d_model=64``."""
        return ", ".join([self.task, self.model, *self.told_apart_by])

    @property
    def slug(self) -> str:
        """Name of its files: ``copy-decoder-d_model64``; the column ``section`` of ``table.csv``."""
        name = safe_name("-".join([self.task, self.model, *self.told_apart_by]).replace("=", ""))
        return name if len(name) <= LONGEST else f"{name[:LONGEST]}-{self.hash}"

    @property
    def exact(self) -> bool:
        """Whether exact match was measured; it is not of language models."""
        return bool(self.curves["exact_match"].notna().any())

    def shown(self, metric: str) -> tuple[str, str]:
        """The columns of the curves to draw where encodings are compared in this metric."""
        if not self.exact:
            return "loss", "token_accuracy"
        return ("loss", "exact_match") if lower_is_better(metric) else ("exact_match", "token_accuracy")

    def lengths(self, shared: bool = True) -> list[int]:
        """The lengths that all runs share, which summaries use; or those at which only some were measured."""
        lengths = self.curves.loc[self.curves["in_summary"] == shared, "content_length"]
        return sorted(int(length) for length in lengths.unique())


def load_runs(results_dir: str | Path = "results", study: str | None = None, **options: Any) -> Runs:
    """Every run under ``results_dir/runs``, or those of a study; arguments as in `read_runs`.

    Raises:
        UserError: as `read_runs`, or settings differ within a task and model, which a mean would mix.
    """
    runs = read_runs(results_dir, study, **options)
    for (task, model), alike in groupby(protocols_of(runs), key=attrgetter("task", "model")):
        if several := [", ".join(protocol.told_apart_by) for protocol in alike if protocol.told_apart_by]:
            where = f"study={study}" if study else f"results_dir={results_dir}"
            cure = "name a study (study=...), or use compare(...), whose protocols keep them apart"
            differ = f"the runs of {task}, {model} have {' or '.join(several)}, which a mean would mix"
            raise UserError(f"{where}: {differ}; {cure}")
    return runs


def protocols_of(runs: Runs) -> list[Protocol]:
    """The protocols of these runs, by task and model."""
    made: list[Protocol] = []
    if runs.runs.empty:
        return made
    first = runs.runs.groupby("protocol").first()
    for (task, model), alike in first.groupby(["task", "model"]):
        settings = [_settings(runs, str(digest)) for digest in alike.index]
        named = zip(told_apart(settings), alike.index, alike["max_length"], settings, strict=True)
        for by, digest, longest, own in sorted(named, key=itemgetter(0)):
            rows, curves = (table[table["protocol"] == digest] for table in (runs.runs, runs.curves))
            on = {str([runs.environments[name].get(key) for key in MACHINE]) for name in rows["name"]}
            about = (int(longest), rows, curves, own, len(on) == 1 and "None" not in on.pop())
            made.append(Protocol(str(digest), str(task), str(model), by, *about))
    return made


def told_apart(protocols: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """For each protocol of one task and model the fewest settings that no other has, as ``d_model=64``.

    Protocols that differ in code alone, or in what was tuned, are numbered.
    """
    table = pd.DataFrame(protocols).fillna("unset")
    tuned = [str(key) for key in table if table[key].str.contains(" (", regex=False).any()]
    options = [str(key) for key in table if table[key].nunique() > 1 and key not in (*CODE, *tuned)]
    chosen: list[str] = []

    def kinds(keys: Sequence[str]) -> int:
        return table.groupby(list(keys)).ngroups if keys else 1

    while kinds(chosen) < len(table):
        if not options:
            table["code"], options = range(1, len(table) + 1), ["code"]
        chosen.append(max(options, key=lambda key: kinds([*chosen, key])))
        options.remove(chosen[-1])
    return [
        tuple(f"{str(key).rpartition('.')[2]}={value}" for key, value in row.items())
        for row in table[chosen].to_dict("records")
    ]


def _settings(runs: Runs, digest: str) -> dict[str, str]:
    """Every setting of a protocol by key; a tuned one as ``value (encoding)``."""
    values: dict[str, dict[str, list[str]]] = {}
    rows = runs.runs[runs.runs["protocol"] == digest].drop_duplicates("label", keep="last")
    for label, name in zip(rows["label"], rows["name"], strict=True):
        trained, hashed = (runs.saved[name]["identity"][key] for key in ("trained", "hashed"))
        groups = ("task", "model", "training", "optimizer", "trainer")
        found = {f"{g}.{key}": v for g in groups for key, v in trained.get(g, {}).items()}
        if "optimizer._target_" in found:
            found = {"optimizer": found.pop("optimizer._target_"), **found}
        found[SOURCE] = short_hash([hashed["classes"].get("task"), hashed["data"]])
        for key, value in found.items():
            values.setdefault(key, {}).setdefault("null" if value is None else str(value), []).append(label)
    counts = runs.curves.loc[runs.curves["protocol"] == digest, "examples"].dropna().unique()
    said = {
        key: ", ".join(f"{value} ({', '.join(own)})" if len(by) > 1 else value for value, own in by.items())
        for key, by in values.items()
    }
    return said | {"evaluation.examples": ", ".join(f"{count:g}" for count in counts)}
