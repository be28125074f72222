"""From run directories to one folder: tables, figures, a report in words, and a page that opens from disk."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from rich.markup import escape
from rich.table import Table

from pe_experiments.comparison.attention import measure_attention
from pe_experiments.comparison.citations import cite
from pe_experiments.comparison.drawing import Drawer
from pe_experiments.comparison.other_tasks import load_other_tasks, with_other_tasks
from pe_experiments.comparison.page import render_page
from pe_experiments.comparison.pairs import pair_table, with_groups
from pe_experiments.comparison.presentation import plain
from pe_experiments.comparison.protocols import Section, sections_of
from pe_experiments.comparison.report import (
    Report,
    build_report,
    methods_latex,
    methods_markdown,
    report_markdown,
    table_latex,
    table_markdown,
)
from pe_experiments.comparison.runs_table import Runs, load_runs
from pe_experiments.comparison.style import WIDTHS, styles
from pe_experiments.comparison.table import scheme_table
from pe_experiments.console import Display, print_table, say, say_files
from pe_experiments.errors import UserError, allowed
from pe_experiments.files import write_atomically


@dataclass(frozen=True)
class Options:
    """How runs are compared and drawn.

    Attributes:
        metric: what schemes are compared in.
        baseline: test only the differences from the scheme of this label; None tests all pairs.
        order: schemes in the order they come in; the others follow, the best first.
        labels: what to call schemes instead of their labels.
        attention: names of runs whose attention by distance is drawn.
        width: of the figures: ``single``, ``double`` (columns of a journal), or millimetres.
    """

    metric: str = "exact_match_extrapolation"
    baseline: str | None = None
    order: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    attention: Sequence[str] = ()
    width: str | float = "double"

    @property
    def inches(self) -> float:
        """The width in inches.

        Raises:
            UserError: it is neither a name nor a sensible number.
        """
        if isinstance(self.width, str) and self.width in WIDTHS:
            return WIDTHS[self.width]
        if isinstance(self.width, int | float) and 50 <= self.width <= 500:
            return self.width / 25.4
        raise UserError(f"width={self.width}: expected {allowed(WIDTHS)}, or 50 to 500 (millimetres)")


@dataclass(frozen=True)
class Comparison:
    """What `compare` made.

    Attributes:
        table: one row per section and scheme.
        pairs: one row per section and pair of schemes.
        runs: one row per run, per length and per training step, and what was left out.
        report: what the pages say.
        folder: where it was written.
        files: what was written.
    """

    table: pd.DataFrame
    pairs: pd.DataFrame
    runs: Runs
    report: Report
    folder: Path
    files: list[Path] = field(default_factory=list)


def compare(
    results_dir: str | Path = "results",
    study: str | None = None,
    out: str | Path | None = None,
    *,
    pe: Sequence[str] | str | None = None,
    task: Sequence[str] | str | None = None,
    model: Sequence[str] | str | None = None,
    options: Options | None = None,
    display: Display | None = None,
) -> Comparison:
    """Compare schemes over seeds and write tables, figures and pages.

    Runs are grouped by protocol (everything that was trained except scheme, position policy and seed) and
    never pooled across protocols. The same runs give the same bytes.

    Args:
        results_dir: where ``runs`` and studies live.
        study: only the runs it lists.
        out: where to write; default ``results_dir/<study>``, or ``results_dir/comparison`` without one.
        pe, task, model: only these, as in `load_runs`.
        options: how to compare and draw.
        display: shows how far reading and drawing are; None shows nothing.

    Raises:
        UserError: nothing to compare, or an option that no run answers to.
    """
    options = options or Options()
    filters = {"pe": pe, "task": task, "model": model}
    runs = load_runs(results_dir, study, **filters, labels=options.labels, display=display)
    if runs.runs.empty:
        reasons = [f"{name}: {reason}" for name, reason in runs.left_out.items()]
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        why = "; ".join(reasons[:3]) + more
        raise UserError(
            f"results_dir={results_dir}: there is no finished run to compare" + (f" ({why})" if why else "")
        )
    attention = measure_attention(runs, Path(results_dir), options.attention)
    folder = Path(out) if out else Path(results_dir) / (study or "comparison")
    title = f"Comparison: {study}" if study else "Comparison of positional encodings"
    other_tasks = load_other_tasks(runs, Path(results_dir))
    return write_comparison(runs, title, folder, options, attention, display, other_tasks)


def write_comparison(
    runs: Runs,
    title: str,
    folder: Path,
    options: Options,
    attention: pd.DataFrame | None = None,
    display: Display | None = None,
    other_tasks: pd.DataFrame | None = None,
) -> Comparison:
    """Tables, figures and pages of these runs; the same runs give the same bytes.

    Args:
        runs: from `load_runs`, or from the CSVs of a published study.
        title: of the page.
        folder: where to write.
        options: how to compare and draw.
        attention: by distance, of some of the runs.
        display: shows how far the figures are; None shows nothing.
        other_tasks: what they score on tasks they were not trained on.
    """
    sections = sections_of(runs)
    table, pairs = tables(sections, options)
    looks = styles(table["scheme"].unique(), {text: label for label, text in options.labels.items()})
    drawer = Drawer(runs, sections, table, options.metric, looks, options.inches)
    _make(folder)
    attention = measure_attention(runs, Path(), ()) if attention is None else attention
    figures, pictures = drawer.draw_all(attention, folder / "figures", display or Display())
    report = build_report(title, runs, sections, table, pairs, figures, cite(runs))
    if other_tasks is not None:
        report = with_other_tasks(report, other_tasks)
    texts = _texts(runs, table, pairs, report)
    if other_tasks is not None and len(other_tasks):
        texts["other_tasks.csv"] = other_tasks.to_csv(index=False)
    if len(attention):
        texts["attention.csv"] = attention.to_csv(index=False)
    texts["report.html"] = render_page(report, sections, table, looks, folder / "figures")
    for name, text in texts.items():
        write_atomically(folder / name, text)
    _drop_stale(folder / "figures", pictures)
    return Comparison(table, pairs, runs, report, folder, [*(folder / name for name in texts), *pictures])


def tables(sections: Sequence[Section], options: Options) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row per section and scheme, and one per section and pair of schemes.

    Raises:
        UserError: an option that no run answers to.
    """
    named = options.labels.get
    baseline = None if options.baseline is None else named(options.baseline, options.baseline)
    table = scheme_table(sections, options.metric, [named(label, label) for label in options.order])
    pairs = pair_table(sections, table, options.metric, baseline)
    return with_groups(table, pairs), pairs


