"""From run directories to one folder: tables, figures, a short report, and a page that opens from disk."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.markup import escape
from rich.table import Table

from pe_experiments.comparison.attention import measure_attention
from pe_experiments.comparison.documents import appendix_of, methods_markdown, report_markdown, table_latex
from pe_experiments.comparison.figures import draw_all
from pe_experiments.comparison.page import render_page
from pe_experiments.comparison.result import Comparison, Options, compared
from pe_experiments.comparison.runs_table import Runs, load_runs
from pe_experiments.comparison.table import SPANS
from pe_experiments.comparison.words import WORDS, count, digits, number
from pe_experiments.console import Display, print_table, say, say_files
from pe_experiments.errors import UserError, few, nearest
from pe_experiments.evaluation import SOLVED
from pe_experiments.files import write_atomically

# Columns of runs.csv beside those of `Runs.runs`, from the environment of each run.
MADE_WITH = {"version": "pe_experiments", "source": "source", "device": "device", "command": "command"}


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
    if runs.runs.empty:
        why = [f"{name}: {reason}" for name, reason in runs.left_out.items()]
        shown = f" ({few(why)})" if why else ""
        raise UserError(f"results_dir={results_dir}: there is no finished run to compare{shown}")
    runs = replace(runs, attention=measure_attention(runs, Path(results_dir), how.attention))
    if out is None:
        return compared(runs, how)
    title = f"Comparison: {study}" if study else "Comparison of positional encodings"
    return write_comparison(runs, title, Path(out), how, display)


def usual_folder(results_dir: str | Path, study: str | None) -> Path:
    """The folder that the commands write a comparison to."""
    return Path(results_dir) / (study or "comparison")


def write_comparison(
    runs: Runs,
    title: str,
    folder: Path,
    options: Options,
    display: Display | None = None,
    panel: Markup | None = None,
) -> Comparison:
    """Tables, figures and pages of these runs in a folder; the same runs give the same bytes.

    ``title`` is that of the page, ``panel`` HTML to show on it after its first screen.
    """
    made = compared(runs, options)
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out={folder}: cannot write there ({error.strerror})") from error
    pictures = draw_all(made, folder / "figures", display)
    appendix = appendix_of(made)
    extra = {"other_tasks": runs.other_tasks, "text": runs.text, "attention": runs.attention}
    frames = {"curves": runs.curves, "table": made.table, "pairs": made.pairs}
    frames |= {name: frame for name, frame in extra.items() if len(frame)}
    texts = {f"{name}.csv": frame.to_csv(index=False) for name, frame in frames.items()} | {
        "runs.csv": runs_csv(runs),
        "table.tex": table_latex(made),
        "methods.md": methods_markdown(appendix),
        "references.bib": appendix["bibtex"],
        "report.md": report_markdown(made, title),
        "report.html": render_page(made, title, appendix, panel),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text)
    _drop_stale(folder / "figures", pictures)
    return replace(made, folder=folder, files=[*(folder / name for name in texts), *pictures])


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
    for column, key in MADE_WITH.items():
        made[column] = [runs.environments[name].get(key) for name in made["name"]]
    made["command"] = [shlex.join(map(str, words or [])) for words in made["command"]]
    return made.to_csv(index=False)


def as_table(made: Comparison) -> Table:
    """The scheme table for a terminal."""
    column = "exact_match" if any(section.exact for section in made.sections) else "loss"
    names = ("task", "model", "scheme", *["group"] * bool(made.table["group"].notna().any()))
    caption = f"{WORDS[column]} within the training lengths, at twice the longest, past them (mean up to 8x)"
    if column == "exact_match":
        caption += f"; solve: seeds with {SOLVED} within; horizon: the length up to which it is at least that"
    shown = Table(show_edge=False, pad_edge=False, caption=caption, caption_justify="left")
    for heading in (*names, "seeds", "solve", "within", "at 2x", "past training", "horizon"):
        shown.add_column(heading, justify="left" if heading in names else "right")
    for section in made.sections:
        for row in made.rows(section):
            shown.add_row(
                *(escape(row[key] if isinstance(row[key], str) else "-") for key in names),
                f"{row['seeds']}" + (f" ({row['diverged']} diverged)" if row["diverged"] else ""),
                count(row, "solved"),
                *(number(row[f"{column}_{span}"], digits(column)) for span in SPANS),
                f"{'>= ' if row['horizon_censored'] else ''}{number(row['horizon'], '.1f')}",
            )
        shown.add_section()
    return shown


def show(made: Comparison) -> None:
    """Print the table, its caveats, the runs left out and the files."""
    print_table(as_table(made))
    for note in made.notes:
        say(f"note: {note}")
    for name, reason in made.runs.left_out.items():
        say(f"left out: {name}: {reason}")
    say_files(made.files)
