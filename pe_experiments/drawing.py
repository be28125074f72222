"""Define the style of figures, draw the figures of a run and render HTML pages."""

import base64
import hashlib
import io
import itertools
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from pe_experiments.configuration.choices import choices_of
from pe_experiments.evaluation.metrics import EXACT_MATCH, LOSS, TOKEN_ACCURACY, Metric
from pe_experiments.terminal.files import CATALOGUE, read_yaml, write_atomically

# Okabe and Ito (2008) without yellow, which is pale in print, and five more. Colours that colour-blind
# readers may confuse have different markers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31",
           "#7A1FFF", "#7FB83D", "#8B0030", "#F032E6")  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "d")
PAIRS = tuple(itertools.product(COLOURS, MARKERS))
STYLES = {  # colour and marker of frequently compared encodings; the first twelve are in the bank
    "none": ("#000000", "X"),
    "sinusoidal": ("#8C6D31", "s"),
    "learned": ("#CC79A7", "D"),
    "learned+random_offset": ("#F032E6", "d"),
    "rope": ("#0072B2", "o"),
    "p_rope": ("#56B4E9", "p"),
    "rope+random_subset": ("#7A1FFF", "P"),
    "alibi": ("#D55E00", "^"),
    "kerple_log": ("#E69F00", "v"),
    "t5": ("#009E73", ">"),
    "fire": ("#8B0030", "<"),
    "fox": ("#7FB83D", "*"),
    "rope_linear": ("#E69F00", "s"),
    "rope_ntk": ("#CC79A7", "v"),
    "rope_dynamic_ntk": ("#7A1FFF", "<"),
    "rope_yarn": ("#009E73", "D"),
    "rope_partial": ("#E69F00", "o"),
    "path": ("#7A1FFF", "D"),
    "stick_breaking": ("#000000", "s"),
    "cope": ("#7A1FFF", "v"),
    "hard_alibi": ("#E69F00", "P"),
    "transformer_xl": ("#E69F00", "D"),
    "transformer_xl+random_subset": ("#CC79A7", "*"),
    "alibi+random_subset": ("#8B0030", "^"),
    "sinusoidal+random_subset": ("#009E73", "s"),
    "learned_sinusoidal": ("#F032E6", "s"),
    "learned+abacus": ("#8B0030", "D"),
    "learned+coupling": ("#56B4E9", "D"),
    "bam": ("#D55E00", "s"),
    "fox_per_query": ("#7FB83D", "v"),
}
FIGURE_WIDTH = 7.2  # inches, two columns of a journal
FORMATS: dict[str, Any] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}  # no dates
_formats: ContextVar[Sequence[str]] = ContextVar("formats", default=tuple(FORMATS))
GREY = "0.35"
CEILINGS = {"bag_ceiling": ("order-blind", (0, (4, 2))), "chance": ("chance", (0, (1, 2)))}

TEMPLATES = Path(__file__).parent / "templates"  # shared by all pages

Style = tuple[str, str]  # colour and marker


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Return the colour and marker of each label, a different pair for each of up to 144 labels.

    A shipped encoding has the same pair in every figure. Its further variants and all other encodings get a
    pair that depends on their name and has one of the least used colours.
    """
    plain_first = sorted(set(labels), key=lambda label: (_without_arguments(label) != label, label))
    chosen: dict[str, Style] = {}
    for label in plain_first:
        style = _shipped_styles().get(_without_arguments(label))
        if style and style not in chosen.values():
            chosen[label] = style
    for label in plain_first:
        if label not in chosen:
            free = [pair for pair in PAIRS if pair not in chosen.values()] or PAIRS
            uses = Counter(colour for colour, _ in chosen.values())
            fewest_uses = min(uses[colour] for colour, _ in free)
            candidates = [(colour, marker) for colour, marker in free if uses[colour] == fewest_uses]
            chosen[label] = candidates[_integer_hash(label) % len(candidates)]
    return chosen


def style_indices(labels: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return `styles` for HTML pages, as indices of colours in base.css and of shapes in charts.js."""
    return {
        label: {"colour": COLOURS.index(colour), "marker": MARKERS.index(marker)}
        for label, (colour, marker) in styles(labels).items()
    }


@cache
def _shipped_styles() -> dict[str, Style]:
    """Return the style of every shipped encoding, from `STYLES` or the first free pair after its hash."""
    chosen = dict(STYLES)
    for name in choices_of("pe"):
        if name not in chosen:
            start = _integer_hash(name) % len(PAIRS)
            free = [pair for pair in (*PAIRS[start:], *PAIRS[:start]) if pair not in chosen.values()]
            chosen[name] = free[0] if free else PAIRS[0]
    return chosen


def _without_arguments(label: str) -> str:
    """Return ``rope+random_subset`` for ``alibi -> rope(base=500)+random_subset [1a2b]``."""
    return re.sub(r"^.* -> |\([^)]*\)| \[\w+\]$", "", label)


def _integer_hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])


