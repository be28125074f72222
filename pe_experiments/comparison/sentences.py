"""Format values as text, and describe the result and the caveats of a protocol in sentences."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pe_experiments.comparison.protocols import Protocol
from pe_experiments.comparison.runs import Row, Runs, finite
from pe_experiments.comparison.statistics import (
    ALPHA,
    EQUAL_WITHIN,
    FEWEST,
    MOST_SEEDS,
    POWER,
    seeds_needed,
    smallest_p,
)
from pe_experiments.comparison.tuning import Choice, at_an_end
from pe_experiments.evaluation.metrics import Summary, mostly_seen
from pe_experiments.terminal.errors import join_names

NO_NUMBER = "–"
LEAST = 0.005  # smaller means are shown as 0.00
AT_AN_END = 0.05  # of the range of a metric: means closer to a bound leave no difference to find


def number(value: Any, style: str = ".2f") -> str:
    """Return a number as text, without the sign of -0.00; a dash for anything but a finite number."""
    return f"{value:z{style}}" if finite(value) else NO_NUMBER


def mean(row: Mapping[Any, Any], summary: Summary) -> str:
    """Return a mean with its interval, such as ``0.32 [0.08, 0.56]``, or alone if it has none."""
    digits = summary.metric.digits
    estimate, low, high = (number(row.get(summary.column + end), digits) for end in ("", "_low", "_high"))
    return estimate if low in (NO_NUMBER, high) else f"{estimate} [{low}, {high}]"


def mean_of_seeds(row: Mapping[Any, Any], summary: Summary) -> str:
    """Return a mean with its interval and what the interval is, for a sentence."""
    text = mean(row, summary)
    if " [" in text:
        return f"{text} (95 % interval from {format_seeds([row['seeds']])})"
    return f"{text} in all {format_seeds([row['seeds']])}" if row["seeds"] >= FEWEST else text


def seeds_sentence(rows: Sequence[Row], pairs: Sequence[Row], summary: Summary, difference: float) -> str:
    """Return how many seeds a difference takes.

    The string is empty if too few seeds show their spread, or if all means are at the floor or the ceiling of
    the metric, where more seeds would show no difference. ``rows`` and ``pairs`` are those of a protocol in
    the two tables, and the difference is in the unit of the metric.
    """
    column = summary.column
    compared = [row for row in rows if row["compared"] and row["seeds"] >= FEWEST]
    variances = [row[f"{column}_sd"] ** 2 for row in compared if finite(row[f"{column}_sd"])]
    if not variances:
        return ""
    if summary.metric.bounds is not None:
        low, high = summary.metric.bounds
        margin = AT_AN_END * (high - low)
        if not any(low + margin < row[column] < high - margin for row in compared):
            return ""
    deviation = math.sqrt(sum(variances) / len(variances))
    tests = max(1, sum(finite(pair["p"]) for pair in pairs))
    seeds = seeds_needed(difference, deviation, tests) or f"more than {MOST_SEEDS:,}"
    return (
        f"To find a true difference of {difference:g} in {100 * POWER:g} % of studies, a study needs {seeds} "
        f"seeds per encoding (standard deviation over seeds {deviation:.3f}, {tests} "
        f"test{'' if tests == 1 else 's'})."
    )


def at_floor(mean: float, summary: Summary) -> bool:
    """Return whether a mean is not above the lowest value, which says nothing about encodings."""
    bounds = summary.metric.bounds
    return bounds is not None and not summary.lower_is_better and mean < bounds[0] + LEAST


def format_counts(counts: Iterable[int]) -> str:
    """Return the range of counts as text, such as ``3 to 5``."""
    distinct = sorted(set(counts))
    return str(distinct[0]) if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"


def format_seeds(counts: Iterable[int]) -> str:
    """Return the range of numbers of seeds as text, such as ``3 to 5 seeds``."""
    text = format_counts(counts)
    return "1 seed" if text == "1" else f"{text} seeds"


def learned(row: Mapping[Any, Any]) -> bool:
    """Return whether at least half of the runs solved the training lengths, or this was not measured."""
    if not finite(row["exact_match_in_distribution"]):
        return True
    return row["solved"] >= row["seeds"] / 2


def result_sentence(
    rows: Sequence[Row], summary: Summary, tied: Sequence[str], separated: Sequence[str]
) -> str:
    """Return a sentence about the best encoding and the encodings that differ significantly from it.

    ``rows`` are those of a protocol in the table of encodings; ``tied`` and ``separated`` as in
    `Comparison.best`.
    """
    metric, metric_words, digits = summary.column, summary.words, summary.metric.digits
    lower = summary.lower_is_better
    compared = [row for row in rows if row["compared"] and finite(row[metric])]
    if not any(row["compared"] for row in rows):
        return "No encoding learned the task."
    if not compared:
        return f"Not measured: {metric_words}."
    best = min(compared, key=lambda row: row[metric] if lower else -row[metric])
    if at_floor(best[metric], summary):
        return f"No encoding that learned the task exceeds {number(best[metric])} in mean {metric_words}."
    if len(compared) == 1:
        return f"{best['encoding']}: {metric_words} {mean_of_seeds(best, summary)}."
    if all(abs(row[metric] - best[metric]) <= EQUAL_WITHIN for row in compared):
        subject = "All encodings that learned the task" if finite(best["solved"]) else "All encodings"
        return f"{subject} have the same mean {metric_words}, {number(best[metric], digits)}."
    others = [row for row in compared if row is not best]
    seed_counts = [row["seeds"] for row in others if row["seeds"] >= FEWEST]
    smallest_adjusted_p = 1.0
    if seed_counts:
        smallest_adjusted_p = len(seed_counts) * min(smallest_p(best["seeds"], n) for n in seed_counts)
    end = ""
    if all(row["seeds"] < FEWEST for row in compared):
        end = "; with fewer than three seeds differences are not tested"
    elif separated:
        names = f"{len(separated)} of {len(others)} others" if len(separated) > 4 else join_names(separated)
        end = f"; significantly different from {names}"
    elif tied and smallest_adjusted_p > ALPHA:
        seeds = format_seeds(row["seeds"] for row in compared)
        other_encodings = "other" if len(others) == 1 else f"{len(others)} others"
        end = f"; with {seeds} no difference from the {other_encodings} can become significant"
    elif tied:
        end = "; no other encoding differs significantly"
    equal = [row["encoding"] for row in compared if abs(row[metric] - best[metric]) <= EQUAL_WITHIN]
    have = "has" if len(equal) == 1 else "have"
    highest = "lowest" if lower else "highest"
    mean_in_words = mean_of_seeds(best, summary)
    return f"{join_names(equal)} {have} the {highest} mean {metric_words}, {mean_in_words}{end}."


def caveats(protocol: Protocol, rows: Sequence[Row], tuning: Sequence[Choice]) -> list[str]:
    """Return the caveats of a protocol, with its rows in the table of encodings and `Runs.tuning`."""
    notes = []
    unlearned = [str(row["encoding"]) for row in rows if not learned(row)]
    if unlearned:
        notes.append(f"Most seeds did not learn the training lengths: {join_names(unlearned)}.")
    few = [str(row["encoding"]) for row in rows if row["seeds"] < FEWEST]
    if few:
        names = "every encoding" if len(few) == len(rows) else join_names(few)
        notes.append(f"No intervals or tests, because of fewer than three seeds: {names}.")
    within = protocol.curves[protocol.curves["content_length"] <= protocol.max_length]
    points: list[Any] = within.to_dict("records")
    seen = {point["content_length"] for point in points if mostly_seen(point)}
    lengths = {*within["content_length"]}
    if seen and seen < lengths:
        names = join_names([str(int(length)) for length in sorted(seen)])
        notes.append(
            f"Means within the training lengths leave out {names}, where most inputs occurred in training."
        )
    unshared = [str(length) for length in protocol.lengths(shared=False)]
    if not protocol.lengths():
        notes.append("The runs share no evaluated length; add the missing lengths with evaluate.py.")
    elif unshared:
        notes.append(f"Summaries exclude lengths that some runs lack: {join_names(unshared)}.")
        if not protocol.exact:
            notes.append(
                "The runs were measured on different bytes, since a text is cut by the evaluated lengths."
            )
    for choice in tuning:
        if choice["protocol"] == protocol.hash and at_an_end(choice):
            tried = ", ".join(f"{value:g}" for value in sorted(map(float, choice["tried"])))
            notes.append(
                f"{choice['setting']} of {choice['encoding']}: the best of {tried} is {choice['chosen']}, an "
                "end of the grid; try values beyond it."
            )
    return notes


def mixed_versions(runs: Runs) -> str:
    """Return a sentence if the runs come from several versions of code or PyTorch, else an empty string."""
    environments = [runs.environments.get(name, {}) for name in runs.saved]
    versions = {
        "commits": {str(environment.get("commit") or "")[:8] for environment in environments},
        "values of NUMERICS": {str(saved.numerics) for saved in runs.saved.values()},
        "PyTorch versions": {
            str(environment.get("libraries", {}).get("torch", "")) for environment in environments
        },
    }
    differences = []
    for name, values in versions.items():
        recorded = sorted(values - {""})
        if len(recorded) > 1:
            differences.append(f"{name} {join_names(recorded)}")
    return f"The runs were trained with different {'; '.join(differences)}." if differences else ""


def mixed_metrics(runs: Runs) -> list[str]:
    """Return a note if the code of the user's metrics was edited between the measurements of the runs."""
    digests: dict[str, set[str]] = {}
    for evaluation in runs.evaluations.values():
        for module, digest in evaluation.get("metrics_code", {}).items():
            digests.setdefault(module, set()).add(digest)
    edited = [module for module, versions in digests.items() if len(versions) > 1]
    if not edited:
        return []
    return [f"Some runs were measured before {join_names(edited)} was edited; repeat their commands."]


def limits(pairs: Sequence[Row]) -> list[str]:
    """Return notes on a protocol: whether tests can be significant, and why pairs were not tested."""
    tested = [pair for pair in pairs if finite(pair["p"])]
    if not tested:
        return []
    notes = []
    smallest_ps = [smallest_p(int(pair["seeds"]), int(pair["other_seeds"])) for pair in tested]
    smallest_adjusted_p = len(tested) * min(smallest_ps)
    if smallest_adjusted_p > ALPHA:
        least = min(smallest_adjusted_p, 1)
        notes.append(
            f"With so few seeds for {len(tested)} tests the adjusted p value is at least {least:.2g}, so no "
            "difference can be significant; use more seeds, or fewer tests (baseline=)."
        )
    reasons = dict.fromkeys(str(pair["not_tested"]) for pair in pairs if not finite(pair["p"]))
    if reasons:
        notes.append(f"Not tested: {'; '.join(reasons)}.")
    return notes
