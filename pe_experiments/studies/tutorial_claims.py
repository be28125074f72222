"""What tutorials on sinusoidal encodings claim, and what was measured: a verdict per claim, from data alone.

Claims of vectors and code are judged in `audit_verdicts`; here those of trained models, on runs of
sweep=tutorial_claims. A verdict follows from a rule, so that other numbers give another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.statistics import FEWEST, Interval, mean_interval, paired_difference
from pe_experiments.comparison.style import COLOURS, WIDTHS, drawing, save
from pe_experiments.errors import UserError
from pe_experiments.evaluation import SOLVED, summarise
from pe_experiments.files import write_atomically
from pe_experiments.studies.audit_verdicts import DEPENDS, FAILS, HOLDS, Verdict, judged
from pe_experiments.studies.claim_figures import (
    bounds_figure,
    curves_figure,
    differences_figure,
    offsets_figure,
    order_figure,
    uniqueness_figure,
)
from pe_experiments.studies.figures_in_words import markdown_table, shown

TASKS = (("copy", "decoder"), ("precedence", "encoder"))
INSIDE, TWICE, BEYOND = "exact_match_in_distribution", "exact_match_at_2x", "token_accuracy_extrapolation"
AREA = "exact_match_extrapolation"
WORDS = {
    INSIDE: "exact match inside",
    TWICE: "exact match at 2x",
    AREA: "exact match beyond",
    BEYOND: "token accuracy beyond",
}
ABSOLUTE = ("none", "sinusoidal", "learned", "learned_sinusoidal")
COMBINED = ("sinusoidal", "learned")
EXTENSIONS = ("rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn")
NAMED = 4  # differences named in a finding; the figure has all
SAME = 0.05  # a fall of exact match that still counts as carrying over

Differences = dict[str, Interval]  # what is compared, in words -> a difference paired by seed


def verdicts(
    audits: pd.DataFrame, table: pd.DataFrame, curves: pd.DataFrame, extension: pd.DataFrame
) -> list[Verdict]:
    """Every claim: those that need no training first.

    Args:
        audits: from `audits.measure`.
        table: from `comparison.table.scheme_table`, of the runs of the study.
        curves: ``curves`` of the same `Runs`.
        extension: columns ``name, seed, scheme, length, exact_match, token_accuracy``: RoPE models read with
            their frequencies as trained (``rope``) and rescaled.

    Raises:
        UserError: a figure is missing in ``audits``, or runs of the study in ``table``.
    """
    return [*judged(audits), *of_training(Trained(table, curves, extension))]


def of_training(trained: Trained) -> list[Verdict]:
    """The verdicts that rest on trained models."""
    parts = (_order_learnt, _combined, _room, _fixed_or_learned, _extended)
    return [verdict for part in parts for verdict in part(trained)]


class Trained:
    """The runs of the study: means with intervals from the table, and differences paired by seed."""

    def __init__(self, table: pd.DataFrame, curves: pd.DataFrame, extension: pd.DataFrame):
        self.extension = extension.rename(columns={"length": "content_length"})
        self._curves = curves[curves["in_summary"].eq(True)]
        self._table = table.assign(
            width=table["settings"].str.extract(r"model\.d_model=(\d+)")[0].astype(int)
        )
        # The width that schemes are compared at is the one at which there is more than sinusoidal.
        self.width = int(self.row(*TASKS[0], "learned", None)["width"])

    def row(self, task: str, model: str, label: str, width: int | None = 0) -> pd.Series:
        """The table's row of a scheme; ``width`` 0 is the common one, None any.

        Raises:
            UserError: there is none, or more than one.
        """
        width = self.width if width == 0 else width
        found = self._table[
            (self._table["task"] == task) & (self._table["model"] == model) & (self._table["scheme"] == label)
        ]
        found = found if width is None else found[found["width"] == width]
        if len(found) != 1:
            raise UserError(
                f"tutorial_claims: {len(found)} protocols of {task}, {model}, {label} at d_model={width}, "
                "not one; finish python scripts/train.py sweep=tutorial_claims"
            )
        return found.iloc[0]

    def widths(self, task: str, model: str) -> list[int]:
        """The widths sinusoidal was trained at."""
        same = (self._table["task"] == task) & (self._table["model"] == model)
        return sorted(self._table.loc[same & (self._table["scheme"] == "sinusoidal"), "width"])

    def curves(self, row: pd.Series) -> pd.DataFrame:
        """A row per run and length."""
        mine = (self._curves["protocol"] == row["protocol"]) & (self._curves["label"] == row["scheme"])
        return self._curves[mine]

    def by_seed(self, row: pd.Series, metric: str) -> dict[int, float]:
        """A figure of every run."""
        return _by_seed(self.curves(row), int(row["max_length"]), metric)

    def difference(self, first: pd.Series, second: pd.Series, metric: str) -> Interval:
        """First minus second."""
        return paired_difference(self.by_seed(first, metric), self.by_seed(second, metric)).difference

    def extended(self, scheme: str) -> pd.DataFrame:
        """A row per RoPE model and length, read with ``scheme``."""
        return self.extension[self.extension["scheme"] == scheme]

    def extension_gain(self, scheme: str, metric: str) -> Interval:
        """What reading with ``scheme`` adds to the frequencies as trained."""
        longest = int(self.row("copy", "decoder", "rope")["max_length"])
        first, second = (_by_seed(self.extended(name), longest, metric) for name in (scheme, "rope"))
        return paired_difference(first, second).difference


def _by_seed(curves: pd.DataFrame, max_length: int, metric: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for seed, rows in curves.groupby("seed"):
        points: Any = rows[["content_length", "exact_match", "token_accuracy"]].to_dict("records")
        value = summarise(points, max_length)[metric]
        found[int(str(seed))] = float("nan") if value is None else float(value)
    return found


def _shown(interval: Interval, sign: str = "") -> str:
    if np.isnan(interval.low):
        return f"{interval.estimate:{sign}.2f} (an observation)"
    if not sign:
        return shown(interval)
    return f"{interval.estimate:+.2f} ({interval.low:+.2f} to {interval.high:+.2f})"


def _mean(row: pd.Series, metric: str) -> str:
    return _shown(Interval(*(float(row[f"{metric}{end}"]) for end in ("", "_low", "_high"))))


def _means(rows: Mapping[str, pd.Series], metric: str) -> str:
    return ", ".join(f"{name} {_mean(row, metric)}" for name, row in rows.items())


def _weigh(differences: Differences) -> str:
    """Holds: some intervals favour the claim, none speaks against it. Does not hold: none favours it."""
    favour = [interval.low > 0 for interval in differences.values()]
    against = [interval.high < 0 for interval in differences.values()]
    if any(np.isnan(interval.low) for interval in differences.values()):
        return DEPENDS
    return FAILS if not any(favour) else DEPENDS if any(against) else HOLDS


def _clear(differences: Differences) -> str:
    """The differences whose interval leaves out 0, in words."""
    clear = {name: d for name, d in differences.items() if d.low > 0 or d.high < 0}
    largest = sorted(clear, key=lambda name: -abs(clear[name].estimate))[:NAMED]
    said = "; ".join(f"{name} {_shown(clear[name], '+')}" for name in largest)
    counted = f"{len(clear)} of {len(differences)} differences clear of 0"
    colon = ", the largest: " if len(clear) > NAMED else ": " if clear else ""
    return f"{counted}{colon}{said}."


def _order_learnt(t: Trained) -> Iterator[Verdict]:
    row = t.row("precedence", "encoder", "none")
    best = t.row("precedence", "encoder", "sinusoidal")
    chance = float(t.curves(row)["chance"].mean())
    text = f"Exact match inside: {_means({'none': row, 'sinusoidal': best}, INSIDE)}; chance {chance:.2f}."
    blind = row[f"{INSIDE}_high"] < chance + SAME and best[f"{INSIDE}_low"] > chance + SAME
    verdict = DEPENDS if np.isnan(row[f"{INSIDE}_low"]) else HOLDS if blind else FAILS
    claim = "A trained encoder needs positions to know what comes first"
    yield Verdict(claim, "precedence, encoder", text, verdict, "claims-fixed-or-learned")


def added_or_concatenated(t: Trained) -> Differences:
    """Added minus put beside the token."""
    return {
        f"{label}, {task}, {WORDS[metric]}": t.difference(
            t.row(task, model, label), t.row(task, model, f"{label}(combine=concat)"), metric
        )
        for task, model in TASKS
        for label in COMBINED
        for metric in (INSIDE, BEYOND)
    }


def _combined(t: Trained) -> Iterator[Verdict]:
    differences = added_or_concatenated(t)
    tested = "Added minus concatenated (half the columns each), paired by seed"
    text = _clear(differences)
    yield Verdict("Add, do not concatenate", tested, text, _weigh(differences), "claims-add-or-concat")


def _room(t: Trained) -> Iterator[Verdict]:
    differences, said = {}, []
    for task, model in TASKS:
        widths = t.widths(task, model)
        rows = {f"d={d}": t.row(task, model, "sinusoidal", d) for d in widths}
        said.append(f"{task} inside: {_means(rows, INSIDE)}")
        for metric in (INSIDE, BEYOND):
            name = f"{task}, {WORDS[metric]}, d={widths[-1]} minus d={widths[0]}"
            ends = rows[f"d={widths[-1]}"], rows[f"d={widths[0]}"]
            differences[name] = t.difference(*ends, metric)
    text = f"{'; '.join(said)}. {_clear(differences)}"
    tested = "sinusoidal at several d_model; the whole model grows with it"
    claim = "A larger d_model gives the encoding more room"
    yield Verdict(claim, tested, text, _weigh(differences), "claims-width")


def _fixed_or_learned(t: Trained) -> Iterator[Verdict]:
    figure = "claims-fixed-or-learned"
    for label, claim, wanted in (
        ("sinusoidal", "Fixed sinusoids generalise to lengths not seen", False),
        ("learned", "Learned positions adapt, but not beyond their length", True),
    ):
        rows = {task: t.row(task, model, label) for task, model in TASKS}
        falls = {task: mean_interval(_falls(t, row)) for task, row in rows.items()}
        text = "; ".join(
            f"{task} {_mean(row, INSIDE)} inside, {_mean(row, TWICE)} at 2x" for task, row in rows.items()
        )
        text = f"Exact match: {text}. The fall: {', '.join(f'{k} {_shown(d)}' for k, d in falls.items())}."
        if any(np.isnan(d.low) for d in falls.values()):
            verdict = DEPENDS
        else:
            learnt = [float(row[INSIDE]) >= SOLVED for row in rows.values()]
            falling = [(d.low > SAME) if wanted else (d.high <= SAME) for d in falls.values()]
            as_claimed = [k and f for k, f in zip(learnt, falling, strict=True)]
            verdict = HOLDS if all(as_claimed) else DEPENDS if any(as_claimed) else FAILS
        tested = f"Trained short, read at twice the length; a fall over {SAME} counts"
        yield Verdict(claim, tested, text, verdict, figure)
    for first, second, claim in (
        ("sinusoidal", "learned", "Fixed sinusoids reach further than learned positions"),
        ("learned_sinusoidal", "learned", "A learned table should start from sinusoids"),
        ("sinusoidal", "none", "Sinusoids reach further than no positions"),
    ):
        differences = {
            f"{k}, {WORDS[metric]}": t.difference(t.row(k, m, first), t.row(k, m, second), metric)
            for k, m in TASKS
            for metric in (TWICE, AREA, BEYOND)
        }
        tested = f"{first} minus {second}, paired by seed"
        yield Verdict(claim, tested, _clear(differences), _weigh(differences), figure)


def _falls(t: Trained, row: pd.Series) -> list[float]:
    inside, twice = t.by_seed(row, INSIDE), t.by_seed(row, TWICE)
    return [inside[seed] - twice[seed] for seed in inside]


def _extended(t: Trained) -> Iterator[Verdict]:
    row = t.row("copy", "decoder", "rope")
    longest = int(row["max_length"])
    found = {name: t.extended(name) for name in ("rope", *EXTENSIONS)}
    twice = {name: _by_seed(curves, longest, TWICE) for name, curves in found.items()}
    inside = {name: _by_seed(curves, longest, INSIDE) for name, curves in found.items()}
    means = {name: mean_interval(list(values.values())) for name, values in twice.items()}
    said = ", ".join(f"{name} {_shown(mean)}" for name, mean in means.items())
    differences = {
        f"{name}, {WORDS[metric]}": t.extension_gain(name, metric)
        for name in EXTENSIONS
        for metric in (TWICE, BEYOND)
    }
    text = f"Exact match at {2 * longest} digits: {said}. {_clear(differences)}"
    tested = f"RoPE trained to {longest} digits (copy), frequencies rescaled when read; minus as trained"
    claim = "Rescaled frequencies carry RoPE to longer inputs without training"
    verdict = _weigh(differences)
    falls = [paired_difference(inside["rope"], twice[name]).difference for name in EXTENSIONS]
    if verdict == HOLDS and not any(fall.high <= SAME for fall in falls):
        verdict = DEPENDS  # better than as trained, and still short of carrying over
    yield Verdict(claim, tested, text, verdict, "claims-extension")


def width_figure(t: Trained) -> Figure:
    """Sinusoidal by width: means with their intervals."""
    figure = Figure(figsize=(WIDTHS["double"], 2.3), layout="constrained")
    for axes, (task, model) in zip(figure.subplots(1, len(TASKS)), TASKS, strict=True):
        widths = t.widths(task, model)
        for metric, colour, marker in zip((INSIDE, TWICE, BEYOND), COLOURS, "os^", strict=False):
            rows = [t.row(task, model, "sinusoidal", width) for width in widths]
            ends = [(float(row[f"{metric}_low"]), float(row[f"{metric}_high"])) for row in rows]
            for width, (low, high) in zip(widths, ends, strict=True):
                axes.plot([width, width], [low, high], color=colour, linewidth=1)
            means = [float(row[metric]) for row in rows]
            axes.plot(widths, means, color=colour, marker=marker, markersize=4, label=WORDS[metric])
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.set_ylim(-0.03, 1.05)
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
    rows = [asdict(verdict) for verdict in [*untrained, *learnt]]
    write_atomically(claims, pd.DataFrame(rows).to_csv(index=False))
    write_atomically(page, readme(untrained, learnt, trained))
    return [page, claims, *paths]


def _figures(audits: pd.DataFrame, t: Trained) -> Iterator[tuple[str, Figure]]:
    yield "claims-uniqueness", uniqueness_figure(audits)
    yield "claims-offsets", offsets_figure(audits)
    yield "claims-order", order_figure(audits)
    yield "claims-bounds", bounds_figure(audits)
    yield "claims-add-or-concat", differences_figure(added_or_concatenated(t), "added minus concatenated")
    yield "claims-width", width_figure(t)
    absolute = {f"{k}, {m}": {n: t.curves(t.row(k, m, n)) for n in ABSOLUTE} for k, m in TASKS}
    longest = int(t.row("copy", "decoder", "rope")["max_length"])
    yield "claims-fixed-or-learned", curves_figure(absolute, longest, {})
    rope = {"copy, decoder": {name: t.extended(name) for name in ("rope", *EXTENSIONS)}}
    yield "claims-extension", curves_figure(rope, longest, {"rope": " (as trained)"})


def readme(untrained: Sequence[Verdict], learnt: Sequence[Verdict], t: Trained) -> str:
    """The page, every number of it from the data."""
    every, vectors, models = (
        [[verdict.verdict for verdict in part].count(kind) for kind in (HOLDS, FAILS, DEPENDS)]
        for part in ([*untrained, *learnt], untrained, learnt)
    )
    row = t.row("copy", "decoder", "sinusoidal")
    cells = [(v.claim, v.tested, v.finding, v.verdict, _link(v)) for v in [*untrained, *learnt]]
    heading = ("claim", "how tested", "finding", "verdict", "figure")
    table = markdown_table(heading, [[cell.replace("|", "\\|") for cell in line] for line in cells])
    return f"""# What tutorials on sinusoidal encodings claim

