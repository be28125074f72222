"""A section in words, made from the tables: one sentence on the result, and what to know to believe it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from pe_experiments.comparison.presentation import Cells, Part, Phrase, metric_in_words
from pe_experiments.comparison.protocols import Section, differences_sentence
from pe_experiments.comparison.runs_table import Row
from pe_experiments.comparison.statistics import FEWEST, ROUNDING
from pe_experiments.comparison.table import lengths_left_out

NOTHING = 0.005  # a mean that is written 0.00
NAMED = 4  # schemes that a sentence names before it counts them


def summary(rows: Sequence[Cells], pairs: Sequence[Cells]) -> Phrase:
    """One sentence: the best scheme that learned the task, and what its seeds separate it from."""
    compared = [cells for cells in rows if cells["compared"] and cells.has(str(cells["metric"]))]
    if not compared:
        learnt = any(cells["compared"] for cells in rows)
        return [
            "Past the training lengths nothing was measured." if learnt else "No scheme learned the task."
        ]
    metric = str(compared[0]["metric"])
    best = max(compared, key=lambda cells: cells[metric])
    name, words = str(best["scheme"]), metric_in_words(metric)
    if abs(best[metric]) < NOTHING:
        return ["No scheme that learned the task has more than ", *best.number(metric), f" in mean {words}."]
    if len(compared) > 1 and all(abs(c[metric] - best[metric]) <= ROUNDING for c in compared):
        return [
            "All schemes that learned the task have the same mean ",
            words,
            ", ",
            *best.number(metric),
            ".",
        ]
    start: list[Part] = [
        f"{name} has the highest mean {words}, " if len(compared) > 1 else f"{name}: {words} "
    ]
    start += best.mean(metric)
    mine = [cells for cells in pairs if cells.has("p") and name in (cells["scheme"], cells["other"])]
    if not mine:
        return [*start, "."]
    apart = [str(c["other"] if c["scheme"] == name else c["scheme"]) for c in mine if c["separated"]]
    if not apart:
        return [*start, "; the seeds separate it from no other scheme."]
    few = len(apart) <= NAMED
    others = (
        listed([[other] for other in apart])
        if few
        else ["most others" if len(apart) < len(mine) else "all others"]
    )
    return [*start, "; the seeds separate it from ", *others, "."]


def listed(phrases: Sequence[Phrase]) -> list[Part]:
    """``a, b and c``."""
    joined: list[Part] = []
    for place, phrase in enumerate(phrases):
        joined += [", " if 0 < place < len(phrases) - 1 else " and " if place else "", *phrase]
    return joined


def notes(section: Section, rows: Sequence[Cells], tuning: Sequence[Row] = ()) -> list[Phrase]:
    """What a reader must know before believing a section."""
    found: list[Phrase] = []
    if sentence := differences_sentence(section):
        found.append([sentence])
    if unlearnt := [[str(cells["scheme"])] for cells in rows if not cells.learnt]:
        found.append([*listed(unlearnt), " did not learn the task within the training lengths in most runs."])
    few = [[str(cells["scheme"])] for cells in rows if cells["seeds"] < FEWEST]
    if few:
        who = ["Every scheme has"] if len(few) == len(rows) else [*listed(few), " have"]
        found.append([*who, " fewer than three seeds: values are shown without intervals or tests."])
    diverged = [cells for cells in rows if cells["diverged"]]
    if diverged:
        counts = [
            [*c.number("diverged", "g"), " of ", *c.number("seeds", "g"), f" ({c['scheme']})"]
            for c in diverged
        ]
        found.append(["Runs that diverged count as unsolved and as wrong throughout: ", *listed(counts), "."])
    if any(cells["horizon_censored"] for cells in rows):
        found.append(
            ["A horizon marked ≥ is censored: some run was still above the threshold at the longest length."]
        )
    return found + _on_lengths(section) + [[sentence] for sentence in edges(tuning)]


def edges(tuning: Sequence[Row]) -> list[str]:
    """Warnings where the best of a grid is its smallest or largest value."""
    found = []
    for choice in tuning:
        try:
            tried = sorted(map(float, choice["tried"]))
        except ValueError:  # not a number: a grid without edges
            continue
        if float(choice["chosen"]) in (tried[0], tried[-1]):
            grid = ", ".join(f"{value:g}" for value in tried)
            found.append(
                f"{choice['setting']} of {choice['scheme']}: the best of the grid ({grid}) is its edge, "
                f"{choice['chosen']}; a better value may lie outside."
            )
    return found


def _on_lengths(section: Section) -> list[Phrase]:
    if not section.curves["in_summary"].any():
        return [
            ["The runs share no evaluated length, so nothing is summarised; evaluate.py measures them alike."]
        ]
    if apart := lengths_left_out(section):
        lengths = ", ".join(map(str, apart))
        return [[f"Not every run was measured at length {lengths}; the summaries leave these lengths out."]]
    return []


def cells_of(table: pd.DataFrame, section: Section, file: str = "table.csv") -> list[Cells]:
    """The rows of a section."""
    places = [place for place in range(len(table)) if table["protocol"].iloc[place] == section.protocol]
    return [Cells(table, place, file) for place in places]
