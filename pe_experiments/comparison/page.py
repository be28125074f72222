"""One HTML file that opens from disk without a server: the data once, as JSON, and a script that shows it.

The charts are drawn by our own script (15 kB): the bundle of a charting library is 60 times as large, needs
``eval``, and neither moves overlapping labels apart nor joins those of coinciding lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from pe_experiments.comparison.documents import mark_column, mark_of
from pe_experiments.comparison.protocols import Section
from pe_experiments.comparison.result import Comparison
from pe_experiments.comparison.run_rows import ACCURACIES, Row
from pe_experiments.comparison.table import BOUNDS, finite
from pe_experiments.comparison.words import WORDS, caveats, column_of, learned, limits, metric_in_words
from pe_experiments.evaluation import SOLVED
from pe_experiments.losses import unknown
from pe_experiments.plots import COLOURS, MARKERS
from pe_experiments.rendering import render

TEMPLATE = Path(__file__).parent / "templates" / "report.html.j2"
POINTS = 24  # of a training curve
LEFT_TO_CSV = (
    "section", "task", "model", "protocol", "max_length", "metric", "settings", "lengths_left_out",
    "area_from", "area_to", "detectable_difference", "solved_in_distribution", "scheme",
)  # fmt: skip
PAIRS = (
    "difference", "p", "p_holm", "separated", "probability_of_improvement", "pairs", "p_paired",
    "p_paired_holm",
)  # fmt: skip

Json = dict[str, Any]


def render_page(made: Comparison, title: str, appendix: Json, panel: Markup | None = None) -> str:
    """The page as text, with its `documents.appendix_of`; ``panel``: HTML after its first screen."""
    column, (kind, words) = column_of(made.metric), mark_of(made)
    index = {scheme: number for number, scheme in enumerate(made.schemes)}
    several = len({section.model for section in made.sections}) > 1
    looks = [made.looks[scheme] for scheme in made.schemes]
    content = {
        "metric": {"column": made.metric, "words": metric_in_words(made.metric), "lower": made.lower},
        "accuracy": column,
        "solved": SOLVED,
        "schemes": [
            {"name": scheme, "colour": COLOURS.index(colour), "marker": MARKERS.index(marker)}
            for scheme, (colour, marker) in zip(made.schemes, looks, strict=True)
        ],
        "sections": [
            _section(made, section, index)
            | {
                "heading": [section.task, *[section.model] * several, *section.told_apart_by],
                "mark": {"column": mark_column(kind, section), "words": words},
            }
            for section in made.sections
        ],
        **appendix,
        "tables": [asdict(shown) for shown in appendix["tables"]],
    }
    return render(
        TEMPLATE,
        content,
        title=title,
        metric=metric_in_words(made.metric),
        accuracy=WORDS[column],
        lower=made.lower,
        chance=made.metric.endswith("extrapolation"),
        mark=words if made.table["solved"].notna().any() else "",
        unlearned=not all(learned(row) for row in made.table.to_dict("records")),
        colours=COLOURS,
        panel=panel or "",
    )


def _section(made: Comparison, section: Section, index: Mapping[str, int]) -> Json:
    """The data of one section; schemes by their index."""
    runs, rows, pairs = made.runs, made.rows(section), made.pairs_of(section)
    here = runs.other_tasks[runs.other_tasks["protocol"] == section.protocol]
    measured = sorted(int(length) for length in section.curves["content_length"].unique())
    milliseconds = 1000 * section.runs["seconds_per_step"].astype(float)
    shown = section.shown(made.metric)
    columns = [column for column in rows[0] if _is_used(column, rows)]
    return {
        "slug": section.slug,
        "title": section.title,
        "sentence": made.sentences[section.title],
        "max_length": section.max_length,
        "one_token": section.one_token,
        "exact": section.exact,
        "shown": shown,
        "notes": caveats(section, rows, runs.tuning),
        "lengths": section.lengths,
        "measured": measured,
        "bounds": {b: [_cell(rows[0].get(f"{b}@{length}")) for length in section.lengths] for b in BOUNDS},
        "columns": ["scheme", *columns],
        "rows": [[index[row["scheme"]], *(_cell(row[column]) for column in columns)] for row in rows],
        "curves": {
            column: _by_run(section.curves, "content_length", column, measured, index)
            for column in dict.fromkeys((*ACCURACIES, *shown))
        },
        "milliseconds": {
            index[str(label)]: list(map(_cell, values))
            for label, values in milliseconds.groupby(section.runs["label"])
        },
        "training": _training(runs.training, section, index),
        "pairs": {
            "columns": ["scheme", "other", *PAIRS],
            "rows": [
                [index[pair["scheme"]], index[pair["other"]], *(_cell(pair[column]) for column in PAIRS)]
                for pair in pairs
                if finite(pair["p"])
            ],
            "notes": limits(rows, pairs),
        },
        "other_tasks": [_other_task(str(task), group, index) for task, group in here.groupby("evaluated_on")],
    }


def _is_used(column: str, rows: Sequence[Row]) -> bool:
    """Whether the page shows a column: bounds are lines in the charts, counts of seeds have no interval."""
    name, _, ending = column.rpartition("_")
    if column in LEFT_TO_CSV or ending in ("min", "max"):
        return False
    if column.startswith(BOUNDS) or (ending in ("low", "high") and name.startswith(("reached", "solved"))):
        return column == "solved_low" and finite(rows[0][column])
    return any(not unknown(row[column]) for row in rows)


def _cell(value: Any) -> Any:
    """A value for JSON, to four digits."""
    if unknown(value):
        return None
    if isinstance(value, float | np.floating):
        return int(value) if float(value).is_integer() else float(f"{value:.4g}")
    return value.item() if isinstance(value, np.generic) else value


def _by_run(
    rows: pd.DataFrame, x: str, column: str, points: Sequence[float], index: Mapping[str, int]
) -> dict[int, list[list[float | None]]]:
    """For each scheme a line per run: its values at these points."""
    key = ["label", "name", x]
    grid = rows.drop_duplicates(key).set_index(key)[column].unstack()
    lines: dict[int, list[list[float | None]]] = {}
    values = grid.reindex(columns=list(points)).to_numpy(float)
    for (label, _), line in zip(grid.index, values, strict=True):
        lines.setdefault(index[str(label)], []).append([_cell(value) for value in line])
    return lines


def _training(training: pd.DataFrame, section: Section, index: Mapping[str, int]) -> Json | None:
    """Loss and exact match over steps, a line per run and at most `POINTS` of its points."""
    if training.empty:
        return None
    here = training[training["protocol"] == section.protocol]
    made = {}
    for column in ("loss", "exact_match"):
        known = here.dropna(subset=[column])
        steps = sorted(known["step"].unique())
        wanted = {round(n) for n in np.linspace(0, len(steps) - 1, POINTS)} if steps else ()
        kept = [steps[n] for n in sorted(wanted)]
        known = known[known["step"].isin(kept)]
        made[column] = {
            "steps": [_cell(float(step)) for step in kept],
            "values": _by_run(known, "step", column, kept, index),
        }
    return made if any(curve["steps"] for curve in made.values()) else None


def _other_task(task: str, rows: pd.DataFrame, index: Mapping[str, int]) -> Json:
    """Mean over seeds, and how many; exact match does not depend on the decoding."""
    runs = rows.drop_duplicates(["label", "seed", "content_length"])
    lengths = sorted(int(length) for length in runs["content_length"].unique())
    shown = []
    for label, own in runs.groupby("label"):
        scores = own.groupby("content_length")["exact_match"].agg(["mean", "size"]).reindex(lengths)
        cells = [None if math.isnan(m) else [_cell(m), int(n)] for m, n in scores.itertuples(index=False)]
        shown.append([index[str(label)], *cells])
    return {"task": task, "lengths": lengths, "rows": shown}
