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
    latex,
    length_table,
    markdown,
    metric_in_words,
    pairs_table,
    plain,
    reached_table,
    result_table,
    to_latex,
    to_markdown,
)
from pe_experiments.comparison.protocols import Section
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.statistics import COVERAGE, FEWEST, LEVEL, SIMULATED
from pe_experiments.comparison.words import cells_of, notes, summary
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
    summary: Phrase
    notes: list[Phrase]
    tables: list[ShownTable]
    figures: list[DrawnFigure]


@dataclass(frozen=True)
class Report:
    """Everything a page shows.

    Attributes:
        title: of the page.
        sections: one per task, model and protocol.
        figures: those of no single section.
        methods: paragraphs.
        settings: hyperparameters by protocol, tuned settings, simulated coverage: what the methods refer to.
        commands: what was typed, and the runs it made.
        versions: what was installed, and the runs it made.
        left_out: run directories that were not used, with the reason.
        citations: of the schemes.
    """

    title: str
    sections: list[SectionReport]
    figures: list[DrawnFigure]
    methods: list[str]
    settings: list[ShownTable]
    commands: list[tuple[str, list[str]]]
    versions: list[tuple[str, list[str]]]
    left_out: dict[str, str]
    citations: Citations


def build_report(
    title: str,
    runs: Runs,
    sections: Sequence[Section],
    table: pd.DataFrame,
    pairs: pd.DataFrame,
    figures: Sequence[DrawnFigure],
    citations: Citations,
) -> Report:
    """The report on a table."""
    settings = [hyperparameters(sections)]
    settings += [tuned_settings_table(runs.tuning)] if runs.tuning else []
    settings += [coverage_table()] if table["solved_low"].notna().any() else []
    return Report(
        title,
        [_section_report(section, runs, table, pairs, figures) for section in sections],
        [figure for figure in figures if figure.protocol is None],
        methods(runs, sections, table, pairs, citations),
        settings,
        _few(_provenance(runs, _command)),
        _provenance(runs, _versions),
        runs.left_out,
        citations,
    )


def _section_report(
    section: Section, runs: Runs, table: pd.DataFrame, pairs: pd.DataFrame, figures: Sequence[DrawnFigure]
) -> SectionReport:
    rows, differences = cells_of(table, section), cells_of(pairs, section, "pairs.csv")
    shared = section.curves.loc[section.curves["in_summary"], "content_length"]
    lengths = sorted(int(length) for length in shared.unique())
    tables = [result_table(section, rows), pairs_table(differences)]
    if lengths:
        tables += [length_table(rows, lengths, "exact_match"), reached_table(rows, lengths)]
        tables += [] if section.one_token else [length_table(rows, lengths, "token_accuracy")]
    tables.append(cost_table(rows))
    here = [row for row in runs.tuning if (row["task"], row["model"]) == (section.task, section.model)]
    return SectionReport(
        section,
        summary(rows, differences),
        notes(section, rows, here),
        [shown for shown in tables if shown],
        [figure for figure in figures if figure.protocol == section.protocol],
    )


def methods(
    runs: Runs,
    sections: Sequence[Section],
    table: pd.DataFrame,
    pairs: pd.DataFrame,
    citations: Citations,
) -> list[str]:
    """The methods paragraphs: how runs were made comparable, and what every value and interval means."""
    schemes = [
        f"{label} [{'; '.join('@' + key for key in keys)}]" if keys else label
        for label, keys in citations.by_scheme.items()
    ]
    covered = [share for shares in COVERAGE.values() for share in shares]
    tested = pairs[pairs["p"].notna()]
    everybody = {*tested["scheme"], *tested["other"]}
    common = everybody.intersection(*({row.scheme, row.other} for row in tested.itertuples()))
    template = Template(METHODS.read_text(), undefined=StrictUndefined)
    text = template.render(
        schemes="; ".join(schemes),
        tuned=sorted({str(choice["setting"]) for choice in runs.tuning}),
        end_mark=_end_mark(sections),
        seeds=_range(table["seeds"]),
        diverged=bool(table["diverged"].any()),
        intervals=bool(table["solved_low"].notna().any()),
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
    """Where the end mark is scored: in a decoder that reads ``BOS x SEP y``, not where y is read in place."""
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


def tuned_settings_table(tuning: Sequence[dict[str, Any]]) -> ShownTable:
    """What was chosen for each scheme, from which values and with which seed."""
    rows: list[list[Phrase]] = [
        [
            [f"{choice['scheme']}, {choice['task']}, {choice['model']}"],
            [str(choice["setting"])],
            [str(choice["chosen"])],
            [", ".join(f"{value}: {_loss(loss)}" for value, loss in choice["tried"].items())],
            [str(choice["seed"])],
        ]
        for choice in tuning
    ]
    headings = ["scheme", "setting", "chosen", "values tried and their loss within the training lengths"]
    return ShownTable("Tuned settings", [*headings, "seed of the grid"], rows)


def _loss(loss: float | None) -> str:
    return "diverged" if loss is None else f"{loss:.3g}"


def coverage_table() -> ShownTable:
    """How often the interval of a mean holds the truth."""
    rows: list[list[Phrase]] = [[[name], *([f"{share}"] for share in row)] for name, row in COVERAGE.items()]
    headings = ["outcome of a seed", *(f"{seeds} seeds" for seeds in SIMULATED)]
    return ShownTable("Simulated coverage of Gaffke's 95 % interval, in %", headings, rows)


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
    for part in report.sections:
        lines += [f"## {markdown(part.section.title)}", ""]
        lines += [markdown(plain(part.summary)), ""]
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
    return "\n".join([*(f"{text}\n" for text in paragraphs), *map(to_markdown, report.settings)])


def methods_latex(report: Report) -> str:
    """The same for LaTeX, with ``\\cite``."""

    def citation(keys: str) -> str:
        return rf"\cite{{{keys.replace('@', '').replace('; ', ',')}}}"

    paragraphs = ["".join(_cited(text, latex, citation)) for text in report.methods]
    tables = [to_latex(table, f"tab:settings-{place}") for place, table in enumerate(report.settings)]
    return "\n\n".join([*paragraphs, *tables])


def _cited(text: str, escape: Callable[[str], str], citation: Callable[[str], str]) -> Iterator[str]:
    """The pieces of a paragraph: text escaped, ``[@key; @key]`` as a citation."""
    for place, piece in enumerate(re.split(r"\[(@[\w@; ]+)\]", text)):
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
