"""The interactive chart of the page, as a Vega-Lite specification with its data inside.

Its signals are set by the page's own controls, which the keyboard reaches: ``section``, ``accuracy``,
``shown`` (the schemes), and the ends of the length axis, ``shortest`` and ``longest``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from pe_experiments.comparison.presentation import WORDS, Cells
from pe_experiments.comparison.protocols import Section
from pe_experiments.comparison.runs_table import ACCURACIES
from pe_experiments.comparison.style import MARKERS, SHAPES, Look
from pe_experiments.comparison.table import BOUNDS

BOUND_NAMES = {"bag_ceiling": "the best an order-blind predictor can do", "chance": "chance"}
GREY = "#555555"


Sections = Sequence[tuple[Section, Sequence[Cells]]]
HERE = "datum.section == section"
SHOWN = f"{HERE} && datum.accuracy == accuracy && indexof(shown, datum.scheme) >= 0"


def specification(sections: Sections, looks: Mapping[str, Look]) -> dict[str, Any]:
    """Accuracy over input length with seeds, means, bounds and the training range."""
    start = {
        "section": sections[0][0].protocol,
        "accuracy": ACCURACIES[0],
        "shown": list(looks),
        "shortest": 1,
        "longest": 2,
    }
    said = "Accuracy over input length; the tables hold it too."
    chart = (
        alt.layer(*_context(sections), *_schemes(sections, looks))
        .add_params(*(alt.param(name=name, value=value) for name, value in start.items()))
        .properties(width="container", height=380, description=said)
        .configure_view(stroke=None)
        .configure_axis(gridColor="#eeeeee", labelFontSize=12, titleFontSize=13)
    )
    return chart.to_dict()


def _axes() -> dict[str, Any]:
    ends = [alt.ExprRef("shortest"), alt.ExprRef("longest")]
    x = alt.X("length:Q").scale(type="log", base=2, nice=False, domain=ends)
    return {
        "x": x.title("input length").axis(format="~g"),
        "y": alt.Y("value:Q").scale(domain=[0, 1]).title("accuracy"),
    }


def _hover(*first: str) -> list[Any]:
    value = alt.Tooltip("value:Q", format=".4f", title="accuracy")
    return [*(alt.Tooltip(name) for name in first), alt.Tooltip("length:Q"), value]


def _context(sections: Sections) -> list[alt.Chart]:
    """The training range, and for token accuracy what ignoring order allows, and chance."""
    names = list(BOUND_NAMES.values())
    dash = alt.StrokeDash("bound:N").legend(None).scale(domain=names, range=[[6, 3], [2, 3]])
    return [
        alt.Chart(_ranges(sections), name="training")
        .mark_rect(color="#ebebeb")
        .encode(x=alt.X("first:Q"), x2="last:Q", tooltip=alt.value("training lengths"))
        .transform_filter(HERE),
        alt.Chart(_bounds(sections), name="bounds")
        .mark_line(color=GREY, strokeWidth=1.5)
        .encode(**_axes(), strokeDash=dash, tooltip=_hover("bound:N"))
        .transform_filter(f"{HERE} && accuracy == 'token_accuracy'"),
    ]


def _schemes(sections: Sections, looks: Mapping[str, Look]) -> list[alt.Chart]:
    """Seeds, means and their points, one colour and shape per scheme."""
    names = list(looks)
    colour = alt.Color("scheme:N").scale(domain=names, range=[looks[s][0] for s in names]).legend(None)
    shapes = [SHAPES[MARKERS.index(looks[s][1])] for s in names]
    shape = alt.Shape("scheme:N").scale(domain=names, range=shapes).legend(None)
    line = alt.Chart().encode(**_axes(), color=colour, detail="seed:N")
    seeds, means = _seed_rows(sections), _mean_rows(sections)
    ends = [
        alt.Tooltip("low:Q", format=".4f", title="interval from"),
        alt.Tooltip("high:Q", format=".4f", title="to"),
    ]
    return [
        line.properties(data=seeds, name="seeds")
        .mark_circle(size=16, opacity=0.5)
        .encode(tooltip=[*_hover("scheme:N", "seed:N"), alt.Tooltip("status:N")])
        .transform_filter(SHOWN),
        line.properties(data=means, name="means").mark_line(strokeWidth=2.5).transform_filter(SHOWN),
        line.properties(data=means, name="points")
        .mark_point(filled=True, size=70, opacity=1)
        .encode(shape=shape, tooltip=[*_hover("scheme:N", "seeds:Q"), *ends])
        .transform_filter(SHOWN),
    ]


def _seed_rows(sections: Sections) -> alt.InlineData:
    rows = [
        {
            "section": section.protocol,
            "accuracy": accuracy,
            "scheme": str(row["label"]),
            "seed": int(row["seed"]),
            "length": int(row["content_length"]),
            "value": float(row[accuracy]),
            "status": str(row["status"]),
        }
        for section, _ in sections
        for row in section.curves.to_dict("records")
        for accuracy in ACCURACIES
    ]
    return alt.InlineData(rows)


def _mean_rows(sections: Sections) -> alt.InlineData:
    rows = []
    for section, schemes in sections:
        shared = section.curves.loc[section.curves["in_summary"], "content_length"]
        for cells in schemes:
            for accuracy in ACCURACIES:
                for length in sorted(int(n) for n in shared.unique()):
                    column = f"{accuracy}@{length}"
                    rows.append(
                        {
                            "section": section.protocol,
                            "accuracy": accuracy,
                            "scheme": str(cells["scheme"]),
                            "seeds": int(cells["seeds"]),
                            "length": length,
                            "value": _value(cells, column),
                            "low": _value(cells, f"{column}_low"),
                            "high": _value(cells, f"{column}_high"),
                        }
                    )
    return alt.InlineData(rows)


def _bounds(sections: Sections) -> alt.InlineData:
    rows = []
    for section, schemes in sections:
        shared = section.curves.loc[section.curves["in_summary"], "content_length"]
        for bound in BOUNDS:
            for length in sorted(int(n) for n in shared.unique()):
                value = _value(schemes[0], f"{bound}@{length}")
                if value is not None:
                    rows.append(
                        {
                            "section": section.protocol,
                            "bound": BOUND_NAMES[bound],
                            "length": length,
                            "value": value,
                        }
                    )
    return alt.InlineData(rows)


def _ranges(sections: Sections) -> alt.InlineData:
    rows = []
    for section, _ in sections:
        shortest, _ = axis(section)
        rows.append({"section": section.protocol, "first": shortest, "last": section.max_length})
    return alt.InlineData(rows)


def axis(section: Section) -> tuple[float, float]:
    """Ends of the length axis, a little beyond what was evaluated."""
    lengths = section.curves["content_length"]
    return float(min(lengths.min(), section.max_length)) / 1.08, float(lengths.max()) * 1.08


def _value(cells: Cells, column: str) -> float | None:
    return float(cells[column]) if cells.has(column) else None


def accuracies() -> list[tuple[str, str]]:
    """What the chart can show: value and words."""
    return [(accuracy, WORDS[accuracy]) for accuracy in ACCURACIES]
