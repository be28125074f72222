"""Compare runs and write tables, figures and an HTML page to a folder."""

import shlex
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pe_experiments.comparison.sentences as sentences
from pe_experiments.comparison.citations import Spread, cite, table_latex
from pe_experiments.comparison.figures import MOST_TASKS, draw_all
from pe_experiments.comparison.page import render_page
from pe_experiments.comparison.result import DIFFERENCE, Comparison, build_comparison
from pe_experiments.comparison.runs import Runs, read_runs
from pe_experiments.evaluation.metrics import METRICS, SPAN_WORDS
from pe_experiments.store.directory import output_folder, refuse_among_runs
from pe_experiments.terminal.console import Display, say
from pe_experiments.terminal.errors import UserError, few, is_formula
from pe_experiments.terminal.files import inside, make_folder, write_atomically

WRITTEN = (".csv", ".tex", ".bib", ".html")  # suffixes of the files of a comparison
# Columns of runs.csv and the keys of a run's environment that they contain.
RECORDED = {"version": "pe_experiments", "commit": "commit", "device": "device", "command": "command"}


def compare(
    results_dir: str | Path = "results",
    study: str | None = None,
    out: str | Path | None = None,
    *,
    pe: Collection[str] | None = None,
    metric: str | None = None,
    baseline: str | None = None,
    difference: float = DIFFERENCE,
    spread: Spread = "sd",
    display: Display | None = None,
) -> Comparison:
    """Compare encodings over seeds; with ``out`` also write tables, figures and pages there.

    Runs are grouped by protocol: everything that determines a training except encoding, position policy and
    seed. Runs of different protocols are never pooled. The files are deterministic.

    Args:
        results_dir, study, pe, display: as in `read_runs`.
        out: output folder; None writes nothing.
        metric: column in which encodings are compared, such as ``exact_match_at_2x``, also of a metric of the
            user; its name alone, such as ``loss``, means ``loss_extrapolation``. None means
            ``exact_match_extrapolation``, or ``loss_extrapolation`` if no run has an exact match.
        difference: of two means; the result says how many seeds per encoding it takes to find it.
        spread: what ``table.tex`` shows beside a mean: the standard deviation over seeds, or the interval.
        baseline: test only the differences from the encoding of this label; None tests all pairs.

    Raises:
        UserError: there is nothing to compare, or an option matches no run.
    """
    if out is not None:
        refuse_among_runs(out, results_dir)
        if is_published(Path(out)):
            raise UserError(
                f"out={out} holds a published study, whose tables stay as they are; choose another"
            )
        if Path(out).is_dir() and not Path(out, "report.html").exists():
            foreign = sorted(path.name for path in Path(out).iterdir() if path.suffix in WRITTEN)
            if foreign:  # they could be overwritten
                problem = f"{few(foreign)} in it was not written by a comparison"
                raise UserError(f"out={out}: {problem}; allowed: an empty or a new folder")
    runs = read_runs(results_dir, study, pe=pe, display=display)
    if runs.runs.empty:
        exclusions = [f"{name}: {reason}" for name, reason in runs.left_out.items()]
        details = f" ({few(exclusions)})" if exclusions else ""
        raise UserError(f"results_dir={results_dir}: there is no finished run to compare{details}")
    comparison = build_comparison(runs, metric, baseline, difference)
    if out is None:
        return comparison
    title = f"Comparison: {study}" if study else "Comparison of positional encodings"
    return write_comparison(comparison, title, output_folder(out, results_dir), display, spread)


def output_of(results_dir: str | Path, study: str | None) -> Path:
    """Return the study's folder; if a published study is there, another folder for the comparison."""
    folder = Path(results_dir, study or "comparison")
    if is_published(folder):
        return Path(results_dir, "comparison") / folder.relative_to(results_dir)
    return folder


def is_published(folder: Path) -> bool:
    """Return whether a folder holds a published study, whose files only `results.py` writes."""
    return any((folder / name).exists() for name in ("provenance.csv", "study.py", "plan.md"))


def write_comparison(
    comparison: Comparison,
    title: str,
    folder: Path,
    display: Display | None = None,
    spread: Spread = "sd",
) -> Comparison:
    """Write the tables, figures and page of a comparison to a folder; ``spread`` as in `compare`."""
    runs = comparison.runs
    figures = draw_all(comparison, make_folder(inside(folder, "figures")), display)
    tables = {"curves": runs.curves, "table": comparison.table, "pairs": comparison.pairs}
    further = {"text": runs.text, "depth": runs.depth}
    tables |= {name: table for name, table in further.items() if len(table)}
    texts = {
        **{f"{name}.csv": table.to_csv(index=False) for name, table in tables.items()},
        "runs.csv": runs_csv(runs),
        "table.tex": table_latex(comparison, spread),
        "references.bib": cite(runs)[1],
        "report.html": render_page(comparison, title),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text)
    return replace(comparison, files=[*(folder / name for name in texts), *figures])


def runs_csv(runs: Runs) -> str:
    """Return the table of runs as CSV, with the version, commit, device and command of each run."""
    table = runs.runs.copy()
    for column, key in RECORDED.items():
        table[column] = [runs.environments[name].get(key) for name in table["name"]]
    commands = [shlex.join(command or []) for command in table["command"]]
    table["command"] = ["" if is_formula(command) else command for command in commands]  # such as -c
    return table.to_csv(index=False)


def show(comparison: Comparison) -> None:
    """Print the table, its results and caveats, the excluded runs and the written files."""
    metric = comparison.summary.metric
    user_metrics = [other for other in comparison.runs.metrics if other not in (*METRICS, metric)]
    shown = {f"{metric.name}_{span}": (metric, span) for span in SPAN_WORDS}
    shown |= {f"{other.name}_extrapolation": (other, f"{other.name}_extrapolation") for other in user_metrics}
    table = comparison.table[["section", "encoding", "seeds", "diverged", "solved", *shown]].copy()
    for column, (of, heading) in shown.items():
        table[column] = [sentences.number(value, of.digits) for value in table[column]]
        table = table.rename(columns={column: heading})
    say(table.to_string(index=False, na_rep="–", float_format="{:.2f}".format))
    what = f"mean {metric.label_with_unit}; solved: seeds that learned it"
    say(f"{', '.join(SPAN_WORDS)}: {what}")
    for title, sentence in comparison.sentences.items():
        say(f"result: {title}: {sentence}")
    for note in comparison.notes:
        say(f"note: {note}")
    for title, plan in comparison.plans.items():
        say(f"seeds: {title}: {plan}")
    for name, reason in comparison.runs.left_out.items():
        say(f"excluded: {name}: {reason}")
    written = {path.name: path for path in comparison.files}
    for name, label in {"table.csv": "table", "report.html": "page"}.items():
        if name in written:
            say(f"{label}: {written[name]}")
    figures = [path for path in comparison.files if path.suffix == ".png"]
    if figures:
        say(f"figures: {figures[0].parent} ({len(figures)})")
    elif comparison.files:
        say(f"figures: none for more than {MOST_TASKS} tasks; compare fewer with study=NAME")
