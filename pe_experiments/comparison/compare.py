"""From run directories to one folder: tables, figures, a short report, and a page that opens from disk."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup
from rich.markup import escape
from rich.table import Table

from pe_experiments.comparison import documents
from pe_experiments.comparison.attention import measure_attention
from pe_experiments.comparison.citations import cite
from pe_experiments.comparison.figures import draw_all
from pe_experiments.comparison.page import render_page
from pe_experiments.comparison.pairs import pair_table, with_groups
from pe_experiments.comparison.protocols import Section, sections_of
from pe_experiments.comparison.runs_table import Runs, load_runs
from pe_experiments.comparison.table import SPANS, scheme_table
from pe_experiments.comparison.text import with_text
from pe_experiments.comparison.words import WORDS, count, digits, notes, number, rows_of, sentence
from pe_experiments.console import Display, print_table, say, say_files
from pe_experiments.errors import UserError, allowed, few, nearest
from pe_experiments.evaluation import SOLVED
from pe_experiments.files import write_atomically
from pe_experiments.plots import WIDTHS, styles

MADE_WITH = ("version", "source", "device", "command")  # columns of runs.csv beside those of `Runs.runs`


@dataclass(frozen=True)
class Options:
    """How runs are compared and drawn.

    Attributes:
        metric: column that schemes are compared in, such as ``exact_match_at_2x``; ``loss`` is
            ``loss_extrapolation``. None is ``exact_match_extrapolation``, or ``loss_extrapolation`` where no
            run has an exact match.
        baseline: test only the differences from the scheme of this label; None tests all pairs.
        order: schemes to list first, in this order; the others follow, the best first.
        labels: other names for schemes, by label.
        attention: names of runs whose attention by distance is drawn.
        width: of the figures: ``single``, ``double`` (columns of a journal), or millimetres.
    """

    metric: str | None = None
    baseline: str | None = None
    order: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    attention: Sequence[str] = ()
    width: str | float = "double"

    def __post_init__(self) -> None:
        self.inches  # noqa: B018  # a wrong width raises before anything is read

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
    """The result of `compare`.

    Attributes:
        table: one row per section and scheme.
        pairs: one row per section and pair of schemes.
        runs: one row per run, per length and per training step, and the runs left out.
        sentences: the result of each section in one sentence, by its title.
        notes: its caveats.
        folder: where it was written, or None.
        files: the files written.
    """

    table: pd.DataFrame
    pairs: pd.DataFrame
    runs: Runs
    sentences: dict[str, str]
    notes: list[str]
    folder: Path | None = None
    files: list[Path] = field(default_factory=list)


def compare(
    results_dir: str | Path = "results",
    study: str | None = None,
    out: str | Path | None = None,
    *,
    pe: Sequence[str] | str | None = None,
    task: Sequence[str] | str | None = None,
    model: Sequence[str] | str | None = None,
    display: Display | None = None,
    **options: Any,
) -> Comparison:
    """Compare schemes over seeds; with ``out`` also write tables, figures and pages there.

    Runs are grouped by protocol (everything that determines a training except scheme, position policy and
    seed) and never pooled across protocols. The same runs give the same bytes.

    Args:
        results_dir: where ``runs`` and studies live.
        study: only the runs it lists.
        out: where to write; None writes nothing.
        pe, task, model: only these, as in `load_runs`.
        display: shows the progress of reading and drawing; None shows nothing.
        options: fields of `Options`, such as ``metric="token_accuracy_at_2x"``.

    Raises:
        UserError: nothing to compare, or an option that matches no run.
    """
    known = {field.name for field in fields(Options)}
    for key in set(options) - known:
        raise UserError(f"{key} is not an option of a comparison.{nearest(key, known)}")
    how = Options(**options)
    runs = load_runs(results_dir, study, pe=pe, task=task, model=model, labels=how.labels, display=display)
    runs = with_text(runs, results_dir)
    if runs.runs.empty:
        why = [f"{name}: {reason}" for name, reason in runs.left_out.items()]
        shown = f" ({few(why)})" if why else ""
        raise UserError(f"results_dir={results_dir}: there is no finished run to compare{shown}")
    attention = measure_attention(runs, Path(results_dir), how.attention)
    if out is None:
        return compared(runs, how)
    title = f"Comparison: {study}" if study else "Comparison of positional encodings"
    return write_comparison(runs, title, Path(out), how, attention, display)


def usual_folder(results_dir: str | Path, study: str | None) -> Path:
    """The folder that the commands write a comparison to."""
    return Path(results_dir) / (study or "comparison")


def compared(runs: Runs, options: Options) -> Comparison:
    """The numbers and sentences of a comparison of runs; writes nothing.

    Raises:
        UserError: an option that matches no run.
    """
    sections = sections_of(runs)
    table, pairs = tables(sections, options)
    rows = {s.title: (rows_of(table, s), rows_of(pairs, s)) for s in sections}
    said = dict.fromkeys(n for s in sections for n in notes(s, rows[s.title][0], runs.tuning))
    return Comparison(
        table, pairs, runs, {title: sentence(*both) for title, both in rows.items()}, list(said)
    )


def write_comparison(
    runs: Runs,
    title: str,
    folder: Path,
    options: Options,
    attention: pd.DataFrame | None = None,
    display: Display | None = None,
    panel: Markup | None = None,
) -> Comparison:
    """Tables, figures and pages of these runs; the same runs give the same bytes.

    Args:
        runs: from `load_runs`, or from the CSVs of a published study.
        title: of the page.
        folder: where to write.
        options: how to compare and draw.
        attention: by distance, of some of the runs.
        display: shows the progress of the figures; None shows nothing.
        panel: HTML to show on the page after its first screen.
    """
    result, sections = compared(runs, options), sections_of(runs)
    table, pairs = result.table, result.pairs
    looks = styles(table["scheme"].unique(), {text: label for label, text in options.labels.items()})
    inches = options.inches
    attention = measure_attention(runs, Path(), ()) if attention is None else attention
    _make(folder)
    pictures = draw_all(runs, sections, table, attention, looks, inches, folder / "figures", display)
    sentences = {s.protocol: result.sentences[s.title] for s in sections}
    texts = _texts(title, runs, sections, table, pairs, sentences, looks, panel)
    texts |= {"other_tasks.csv": runs.other_tasks.to_csv(index=False)} if len(runs.other_tasks) else {}
    texts |= {"text.csv": runs.text.to_csv(index=False)} if len(runs.text) else {}
    texts |= {"attention.csv": attention.to_csv(index=False)} if len(attention) else {}
    for name, text in texts.items():
        write_atomically(folder / name, text)
    _drop_stale(folder / "figures", pictures)
    return replace(result, folder=folder, files=[*(folder / name for name in texts), *pictures])


def tables(sections: Sequence[Section], options: Options) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row per section and scheme, and one per section and pair of schemes.

    Raises:
        UserError: an option that matches no run.
    """
    named = options.labels.get
    baseline = None if options.baseline is None else named(options.baseline, options.baseline)
    metric = options.metric or ("exact_match_extrapolation" if any(s.exact for s in sections) else "loss")
    metric = "loss_extrapolation" if metric == "loss" else metric
    table = scheme_table(sections, metric, [named(label, label) for label in options.order])
    pairs = pair_table(sections, table, metric, baseline)
    return with_groups(table, pairs), pairs


