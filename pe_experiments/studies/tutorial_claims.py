"""What tutorials on sinusoidal encodings claim, and what was measured: a verdict per claim, from data alone.

Claims of vectors and code are judged in `audit_verdicts`, those of trained models in `trained_verdicts`. A
verdict follows from a rule, so that other numbers give another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.statistics import detectable_difference
from pe_experiments.files import write_atomically
from pe_experiments.plots import COLOURS, WIDTHS, drawing, save
from pe_experiments.studies.audit_verdicts import DEPENDS, FAILS, HOLDS, UNSUPPORTED, Verdict, judged
from pe_experiments.studies.claim_figures import (
    bounds_figure,
    curves_figure,
    differences_figure,
    offsets_figure,
    order_figure,
    uniqueness_figure,
)
from pe_experiments.studies.figures_in_words import markdown_table, render
from pe_experiments.studies.trained_verdicts import (
    EXTENSIONS,
    PAST,
    TASKS,
    TWICE,
    WITHIN,
    WORDS,
    Trained,
    added_or_concatenated,
    of_training,
    values_in_words,
)

ABSOLUTE = ("none", "sinusoidal", "learned", "learned_sinusoidal")
OURS = "ours"
# Where a claim stands in the documents the project grew from, in their words; the others are ours.
DOCUMENTS = {
    "PE(p,2i) = sin(p/10000^(2i/d)), PE(p,2i+1) = cos(same)":
        "PE(p,2i)=sin(p/10000^(2i/d)), PE(p,2i+1)=cos(same)",
    "The worked table, 3 positions by d=4": "worked table, 3 positions x d=4",
    "In a binary counter 1010 stands for 2": "the counter labels 1010 as 2",
    "Low dimensions oscillate fast": "low dimensions oscillate fast",
    "Early dimensions are the low frequencies": "early dimensions are low-frequency",
    "The model learns the frequencies": "the model learns a different frequency",
    "A fixed encoding has no parameters, a learned one a row per position": "fixed 0 against learned rows",
    "`pe[:, 1::2] = cos(...)` works for every d": "pe[:, 1::2] = cos(...)",
    "A loop over k up to d/2 fills every column": "k up to d/2",
    "The sample function runs": "position / s",
    "The module sample can be used as it is": "module sample, sequence-first",
    "Self-attention is permutation-invariant": "self-attention is permutation-invariant",
    "Without positions `dog bites man` = `man bites dog`": "“dog bites man” = “man bites dog”",
    "Every position has its own vector": "a good encoding is unique per position",
    "The values are bounded": "bounded",
    "Positions k apart have the same distance everywhere":
        "same distance between any two positions k apart, at any length",
    "A heatmap of 50 positions by 512 dimensions shows it": "heatmap of 50 positions x 512 dimensions",
    "PE(p+k) is a linear function of PE(p)": "PE(p+k) is a linear function of PE(p)",
    "Relative positions are easily learnt": "hence relative positions are easy to learn",
    "The index itself is no good encoding": "binary-counter intuition (fast bit / slow bit)",
    "The index as a share of the length is no good encoding":
        "binary-counter intuition (fast bit / slow bit)",
    "Sinusoids are a binary counter made smooth, with fast and slow columns in the same places":
        "binary-counter intuition (fast bit / slow bit)",
    "A trained encoder needs positions to know what comes first": "self-attention is permutation-invariant",
    "Add, do not concatenate (a larger vector)": "add, do not concatenate",
    "Add, do not concatenate (a vector as large)": "add, do not concatenate",
    "Adding needs fewer parameters than concatenating": "parameters of addition against concatenation",
    "A larger d_model gives the encoding more room": "larger d_model gives the encoding more room",
    "Fixed sinusoids generalise to lengths not seen": "it “generalises to lengths not seen”",
    "Learned positions adapt, but not beyond their length": "learned adapts but not beyond its length",
    "Fixed sinusoids reach further than learned positions":
        "fixed generalises, learned adapts but not beyond its length",
}  # fmt: skip


def verdicts(
    audits: pd.DataFrame, table: pd.DataFrame, curves: pd.DataFrame, extension: pd.DataFrame
) -> list[Verdict]:
    """Every claim: those that need no training first.

    Args:
        audits: from `audits.measure`.
        table, curves, extension: as in `trained_verdicts.Trained`.

    Raises:
        UserError: a value is missing in ``audits``, or runs of the study in ``table``.
    """
    return [*judged(audits), *of_training(Trained(table, curves, extension))]


def width_figure(t: Trained) -> Figure:
    """Sinusoidal by width: means as lines, seeds as dots."""
    figure = Figure(figsize=(WIDTHS["double"], 2.3), layout="constrained")
    for axes, (task, model) in zip(figure.subplots(1, len(TASKS)), TASKS, strict=True):
        widths = t.widths(task, model)
        for metric, colour, marker in zip((WITHIN, TWICE, PAST), COLOURS, "os^", strict=False):
            rows = [list(t.by_seed(t.row(task, model, "sinusoidal", d), metric).values()) for d in widths]
            for width, values in zip(widths, rows, strict=True):
                axes.plot([width] * len(values), values, ".", color=colour, markersize=5, alpha=0.5)
            means = [sum(values) / len(values) for values in rows]
            axes.plot(widths, means, color=colour, marker=marker, markersize=4, label=WORDS[metric])
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.set_title(f"{task}, {model}")
        axes.set_xlabel("d_model")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def write(
    folder: Path, audits: pd.DataFrame, runs: Runs, table: pd.DataFrame, extension: pd.DataFrame
) -> list[Path]:
    """The study's page, its verdicts as CSV and its figures; the same inputs give the same bytes.

    Returns:
        The files.

    Raises:
        UserError: as `verdicts`.
    """
    trained = Trained(table, runs.curves, extension)
    untrained, learnt = judged(audits), of_training(trained)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    paths = []
    with drawing():
        for slug, figure in _figures(audits, trained):
            paths += save(figure, folder / "figures", slug)
    claims, page = folder / "claims.csv", folder / "README.md"
    rows = [{"document": document(verdict), **asdict(verdict)} for verdict in [*untrained, *learnt]]
    write_atomically(claims, pd.DataFrame(rows).to_csv(index=False))
    write_atomically(page, readme(untrained, learnt, trained))
    return [page, claims, *paths]


def document(verdict: Verdict) -> str:
    """The words in which a document states the claim, or ``ours``."""
    return DOCUMENTS.get(verdict.claim, OURS)


def _figures(audits: pd.DataFrame, t: Trained) -> Iterator[tuple[str, Figure]]:
    yield "claims-uniqueness", uniqueness_figure(audits)
    yield "claims-offsets", offsets_figure(audits)
    yield "claims-order", order_figure(audits)
    yield "claims-bounds", bounds_figure(audits)
    made = {name: d for name, d in added_or_concatenated(t).items() if d is not None}
    yield "claims-add-or-concat", differences_figure(made, "exact match, added minus concatenated")
    yield "claims-width", width_figure(t)
    absolute = {f"{k}, {m}": {n: t.curves(t.row(k, m, n)) for n in ABSOLUTE} for k, m in TASKS}
    longest = int(t.row("copy", "decoder", "rope")["max_length"])
    yield "claims-fixed-or-learned", curves_figure(absolute, longest, {})
    rope = {"copy, decoder": {name: t.extended(name) for name in ("rope", *EXTENSIONS)}}
    yield "claims-extension", curves_figure(rope, longest, {"rope": " (as trained)"})


def readme(untrained: Sequence[Verdict], learnt: Sequence[Verdict], t: Trained) -> str:
    """The page, every number of it from the data."""
    everything = [*untrained, *learnt]
    row = t.row("copy", "decoder", "sinusoidal")
    cells = [(v.claim, document(v), v.tested, v.finding, v.verdict, _link(v)) for v in everything]
    heading = ("claim", "stands in a document as", "how tested", "finding", "verdict", "figure")
    counts = [[v.verdict for v in everything].count(kind) for kind in (HOLDS, FAILS, DEPENDS, UNSUPPORTED)]
    return render(
        "tutorial_claims.md.j2",
        claims=len(everything),
        counts=dict(zip(("holds", "fails", "depends", "unsupported"), counts, strict=True)),
        absent=len(everything) - sum(counts),
        ours=sum(document(verdict) == OURS for verdict in everything),
        longest=int(row["max_length"]),
        seeds=int(row["seeds"]),
        within=values_in_words(t.by_seed(row, WITHIN)),
        twice=values_in_words(t.by_seed(row, TWICE)),
        detectable={task: _detectable(t, task, model) for task, model in TASKS},
        table=markdown_table(heading, [[cell.replace("|", "\\|") for cell in line] for line in cells]),
    )


def _detectable(t: Trained, task: str, model: str) -> float:
    rows = [t.row(task, model, label) for label in ABSOLUTE]
    return detectable_difference([list(t.by_seed(row, PAST).values()) for row in rows if t.learnt(row)])


def _link(verdict: Verdict) -> str:
    name = verdict.figure.removeprefix("claims-").replace("-", " ")
    return f"[{name}](figures/{verdict.figure}.png)" if name else ""
