"""The documents beside the page: a short report, the table for a paper, methods, commands and versions."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template

from pe_experiments.comparison.citations import cite
from pe_experiments.comparison.protocols import Section
from pe_experiments.comparison.result import Comparison
from pe_experiments.comparison.run_rows import Row
from pe_experiments.comparison.statistics import COVERAGE, FEWEST, LEVEL, SIMULATED
from pe_experiments.comparison.table import finite
from pe_experiments.comparison.words import count, mean, metric_in_words, number, seeds_in_words
from pe_experiments.evaluation import FARTHEST, SOLVED

METHODS = Path(__file__).parent / "templates" / "methods.txt.j2"
COLUMN = 4  # tasks that fit one column of a paper
MOST_COMMANDS = 12


@dataclass(frozen=True)
class ShownTable:
    """A table as text; the first column is the name of the row."""

    caption: str
    headings: list[str]
    rows: list[list[str]]


def appendix_of(made: Comparison) -> dict[str, Any]:
    """What the pages say of all tasks together, from the methods to the runs left out."""
    cited, bibtex = cite(made.runs)
    environments = [made.runs.environments[name] for name in made.runs.saved]
    commands = Counter(map(_command, environments))
    if len(commands) > MOST_COMMANDS:
        text = f"{len(commands)} commands, one per run: the column command of runs.csv"
        commands = Counter({text: commands.total()})
    return {
        "methods": methods(made, cited),
        "tables": reference_tables(made),
        "bibtex": bibtex,
        "commands": sorted(commands.items()),
        "versions": sorted(Counter(map(_versions, environments)).items()),
        "left_out": made.runs.left_out,
    }


def mark_of(made: Comparison) -> tuple[str, str]:
    """The count of seeds shown beside a mean: its kind, ``reached`` or ``solved``, and its description."""
    within = made.lower or made.metric.endswith("in_distribution")
    if within or made.table["exact_match_at_2x"].isna().all():
        return "solved", f"with exact match of at least {SOLVED:g} within the training lengths"
    return "reached", f"with exact match of at least {SOLVED:g} at twice the training length"


def mark_column(kind: str, section: Section) -> str:
    """The column of the table that counts these seeds."""
    return "solved" if kind == "solved" else f"reached@{2 * section.max_length}"


def matrix_table(made: Comparison) -> ShownTable:
    """Schemes x tasks, the longer of the two as rows: mean, interval, and the count of `mark_of`."""
    kind, words = mark_of(made)

    def cell(row: Row, section: Section) -> str:
        marked = mark_column(kind, section)
        return mean(row, made.metric) + (f"; {count(row, marked)}" if finite(row.get(marked)) else "")

    intervals = " with 95 % interval" if made.table[f"{made.metric}_low"].notna().any() else ""
    caption = f"Mean {metric_in_words(made.metric)}{intervals}"
    caption += f"; number of seeds {words}" if made.table["solved"].notna().any() else ""
    rows = [["scheme", *(s.title for s in made.sections)], *_by_scheme(made, made.sections, cell)]
    if len(made.sections) >= len(rows):
        rows = [list(column) for column in zip(*rows, strict=True)]
        rows[0][0] = "task"
    return ShownTable(caption, rows[0], rows[1:])


def _by_scheme(
    made: Comparison, sections: Sequence[Section], cell: Callable[[Row, Section], str]
) -> list[list[str]]:
    """A row of cells for each scheme that was run in any of the sections."""
    found = {(s.protocol, row["scheme"]): cell(row, s) for s in sections for row in made.rows(s)}
    schemes = dict.fromkeys(scheme for _, scheme in found)
    return [[scheme, *(found.get((s.protocol, scheme), "") for s in sections)] for scheme in schemes]


def report_markdown(made: Comparison, title: str) -> str:
    """Figures, the table, a sentence per task, and the runs left out."""
    lines = [f"# {markdown(title)}", ""]
    lines += ["![Matrix of schemes and tasks](figures/matrix.png)", "", to_markdown(matrix_table(made))]
    for section in made.sections:
        lines += [f"## {markdown(section.title)}", "", markdown(made.sentences[section.title]), ""]
        drawn = "Accuracy" if section.exact else "Loss"
        lines += [f"![{drawn} over input length](figures/{section.slug}.png)", ""]
    lines += ["More: report.html, table.csv, pairs.csv and methods.md.", ""]
    if made.runs.left_out:
        lines += ["## Left out", ""]
        lines += [f"- {markdown(name)}: {markdown(why)}" for name, why in made.runs.left_out.items()]
    return "\n".join(lines).rstrip() + "\n"


def table_latex(made: Comparison) -> str:
    """Schemes x tasks in one metric, a table per model and at most four tasks: each fits one column."""
    metric = made.metric

    def cell(row: Row, _: Section) -> str:
        shown, interval = [*mean(row, metric).split(" ", 1), ""][:2]
        return rf"\shortstack{{{shown}\\{{\tiny {interval}}}}}" if interval else latex(shown)

    tables = []
    for model in dict.fromkeys(section.model for section in made.sections):
        here = [section for section in made.sections if section.model == model]
        for start in range(0, len(here), COLUMN):
            part = here[start : start + COLUMN]
            shown = made.table[made.table["protocol"].isin([section.protocol for section in part])]
            where = part[0].title if len(part) == 1 else model
            below = "; below: 95\\,\\% interval" if shown[f"{metric}_low"].notna().any() else ""
            about = (
                f"{latex(metric_in_words(metric))}, {latex(where)} ({seeds_in_words(shown['seeds'])}{below})"
            )
            head = [r"\centering\small", r"\setlength{\tabcolsep}{3pt}", rf"\caption{{Mean {about}.}}"]
            headings = (latex(", ".join([section.task, *section.told_apart_by])) for section in part)
            rows = [[latex(name), *cells] for name, *cells in _by_scheme(made, part, cell)]
            label = rf"\label{{tab:{model}-{start // COLUMN + 1}}}"
            tables.append(_tabular([*head, label], "l" + "c" * len(part), [["", *headings], *rows]))
    return "\n\n".join(tables) + "\n"


def _tabular(head: Sequence[str], columns: str, rows: Iterable[Iterable[str]]) -> str:
    """A ``booktabs`` table of cells that are LaTeX; the first row is its headings."""
    headings, *others = (" & ".join(row) + r" \\" for row in rows)
    top = [r"\begin{table}", *head, rf"\begin{{tabular}}{{{columns}}}", r"\toprule", headings, r"\midrule"]
    return "\n".join([*top, *others, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def methods(made: Comparison, cited: Mapping[str, Sequence[str]]) -> list[str]:
    """The methods paragraphs: protocol, metrics, intervals and tests."""
    schemes = [f"{label} [@{'; @'.join(keys)}]" if keys else label for label, keys in cited.items()]
    covered = [share for shares in COVERAGE.values() for share in shares]
    tested = made.pairs[made.pairs["p"].notna()]
    everybody = {*tested["scheme"], *tested["other"]}
    common = everybody.intersection(*({row.scheme, row.other} for row in tested.itertuples()))
    text = Template(METHODS.read_text(), undefined=StrictUndefined).render(
        schemes="; ".join(schemes),
        tuned=sorted({str(choice["setting"]) for choice in made.runs.tuning}),
        end_mark=_end_mark(made.sections),
        seeds=seeds_in_words(made.table["seeds"]),
        diverged=bool(made.table["diverged"].any()),
        intervals=_with_intervals(made),
        exact=any(section.exact for section in made.sections),
        losses="loss_extrapolation" in made.table,
        tests=len(tested) > 0,
        family=f"The differences from {min(common)}" if len(common) == 1 else "All pairs of schemes",
        metric=metric_in_words(made.metric),
        ceilings=bool(made.table.filter(like="bag_ceiling@").notna().any(axis=None)),
        covered=f"{min(covered)} to {max(covered)}",
        level=f"{LEVEL:.0%}".replace("%", " %"),
        fewest=FEWEST,
        solved=f"{SOLVED:g}",
        farthest=f"{FARTHEST:g}",
    )
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]


def _with_intervals(made: Comparison) -> bool:
    """Whether any scheme has seeds enough for an interval."""
    return bool(made.table[["solved_low", f"{made.metric}_low"]].notna().any(axis=None))


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
    unmarked = ", ".join(dict.fromkeys(in_place))
    elsewhere = f" ({unmarked}: none, each answer is read at its own token)" if in_place else ""
    return f", in a decoder the end mark included{elsewhere}"


def reference_tables(made: Comparison) -> list[ShownTable]:
    """The tables that the methods refer to: settings by protocol, tuned settings, simulated coverage."""
    sections, tuning = made.sections, made.runs.tuning
    keys = dict.fromkeys(key for section in sections for key in section.settings)
    rows = [[key, *(section.settings.get(key, "") for section in sections)] for key in keys]
    tables = [ShownTable("Settings by protocol", ["setting", *(s.title for s in sections)], rows)]
    if tuning:
        headings = ["scheme", "setting", "chosen", "values tried and their loss within the training lengths"]
        tuned = [
            [
                f"{choice['scheme']}, {choice['task']}, {choice['model']}",
                *(str(choice[key]) for key in ("setting", "chosen")),
                ", ".join(f"{value}: {_loss(loss)}" for value, loss in choice["tried"].items()),
                str(choice["seed"]),
            ]
            for choice in tuning
        ]
        tables.append(ShownTable("Tuned settings", [*headings, "seed of the grid"], tuned))
    if _with_intervals(made):
        shares = [[name, *map(str, row)] for name, row in COVERAGE.items()]
        headings = ["outcome of a seed", *(f"{seeds} seeds" for seeds in SIMULATED)]
        tables.append(ShownTable("Simulated coverage of Gaffke's 95 % interval, in %", headings, shares))
    return tables


def _loss(loss: float | None) -> str:
    return "diverged" if loss is None else number(loss, ".3g")


def methods_markdown(appendix: Mapping[str, Any]) -> str:
    """The methods with their tables; citations as Pandoc reads them."""
    texts = [f"{_cited(text)}\n" for text in appendix["methods"]]
    return "\n".join([*texts, *map(to_markdown, appendix["tables"])])


def _cited(text: str) -> str:
    """A paragraph escaped, with ``[@key; @key]`` as a citation."""
    pieces = re.split(r"(\[@[\w@; ]+\])", text)
    return "".join(piece if n % 2 else markdown(piece) for n, piece in enumerate(pieces))


def _command(environment: Mapping[str, Any]) -> str:
    command = environment.get("command")
    if not isinstance(command, list) or not command:
        return "not recorded"
    known = str(command[0]) in ("train.py", "evaluate.py")  # anything else, a notebook, lies elsewhere
    return ("python scripts/" if known else "") + shlex.join(map(str, command))


def _versions(environment: Mapping[str, Any]) -> str:
    libraries = environment.get("libraries")
    named = [(key, environment.get(key)) for key in ("pe_experiments", "python")]
    named += sorted(libraries.items()) if isinstance(libraries, dict) else []
    parts = [f"{key} {value}" for key, value in named if value]
    made = [(key, environment.get(key)) for key in ("source", "device", "processor")]
    return ", ".join([*parts, *(f"{key}: {value}" for key, value in made if value)]) or "not recorded"


def to_markdown(table: ShownTable) -> str:
    """A pipe table under its caption."""
    lines = [markdown(table.caption), "", _pipes(map(markdown, table.headings))]
    lines.append(_pipes(["---"] + ["---:"] * (len(table.headings) - 1)))
    return "\n".join([*lines, *(_pipes(map(markdown, row)) for row in table.rows)]) + "\n"


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