def printed_name(label: str) -> str:
    """Return the printed name: ``RoPE (base=500), random subset`` for ``rope(base=500)+random_subset``."""
    if " -> " in label:
        return " -> ".join(map(printed_name, label.split(" -> ")))
    parts = []
    for part in label.split("+"):
        name, bracket, arguments = part.partition("(")
        words = _printed_names().get(name, name)
        parts.append(f"{words} ({arguments}" if bracket else words)
    return ", ".join(parts)


@cache
def _printed_names() -> dict[str, str]:
    """Return the printed names of encodings and position policies, from ``catalogue.yaml``."""
    catalogue = read_yaml(CATALOGUE)
    cards = catalogue["encodings"] | catalogue["positions"]
    return {name: card["printed"] for name, card in cards.items()}


def escaped(label: str, longest: int = 40) -> str:
    """Return a label on one line, cut to ``longest`` characters and escaped for matplotlib."""
    one_line = " ".join(label.split())
    if len(one_line) > longest:
        one_line = one_line[: longest - 1] + "…"
    return one_line.replace("$", r"\$")


@contextmanager
def drawing(formats: Sequence[str] | None = None) -> Iterator[None]:
    """Set matplotlib options for reproducible files, and ignore warnings about missing glyphs.

    `save` writes ``formats``; None means the formats of an outer `drawing`, or else all `FORMATS`.
    """
    token = _formats.set(formats or _formats.get())
    settings: Any = {"svg.hashsalt": "pe_experiments", "pdf.fonttype": 42}
    settings |= {"font.size": 8, "axes.titlesize": 8.5}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        try:
            yield
        finally:
            _formats.reset(token)


def save(figure: Figure, folder: Path, slug: str) -> list[Path]:
    """Write a figure as PNG, SVG and PDF, or in the formats of `drawing`."""
    if layout := figure.get_layout_engine():  # compute the layout once for all formats
        layout.execute(figure)
        figure.set_layout_engine(None)
    paths = [folder / f"{slug}.{kind}" for kind in _formats.get()]
    for path in paths:
        write_figure(figure, path, FORMATS[path.suffix[1:]])
    return paths


def write_figure(figure: Figure, path: Path, metadata: dict[str, Any] | None = None) -> None:
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=150, metadata=metadata)
    write_atomically(path, content.getvalue())


