"""Group the runs of a comparison into protocols, with their configurations and names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison.runs import Runs, read_runs
from pe_experiments.evaluation.summary import lower_is_better
from pe_experiments.store.names import safe_name, short_hash
from pe_experiments.terminal.errors import UserError

SOURCE = "task.source"  # distinguishes protocols that differ in the code of the user's task
CODE = (SOURCE, "task._target_")
MACHINE = ("processor", "device", "threads")  # of an environment, on which times per step depend
LONGEST = 80  # most characters of a slug


@dataclass(frozen=True)
class Protocol:
    """The configuration that runs share to be compared (task, model, training, evaluation), and the runs."""

    hash: str  # identifies it in the column ``protocol`` of every table
    task: str
    model: str
    distinctive: tuple[str, ...]  # options that set it apart within task and model, as ``d_model=64``
    max_length: int  # longest in training
    runs: pd.DataFrame  # the rows of `Runs.runs`
    curves: pd.DataFrame
    parents: pd.DataFrame  # the curves of the runs that its runs continue, at lengths of their own curves
    settings: dict[str, str]  # every option by key
    timed: bool  # whether all runs used the same kind of machine, so that times are comparable

    @property
    def title(self) -> str:
        """Return the displayed name, as ``copy, decoder, d_model=64``."""
        return ", ".join([self.task, self.model, *self.distinctive])

    @property
    def slug(self) -> str:
        """Return the name in files and in column ``section`` of ``table.csv``: ``copy-decoder-d_model64``."""
        name = safe_name("-".join([self.task, self.model, *self.distinctive]).replace("=", ""))
        return name if len(name) <= LONGEST else f"{name[:LONGEST]}-{self.hash}"

    @property
    def exact(self) -> bool:
        """Return whether exact match was measured, which it is not for language models."""
        return bool(self.curves["exact_match"].notna().any())

    def drawn(self, metric: str) -> tuple[str, str]:
        """Return the columns of the curves to draw when encodings are compared in this metric."""
        if not self.exact:
            return "loss", "token_accuracy"
        return ("loss", "exact_match") if lower_is_better(metric) else ("exact_match", "token_accuracy")

    def lengths(self, shared: bool = True) -> list[int]:
        """Return the lengths that all runs share, which summaries use, or those that only some runs have."""
        lengths = self.curves.loc[self.curves["in_summary"] == shared, "content_length"]
        return sorted(int(length) for length in lengths.unique())


def load_runs(results_dir: str | Path = "results", study: str | None = None, **options: Any) -> Runs:
    """Return every run under ``results_dir/runs``, or those of a study. Arguments are those of `read_runs`.

    Raises:
        UserError: as in `read_runs`, or the runs of a task and model have different configurations.
    """
    runs = read_runs(results_dir, study, **options)
    mixed = [protocol for protocol in protocols_of(runs) if protocol.distinctive]
    if mixed:
        task, model = mixed[0].task, mixed[0].model
        settings = [", ".join(p.distinctive) for p in mixed if (p.task, p.model) == (task, model)]
        where = f"study={study}" if study else f"results_dir={results_dir}"
        name = "" if study else "name a study (study=...), or "
        raise UserError(
            f"{where}: the runs of {task}, {model} have different configurations ({' or '.join(settings)}); "
            f"{name}use compare(...), which compares them separately"
        )
    return runs


def protocols_of(runs: Runs) -> list[Protocol]:
    """Return the protocols of these runs, sorted by task and model."""
    protocols: list[Protocol] = []
    if runs.runs.empty:
        return protocols
    first_runs = runs.runs.groupby("protocol").first()
    for (task, model), candidates in first_runs.groupby(["task", "model"]):
        settings = [_settings(runs, str(digest)) for digest in candidates.index]
        named = zip(distinctive_settings(settings), candidates.index, settings, strict=True)
        for distinctive, digest, of_protocol in sorted(named, key=lambda named: named[0]):
            rows, curves = (table[table["protocol"] == digest] for table in (runs.runs, runs.curves))
            machines = [[runs.environments[name].get(key) for key in MACHINE] for name in rows["name"]]
            protocols.append(
                Protocol(
                    hash=str(digest),
                    task=str(task),
                    model=str(model),
                    distinctive=distinctive,
                    max_length=int(candidates.loc[digest, "max_length"]),
                    runs=rows,
                    curves=curves,
                    parents=_parents(runs, curves),
                    settings=of_protocol,
                    timed=None not in machines[0] and all(machine == machines[0] for machine in machines),
                )
            )
    return protocols


def _parents(runs: Runs, curves: pd.DataFrame) -> pd.DataFrame:
    """Return the curves of the runs that these continue, where they are among the runs, and not these."""
    names = curves["name"].unique()
    trained = [runs.saved[name]["identity"]["trained"] for name in names]
    hashes = {config["parent"]["run"] for config in trained if "parent" in config}
    every = runs.curves["name"]
    lengths = curves["content_length"]
    within = runs.curves["content_length"].between(lengths.min(), lengths.max())
    return runs.curves[every.str[-8:].isin(hashes) & ~every.isin(names) & within]


def distinctive_settings(protocols: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Return the fewest options that tell each protocol of a task and model apart, as ``d_model=64``.

    Protocols that differ only in code or in tuned options are numbered.
    """
    table = pd.DataFrame(protocols).fillna("unset")
    tuned = [str(key) for key in table if table[key].str.contains(" (", regex=False).any()]
    options = [str(key) for key in table if table[key].nunique() > 1 and key not in (*CODE, *tuned)]
    chosen: list[str] = []

    def groups(keys: Sequence[str]) -> int:
        return table.groupby(list(keys)).ngroups if keys else 1

    while groups(chosen) < len(table):
        if not options:
            table["code"] = range(1, len(table) + 1)
            options = ["code"]
        chosen.append(max(options, key=lambda key: groups([*chosen, key])))
        options.remove(chosen[-1])
    names = [key.rpartition(".")[2] for key in chosen]
    values = table[chosen].to_numpy().tolist()
    return [tuple(f"{name}={value}" for name, value in zip(names, row, strict=True)) for row in values]


def _settings(runs: Runs, digest: str) -> dict[str, str]:
    """Return every option of a protocol by key; a tuned option as ``value (encoding)``."""
    encodings: dict[str, dict[str, list[str]]] = {}  # by option and value
    rows = runs.runs[runs.runs["protocol"] == digest].drop_duplicates("label", keep="last")
    for label, name in zip(rows["label"], rows["name"], strict=True):
        identity = runs.saved[name]["identity"]
        trained, hashed = identity["trained"], identity["hashed"]
        settings: dict[str, Any] = {}
        for group in ("task", "model", "training", "optimizer", "trainer"):
            settings |= {f"{group}.{key}": value for key, value in trained.get(group, {}).items()}
        if "optimizer._target_" in settings:
            settings = {"optimizer": settings.pop("optimizer._target_"), **settings}
        settings[SOURCE] = short_hash([hashed["classes"].get("task"), hashed["data"]])
        for key, value in settings.items():
            by_value = encodings.setdefault(key, {})
            by_value.setdefault("null" if value is None else str(value), []).append(label)
    texts = {}
    for key, by_value in encodings.items():
        several = len(by_value) > 1
        texts[key] = ", ".join(
            f"{v} ({', '.join(labels)})" if several else v for v, labels in by_value.items()
        )
    counts = runs.curves.loc[runs.curves["protocol"] == digest, "examples"].dropna().unique()
    return texts | {"evaluation.examples": ", ".join(f"{count:g}" for count in counts)}
