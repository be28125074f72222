"""What a comparison says, put together once: words, tables, methods, provenance. Pages are views of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import StrictUndefined, Template

from pe_experiments.comparison.citations import Citations
from pe_experiments.comparison.presentation import (
    Phrase,
    ShownTable,
    cost_table,
    difference_table,
    latex,
    length_table,
    markdown,
    metric_in_words,
    plain,
    result_table,
    to_latex,
    to_markdown,
)
from pe_experiments.comparison.protocols import Section, families_of
from pe_experiments.comparison.runs_table import ACCURACIES, Runs
from pe_experiments.comparison.statistics import FEWEST, LEVEL, RESAMPLES
from pe_experiments.comparison.words import across_tasks, cells_of, notes, summary
from pe_experiments.evaluation import FARTHEST, SOLVED

MOST_COMMANDS = 12
METHODS = Path(__file__).with_name("methods.txt.j2")


@dataclass(frozen=True)
class DrawnFigure:
    """A figure that was written: name of its files, what it shows in words, the section it belongs to."""

    slug: str
    caption: str
    protocol: str | None = None


@dataclass(frozen=True)
class SectionReport:
    """One section in words and tables."""

    section: Section
    summary: list[Phrase]
    notes: list[Phrase]
    tables: list[ShownTable]
    figures: list[DrawnFigure]


@dataclass(frozen=True)
class Report:
    """Everything a page shows.

    Attributes:
        title: of the page.
        overview: sentences over several tasks; empty with one.
        sections: one per task, model and protocol.
        figures: those of no single section.
        methods: paragraphs.
        hyperparameters: settings by protocol.
        commands: what was typed, and the runs it made.
        versions: what was installed, and the runs it made.
        left_out: run directories that were not used, with the reason.
        citations: of the schemes.
    """

    title: str
    overview: list[Phrase]
    sections: list[SectionReport]
    figures: list[DrawnFigure]
    methods: list[str]
    hyperparameters: ShownTable
    commands: list[tuple[str, list[str]]]
    versions: list[tuple[str, list[str]]]
    left_out: dict[str, str]
    citations: Citations


def build_report(
    title: str,
    runs: Runs,
    sections: Sequence[Section],
    table: pd.DataFrame,
    baseline: str,
    metric: str,
    figures: Sequence[DrawnFigure],
    citations: Citations,
) -> Report:
    """The report on a table."""
    overview = [
        sentence
        for family in families_of(list(sections))
        for sentence in across_tasks(family, lambda section: cells_of(table, section), metric)
    ]
    return Report(
        title,
        overview,
        [_section_report(section, table, baseline, figures) for section in sections],
        [figure for figure in figures if figure.protocol is None],
        methods(metric, baseline, citations),
        hyperparameters(sections),
        _few(_provenance(runs, _command)),
        _provenance(runs, _versions),
        runs.left_out,
        citations,
    )


def _section_report(
    section: Section, table: pd.DataFrame, baseline: str, figures: Sequence[DrawnFigure]
) -> SectionReport:
    rows = cells_of(table, section)
    shared = section.curves.loc[section.curves["in_summary"], "content_length"]
    lengths = sorted(int(length) for length in shared.unique())
    tables = [result_table(rows), difference_table(rows)]
    tables += [length_table(rows, lengths, accuracy) for accuracy in ACCURACIES] if lengths else []
    tables.append(cost_table(rows))
    return SectionReport(
        section,
        summary(section, rows),
        notes(section, rows, baseline),
        [shown for shown in tables if shown],
        [figure for figure in figures if figure.protocol == section.protocol],
    )


def methods(metric: str, baseline: str, citations: Citations) -> list[str]:
    """The methods paragraphs: how runs were made comparable, and what every figure and interval means."""
    schemes = [
        f"{label} [{', '.join('@' + key for key in keys)}]" if keys else label
        for label, keys in citations.by_scheme.items()
    ]
    template = Template(METHODS.read_text(), undefined=StrictUndefined)
    text = template.render(
        schemes="; ".join(schemes),
        baseline=baseline,
        metric=metric_in_words(metric),
        level=f"{LEVEL:.0%}".replace("%", " %"),
        fewest=FEWEST,
        resamples=RESAMPLES,
        solved=f"{SOLVED:g}",
        farthest=f"{FARTHEST:g}",
    )
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def hyperparameters(sections: Sequence[Section]) -> ShownTable:
    """Settings by protocol, a column each."""
    keys = list(dict.fromkeys(key for section in sections for key in section.settings))
    rows: list[list[Phrase]] = [
        [[key], *([section.settings.get(key, "")] for section in sections)] for key in keys
    ]
    return ShownTable("Hyperparameters by protocol", ["setting", *(s.slug for s in sections)], rows)


def _provenance(runs: Runs, describe: Callable[[dict[str, Any]], str]) -> list[tuple[str, list[str]]]:
    made: dict[str, list[str]] = {}
    for name in sorted(runs.saved):
        made.setdefault(describe(runs.environments[name]), []).append(name)
    return sorted(made.items())


def _few(commands: list[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    """A sweep's runs each know the command that repeats them alone: too many for a page."""
    if len(commands) <= MOST_COMMANDS:
        return commands
    names = sorted(name for _, made in commands for name in made)
    return [(f"{len(commands)} commands, one per run: the column command of runs.csv", names)]