**Question.** Which claims that tutorials make of positional encodings hold when they are measured?

**Set-up.** Claims of vectors, order and code are audited without training. Claims of trained models rest on
copying (decoder) and precedence (encoder), trained up to {row["max_length"]:.0f} symbols
with {row["seeds"]:.0f} seeds. Intervals are 95 % intervals (Student's t over seeds), not adjusted for their
number; differences are paired by seed. What is the same in all seeds has no interval; what has none for want
of seeds is called an observation.

**Answer.** Of {sum(every)} claims {every[0]} hold, {every[1]} do not, and for {every[2]} it depends on what
the finding names. Of vectors, order and code {vectors[0]} of {sum(vectors)} hold, of trained models
{models[0]} of {sum(models)}. Sinusoids copy with exact match {_mean(row, INSIDE)} inside the training
lengths and {_mean(row, TWICE)} at twice the longest of them.

![Fixed or learned, inside and beyond the training lengths](figures/claims-fixed-or-learned.png)

Exact match and token accuracy by input length; training lengths are shaded, thin lines are seeds.

{table}

A claim about differences `holds` where some interval favours it and none speaks against it, `does not hold`
where none favours it (no support here, which is no proof of the opposite), and `depends` where some do and
some speak against it, or where there are under {FEWEST} seeds.
An extension carries RoPE on where exact match falls by {SAME} or less.
Inside: mean over the training lengths. At 2x: at twice the longest. Beyond: area over log2 length from once
to eight times it.

```
python scripts/train.py sweep=tutorial_claims
python scripts/results.py publish=tutorial_claims    # its CSVs anew; make results: the pages from the CSVs
```
"""


def _link(verdict: Verdict) -> str:
    name = verdict.figure.removeprefix("claims-").replace("-", " ")
    return f"[{name}](figures/{verdict.figure}.png)" if name else ""
