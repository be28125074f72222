"""Values as text, one sentence per protocol, and caveats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pe_experiments.comparison.protocols import Protocol
from pe_experiments.comparison.runs import ACCURACIES, Row, Runs
from pe_experiments.comparison.statistics import ALPHA, FEWEST, ROUNDING, smallest_p
from pe_experiments.comparison.table import LEAST, best_encodings, finite
from pe_experiments.drawing import METRIC_NAMES
from pe_experiments.evaluation.summary import lower_is_better

NO_NUMBER = "–"
WORDS = {
    **METRIC_NAMES,
    "in_distribution": "within the training lengths",
    "at_2x": "at twice the training length",
    "extrapolation": "past the training lengths",
}


def column_of(metric: str) -> str:
    """The column of the curves that a metric summarises."""
    return next(name for name in (*ACCURACIES, "loss") if metric.startswith(name))


def metric_in_words(metric: str) -> str:
    """``exact match past the training lengths`` for ``exact_match_extrapolation``."""
    accuracy = column_of(metric)
    return f"{WORDS[accuracy]} {WORDS[metric.removeprefix(accuracy + '_')]}"


def number(value: Any, style: str = ".2f") -> str:
    if not finite(value):
        return NO_NUMBER
    shown = f"{value:{style}}"
    return shown if float(shown) else shown.lstrip("-")


def mean(row: Mapping[Any, Any], column: str) -> str:
    """``0.32 [0.08, 0.70]``; the mean alone where there is no interval."""
    shown, low, high = (number(row.get(column + end), digits(column)) for end in ("", "_low", "_high"))
    return shown if low == NO_NUMBER else f"{shown} [{low}, {high}]"


def digits(metric: str) -> str:
    """How a value is written: losses of good encodings differ in the third digit."""
    return ".3f" if lower_is_better(metric) else ".2f"


def seeds_in_words(counts: Iterable[int]) -> str:
    """``3 to 5 seeds``."""
    numbers = list(counts)
    low, high = min(numbers), max(numbers)
    return (f"{low}" if low == high else f"{low} to {high}") + (" seed" if high == 1 else " seeds")


def learned(row: Mapping[Any, Any]) -> bool:
    """Whether at least half of the runs solved the training lengths; True where that was not measured."""
    return not finite(row["exact_match_in_distribution"]) or row["solved"] >= row["seeds"] / 2


def result_in_words(protocol: Protocol, rows: Sequence[Row]) -> str:
    """The best encoding that learned the task, and the encodings that its seeds separate it from."""
    metric = str(rows[0]["metric"])
    words, lower = metric_in_words(metric), lower_is_better(metric)
    if not any(row["compared"] for row in rows):
        return "No encoding learned the task."
    if not (compared := [row for row in rows if row["compared"] and finite(row[metric])]):
        return f"There is no {words}: not measured."
    best = (min if lower else max)(compared, key=lambda row: row[metric])
    if abs(best[metric]) < LEAST and not lower:
        return f"No encoding that learned the task has more than {number(best[metric])} in mean {words}."
    if len(compared) == 1:
        return f"{best['encoding']}: {words} {mean(best, metric)}."
    if all(abs(row[metric] - best[metric]) <= ROUNDING for row in compared):
        who = "All encodings that learned the task" if finite(best["solved"]) else "All encodings"
        return f"{who} have the same mean {words}, {number(best[metric], digits(metric))}."
    start = (
        f"{best['encoding']} has the {'lowest' if lower else 'highest'} mean {words}, {mean(best, metric)}"
    )
    near, apart = best_encodings(protocol, rows)
    if not near:
        few = "; with fewer than three seeds this is no finding"
        return f"{start}{few * all(row['seeds'] < FEWEST for row in compared)}."
    if not apart:
        return f"{start}; no other encoding differs significantly."
    others = listed(apart) if len(apart) <= 4 else f"{len(apart)} of {len(compared) - 1} others"
    return f"{start}; significantly different from {others}."


def listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def caveats(protocol: Protocol, rows: Sequence[Row], tuning: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """The caveats of a protocol; entries of ``tuning`` (of `Runs`) of other protocols are ignored."""
    found = []
    if unlearned := [str(row["encoding"]) for row in rows if not learned(row)]:
        found.append(f"Most seeds did not learn the training lengths: {listed(unlearned)}.")
    if few := [str(row["encoding"]) for row in rows if row["seeds"] < FEWEST]:
        who = "every encoding" if len(few) == len(rows) else listed(few)
        found.append(f"Fewer than three seeds, so neither intervals nor tests: {who}.")
    if not protocol.lengths():
        found.append("The runs share no evaluated length; evaluate.py can add the missing ones.")
    elif apart := protocol.lengths(shared=False):
        lengths = listed(list(map(str, apart)))
        found.append(f"Left out of summaries, because some runs lack them: lengths {lengths}.")
    return found + [note for choice in tuning if _is_of(choice, protocol) and (note := _edge(choice))]


def _is_of(choice: Mapping[str, Any], protocol: Protocol) -> bool:
    settings = {f"task.{key}": str(value) for key, value in choice.get("settings", {}).items()}
    return (choice["task"], choice["model"]) == (protocol.task, protocol.model) and all(
        protocol.settings.get(key, value) in (value, "null") for key, value in settings.items()
    )


def _edge(choice: Mapping[str, Any]) -> str:
    """A warning where the best of a grid is its smallest or largest value."""
    try:
        tried = sorted(map(float, choice["tried"]))
    except ValueError:  # not a number: a grid without edges
        return ""
    if float(choice["chosen"]) not in (tried[0], tried[-1]):
        return ""
    best = f"the best of {', '.join(f'{value:g}' for value in tried)} is {choice['chosen']}"
    what = f"{choice['setting']} of {choice['encoding']}"
    return f"{what}: {best}, an end of the grid; a better value may lie beyond it."


def mixed_versions(runs: Runs) -> str:
    """Return a sentence where the runs were made by several versions, and nothing where by one."""
    made_with: dict[str, set[str]] = {
        "commits": set(),
        "values of NUMERICS": set(),
        "PyTorch versions": set(),
    }
    for name, saved in runs.saved.items():
        environment = runs.environments.get(name, {})
        if commit := environment.get("commit"):
            made_with["commits"].add(str(commit)[:8])
        made_with["values of NUMERICS"].add(str(saved["identity"]["hashed"]["numerics"]))
        if torch := environment.get("libraries", {}).get("torch"):
            made_with["PyTorch versions"].add(str(torch))
    several = [f"{what} {listed(sorted(values))}" for what, values in made_with.items() if len(values) > 1]
    return f"The runs were trained with several {'; '.join(several)}." if several else ""


def limits(rows: Sequence[Row], pairs: Sequence[Row]) -> list[str]:
    """What the tests of a protocol cannot find, and the pairs not tested."""
    tested = [pair for pair in pairs if finite(pair["p"])]
    if not tested:
        return []
    said = f"A pair is separated if its p value is at most {ALPHA:.2g} by Holm's method"
    least = len(tested) * min(smallest_p(int(pair["seeds"]), int(pair["other_seeds"])) for pair in tested)
    if least > ALPHA:
        said += f"; with so few seeds for {len(tested)} tests it is at least {min(least, 1):.2g}, so no pair "
        said += "can be separated: this needs more seeds, or fewer tests (baseline=)"
    reasons = dict.fromkeys(str(pair["not_tested"]) for pair in pairs if not finite(pair["p"]))
    return [f"{said}.", *([f"Not tested: {'; '.join(reasons)}."] if reasons else [])]