def _texts(
    title: str,
    runs: Runs,
    sections: Sequence[Section],
    table: pd.DataFrame,
    pairs: pd.DataFrame,
    sentences: Mapping[str, str],
    looks: Mapping[str, tuple[str, str]],
    panel: Markup | None,
) -> dict[str, str]:
    """The text files by name."""
    cited, bibtex = cite(runs)
    paragraphs = documents.methods(runs, sections, table, pairs, cited)
    references = documents.reference_tables(runs, sections, documents.with_intervals(table))
    appendix = {
        "methods": paragraphs,
        "tables": references,
        "bibtex": bibtex,
        "commands": documents.commands(runs),
        "versions": documents.versions(runs),
        "left_out": runs.left_out,
    }
    return {
        "runs.csv": runs_csv(runs),
        "curves.csv": runs.curves.to_csv(index=False),
        "table.csv": table.to_csv(index=False),
        "pairs.csv": pairs.to_csv(index=False),
        "table.tex": documents.table_latex(sections, table),
        "methods.md": documents.methods_markdown(paragraphs, references),
        "methods.tex": documents.methods_latex(paragraphs, references),
        "references.bib": bibtex,
        "report.md": documents.report_markdown(title, sections, table, sentences, runs.left_out),
        "report.html": render_page(title, runs, sections, table, pairs, sentences, looks, appendix, panel),
    }


def _make(folder: Path) -> None:
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out={folder}: cannot write there ({error.strerror})") from error


def _drop_stale(folder: Path, pictures: Sequence[Path]) -> None:
    """Remove figures of an earlier comparison that this one did not draw, and no other file."""
    listing = folder / ".written"
    before = listing.read_text().splitlines() if listing.exists() else []
    names = sorted(path.name for path in pictures)
    for path in (folder / Path(name).name for name in set(before) - set(names)):
        if path.is_file():
            path.unlink()
    write_atomically(listing, "\n".join(names) + "\n")


def runs_csv(runs: Runs) -> str:
    """The runs, with version, source, device and command of each."""
    made = runs.runs.copy()
    environments = [runs.environments[name] for name in made["name"]]
    for column, key in zip(MADE_WITH, ("pe_experiments", "source", "device", "command"), strict=True):
        made[column] = [environment.get(key) for environment in environments]
    made["command"] = [shlex.join(map(str, words or [])) for words in made["command"]]
    return made.to_csv(index=False)


def as_table(table: pd.DataFrame) -> Table:
    """The scheme table for a terminal."""
    column = "exact_match" if table["exact_match_extrapolation"].notna().any() else "loss"
    names = ("task", "model", "scheme", *["group"] * bool(table["group"].notna().any()))
    caption = f"{WORDS[column]} within the training lengths, at twice the longest, past them (mean up to 8x)"
    if column == "exact_match":
        caption += f"; solve: seeds with {SOLVED} within; horizon: the length up to which it is at least that"
    shown = Table(show_edge=False, pad_edge=False, caption=caption, caption_justify="left")
    for heading in (*names, "seeds", "solve", "within", "at 2x", "past training", "horizon"):
        shown.add_column(heading, justify="left" if heading in names else "right")
    previous = None
    for row in table.to_dict("records"):
        if previous is not None and row["protocol"] != previous:
            shown.add_section()
        previous = row["protocol"]
        shown.add_row(
            *(escape(row[key] if isinstance(row[key], str) else "-") for key in names),
            f"{row['seeds']}" + (f" ({row['diverged']} diverged)" if row["diverged"] else ""),
            count(row, "solved"),
            *(number(row[f"{column}_{span}"], digits(column)) for span in SPANS),
            f"{'>= ' if row['horizon_censored'] else ''}{number(row['horizon'], '.1f')}",
        )
    return shown


def show(comparison: Comparison) -> None:
    """Print the table, its caveats, the runs left out and the files."""
    print_table(as_table(comparison.table))
    for note in comparison.notes:
        say(f"note: {note}")
    for name, reason in comparison.runs.left_out.items():
        say(f"left out: {name}: {reason}")
    say_files(comparison.files)
