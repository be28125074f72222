"""The documents beside the page: a short report, the table for a paper, methods, commands and versions."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import StrictUndefined, Template

from pe_experiments.comparison.protocols import Section
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.statistics import COVERAGE, FEWEST, LEVEL, SIMULATED
from pe_experiments.comparison.table import finite
from pe_experiments.comparison.words import count, mean, metric_in_words, number
from pe_experiments.evaluation import FARTHEST, SOLVED
from pe_experiments.losses import lower_is_better

METHODS = Path(__file__).parent / "templates" / "methods.txt.j2"
COLUMN = 4  # tasks that fit one column of a paper
MOST_COMMANDS = 12


@dataclass(frozen=True)
class ShownTable:
    """A table as text; the first column is the name of the row."""

    caption: str
    headings: list[str]
    rows: list[list[str]]


def mark_of(table: pd.DataFrame) -> tuple[str, str]:
    """The count of seeds shown beside a mean: its kind, ``reached`` or ``solved``, and its description."""
    metric = str(table["metric"].iloc[0])
    if (
        lower_is_better(metric)
        or metric.endswith("in_distribution")
        or table["exact_match_at_2x"].isna().all()
    ):
        return "solved", f"with exact match of at least {SOLVED:g} within the training lengths"
    return "reached", f"with exact match of at least {SOLVED:g} at twice the training length"


def with_intervals(table: pd.DataFrame) -> bool:
    """Whether any scheme has seeds enough for an interval."""
    metric = str(table["metric"].iloc[0])
    return bool(table[["solved_low", f"{metric}_low"]].notna().any(axis=None))


def mark_column(kind: str, section: Section) -> str:
    """The column of the table that counts these seeds."""
    return "solved" if kind == "solved" else f"reached@{2 * section.max_length}"


def matrix_table(sections: Sequence[Section], table: pd.DataFrame) -> ShownTable:
    """Schemes x tasks, the longer of the two as rows: mean, interval, and the count of `mark_of`."""
    metric, (kind, words) = str(table["metric"].iloc[0]), mark_of(table)

    def cell(row: Mapping[Any, Any], section: Section) -> str:
        marked = mark_column(kind, section)
        return mean(row, metric) + (f"; {count(row, marked)}" if finite(row.get(marked)) else "")

    intervals = " with 95 % interval" if table[f"{metric}_low"].notna().any() else ""
    caption = f"Mean {metric_in_words(metric)}{intervals}"
    caption += f"; number of seeds {words}" if table["solved"].notna().any() else ""
    rows = [["scheme", *(s.title for s in sections)], *_by_scheme(sections, table, cell)]
    if len(sections) >= len(rows):
        rows = [list(column) for column in zip(*rows, strict=True)]
        rows[0][0] = "task"
    return ShownTable(caption, rows[0], rows[1:])


def _by_scheme(
    sections: Sequence[Section], table: pd.DataFrame, cell: Callable[[Mapping[Any, Any], Section], str]
) -> list[list[str]]:
    rows: dict[tuple[str, str], Any] = {(r["protocol"], r["scheme"]): r for r in table.to_dict("records")}
    found = []
    for scheme in dict.fromkeys(table["scheme"]):
        mine = [rows.get((section.protocol, scheme)) for section in sections]
        cells = [cell(row, s) if row else "" for row, s in zip(mine, sections, strict=True)]
        if any(cells):
            found.append([str(scheme), *cells])
    return found


def report_markdown(
    title: str,
    sections: Sequence[Section],
    table: pd.DataFrame,
    sentences: Mapping[str, str],
    left_out: Mapping[str, str],
) -> str:
    """Figures, the table, a sentence per task, and the runs left out."""
    lines = [f"# {markdown(title)}", ""]
    lines += ["![Matrix of schemes and tasks](figures/matrix.png)", ""]
    lines += [to_markdown(matrix_table(sections, table))]
    for section in sections:
        lines += [f"## {markdown(section.title)}", "", markdown(sentences[section.protocol]), ""]
        drawn = "Accuracy" if section.exact else "Loss"
        lines += [f"![{drawn} over input length](figures/{section.slug}.png)", ""]
    lines += ["More: report.html, table.csv, pairs.csv and methods.md.", ""]
    if left_out:
        lines += ["## Left out", ""]
        lines += [f"- {markdown(name)}: {markdown(reason)}" for name, reason in left_out.items()]
    return "\n".join(lines).rstrip() + "\n"


def table_latex(sections: Sequence[Section], table: pd.DataFrame) -> str:
    """Schemes x tasks in one metric, a table per model and at most four tasks: each fits one column."""
    metric = str(table["metric"].iloc[0])

    def cell(row: Mapping[Any, Any], _: Section) -> str:
        shown, interval = [*mean(row, metric).split(" ", 1), ""][:2]
        return rf"\shortstack{{{shown}\\{{\tiny {interval}}}}}" if interval else latex(shown)

    made = []
    for model in dict.fromkeys(section.model for section in sections):
        here = [section for section in sections if section.model == model]
        for start in range(0, len(here), COLUMN):
            part = here[start : start + COLUMN]
            where = part[0].title if len(part) == 1 else model
            shown = table[table["protocol"].isin([section.protocol for section in part])]
            below = "; below: 95\\,\\% interval" if shown[f"{metric}_low"].notna().any() else ""
            headings = [", ".join([section.task, *section.told_apart_by]) for section in part]
            lines = [r"\begin{table}", r"\centering\small", r"\setlength{\tabcolsep}{3pt}"]
            about = f"{latex(metric_in_words(metric))}, {latex(where)} ({_range(shown['seeds'])}{below})"
            lines += [rf"\caption{{Mean {about}.}}"]
            lines += [
                rf"\label{{tab:{model}-{start // COLUMN + 1}}}",
                rf"\begin{{tabular}}{{l{'c' * len(part)}}}",
            ]
            lines += [r"\toprule", _ampersands(["", *map(latex, headings)]), r"\midrule"]
            rows = _by_scheme(part, shown, cell)
            lines += [_ampersands([latex(name), *cells]) for name, *cells in rows]
            made.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]))
    return "\n\n".join(made) + "\n"


def methods(
    runs: Runs,
    sections: Sequence[Section],
    table: pd.DataFrame,
    pairs: pd.DataFrame,
    cited: Mapping[str, Sequence[str]],
) -> list[str]:
    """The methods paragraphs: protocol, metrics, intervals and tests."""
    schemes = [
        f"{label} [{'; '.join('@' + k for k in keys)}]" if keys else label for label, keys in cited.items()
    ]
    covered = [share for shares in COVERAGE.values() for share in shares]
    tested = pairs[pairs["p"].notna()]
    everybody = {*tested["scheme"], *tested["other"]}
    common = everybody.intersection(*({row.scheme, row.other} for row in tested.itertuples()))
    text = Template(METHODS.read_text(), undefined=StrictUndefined).render(
        schemes="; ".join(schemes),
        tuned=sorted({str(choice["setting"]) for choice in runs.tuning}),
        end_mark=_end_mark(sections),
        seeds=_range(table["seeds"]),
        diverged=bool(table["diverged"].any()),
        intervals=with_intervals(table),
        exact=any(section.exact for section in sections),
        losses="loss_extrapolation" in table,
        tests=len(tested) > 0,
        family=f"The differences from {min(common)}" if len(common) == 1 else "All pairs of schemes",
        metric=metric_in_words(str(table["metric"].iloc[0])),
        ceilings=bool(table.filter(like="bag_ceiling@").notna().any(axis=None)),
        covered=f"{min(covered)} to {max(covered)}",
        level=f"{LEVEL:.0%}".replace("%", " %"),
        fewest=FEWEST,
        solved=f"{SOLVED:g}",
        farthest=f"{FARTHEST:g}",
    )
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]


def _end_mark(sections: Sequence[Section]) -> str:
    """Where the end mark is scored: in a decoder that reads ``BOS x SEP y``, not in the aligned format."""
    scored: list[str] = []
    in_place: list[str] = []
    for section in sections:
        columns = section.curves.reindex(columns=["tokens", "content_length", "answer_tokens"]).dropna()
        marks = columns["tokens"] - columns["content_length"] - columns["answer_tokens"]
        if section.settings.get("model.causal") == "True" and len(marks):
            (scored if (marks == 2).all() else in_place).append(section.task)
    if not scored:
        return ""
    elsewhere = f" (not on {', '.join(dict.fromkeys(in_place))}, read out in place)" if in_place else ""
    return f", in a decoder the end mark included{elsewhere}"


def _range(counts: pd.Series) -> str:
    low, high = int(counts.min()), int(counts.max())
    return (f"{low}" if low == high else f"{low} to {high}") + (" seed" if high == 1 else " seeds")


def reference_tables(runs: Runs, sections: Sequence[Section], intervals: bool) -> list[ShownTable]:
    """The tables that the methods refer to: settings by protocol, tuned settings, simulated coverage."""
    keys = list(dict.fromkeys(key for section in sections for key in section.settings))
    rows = [[key, *(section.settings.get(key, "") for section in sections)] for key in keys]
    made = [ShownTable("Settings by protocol", ["setting", *(s.title for s in sections)], rows)]
    if runs.tuning:
        headings = ["scheme", "setting", "chosen", "values tried and their loss within the training lengths"]
        tuned = [
            [
                f"{choice['scheme']}, {choice['task']}, {choice['model']}",
                str(choice["setting"]),
                str(choice["chosen"]),
                ", ".join(f"{value}: {_loss(loss)}" for value, loss in choice["tried"].items()),
                str(choice["seed"]),
            ]
            for choice in runs.tuning
        ]
        made.append(ShownTable("Tuned settings", [*headings, "seed of the grid"], tuned))
    if intervals:
        shares = [[name, *map(str, row)] for name, row in COVERAGE.items()]
        headings = ["outcome of a seed", *(f"{seeds} seeds" for seeds in SIMULATED)]
        made.append(ShownTable("Simulated coverage of Gaffke's 95 % interval, in %", headings, shares))
    return made


def _loss(loss: float | None) -> str:
    return "diverged" if loss is None else number(loss, ".3g")


def methods_markdown(paragraphs: Sequence[str], tables: Sequence[ShownTable]) -> str:
    """The methods with their tables; citations as Pandoc reads them."""
    texts = [_cited(text, markdown, lambda keys: f"[{keys}]") for text in paragraphs]
    return "\n".join([*(f"{text}\n" for text in texts), *map(to_markdown, tables)])


def methods_latex(paragraphs: Sequence[str], tables: Sequence[ShownTable]) -> str:
    """The same for LaTeX, with ``\\cite``."""

    def citation(keys: str) -> str:
        return rf"\cite{{{keys.replace('@', '').replace('; ', ',')}}}"

    texts = [_cited(text, latex, citation) for text in paragraphs]
    return "\n\n".join([*texts, *map(to_latex, tables)]) + "\n"


def _cited(text: str, escape: Callable[[str], str], citation: Callable[[str], str]) -> str:
    """A paragraph escaped, with ``[@key; @key]`` as a citation."""
    pieces = re.split(r"\[(@[\w@; ]+)\]", text)
    shown = [citation(piece) if index % 2 else escape(piece) for index, piece in enumerate(pieces)]
    return "".join(shown)


def commands(runs: Runs) -> list[tuple[str, int]]:
    """The commands, each with the number of its runs; a sweep has too many, and refers to runs.csv."""
    made = Counter(_command(runs.environments[name]) for name in runs.saved)
    if len(made) <= MOST_COMMANDS:
        return sorted(made.items())
    return [(f"{len(made)} commands, one per run: the column command of runs.csv", made.total())]


def _command(environment: Mapping[str, Any]) -> str:
    command = environment.get("command")
    if not isinstance(command, list) or not command:
        return "not recorded"
    known = str(command[0]) in ("train.py", "evaluate.py")  # anything else, a notebook, lies elsewhere
    return ("python scripts/" if known else "") + shlex.join(map(str, command))


def versions(runs: Runs) -> list[tuple[str, int]]:
    """Versions and machines, each with the number of its runs."""
    return sorted(Counter(_versions(runs.environments[name]) for name in runs.saved).items())


def _versions(environment: Mapping[str, Any]) -> str:
    libraries = environment.get("libraries")
    named = {key: environment[key] for key in ("pe_experiments", "python") if environment.get(key)}
    named |= dict(sorted(libraries.items())) if isinstance(libraries, dict) else {}
    parts = [f"{key} {value}" for key, value in named.items()]
    made = {key: environment[key] for key in ("source", "device", "processor") if environment.get(key)}
    return ", ".join([*parts, *(f"{key}: {value}" for key, value in made.items())]) or "not recorded"


def to_markdown(table: ShownTable) -> str:
    """A pipe table under its caption."""
    lines = [markdown(table.caption), "", _pipes(map(markdown, table.headings))]
    lines.append(_pipes(["---"] + ["---:"] * (len(table.headings) - 1)))
    return "\n".join([*lines, *(_pipes(map(markdown, row)) for row in table.rows)]) + "\n"


def to_latex(table: ShownTable) -> str:
    """A ``booktabs`` table."""
    columns = "l" + "r" * (len(table.headings) - 1)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex(table.caption)}}}"]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _ampersands(map(latex, table.headings))]
    lines += [r"\midrule", *(_ampersands(map(latex, row)) for row in table.rows)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def markdown(text: str) -> str:
    """Text on one line, with the signs of Markdown and HTML escaped."""
    escaped = re.sub(r"([\\`*_{}\[\]#|~$])", r"\\\1", re.sub(r"\s+", " ", text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#",
    "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--", "≥": r"$\geq$", "−": "$-$", '"': "''",
    "“": "``", "”": "''",
}  # fmt: skip


def latex(text: str) -> str:
    """Text on one line, with the signs of LaTeX escaped."""
    return "".join(LATEX.get(sign, sign) for sign in re.sub(r"\s+", " ", text))


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _ampersands(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