def _texts(runs: Runs, table: pd.DataFrame, pairs: pd.DataFrame, report: Report) -> dict[str, str]:
    """The files that are text, by name."""
    return {
        "runs.csv": runs_csv(runs),
        "curves.csv": runs.curves.to_csv(index=False),
        "table.csv": table.to_csv(index=False),
        "pairs.csv": pairs.to_csv(index=False),
        "table.md": table_markdown(report),
        "table.tex": table_latex(report),
        "methods.md": methods_markdown(report),
        "methods.tex": methods_latex(report),
        "references.bib": report.citations.bibtex,
        "report.md": report_markdown(report),
    }


def _make(folder: Path) -> None:
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out={folder}: cannot write there ({error.strerror})") from error


def _drop_stale(folder: Path, pictures: Sequence[Path]) -> None:
    """Remove what an earlier comparison drew here and this one did not; never a file of somebody else's."""
    listing = folder / ".written"
    before = listing.read_text().splitlines() if listing.exists() else []
    names = sorted(path.name for path in pictures)
    for name in set(before) - set(names):
        (folder / Path(name).name).unlink(missing_ok=True)
    write_atomically(listing, "\n".join(names) + "\n")


MADE_WITH = ("version", "source", "device", "command")  # columns of runs.csv that are not of `Runs.runs`


def runs_csv(runs: Runs) -> str:
    """The runs, with what each was made with."""
    made = runs.runs.copy()
    environments = [runs.environments[name] for name in made["name"]]
    for column, key in zip(MADE_WITH, ("pe_experiments", "source", "device", "command"), strict=True):
        made[column] = [environment.get(key) for environment in environments]
    made["command"] = [shlex.join(map(str, words or [])) for words in made["command"]]
    return made.to_csv(index=False)


def as_table(table: pd.DataFrame) -> Table:
    """The scheme table for a terminal."""
    shown = Table(show_edge=False, pad_edge=False)
    names = ("task", "model", "scheme", "group")
    for heading in (*names, "seeds", "solve", "within", "at 2x", "past training", "horizon"):
        shown.add_column(heading, justify="left" if heading in names else "right")
    previous = None
    for row in table.to_dict("records"):
        if previous is not None and row["protocol"] != previous:
            shown.add_section()
        previous = row["protocol"]
        values = [row[f"exact_match_{key}"] for key in ("in_distribution", "at_2x", "extrapolation")]
        seeds = f"{row['seeds']}" + (f" ({row['diverged']} diverged)" if row["diverged"] else "")
        shown.add_row(
            *(escape(str(row[key])) for key in ("task", "model", "scheme")),
            row["group"] if isinstance(row["group"], str) else "-",
            seeds,
            f"{row['solved']} of {row['seeds']}",
            *("-" if pd.isna(value) else f"{value:.2f}" for value in values),
            f"{'>= ' if row['horizon_censored'] else ''}{row['horizon']:.1f}",
        )
    return shown


def show(comparison: Comparison) -> None:
    """Print the table, what to know about it, what was left out and where the files are."""
    print_table(as_table(comparison.table))
    notes = dict.fromkeys(plain(note) for part in comparison.report.sections for note in part.notes)
    for note in notes:
        say(f"note: {note}")
    for name, reason in comparison.runs.left_out.items():
        say(f"left out: {name}: {reason}")
    say_files(comparison.files)
