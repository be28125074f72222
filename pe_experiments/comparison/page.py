"""One HTML file that opens from disk and asks no server: words, chart, tables, figures, provenance."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pandas as pd
import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from pe_experiments.comparison.chart import accuracies, axis, specification
from pe_experiments.comparison.presentation import Phrase
from pe_experiments.comparison.protocols import Section
from pe_experiments.comparison.report import DrawnFigure, Report
from pe_experiments.comparison.style import Look
from pe_experiments.comparison.words import cells_of

TEMPLATES = Path(__file__).parent


def render_page(
    report: Report,
    sections: Sequence[Section],
    table: pd.DataFrame,
    looks: Mapping[str, Look],
    figures_folder: Path,
) -> str:
    """The page as text.

    Every value in its words and tables is a ``data`` element whose ``value`` is the cell named by
    ``data-file``, ``data-row`` and ``data-column``.

    Args:
        report: what it says.
        sections: what its chart shows.
        table: where the chart's values come from.
        looks: colour and marker by scheme.
        figures_folder: where the drawn figures lie; they are put into the page.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    drawn = [(section, cells_of(table, section)) for section in sections if not section.curves.empty]
    environment.filters |= {"phrase": _phrase, "in_script": _inside_script}

    def picture(figure: DrawnFigure) -> str:
        content = (figures_folder / f"{figure.slug}.svg").read_bytes()
        return "data:image/svg+xml;base64," + base64.b64encode(content).decode()

    return environment.get_template("report.html.j2").render(
        report=report,
        picture=picture,
        accuracies=accuracies(),
        choices=[
            {"task": s.task, "model": s.model, "protocol": s.protocol, "title": s.title, "axis": axis(s)}
            for s, _ in drawn
        ],
        looks=looks,
        specification=_inside_script(specification(drawn, looks)) if drawn else "null",
        bundle=Markup(javascript()),
    )


@cache
def javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", r"<\/script")


def _inside_script(content: object) -> Markup:
    """JSON that no text in it can end the script element of."""
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _phrase(phrase: Phrase) -> Markup:
    """A phrase with every value as a ``data`` element."""
    shown = Markup("")
    for part in phrase:
        if isinstance(part, str):
            shown += escape(part)
        else:
            cell = (part.file, part.row, part.column)
            shown += Markup(
                '<data value="{}" data-file="{}" data-row="{}" data-column="{}" '
                'title="{}, row {}, {}">{}</data>'
            ).format(repr(float(part.value)), *cell, *cell, part.text)
    return shown
