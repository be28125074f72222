"""Render a comparison as a single HTML file that contains its data and opens without a server."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import pe_experiments.comparison.sentences as sentences
from pe_experiments.comparison.citations import cite
from pe_experiments.comparison.figures import MOST_TASKS
from pe_experiments.comparison.protocols import Protocol
from pe_experiments.comparison.result import Comparison
from pe_experiments.comparison.statistics import FEWEST, LEVEL
from pe_experiments.drawing import bounded_metric, render, style_indices
from pe_experiments.evaluation.metrics import EXACT_MATCH, FARTHEST, METRICS, SOLVED, Metric
from pe_experiments.store.directory import COMPLETED

TEMPLATE = Path(__file__).parent / "templates" / "report.html.j2"
POINTS = 24  # points shown of a training curve
DATA_DECIMALS = 6  # decimal places of the data

Json = dict[str, Any]
Names = Callable[[Any], str]


def render_page(comparison: Comparison, title: str) -> str:
    """Return the HTML of the page."""
    summary = comparison.summary
    lower = summary.lower_is_better
    table = comparison.table
    cited, bibtex = cite(comparison.runs)
    style_of = style_indices(comparison.encodings)
    by_step, depths = [], []
    for protocol in comparison.protocols:
        drawn = protocol.drawn(summary)[0]
        heading = f"During the training: {drawn.label_with_unit}, {protocol.title}"
        by_step.append(_heatmaps(heading, drawn, protocol, comparison.by_step(protocol)))
        heading = f"By length and depth: {protocol.title}"
        depths.append(_heatmaps(heading, EXACT_MATCH, protocol, comparison.depths(protocol), "{:.0%}".format))
    heatmaps = [
        ("by-step", "step", [maps for maps in by_step if maps]),
        ("depth", "depth", [maps for maps in depths if maps]),
    ]
    data = {
        "metric": {
            "name": summary.metric.name,
            "column": summary.column,
            "words": summary.words,
            "lower": lower,
        },
        "metrics": {
            metric.name: {"label": metric.label_with_unit, "bounds": metric.bounds}
            for metric in comparison.runs.metrics
        },
        "solved": SOLVED,
        "encodings": [{"name": name} | style_of[name] for name in comparison.encodings],
        "sections": [_protocol(comparison, protocol) for protocol in comparison.protocols],
    }
    return render(
        TEMPLATE,
        data,
        title=title,
        most_tasks=MOST_TASKS,
        metric=summary.words,
        accuracy=summary.metric.label_with_unit,
        lower=lower,
        bounds=summary.metric.bounds,
        past=summary.span == "extrapolation",
        chance=summary.span == "extrapolation" and summary.metric.bounds and summary.metric.guess,
        reached=bool(table["exact_match_at_2x"].notna().any()),
        unlearned=not all(sentences.learned(row) for row in table.to_dict("records")),
        comparison=comparison,
        heatmaps=heatmaps,
        settings=dict.fromkeys(key for protocol in comparison.protocols for key in protocol.settings),
        cited=cited,
        bibtex=bibtex,
        seeds=sentences.format_seeds(table["seeds"]),
        intervals=bool(table[["solved_low", f"{comparison.metric}_low"]].notna().any(axis=None)),
        exact=any(protocol.exact for protocol in comparison.protocols),
        losses="loss_extrapolation" in table,
        tokens=any(protocol.has_tokens for protocol in comparison.protocols),
        tests=bool(comparison.pairs["p"].notna().any()),
        baseline=comparison.baseline,
        level=f"{LEVEL:.0%}".replace("%", " %"),
        fewest=FEWEST,
        mixed=sentences.mixed_versions(comparison.runs),
        solved=SOLVED,
        farthest=f"{FARTHEST:g}",
    )


def _protocol(comparison: Comparison, protocol: Protocol) -> Json:
    """Return the data of a protocol; encodings are indices into the list of encodings."""
    index = {encoding: number for number, encoding in enumerate(comparison.encodings)}
    rows = comparison.rows(protocol)
    pairs = comparison.rows(protocol, pairs=True)
    heading = [protocol.task, *protocol.distinctive]
    if len({protocol.model for protocol in comparison.protocols}) > 1:
        heading.insert(1, protocol.model)
    measured = sorted(int(length) for length in protocol.curves["content_length"].unique())
    drawn = [metric.name for metric in protocol.drawn(comparison.summary)]
    parents = {}  # mean curves of the runs that these runs continue
    for column in drawn:
        lines = _means(protocol.parents.dropna(subset=[column]), "content_length", column)
        parents[column] = [{"name": f"{label}, before", "points": points} for label, points in lines.items()]
    return {
        "heading": heading,
        "slug": protocol.slug,
        "title": protocol.title,
        "sentence": comparison.sentences[protocol.title],
        "max_length": protocol.max_length,
        "exact": protocol.exact,
        "drawn": drawn,
        "bounded": bounded_metric(protocol.curves).name,
        "notes": sentences.caveats(protocol, rows, comparison.runs.tuning),
        "limits": [*sentences.limits(pairs), *filter(None, [comparison.plans.get(protocol.title)])],
        "lengths": protocol.lengths(),
        "measured": measured,
        "table": _cells(pd.DataFrame(rows), index),
        "pairs": _cells(pd.DataFrame(pairs, columns=comparison.pairs.columns).dropna(subset=["p"]), index),
        "curves": {
            column: _by_run(protocol.curves, "content_length", column, measured, index) for column in drawn
        },
        "parents": parents,
        "training": _training(comparison.runs.training, protocol, index),
        "further": _further_charts(comparison, protocol, index),
    }


def _further_charts(comparison: Comparison, protocol: Protocol, index: Mapping[str, int]) -> list[Json]:
    """Return charts of means over seeds by index of the encoding.

    They show token accuracy by index in the answer, for the longest training length and twice it unless runs
    lack it, and each metric of the user (``evaluation.metrics``) over input length.
    """
    charts: list[Json] = []

    def add(title: str, x_title: str, rows: pd.DataFrame, x: str, y: str, share: bool) -> None:
        lines = {index[label]: points for label, points in _means(rows, x, y).items()}
        charts.append({"title": title, "x": x_title, "lines": lines, "share": share})

    if len(comparison.runs.index):
        rows = protocol.runs[["name", "label"]].merge(comparison.runs.index, on="name")
        completed = (protocol.runs["status"] == COMPLETED).sum()
        for length, of_length in rows.groupby("length"):
            if of_length["name"].nunique() >= completed:
                title = f"token accuracy by index in the answer, length {length}"
                add(title, "index in the answer", of_length, "index", "token_accuracy", share=True)
    for metric in protocol.metrics:
        if metric not in METRICS and protocol.has(metric):
            measured = protocol.curves.dropna(subset=[metric.name])
            share = metric.bounds == (0, 1)
            add(metric.label_with_unit, "input length", measured, "content_length", metric.name, share)
    return charts


def _means(rows: pd.DataFrame, x: str, y: str) -> dict[str, list[list[float]]]:
    """Return points of the mean of ``y`` over seeds at each ``x``, by label of the encoding."""
    means = rows.groupby(["label", x])[y].mean().round(DATA_DECIMALS).reset_index()
    return {str(label): points[[x, y]].to_numpy().tolist() for label, points in means.groupby("label")}


def _heatmaps(
    heading: str, metric: Metric, protocol: Protocol, tables: Mapping[str, pd.DataFrame], names: Names = str
) -> Json | None:
    """Return the heatmaps of a protocol, with a column for each length; None without any.

    ``tables`` has values by row and length for each encoding, and ``names`` prints the index of a row. Each
    cell has the share of the way from the worst to the best value of the protocol, for its colour.
    """
    if not tables:
        return None
    values = np.concatenate([cells.to_numpy().ravel() for cells in tables.values()])
    low, high = metric.bounds or (float(np.nanmin(values)), float(np.nanmax(values)))

    def cell(value: float) -> tuple[float, float] | None:
        if math.isnan(value):
            return None
        share = (value - low) / ((high - low) or 1.0)
        return value, share if metric.higher_is_better else 1 - share

    lengths = sorted({length for cells in tables.values() for length in cells.columns.tolist()})
    maps = {}
    for label, cells in tables.items():
        rows = cells.reindex(columns=lengths).to_numpy().tolist()
        maps[label] = [(names(row), [*map(cell, rows[at])]) for at, row in enumerate(cells.index)]
    return {"heading": heading, "max_length": protocol.max_length, "lengths": lengths, "maps": maps}


def _cells(table: pd.DataFrame, index: Mapping[str, int]) -> Json:
    """Return the columns and rows of a table, with encodings by index and without empty columns."""
    encodings = {key: table[key].map(index) for key in ("encoding", "other") if key in table}
    filled = table.assign(**encodings).dropna(axis="columns", how="all")
    cells: Json = json.loads(filled.to_json(orient="split", index=False, double_precision=DATA_DECIMALS))
    return cells


def _by_run(
    rows: pd.DataFrame, x: str, column: str, points: Sequence[float], index: Mapping[str, int]
) -> dict[int, list[list[float | None]]]:
    """Return the values of a column at these points of ``x``, a list per run, by index of the encoding."""
    unique_rows = rows.drop_duplicates(["name", x])
    lines = unique_rows.pivot(index=["label", "name"], columns=x, values=column).reindex(columns=list(points))
    return {
        index[str(label)]: json.loads(
            runs.astype(float).to_json(orient="values", double_precision=DATA_DECIMALS)
        )
        for label, runs in lines.groupby("label")
    }


def _training(training: pd.DataFrame, protocol: Protocol, index: Mapping[str, int]) -> Json | None:
    """Return loss and exact match over steps, thinned to about `POINTS` points; None if not recorded."""
    if training.empty:
        return None
    of_protocol = training[training["protocol"] == protocol.hash]
    curves = {}
    for column in ("loss", "exact_match"):
        recorded = of_protocol.dropna(subset=[column])
        all_steps = sorted(map(int, recorded["step"].unique()))
        stride = max(1, round(len(all_steps) / POINTS))
        steps = all_steps[::-stride][::-1]  # backwards, to include the last step
        curves[column] = {"steps": steps, "values": _by_run(recorded, "step", column, steps, index)}
    return curves if any(curve["steps"] for curve in curves.values()) else None