def panel_grid(
    count: int, columns: int, row_height: float, margin: float = 0.0, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure and panels open to the top right, at most ``columns`` a row; heights are in inches."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(FIGURE_WIDTH, margin + row_height * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for axes in panels[count:]:
        axes.remove()
    for axes in panels[:count]:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels[:count]


def length_axis(
    axes: Axes, lengths: Iterable[float], max_length: int, name: str, accuracy: bool = True
) -> None:
    """Set up a logarithmic x axis of input lengths and shade the training lengths.

    ``name`` labels the y axis, which spans 0 to 1 if ``accuracy`` is true.
    """
    ticks = np.unique(np.fromiter(lengths, dtype=float))
    axes.set_xscale("log", base=2)
    # `metric_axis` writes a label at the longest training length even if it was not evaluated.
    left = min(ticks.min(), max_length) / 1.15
    right = max(ticks.max(), max_length) * 1.15
    axes.set_xlim(left, right)
    if accuracy:
        axes.set_ylim(-0.02, 1.03)
    axes.xaxis.set_major_locator(FixedLocator(_labelled_lengths(ticks, max_length, axes)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("input length")
    axes.set_ylabel(name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axvspan(left, max_length, color="0.92", zorder=0)


def _labelled_lengths(ticks: np.ndarray, max_length: int, axes: Axes) -> list[float]:
    """Return lengths whose labels do not overlap, with the longest training length if it is a tick."""
    inches = axes.get_position().width * axes.figure.get_figwidth()  # type: ignore[union-attr]
    smallest_gap = 0.22 / inches * (np.log2(ticks.max() / ticks.min()) or 1.0)
    labelled = [float(max_length)] if max_length in ticks else []
    for tick in ticks:
        if all(abs(np.log2(tick / neighbour)) > smallest_gap for neighbour in labelled):
            labelled.append(float(tick))
    return labelled


def bounded_metric(curves: pd.DataFrame) -> Metric:
    """Return the metric that chance and the bag ceiling bound: exact match for answers of one token."""
    has_one_token = "answer_tokens" in curves and curves["answer_tokens"].eq(1).all()
    return EXACT_MATCH if has_one_token and curves["exact_match"].notna().any() else TOKEN_ACCURACY


def drawn_metrics(curves: pd.DataFrame, compared: Metric = EXACT_MATCH) -> tuple[Metric, ...]:
    """Return the metrics to draw from rows of ``extrapolation.csv`` if runs are compared in one of them.

    Language models have no exact match. For answers of one token it equals token accuracy, which is left out.
    """
    if curves["exact_match"].isna().all():
        return LOSS, TOKEN_ACCURACY
    further = (TOKEN_ACCURACY,) if bounded_metric(curves) == TOKEN_ACCURACY else ()
    is_measured = compared.name in curves and curves[compared.name].notna().any()
    if compared in (EXACT_MATCH, TOKEN_ACCURACY) or not is_measured:
        return EXACT_MATCH, *further
    return compared, EXACT_MATCH


def metric_axis(
    axes: Axes, curves: pd.DataFrame, max_length: int, metric: Metric, words: bool = True
) -> None:
    """Set up the `length_axis` of a metric; of the `bounded_metric` also draw chance and the bag ceiling.

    ``words`` adds text labels to the shaded training lengths and to these lines.
    """
    is_share = metric.bounds == (0, 1)
    length_axis(axes, curves["content_length"], max_length, metric.label_with_unit, is_share)
    ceilings = CEILINGS if metric == bounded_metric(curves) else {}
    for column, (name, dashes) in ceilings.items():
        measured = curves.reindex(columns=["content_length", column]).dropna()
        mean = measured.groupby("content_length")[column].mean().astype(float)
        if mean.empty:
            continue
        axes.plot(mean.index, mean, linestyle=dashes, color=GREY, linewidth=1.0, zorder=2)
        if words:  # at the left end, because curves of learned tasks are far above it there
            left_end = (mean.index[0], mean.iloc[0])
            axes.annotate(name, left_end, (2, 3), textcoords="offset points", fontsize=7, color=GREY)
    if words:
        above = 1.06 / 1.05  # in units of the panel's height, whatever the scale
        axes.text(max_length / 1.03, above, "training lengths", transform=axes.get_xaxis_transform(),
                  ha="right", va="bottom", fontsize=7, color=GREY)  # fmt: skip


def draw_seeds(axes: Axes, x: Sequence[Any], values: pd.DataFrame, style: Style) -> None:
    """Draw values [seeds, points] as dots, and their mean over seeds as a line."""
    colour, marker = style
    axes.plot(x, values.T, ".", color=colour, markersize=3, alpha=0.5)
    axes.plot(x, values.mean(), color=colour, marker=marker, markersize=4.5, linewidth=1.6)


def bits_axis(axes: Axes) -> None:
    """Set up a logarithmic axis of bits per byte."""
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_locator(FixedLocator([2, 2.5, 3, 4, 5, 6, 8]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda bits, _: f"{bits:g}")


def legend_below(
    figure: Figure, style_of: Mapping[str, Style], labels: Iterable[str], unlearned: Collection[str] = ()
) -> None:
    """Add a legend below the panels, in as many columns as fit, and enlarge the figure for it.

    Encodings have their printed names, as in tables (`printed_name`).
    Encodings in ``unlearned`` have a dashed line and the label "did not learn".
    """
    entries = [
        Line2D([], [], color=style_of[label][0], marker=style_of[label][1], markersize=5, linewidth=1.8,
               linestyle="--" if label in unlearned else "-",
               label=escaped(printed_name(label)) + (" (did not learn)" if label in unlearned else ""))
        for label in labels
    ]  # fmt: skip
    if not entries:
        return
    longest = max(len(str(entry.get_label())) for entry in entries)
    columns = min(len(entries), max(1, int(figure.get_figwidth() / (0.065 * longest + 0.45))))
    figure.set_figheight(figure.get_figheight() + 0.18 * math.ceil(len(entries) / columns))
    figure.legend(handles=entries, loc="outside lower center", ncols=columns, frameon=False)


def run_figure(rows: Sequence[dict[str, Any]], label: str, task: str, max_length: int, path: Path) -> None:
    """Draw the `drawn_metrics` of a run, the rows of ``extrapolation.csv``, over input length as PNG."""
    colour, marker = styles([label])[label]
    curve = pd.DataFrame(rows)
    metrics = drawn_metrics(curve)
    figure = Figure(figsize=(4.5 * max(len(metrics), 1.3), 3.6), layout="constrained")
    figure.suptitle(escaped(f"{printed_name(label)} on {task}", 110))
    for axes, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        lengths = curve["content_length"]
        if metric.binary:
            low, high = (curve[column].astype(float) for column in metric.columns[1:])
            axes.fill_between(lengths, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(lengths, curve[metric.name], color=colour, marker=marker, clip_on=False, zorder=3)
        metric_axis(axes, curve, max_length, metric)
    write_figure(figure, path)


def render(template: Path, data: Any = None, **values: Any) -> str:
    """Render a self-contained HTML page from a template and its variables.

    ``data`` becomes JSON that is safe in a script element.
    """
    json_text = json.dumps(data, sort_keys=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        json_text = json_text.replace(sign, f"\\u{ord(sign):04x}")
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode()
    return environment.get_template(template.name).render(data=Markup(json_text), colours=COLOURS, **values)


def markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; vertical bars in cells are escaped."""
    lines = []
    for row in [heading, ["---"] * len(heading), *rows]:
        cells = [re.sub(r"(?<!\\)\|", r"\|", cell) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