def _command(environment: dict[str, Any]) -> str:
    command = environment.get("command")
    if not isinstance(command, list) or not command:
        return "not recorded"
    known = str(command[0]) in ("train.py", "evaluate.py")  # anything else, a notebook, lies elsewhere
    return ("python scripts/" if known else "") + " ".join(shlex.quote(str(part)) for part in command)


def _versions(environment: dict[str, Any]) -> str:
    libraries = environment.get("libraries")
    parts = [f"{key} {environment[key]}" for key in ("pe_experiments", "python") if environment.get(key)]
    parts += (
        [f"{key} {value}" for key, value in sorted(libraries.items())] if isinstance(libraries, dict) else []
    )
    parts += [
        f"{key}: {environment[key]}" for key in ("source", "device", "processor") if environment.get(key)
    ]
    return ", ".join(parts) or "not recorded"


def report_markdown(report: Report) -> str:
    """The report as Markdown, its pictures beside it in ``figures``."""
    lines = [f"# {markdown(report.title)}", ""]
    lines += [f"{markdown(plain(sentence))}\n" for sentence in report.overview]
    for part in report.sections:
        lines += [f"## {markdown(part.section.title)}", ""]
        lines += [" ".join(markdown(plain(sentence)) for sentence in part.summary), ""]
        lines += [f"- {markdown(plain(note))}" for note in part.notes] + [""] * bool(part.notes)
        lines += [line for figure in part.figures for line in _picture(figure)]
        lines += [to_markdown(table) for table in part.tables]
    lines += ["## Figures over tasks", ""] if report.figures else []
    lines += [line for figure in report.figures for line in _picture(figure)]
    lines += ["## Methods", "", methods_markdown(report), "## Runs", "", "Made with:", ""]
    lines += [f"- `{_code(command)}`" for command, _ in report.commands]
    lines += ["", "on:", "", *(f"- {markdown(version)}" for version, _ in report.versions), ""]
    lines += ["Left out:", ""] if report.left_out else ["Nothing was left out."]
    lines += [f"- {markdown(name)}: {markdown(reason)}" for name, reason in report.left_out.items()]
    return "\n".join(lines).rstrip() + "\n"


def methods_markdown(report: Report) -> str:
    """The methods paragraphs with the table of hyperparameters; citations as Pandoc reads them."""
    paragraphs = ["".join(_cited(text, markdown, lambda keys: f"[{keys}]")) for text in report.methods]
    return "\n".join([*(f"{text}\n" for text in paragraphs), to_markdown(report.hyperparameters)])


def methods_latex(report: Report) -> str:
    """The same for LaTeX, with ``\\cite``."""

    def citation(keys: str) -> str:
        return rf"\cite{{{keys.replace('@', '').replace(' ', '')}}}"

    paragraphs = ["".join(_cited(text, latex, citation)) for text in report.methods]
    return "\n\n".join([*paragraphs, to_latex(report.hyperparameters, "tab:hyperparameters")])


def _cited(text: str, escape: Callable[[str], str], citation: Callable[[str], str]) -> Iterator[str]:
    """The pieces of a paragraph: text escaped, ``[@key, @key]`` as a citation."""
    for place, piece in enumerate(re.split(r"\[(@[\w@, ]+)\]", text)):
        if place % 2:
            yield citation(piece)
        else:
            blanks = piece[: len(piece) - len(piece.lstrip())], piece[len(piece.rstrip()) :]
            yield blanks[0] + escape(piece) + blanks[1] if piece.strip() else piece


def table_markdown(report: Report) -> str:
    """Every table of every section."""
    parts = [f"# {markdown(report.title)}\n"]
    for part in report.sections:
        parts += [f"## {markdown(part.section.title)}\n", *(to_markdown(table) for table in part.tables)]
    return "\n".join(parts)


def table_latex(report: Report) -> str:
    """Every table of every section, for ``booktabs``."""
    parts = []
    for part in report.sections:
        parts.append(f"% {' '.join(part.section.title.split())}")
        for place, table in enumerate(part.tables):
            parts.append(to_latex(table, f"tab:{part.section.slug}-{place}"))
    return "\n".join(parts)


def _picture(figure: DrawnFigure) -> list[str]:
    return [f"![{markdown(figure.caption)}](figures/{figure.slug}.png)", ""]


def _code(text: str) -> str:
    return " ".join(text.split()).replace("`", "'")
