"""Group the runs of a comparison into protocols; name protocols by the options in which they differ."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison.runs import Runs, read_runs
from pe_experiments.drawing import drawn_metrics
from pe_experiments.evaluation.metrics import EXACT_MATCH, Metric, Summary
from pe_experiments.store.names import safe_name, short_hash
from pe_experiments.terminal.errors import UserError

SOURCE = "task.source"  # distinguishes protocols that differ in the code of the user's task
CODE = (SOURCE, "task._target_")
MACHINE = ("processor", "device", "threads")  # keys of an environment on which times per step depend
MAX_SLUG_LENGTH = 80  # characters of a slug


@dataclass(frozen=True)
class Protocol:
    """The configuration that compared runs share (task, model, training and evaluation), and these runs."""

    hash: str  # identifies the protocol in the column ``protocol`` of every table
    task: str
    model: str
    distinctive: tuple[str, ...]  # options in which protocols of this task and model differ: ``d_model=64``
    max_length: int  # longest input length in training
    runs: pd.DataFrame  # the rows of `Runs.runs`
    curves: pd.DataFrame
    parents: pd.DataFrame  # the curves of the runs that these runs continue, within the same lengths
    settings: dict[str, str]  # values of all options by key
    timed: bool  # whether all runs used the same kind of machine, so that times are comparable
    metrics: tuple[Metric, ...]  # `Runs.metrics`

    @property
    def title(self) -> str:
        """The displayed name, such as ``copy, decoder, d_model=64``."""
        return ", ".join([self.task, self.model, *self.distinctive])

    @property
    def slug(self) -> str:
        """The name for files and for the column ``section``, such as ``copy-decoder-d_model64``."""
        name = safe_name("-".join([self.task, self.model, *self.distinctive]).replace("=", ""))
        return name if len(name) <= MAX_SLUG_LENGTH else f"{name[:MAX_SLUG_LENGTH]}-{self.hash}"

    @property
    def exact(self) -> bool:
        """Return whether exact match was measured; it is not for language models."""
        return self.has(EXACT_MATCH)

    def has(self, metric: Metric) -> bool:
        """Return whether a metric was measured in some of the runs."""
        return metric.name in self.curves and bool(self.curves[metric.name].notna().any())

    @property
    def has_tokens(self) -> bool:
        """Return whether this is a text whose lengths count tokens instead of bytes."""
        return self.settings.get("task.tokenizer", "null") != "null"

    def drawn(self, summary: Summary) -> tuple[Metric, ...]:
        """Return the one or two metrics that are drawn if encodings are compared in this summary."""
        return drawn_metrics(self.curves, summary.metric)

    def lengths(self, shared: bool = True) -> list[int]:
        """Return the lengths that all runs share, or those that only some runs have."""
        lengths = self.curves.loc[self.curves["in_summary"] == shared, "content_length"]
        return sorted(int(length) for length in lengths.unique())


def load_runs(results_dir: str | Path = "results", study: str | None = None, **options: Any) -> Runs:
    """Return all runs under ``results_dir/runs`` or of a study; for the arguments see `read_runs`.

    Raises:
        UserError: as in `read_runs`, or the runs of a task and model have different configurations.
    """
    runs = read_runs(results_dir, study, **options)
    mixed = [protocol for protocol in protocols_of(runs) if protocol.distinctive]
    if mixed:
        titles = " or ".join(protocol.title for protocol in mixed[:2])
        source = f"study={study}" if study else f"results_dir={results_dir}"
        advice = "" if study else "name a study with runs of one (study=...), or "
        raise UserError(
            f"{source}: runs have different configurations ({titles}); "
            f"{advice}use compare(...), which compares them separately"
        )
    return runs


def protocols_of(runs: Runs) -> list[Protocol]:
    """Return the protocols of these runs, sorted by task and model."""
    protocols: list[Protocol] = []
    if runs.runs.empty:
        return protocols
    first_runs = runs.runs.groupby("protocol").first()
    for (task, model), candidates in first_runs.groupby(["task", "model"]):
        all_settings, tuned = zip(*(_settings(runs, str(digest)) for digest in candidates.index), strict=True)
        distinctive = distinctive_settings(all_settings, set().union(*tuned))
        named = zip(distinctive, candidates.index, all_settings, strict=True)
        for names, digest, settings in sorted(named, key=lambda entry: entry[0]):
            rows = runs.runs[runs.runs["protocol"] == digest]
            curves = runs.curves[runs.curves["protocol"] == digest]
            trained = [runs.saved[name].trained for name in rows["name"]]
            hashes = {config["parent"]["run"] for config in trained if "parent" in config}
            is_parent = runs.curves["name"].str[-8:].isin(hashes) & ~runs.curves["name"].isin(rows["name"])
            lengths = curves["content_length"]
            is_within = runs.curves["content_length"].between(lengths.min(), lengths.max())
            machines = [[runs.environments[name].get(key) for key in MACHINE] for name in rows["name"]]
            protocols.append(
                Protocol(
                    hash=str(digest),
                    task=str(task),
                    model=str(model),
                    distinctive=names,
                    max_length=int(candidates.loc[digest, "max_length"]),
                    runs=rows,
                    curves=curves,
                    parents=runs.curves[is_parent & is_within],
                    settings=settings,
                    timed=None not in machines[0] and all(machine == machines[0] for machine in machines),
                    metrics=runs.metrics,
                )
            )
    return protocols


def distinctive_settings(
    protocols: Sequence[Mapping[str, str]], tuned: Collection[str]
) -> list[tuple[str, ...]]:
    """Return for each protocol a few options in which it differs from the others, such as ``d_model=64``.

    The protocols have the same task and model. Options are added one at a time until all protocols differ.
    Protocols that differ only in code or in tuned options are numbered.
    """
    table = pd.DataFrame(protocols).fillna("unset")
    options = [str(key) for key in table if table[key].nunique() > 1 and key not in (*CODE, *tuned)]
    chosen: list[str] = []

    def number_of_groups(keys: Sequence[str]) -> int:
        return table.groupby(list(keys)).ngroups if keys else 1

    while number_of_groups(chosen) < len(table):
        if not options:
            table["code"] = range(1, len(table) + 1)
            options = ["code"]
        chosen.append(max(options, key=lambda key: number_of_groups([*chosen, key])))
        options.remove(chosen[-1])
    names = [key.rpartition(".")[2] for key in chosen]
    values = table[chosen].to_numpy().tolist()
    return [tuple(f"{name}={value}" for name, value in zip(names, row, strict=True)) for row in values]


def _shown(value: Any) -> str:
    """Return the value of an option as text; of a part, such as ``model.attention``, class and arguments."""
    if isinstance(value, dict) and "_target_" in value:
        arguments = ",".join(f"{key}={argument}" for key, argument in value.items() if key[0] != "_")
        name = str(value["_target_"]).rpartition(".")[2]
        return f"{name}({arguments})" if arguments else name
    return "null" if value is None else str(value)


def _settings(runs: Runs, digest: str) -> tuple[dict[str, str], set[str]]:
    """Return the options of a protocol, tuned ones as ``value (encoding)``, and which are tuned."""
    labels_by_value: dict[str, dict[str, list[str]]] = {}  # labels by option and value
    rows = runs.runs[runs.runs["protocol"] == digest].drop_duplicates("label", keep="last")
    for label, name in zip(rows["label"], rows["name"], strict=True):
        record = runs.saved[name]
        settings: dict[str, Any] = {}
        for group in ("task", "model", "training", "optimizer", "trainer"):
            settings |= {f"{group}.{key}": value for key, value in record.trained.get(group, {}).items()}
        if "optimizer._target_" in settings:
            settings = {"optimizer": settings.pop("optimizer._target_"), **settings}
        evaluation = runs.evaluations.get(name, {})
        further = evaluation.keys() & {"window", "decoding"}
        settings |= {f"evaluation.{key}": evaluation[key] for key in sorted(further)}
        settings[SOURCE] = short_hash([record.classes.get("task"), record.data])
        for key, value in settings.items():
            text = _shown(value)
            labels_by_value.setdefault(key, {}).setdefault(text, []).append(label)
    texts, tuned = {}, set()
    for key, by_value in labels_by_value.items():
        if len(by_value) > 1:
            tuned.add(key)
            texts[key] = ", ".join(f"{value} ({', '.join(labels)})" for value, labels in by_value.items())
        else:
            texts[key] = next(iter(by_value))
    counts = runs.curves.loc[runs.curves["protocol"] == digest, "examples"].dropna().unique()
    return texts | {"evaluation.examples": ", ".join(f"{count:g}" for count in counts)}, tuned
