"""Five tasks with and without a causal mask, by encoding.

Where a task was trained with several learning rates, a cell shows the one at which the scheme does worst, so
that the statement holds at all of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.comparison.words import listed
from pe_experiments.evaluation import SOLVED
from pe_experiments.publishing import (
    compare_archived,
    markdown_table,
    mean_in_words,
    with_settings,
)

SCHEMES = {
    "none": "none",
    "sinusoidal": "sinusoidal",
    "learned": "learned",
    "rope": "RoPE",
    "alibi": "ALiBi",
    "t5": "T5",
}
# Row of the table: task, model, number of different symbols (None: as trained).
QUESTIONS = {
    "copy, 10 different symbols": ("copy", "decoder", 10),
    "copy, 100 different symbols": ("copy", "decoder", 100),
    "copy backwards (`reverse`)": ("reverse", "decoder", None),
    "repeat the symbol three tokens back (`lag`)": ("lag", "decoder", None),
    "which of two marks comes first (`precedence`)": ("precedence", "decoder", None),
    "which bit is more frequent (`majority`)": ("majority", "decoder", None),
    "copy, encoder": ("copy", "encoder", None),
    "copy backwards, encoder": ("reverse", "encoder", None),
    "repeat the symbol three tokens back, encoder": ("lag", "encoder", None),
    "which of two marks comes first, encoder": ("precedence", "encoder", None),
    "which bit is more frequent, encoder": ("majority", "encoder", None),
}
ABSENT = "–"
NEAR = 1 - SOLVED  # seeds this close to 0 or 1 are counted, not averaged
LEGEND = """`k of n seeds`: k reach an exact match of 0.9, the others at most 0.1; otherwise the mean with its 95 % interval.
*Not learned*: fewer than half of the seeds reach 0.9 within the training lengths. –: not run."""
WORST = " Where several learning rates were run, a cell shows the result of the worst one."


def outcome(values: Iterable[float]) -> str:
    """``3 of 5 seeds`` where every seed is within `NEAR` of 0 or 1, else the mean with its interval."""
    numbers = list(values)
    if all(min(value, 1 - value) <= NEAR + 1e-9 for value in numbers):
        return f"{sum(value >= SOLVED for value in numbers)} of {len(numbers)} seeds"
    return mean_in_words(numbers)


def cell(runs: pd.DataFrame) -> str:
    """Exact match of a scheme at twice the training length, in the worst of its settings."""
    if runs.empty:
        return ABSENT
    settings = [group for _, group in runs.groupby("protocol")]
    unlearned = [group for group in settings if _solved(group) < len(group) / 2]
    if unlearned:
        worst = min(unlearned, key=_solved)
        at = f" at rate {worst['rate'].iloc[0]:g}" if len(unlearned) < len(settings) else ""
        return f"not learned{at} ({_solved(worst)} of {len(worst)} seeds)"
    return outcome(min((group["exact_match_at_2x"] for group in settings), key=pd.Series.mean))


def _solved(runs: pd.DataFrame) -> int:
    return int(runs["solved_in_distribution"].eq(True).sum())


def with_rates(runs: Runs) -> pd.DataFrame:
    """The runs with columns for learning rate, number of symbols, steps and batch size."""
    keys = {
        "rate": "training.learning_rate",
        "vocabulary": "task.vocab_size",
        "steps": "training.steps",
        "batch": "training.batch_size",
    }
    return with_settings(runs, **keys)


def answers(runs: Runs) -> str:
    """The table: a row per question that was run, a column per scheme, and the legend."""
    table = with_rates(runs)
    rows = []
    for text, (task, of, vocabulary) in QUESTIONS.items():
        mine = table[(table["task"] == task) & (table["model"] == of)]
        mine = mine if vocabulary is None else mine[mine["vocabulary"] == vocabulary]
        if len(mine):
            cells = [cell(mine[mine["label"] == scheme]) for scheme in SCHEMES]
            rows.append([text + _guessing(runs, mine), *cells])
    several = table.groupby("task")["rate"].nunique().max() > 1
    words = LEGEND + (WORST if several else "")
    return f"{markdown_table(['exact match at 2x', *SCHEMES.values()], rows)}\n\n{words}"


def _guessing(runs: Runs, mine: pd.DataFrame) -> str:
    """The accuracy of guessing, where an answer is one token."""
    curves = runs.curves[runs.curves["name"].isin(mine["name"])]
    twice = curves[curves["content_length"] == 2 * mine["max_length"].iloc[0]]
    return f"; guessing: {twice['chance'].mean():.2f}" if twice["answer_tokens"].eq(1).any() else ""


def survival(runs: Runs) -> str:
    """Copying in a decoder: a row per scheme, a column per vocabulary and learning rate."""
    table = with_rates(runs)
    copied = table[(table["task"] == "copy") & (table["model"] == "decoder")]
    settings = {
        f"{vocabulary:g} symbols, rate {rate:g}": group
        for (vocabulary, rate), group in copied.groupby(["vocabulary", "rate"])
    }
    if len(settings) < 2:
        return "One vocabulary and one learning rate were run: whether the results hold for others is open."

    def shown(group: pd.DataFrame) -> str:
        if group.empty:
            return ABSENT
        return f"{_solved(group)} of {len(group)}, then {outcome(group['exact_match_at_2x'])}"

    rows = [
        [name, *(shown(group[group["label"] == scheme]) for group in settings.values())]
        for scheme, name in SCHEMES.items()
    ]
    table_ = markdown_table(["copy, decoder", *settings], rows)
    return (
        "Each cell: first the number of seeds that reach 0.9 within the training lengths, then exact match at twice the "
        f"longest training length.\n\n{table_}"
    )


def everywhere(runs: Runs, pairs: pd.DataFrame) -> str:
    """Which schemes are significantly above which others past training at every setting of copying, decoder."""
    copied = runs.runs[(runs.runs["task"] == "copy") & (runs.runs["model"] == "decoder")]
    settings = copied["protocol"].nunique()
    mine = pairs[pairs["protocol"].isin(copied["protocol"]) & pairs["separated"].eq(True)]
    found: dict[tuple[str, str], list[float]] = {}
    for row in mine.to_dict("records"):
        both = str(row["scheme"]), str(row["other"])
        found.setdefault(both if row["difference"] > 0 else both[::-1], []).append(abs(row["difference"]))
    always = {both: by for both, by in found.items() if len(by) == settings}
    if settings < 2 or not always:
        return ""
    said = [
        f"`{best}` over {listed(sorted(f'`{other}`' for one, other in always if one == best))}"
        for best in dict.fromkeys(best for best, _ in always)
    ]
    by = [difference for differences in always.values() for difference in differences]
    return f"""
