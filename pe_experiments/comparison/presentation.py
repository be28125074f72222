"""Values of the tables as people read them, each with the cell it comes from, and tables of them.

A `Number` knows its file, row and column; a phrase is text and numbers; a `ShownTable` holds phrases. The
writers below turn them into Markdown and LaTeX; `page` turns them into HTML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pe_experiments.comparison.protocols import Section
from pe_experiments.comparison.runs_table import ACCURACIES
from pe_experiments.comparison.statistics import ALPHA, ROUNDING, seeds_needed
from pe_experiments.comparison.table import METRICS, finite
from pe_experiments.evaluation import SOLVED

NO_NUMBER = "–"
MOST_PAIRS = 30  # shown in a section; more stand in pairs.csv alone
WORDS = {
    "exact_match": "exact match",
    "token_accuracy": "token accuracy",
    "in_distribution": "within the training lengths",
    "at_2x": "at twice the training length",
    "extrapolation": "past the training lengths",
}


@dataclass(frozen=True)
class Number:
    """A value as shown, and the cell it is: ``row`` counts from 1 under the header."""

    text: str
    value: float
    row: int
    column: str
    file: str = "table.csv"


Part = str | Number
Phrase = Sequence[Part]


@dataclass(frozen=True)
class ShownTable:
    """A table for people: the first column is text. Notes stand below it."""

    caption: str
    headings: list[str]
    rows: Sequence[Sequence[Phrase]]
    notes: Sequence[Phrase] = ()


class Cells:
    """The cells of one row of a table as numbers to be shown."""

    def __init__(self, table: pd.DataFrame, row: int, file: str = "table.csv"):
        self._row, self._file = row, file
        self._values = table.iloc[row]

    def __getitem__(self, column: str) -> Any:
        return self._values.get(column)

    def has(self, column: str) -> bool:
        return finite(self._values.get(column))

    @property
    def learnt(self) -> bool:
        """Whether at least half of the runs solved the training lengths, as far as that was measured."""
        measured = self.has("exact_match_in_distribution")
        return not measured or bool(self["solved"] >= self["seeds"] / 2)

    def number(self, column: str, style: str = ".2f") -> list[Part]:
        """The value in a column, or a dash where there is none."""
        if not self.has(column):
            return [NO_NUMBER]
        value = self._values[column]
        text = f"{value:{style}}"
        shown = "0" + text[2:] if re.fullmatch(r"-0\.0*", text) else text
        return [Number(shown, value, self._row + 1, column, self._file)]

    def mean(self, column: str) -> list[Part]:
        """``0.32 [0.08, 0.70]``; ``all 5 seeds 1.00`` where they agree; the mean alone without interval."""
        shown = self.number(column)
        if not self.has(f"{column}_low"):
            return shown
        if self[f"{column}_max"] - self[f"{column}_min"] <= ROUNDING:
            return ["all ", *self.number("seeds", "g"), " seeds ", *shown]
        return [*shown, *self._ends(column)]

    def count(self, column: str) -> list[Part]:
        """``3 of 5 [0.15, 0.95]``, the ends being those of the share."""
        if not self.has(column):
            return [NO_NUMBER]
        shown = [*self.number(column, "g"), " of ", *self.number("seeds", "g")]
        return [*shown, *self._ends(column)] if self.has(f"{column}_low") else shown

    def _ends(self, column: str) -> list[Part]:
        return [" [", *self.number(f"{column}_low"), ", ", *self.number(f"{column}_high"), "]"]


def metric_in_words(metric: str) -> str:
    """``exact match past the training lengths`` for ``exact_match_extrapolation``."""
    accuracy = next(name for name in ACCURACIES if metric.startswith(name))
    return f"{WORDS[accuracy]} {WORDS[metric.removeprefix(accuracy + '_')]}"


def result_table(section: Section, rows: Sequence[Cells]) -> ShownTable:
    """What each scheme reached in one section."""
    twice = f"reached@{2 * section.max_length}"
    columns: list[tuple[str, Callable[[Cells], Phrase]]] = [
        ("scheme", lambda c: [str(c["scheme"])]),
        ("group", lambda c: [c["group"] if isinstance(c["group"], str) else NO_NUMBER]),
        ("seeds", lambda c: c.number("seeds", "g")),
        ("diverged", lambda c: c.number("diverged", "g")),
        ("solve the training lengths", lambda c: c.count("solved")),
        ("exact match within", lambda c: c.mean(METRICS[0])),
        ("at 2x", lambda c: c.mean(METRICS[1])),
        ("reach 0.9 at 2x", lambda c: c.count(twice)),
        ("past the training lengths", lambda c: c.mean(METRICS[2])),
        ("past them, runs that solved", lambda c: c.number(f"{METRICS[2]}_solved")),
        ("token accuracy past them", lambda c: c.mean(METRICS[5])),
        ("horizon", lambda c: ["≥ " if c["horizon_censored"] else "", *c.number("horizon", ".1f")]),
    ]
    dropped = {
        "group": not any(isinstance(cells["group"], str) for cells in rows),
        "diverged": not any(cells["diverged"] for cells in rows),
        "reach 0.9 at 2x": not any(cells.has(twice) for cells in rows),
        "past them, runs that solved": all(cells["solved"] in (0, cells["seeds"]) for cells in rows),
        "token accuracy past them": section.one_token,
    }
    kept = [column for column in columns if not dropped.get(column[0])]
    shown = [[show(cells) for _, show in kept] for cells in rows]
    caption = "Means over seeds with Gaffke's 95 % intervals, numbers of seeds with Clopper-Pearson's"
    if not any(cells.has("solved_low") for cells in rows):
        caption = "Means over seeds and numbers of seeds; too few seeds for intervals"
    return ShownTable(caption, [name for name, _ in kept], shown, _detectable(rows))


def _detectable(rows: Sequence[Cells]) -> list[Phrase]:
    cells = next((cells for cells in rows if cells.has("detectable_difference")), None)
    if cells is None:
        return []
    compared = [other for other in rows if other["compared"]]
    fewest = min(compared, key=lambda other: other["seeds"])
    return [
        [
            f"Smallest difference in {metric_in_words(cells['metric'])} that ",
            *fewest.number("seeds", "g"),
            " seeds per scheme detect: ",
            *cells.number("detectable_difference"),
            " (two-sided t test at 0.05 with 80 % power, standard deviation pooled over the schemes "
            "compared, one test).",
        ]
    ]


def pairs_table(pairs: Sequence[Cells]) -> ShownTable | None:
    """The pairs of one section that were tested; None where none was."""
    tested = [cells for cells in pairs if cells.has("p")]
    if not tested:
        return None
    headings = ["pair", "difference", "p (permutation)", "after Holm", "pairs of seeds", "p (sign flip)",
                "after Holm", "probability of improvement"]  # fmt: skip
    fits = len(tested) <= MOST_PAIRS
    shown: list[list[Phrase]] = [
        [
            [f"{cells['scheme']} − {cells['other']}"],
            cells.number("difference", "+.2f"),
            cells.number("p", ".2g"),
            cells.number("p_holm", ".2g"),
            cells.number("pairs", "g"),
            cells.number("p_paired", ".2g"),
            cells.number("p_paired_holm", ".2g"),
            cells.number("probability_of_improvement"),
        ]
        for cells in tested
        if fits or cells["separated"]
    ]
    first = tested[0]
    caption = f"Differences of means between schemes, {metric_in_words(first['metric'])}"
    caption += "" if fits else "; the pairs that the seeds separate (all are in pairs.csv)"
    return ShownTable(caption, headings, shown, _limits(pairs, tested))


def _limits(pairs: Sequence[Cells], tested: Sequence[Cells]) -> list[Phrase]:
    """What the tests could find at best, and what was not tested."""
    best = min(tested, key=lambda cells: cells["smallest_p_holm"])
    limit: list[Part] = [
        "Schemes are called separated where the permutation test gives 0.05 or less after Holm over ",
        *best.number("tests", "g"),
        " tests; with so many seeds it can give ",
        *best.number("smallest_p_holm", ".2g"),
        " at the least",
    ]
    if best["smallest_p_holm"] > ALPHA:
        needed = seeds_needed(int(best["tests"]))
        limit.append(
            f", so no pair can be separated; {needed} seeds per scheme, or fewer tests (baseline=), could"
        )
    least = 2.0 ** (1 - max(cells["pairs"] for cells in tested))
    limit.append(f". The sign-flip test of the paired seeds can give {least:.2g} at the least, before Holm.")
    reasons = dict.fromkeys(str(cells["not_tested"]) for cells in pairs if not cells.has("p"))
    return [limit, *([[f"Not tested: {'; '.join(reasons)}."]] if reasons else [])]


def length_table(rows: Sequence[Cells], lengths: Iterable[int], accuracy: str) -> ShownTable:
    """An accuracy by length, averaged over seeds; for token accuracy with the bounds."""
    lengths = list(lengths)
    shown: list[list[Phrase]] = [
        [[str(cells["scheme"])], *(cells.mean(f"{accuracy}@{n}") for n in lengths)] for cells in rows
    ]
    if accuracy == "token_accuracy":
        for bound, name in (
            ("bag_ceiling", "the best an order-blind predictor can do"),
            ("chance", "chance"),
        ):
            shown.append([[name], *(rows[0].number(f"{bound}@{n}") for n in lengths)])
    headings = ["scheme", *(f"length {n}" for n in lengths)]
    intervals = any(cells.has(f"{accuracy}@{n}_low") for cells in rows for n in lengths)
    with_them = ", with Gaffke's 95 % intervals" if intervals else ""
    return ShownTable(f"Mean {WORDS[accuracy]} over seeds by input length{with_them}", headings, shown)


def reached_table(rows: Sequence[Cells], lengths: Sequence[int]) -> ShownTable:
    """How many seeds reach an exact match of 0.9, by length."""
    shown: list[list[Phrase]] = [
        [[str(cells["scheme"])], *(cells.count(f"reached@{n}") for n in lengths)] for cells in rows
    ]
    intervals = any(cells.has(f"reached@{n}_low") for cells in rows for n in lengths)
    with_them = ", with the Clopper-Pearson 95 % interval of their share" if intervals else ""
    caption = f"Seeds whose exact match is at least {SOLVED:g}, by input length{with_them}"
    return ShownTable(caption, ["scheme", *(f"length {n}" for n in lengths)], shown)


def cost_table(rows: Sequence[Cells]) -> ShownTable:
    """Size of each scheme. Times are of the machine as busy as it was, and stay in ``runs.csv``."""
    headings = ["scheme", "parameters", "of the encoding"]
    shown: list[list[Phrase]] = [
        [
            [str(cells["scheme"])],
            cells.number("parameters", ".0f"),
            cells.number("encoding_parameters", ".0f"),
        ]
        for cells in rows
    ]
    return ShownTable("Size (times per step stand in runs.csv)", headings, shown)


def plain(phrase: Phrase) -> str:
    """A phrase as unformatted text."""
    return "".join(part if isinstance(part, str) else part.text for part in phrase)


def to_markdown(table: ShownTable) -> str:
    """A pipe table under its caption."""
    lines = [markdown(table.caption), "", _pipes(map(markdown, table.headings))]
    lines.append(_pipes(["---"] + ["---:"] * (len(table.headings) - 1)))
    lines += [_pipes(markdown(plain(cell)) for cell in row) for row in table.rows]
    lines += [line for note in table.notes for line in ("", markdown(plain(note)))]
    return "\n".join(lines) + "\n"


def to_latex(table: ShownTable, label: str) -> str:
    """A ``booktabs`` table."""
    columns = "l" + "r" * (len(table.headings) - 1)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex(table.caption)}}}", rf"\label{{{label}}}"]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _ampersands(map(latex, table.headings))]
    lines += [r"\midrule", *(_ampersands(latex(plain(cell)) for cell in row) for row in table.rows)]
    below = [r"\par " + latex(plain(note)) for note in table.notes]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *below, r"\end{table}"]) + "\n"


def markdown(text: str) -> str:
    """Text with what Markdown and the HTML in it would read as marks escaped, on one line."""
    one_line = " ".join(text.split())
    escaped = re.sub(r"([\\`*_{}\[\]#|~$])", r"\\\1", one_line)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#",
    "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--", "≥": r"$\geq$", "−": "$-$", '"': "''",
    "“": "``", "”": "''",
}  # fmt: skip


def latex(text: str) -> str:
    """Text with what LaTeX would read as commands escaped, on one line."""
    return "".join(LATEX.get(sign, sign) for sign in " ".join(text.split()))


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _ampersands(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
