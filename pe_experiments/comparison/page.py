"""One HTML file that opens from disk without a server: the data once, as JSON, and a script that shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import pe_experiments.comparison.words as words
from pe_experiments.comparison.citations import cite
from pe_experiments.comparison.protocols import Protocol
from pe_experiments.comparison.result import Comparison
from pe_experiments.comparison.runs import ACCURACIES
from pe_experiments.comparison.statistics import FEWEST, LEVEL
from pe_experiments.drawing import COLOURS, MARKERS, render
from pe_experiments.evaluation.summary import FARTHEST, SOLVED, lower_is_better

TEMPLATE = Path(__file__).parent / "templates" / "report.html.j2"
POINTS = 24  # of a training curve
DIGITS = 6  # of a number after its point

Json = dict[str, Any]


def render_page(made: Comparison, title: str) -> str:
    """The page as text."""
    column, lower = words.column_of(made.metric), lower_is_better(made.metric)
    content = {
        "metric": {"column": made.metric, "words": words.metric_in_words(made.metric), "lower": lower},
        "accuracy": column,
        "solved": SOLVED,
        "encodings": [
            {"name": encoding, "colour": COLOURS.index(colour), "marker": MARKERS.index(marker)}
            for encoding in made.encodings
            for colour, marker in [made.looks[encoding]]
        ],
        "sections": [_protocol(made, protocol) for protocol in made.protocols],
    }
    return render(
        TEMPLATE,
        content,
        title=title,
        metric=words.metric_in_words(made.metric),
        accuracy=words.WORDS[column],
        lower=lower,
        chance=made.metric.endswith("extrapolation"),
        reached=bool(made.table["exact_match_at_2x"].notna().any()),
        unlearned=not all(words.learned(row) for row in made.table.to_dict("records")),
        colours=COLOURS,
        made=made,
        settings=dict.fromkeys(key for protocol in made.protocols for key in protocol.settings),
        **_methods(made),
    )


def _methods(made: Comparison) -> Json:
    cited, bibtex = cite(made.runs)
    tested = made.pairs[made.pairs["p"].notna()]
    everybody = {*tested["encoding"], *tested["other"]}
    common = everybody.intersection(*({row.encoding, row.other} for row in tested.itertuples()))
    return {
        "cited": cited,
        "bibtex": bibtex,
        "seeds": words.seeds_in_words(made.table["seeds"]),
        "intervals": bool(made.table[["solved_low", f"{made.metric}_low"]].notna().any(axis=None)),
        "exact": any(protocol.exact for protocol in made.protocols),
        "losses": "loss_extrapolation" in made.table,
        "tests": len(tested) > 0,
        "family": f"The differences from {min(common)}" if len(common) == 1 else "All pairs of encodings",
        "level": f"{LEVEL:.0%}".replace("%", " %"),
        "fewest": FEWEST,
        "mixed": words.mixed_versions(made.runs),
        "solved": SOLVED,
        "farthest": f"{FARTHEST:g}",
    }


def _protocol(made: Comparison, protocol: Protocol) -> Json:
    index = {encoding: number for number, encoding in enumerate(made.encodings)}
    rows, pairs = made.rows(protocol), made.rows(protocol, pairs=True)
    several = len({protocol.model for protocol in made.protocols}) > 1
    measured = sorted(int(length) for length in protocol.curves["content_length"].unique())
    shown = protocol.shown(made.metric)
    return {
        "heading": [protocol.task, *[protocol.model] * several, *protocol.told_apart_by],
        "slug": protocol.slug,
        "title": protocol.title,
        "sentence": made.sentences[protocol.title],
        "max_length": protocol.max_length,
        "exact": protocol.exact,
        "shown": shown,
        "notes": words.caveats(protocol, rows, made.runs.tuning),
        "limits": words.limits(rows, pairs),
        "lengths": protocol.lengths(),
        "measured": measured,
        "table": _cells(pd.DataFrame(rows), index),
        "pairs": _cells(pd.DataFrame(pairs, columns=made.pairs.columns).dropna(subset=["p"]), index),
        "curves": {
            column: _by_run(protocol.curves, "content_length", column, measured, index)
            for column in dict.fromkeys((*ACCURACIES, *shown))
        },
        "training": _training(made.runs.training, protocol, index),
    }


def _cells(table: pd.DataFrame, index: Mapping[str, int]) -> Json:
    encodings = {key: table[key].map(index) for key in ("encoding", "other") if key in table}
    known = table.assign(**encodings).dropna(axis="columns", how="all")
    cells: Json = json.loads(known.to_json(orient="split", index=False, double_precision=DIGITS))
    return cells


def _by_run(
    rows: pd.DataFrame, x: str, column: str, points: Sequence[float], index: Mapping[str, int]
) -> dict[int, list[list[float | None]]]:
    once = rows.drop_duplicates(["name", x])
    lines = once.pivot(index=["label", "name"], columns=x, values=column).reindex(columns=list(points))
    return {
        index[str(label)]: json.loads(own.astype(float).to_json(orient="values", double_precision=DIGITS))
        for label, own in lines.groupby("label")
    }


def _training(training: pd.DataFrame, protocol: Protocol, index: Mapping[str, int]) -> Json | None:
    """Loss and exact match over steps, a line per run and about `POINTS` of its points."""
    if training.empty:
        return None
    here = training[training["protocol"] == protocol.hash]
    made = {}
    for column in ("loss", "exact_match"):
        known = here.dropna(subset=[column])
        steps = sorted(map(int, known["step"].unique()))
        kept = steps[:: -max(1, round(len(steps) / POINTS))][::-1]  # the last of them, too
        known = known[known["step"].isin(kept)]
        made[column] = {"steps": kept, "values": _by_run(known, "step", column, kept, index)}
    return made if any(curve["steps"] for curve in made.values()) else None