Past the training lengths (the area under exact match over log length) these differences are significant at each of the
{settings} settings (permutation tests, Holm's method within a setting): {"; ".join(said)}
(means differ by {min(by):.2g} to {max(by):.2g}).
"""


def _longest(runs: Runs) -> int:
    return int(runs.runs["max_length"].max())


def _seeds(runs: Runs) -> str:
    counts = runs.runs.groupby(["protocol", "label"]).size()
    return f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"


def pages(folder: Path, runs: Runs) -> None:
    """The comparison, and ``README.md`` with one of its figures."""
    sections = compare_archived(folder, runs).table.set_index("protocol")["section"].to_dict()
    table = with_rates(runs)
    copied = table[(table["task"] == "copy") & (table["model"] == "decoder")].sort_values(
        ["vocabulary", "rate"]
    )
    few = copied[copied["vocabulary"] == copied["vocabulary"].min()]
    middle = few[few["rate"] == few["rate"].quantile(interpolation="nearest")]
    figures = folder / "figures"
    shutil.copy(figures / f"{sections[middle['protocol'].iloc[0]]}.png", figures / "answer.png")
    (folder / "README.md").write_text(page(runs, pd.read_csv(folder / "pairs.csv")))


def _steps(table: pd.DataFrame) -> str:
    """``2,000 steps for copy, reverse; 500 for lag``."""
    tasks = table.groupby("steps")["task"].unique().sort_index(ascending=False)
    return "; ".join(f"{steps:,} steps for {', '.join(sorted(names))}" for steps, names in tasks.items())


def page(runs: Runs, pairs: pd.DataFrame) -> str:
    """``README.md``."""
    table = with_rates(runs)
    rates = ", ".join(f"{rate:g}" for rate in sorted(set(table["rate"])))
    farthest = runs.curves["content_length"].max()
    return f"""# Which encodings extrapolate?

*Does a fixed, a learned, a relative or no encoding carry a small transformer past its training lengths?*

![Exact match and token accuracy over input length on copying, decoder](figures/answer.png)

{answers(runs)}

## Do the results hold for another vocabulary and learning rate?

{survival(runs)}
{everywhere(runs, pairs)}
## Set-up

Five tasks, trained on 1 to {_longest(runs)} symbols and evaluated up to {farthest} (2x: {2 * _longest(runs)}); a decoder (causal mask)
and an encoder (no mask); 2 layers, d=64, 4 heads; {_steps(table)};
batch size {table["batch"].iloc[0]}; AdamW, peak learning rate {rates}, float32; {_seeds(runs)} seeds per scheme. An exact match requires every
scored symbol to be right, in a decoder the end mark included (`lag` has none: each answer is read at its own token).
[Gaffke's intervals](../../docs/statistics.md).

**Limits.** One model size and short training on synthetic tasks: this says nothing about language models or
about fine-tuning at longer lengths. `majority` is a control: its answer does not depend on order.

Values by length, tests of all pairs of schemes, and methods: [report.html](report.html), [report.md](report.md),
[table.csv](table.csv), [pairs.csv](pairs.csv). All runs, each with the command that repeats it: [runs.csv](runs.csv).

```
python scripts/train.py sweep=core       # the runs; resumable
python scripts/results.py publish=core   # these CSVs from the runs
make results                             # tables, figures and pages from the CSVs
```
"""
