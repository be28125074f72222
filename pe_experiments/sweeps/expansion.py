"""From a command line to the runs it stands for, each as what train.py would be given for it alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path

from pe_experiments.configuration.compose import choices_of
from pe_experiments.configuration.overrides import Choices, count_of, key_of, read_overrides, values_of
from pe_experiments.configuration.schema import SweepConfig
from pe_experiments.terminal.errors import UserError

Overrides = tuple[str, ...]
GLOBBED = ("pe", "positions", "task", "model")  # groups in which pe=glob(rope*) stands for several


def expand(
    typed: Sequence[str], params: Mapping[str, str], settings: SweepConfig, folder: Path | None = None
) -> list[Overrides]:
    """The runs that what was typed and the sweep's own file (``params``) say, each once, seed by seed."""
    most = settings.max_runs
    choices = {group: choices_of(group, folder) for group in GLOBBED}
    parsed = read_overrides([*(f"{key}={value}" for key, value in params.items()), *typed])
    for override in parsed:
        if override.is_sweep_override() and override.key_or_group.split(".")[0] in ("sweep", "engine"):
            key, _, value = str(override.input_line).partition("=")
            once = f"said once for the whole sweep; a list is written '{key}=[{value}]'"
            raise UserError(f"{key}={value}: {once}")
    typed = [str(override.input_line) for override in read_overrides(typed)]
    runs = combinations([str(override.input_line) for override in parsed], choices, most)
    for key, listed in (("cases", settings.cases), ("schemes", settings.schemes)):
        if listed:
            cases = [one for case in listed for one in combinations(case, choices, most)]
            _refuse_too_many(len(runs) * len(cases), most)
            runs = [both for run in runs for both in _in_cases(run, cases, typed)]
        if not runs:
            chosen = " ".join(text for text in typed if "." not in key_of(text) and key_of(text) != "sweep")
            raise UserError(f"no case of this sweep has {chosen}; see sweep.{key} in its file")
    if settings.baselines and not settings.against:
        runs = [beside for run in runs for beside in (run, *_baselines(run, settings.baselines))]
    _refuse_too_many(len(runs), most)
    return breadth_first(runs)


def breadth_first(runs: Iterable[Overrides]) -> list[Overrides]:
    """Each run once; all of the first seed, then all of the next, so that a sweep can be read at any time."""
    runs = list(dict.fromkeys(runs))
    turns = {seed: turn for turn, seed in enumerate(dict.fromkeys(value_of(run, "seed") for run in runs))}
    return sorted(runs, key=lambda run: turns[value_of(run, "seed")])


def combinations(texts: Iterable[str], choices: Choices, most: int) -> list[Overrides]:
    """Every combination of the values that overrides stand for; of one key the last override counts."""
    factors = {override.get_key_element(): override for override in read_overrides(texts)}.values()
    _refuse_too_many(prod(count_of(override, choices) for override in factors), most)
    return list(product(*(values_of(override, choices) for override in factors)))


def _refuse_too_many(runs: int, most: int) -> None:
    """Before they are listed: ``runs`` counts cases that what was typed may yet leave out."""
    if runs > most:
        many = f"this sweep has up to {runs} runs, more than sweep.max_runs={most}"
        raise UserError(f"{many}; vary less, or raise that")


def value_of(run: Iterable[str], key: str) -> str | None:
    """The value of that key's last override."""
    values = [text.partition("=")[2] for text in run if key_of(text) == key]  # the last counts
    return values[-1] if values else None


def without(run: Overrides, *keys: str) -> Overrides:
    return tuple(text for text in run if key_of(text) not in keys)


def with_value(run: Overrides, key: str, value: str) -> Overrides:
    return (*without(run, key), f"{key}={value}")


def _in_cases(run: Overrides, cases: Sequence[Overrides], typed: Sequence[str]) -> Iterable[Overrides]:
    """The run under each case; cases that contradict what was typed are left out."""
    named = {key_of(text) for text in typed}
    for case in cases:
        keys = [key_of(text) for text in case]
        choices = [text for text in case if "." not in key_of(text) and key_of(text) in named]
        if all(value_of(run, key_of(text)) == text.partition("=")[2] for text in choices):
            own = (text for text in case if key_of(text) not in named)
            yield (*without(run, *keys), *own, *(text for text in run if key_of(text) in keys))


def _baselines(run: Overrides, baselines: Sequence[str]) -> Iterable[Overrides]:
    """The run with other schemes; what is said about its own scheme does not concern them."""
    others = tuple(t for t in run if key_of(t) not in ("pe", "label") and not key_of(t).startswith("pe."))
    return ((*others, f"pe={name}") for name in baselines)
