"""The result of a comparison: its tables, a row per encoding and per pair, and the sentences from them."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import pe_experiments.comparison.statistics as statistics
from pe_experiments.comparison.protocols import Protocol, protocols_of
from pe_experiments.comparison.runs import Row, Runs, finite
from pe_experiments.comparison.sentences import (
    at_floor,
    caveats,
    mixed_metrics,
    result_sentence,
    seeds_sentence,
)
from pe_experiments.comparison.statistics import ALPHA, EQUAL_WITHIN, FEWEST, Interval, seed_interval
from pe_experiments.drawing import CEILINGS, Style, styles
from pe_experiments.evaluation.metrics import EXACT_MATCH, LOSS, SOLVED, TOKEN_ACCURACY, Summary, summaries_of
from pe_experiments.store.directory import DIVERGED
from pe_experiments.tasks import DEPTHS
from pe_experiments.terminal.errors import UserError, allowed, few, nearest

DIFFERENCE = 0.1  # of two means: smaller ones seldom matter for a choice
ALL_VALUES_EQUAL = "all seeds of both have the same value"
PAIRS = ["section", "protocol", "metric", "encoding", "other", "seeds", "other_seeds", "not_tested",
         "difference", "p", "p_holm", "separated"]  # fmt: skip


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of `compare`.

    Attributes:
        table: one row per protocol and encoding.
        pairs: one row per protocol and pair of encodings.
        runs: the tables of runs, curves and training, and the excluded runs.
        protocols: the groups of runs that were compared with each other.
        summary: the metric, and the lengths, in which encodings are compared; `metric` is its column.
        baseline: the encoding against which the others are tested; None if all pairs are tested.
        difference: the difference of means for which `plans` says how many seeds it takes.
        files: the files that were written.
    """

    table: pd.DataFrame
    pairs: pd.DataFrame
    runs: Runs
    protocols: list[Protocol]
    summary: Summary
    baseline: str | None = None
    difference: float = DIFFERENCE
    files: list[Path] = field(default_factory=list)

    def __repr__(self) -> str:
        tasks = few([protocol.title for protocol in self.protocols])
        return f"<Comparison of {few(self.encodings)} on {tasks}: {len(self.runs.runs)} runs, {self.metric}>"

    @property
    def metric(self) -> str:
        """Return the column of ``table`` in which encodings are compared."""
        return self.summary.column

    @property
    def encodings(self) -> list[str]:
        """Return the labels of the encodings in the order of the table."""
        return list(map(str, self.table["encoding"].unique()))

    @cached_property
    def styles(self) -> dict[str, Style]:
        """Return the colour and marker of each encoding."""
        return styles(self.encodings)

    def rows(self, protocol: Protocol, pairs: bool = False) -> list[Row]:
        """Return the rows of a protocol in ``table``, or with ``pairs`` in the table of pairs."""
        table = self.pairs if pairs else self.table
        rows: list[Any] = table[table["protocol"] == protocol.hash].to_dict("records")
        return rows

    def best(self, protocol: Protocol) -> tuple[list[str], list[str]]:
        """Return the best encoding followed by those tied with it, and the significantly different ones.

        The best is tested against each other encoding that learned the task, with Holm's adjustment over
        these tests. Both lists are empty if the best mean is 0 or has too few seeds.
        """
        values = _seed_values(protocol, self.summary)
        compared = [row for row in self.rows(protocol) if row["compared"] and finite(row[self.metric])]
        means = {str(row["encoding"]): row[self.metric] for row in compared}
        ordered = sorted(means, key=means.__getitem__, reverse=not self.summary.lower_is_better)
        if not ordered:
            return [], []
        best, *others = ordered
        if len(values[best]) < FEWEST or at_floor(means[best], self.summary):
            return [], []
        tests = [_test(best, encoding, values, dict.fromkeys(means, True)) for encoding in others]
        adjusted = dict(zip(others, statistics.holm([test["p"] for test in tests]), strict=True))
        separated = [encoding for encoding in others if adjusted[encoding] <= ALPHA]
        testable = [test["other"] for test in tests if test["not_tested"] in (None, ALL_VALUES_EQUAL)]
        return [best, *(encoding for encoding in testable if encoding not in separated)], separated

    def depths(self, protocol: Protocol) -> dict[str, pd.DataFrame]:
        """Return mean exact match [depth, length] for each encoding; diverged runs count as 0."""
        if self.runs.depth.empty:
            return {}
        runs = protocol.runs[["name", "label", "status"]]
        measured = runs.merge(self.runs.depth, on="name")
        cells = measured[["length", "depth"]].drop_duplicates()
        diverged = runs[runs["status"] == DIVERGED].merge(cells, how="cross").assign(exact_match=0.0)
        tables = self._means(pd.concat([measured, diverged]), "depth", "exact_match")
        return {label: table.reindex(DEPTHS) for label, table in tables.items()}

    def by_step(self, protocol: Protocol) -> dict[str, pd.DataFrame]:
        """Return the mean over seeds [step, length] of the first drawn metric for each encoding.

        Steps that not all runs of an encoding have are left out. Diverged runs are not included.
        """
        metric = protocol.drawn(self.summary)[0].name
        if metric not in self.runs.by_step:
            return {}
        rows = protocol.runs[["name", "label"]].merge(self.runs.by_step, on="name")
        runs_at_step = rows.groupby(["label", "step"])["name"].transform("nunique")
        shared = rows[runs_at_step == rows.groupby("label")["name"].transform("nunique")]
        return self._means(shared.dropna(subset=[metric]), "step", metric)

    def _means(self, rows: pd.DataFrame, index: str, value: str) -> dict[str, pd.DataFrame]:
        """Return the mean of a column over seeds [index, length] for each encoding that has rows."""
        by_label = {str(label): of_label for label, of_label in rows.groupby("label")}
        return {
            label: by_label[label].pivot_table(value, index, "length")
            for label in self.encodings
            if label in by_label
        }

    @cached_property
    def sentences(self) -> dict[str, str]:
        """Return a sentence with the result of each protocol, by the title of the protocol."""
        return {
            protocol.title: result_sentence(self.rows(protocol), self.summary, *self.best(protocol))
            for protocol in self.protocols
        }

    @cached_property
    def plans(self) -> dict[str, str]:
        """Return how many seeds `difference` takes, by the title of the protocol, where it can be said."""
        plans = {}
        for protocol in self.protocols:
            pairs = self.rows(protocol, pairs=True)
            plan = seeds_sentence(self.rows(protocol), pairs, self.summary, self.difference)
            if plan:
                plans[protocol.title] = plan
        return plans

    @cached_property
    def notes(self) -> list[str]:
        """Return the caveats, each preceded by the protocols to which it applies."""
        titles: dict[str, list[str]] = {}
        for protocol in self.protocols:
            for caveat in caveats(protocol, self.rows(protocol), self.runs.tuning):
                titles.setdefault(caveat, []).append(protocol.title)
        notes = []
        for caveat, affected in titles.items():
            applies_to_all = len(affected) == len(self.protocols) > 1
            notes.append(f"{'all tasks' if applies_to_all else '; '.join(affected)}: {caveat}")
        return [*notes, *mixed_metrics(self.runs)]


def build_comparison(
    runs: Runs, metric: str | None = None, baseline: str | None = None, difference: float = DIFFERENCE
) -> Comparison:
    """Return the comparison of these runs without writing files; see `compare` for the arguments."""
    protocols = protocols_of(runs)
    if metric is None:
        exact = any(protocol.exact for protocol in protocols)
        metric = EXACT_MATCH.name if exact else LOSS.name
    summaries = summaries_of(runs.metrics)
    column = metric if metric in summaries else f"{metric}_extrapolation"
    if column not in summaries:
        raise UserError(f"metric={metric} is not a metric of a run.{nearest(metric, summaries)}")
    summary = summaries[column]
    table = encoding_table(protocols, summary)
    pairs = pair_table(protocols, table, summary, baseline)
    return Comparison(table, pairs, runs, protocols, summary, baseline, difference)


def encoding_table(protocols: Sequence[Protocol], summary: Summary) -> pd.DataFrame:
    """Return one row per protocol and encoding, the best past training first.

    * A mean over seeds ``X``, such as ``exact_match@20`` (at length 20), has the interval ``X_low`` to
      ``X_high``.
    * ``X_sd`` of the compared metric is the standard deviation over seeds.
    * ``reached@20`` is the number of seeds with an exact match of at least 0.9 at length 20; its interval is
      the interval of the share of seeds. ``solved`` is the same for the training lengths.
    * ``compared`` says whether the encoding is tested. For metrics past training, at least half of its runs
      must have solved the training lengths.
    * ``horizon`` is missing if a seed has none, because it fails at the first length, past training.
    * Losses have columns if encodings are compared in a loss or if exact match was not measured.
    * ``seconds_per_step`` is the median over runs, if all runs of the protocol used the same kind of machine.
    """
    rows = []
    for protocol in protocols:
        rows += sorted(_encoding_rows(protocol, summary), key=lambda row: _sort_key(row, summary))
    table = pd.DataFrame(rows).fillna(math.nan)  # also replaces None
    by_length = [str(column) for column in table if "@" in str(column)]
    by_length.sort(key=lambda column: (int(column.partition("@")[2].partition("_")[0]), column))
    return table[[column for column in table if column not in by_length] + by_length]


def _seed_values(protocol: Protocol, summary: Summary) -> dict[str, np.ndarray]:
    by_label = protocol.runs.groupby("label")[summary.column]
    return {str(label): values.to_numpy(float) for label, values in by_label}


def _sort_key(row: Row, summary: Summary) -> tuple[float, str]:
    metric = LOSS if math.isnan(row["exact_match_extrapolation"]) else EXACT_MATCH
    if summary.metric not in (EXACT_MATCH, TOKEN_ACCURACY):
        metric = summary.metric
    score = row.get(f"{metric.name}_extrapolation", math.nan)
    if metric.higher_is_better:
        score = -score
    return math.inf if math.isnan(score) else score, row["encoding"]


def _encoding_rows(protocol: Protocol, summary: Summary) -> Iterator[Row]:
    ceiling_columns = protocol.curves.reindex(columns=["content_length", *CEILINGS]).astype(float)
    ceilings = ceiling_columns.groupby("content_length").mean()  # NaN where unknown
    shared = protocol.curves[protocol.curves["in_summary"]]
    with_loss = not protocol.exact or summary.metric == LOSS
    metrics = [metric for metric in protocol.metrics if with_loss or metric != LOSS]
    for label, runs in protocol.runs.groupby("label"):
        solved = runs["solved_in_distribution"].eq(True)
        timed = protocol.timed and len(runs) > 1
        unmeasured = bool(runs["exact_match_in_distribution"].isna().all())
        row: Row = {
            "section": protocol.slug,
            "task": protocol.task,
            "model": protocol.model,
            "protocol": protocol.hash,
            "max_length": protocol.max_length,
            "encoding": str(label),
            "seeds": len(runs),
            "diverged": int(runs["status"].eq(DIVERGED).sum()),
            **_count_columns("solved", solved),
            "metric": summary.column,
            "compared": unmeasured or summary.span == "in_distribution" or bool(solved.mean() >= 0.5),
            "horizon": runs["horizon"].astype(float).mean(skipna=False),
            "horizon_censored": int(runs["horizon_censored"].eq(True).sum()),
            **{key: runs[key].astype(float).mean() for key in ("parameters", "encoding_parameters")},
            "seconds_per_step": runs["seconds_per_step"].astype(float).median() if timed else math.nan,
        }
        for column, one in summaries_of(metrics).items():
            row |= _interval_columns(column, seed_interval(runs[column].to_numpy(float), one.metric.bounds))
        row[f"{summary.column}_sd"] = runs[summary.column].astype(float).std()  # NaN with one seed
        for length, points in shared[shared["label"] == label].groupby("content_length"):
            for metric in metrics:
                interval = seed_interval(points[metric.name].to_numpy(float), metric.bounds)
                row |= _interval_columns(f"{metric.name}@{length}", interval)
            row |= _count_columns(f"reached@{length}", points["exact_match"].astype(float) >= SOLVED)
            row |= {f"{name}@{length}": ceilings.at[length, name] for name in CEILINGS}
        if not protocol.exact:  # without exact match no length counts as solved
            row |= {key: math.nan for key in row if key.startswith("reached")}
        if not protocol.exact or unmeasured:
            row |= {key: math.nan for key in row if key.startswith("solved")}
        yield row


def _interval_columns(name: str, interval: Interval) -> Row:
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _count_columns(name: str, holds: pd.Series) -> Row:
    """Return the columns of the number of seeds that meet a condition, with the interval of their share."""
    count = int(holds.sum())
    return _interval_columns(name, statistics.share_interval(count, len(holds))) | {name: count}


def pair_table(
    protocols: Sequence[Protocol], table: pd.DataFrame, summary: Summary, baseline: str | None
) -> pd.DataFrame:
    """Return one row per protocol and pair of encodings, or only the pairs with ``baseline``.

    ``p`` is the p-value of the permutation test of the two sets of seeds. ``p_holm`` is adjusted by Holm's
    method over the tests of the protocol. ``separated`` says whether the difference is significant, and
    ``not_tested`` why there is no test.
    """
    encodings = sorted(set(table["encoding"]))
    if baseline is not None and baseline not in encodings:
        raise UserError(f"baseline={baseline} is not a compared encoding; allowed: {allowed(encodings)}")
    rows: list[Row] = []
    for protocol in protocols:
        of_protocol = table[table["protocol"] == protocol.hash]
        learned = dict(
            zip(of_protocol["encoding"].astype(str), of_protocol["compared"].astype(bool), strict=True)
        )
        values = _seed_values(protocol, summary)
        pairs = [pair for pair in itertools.combinations(learned, 2) if baseline is None or baseline in pair]
        tests = [_test(first, second, values, learned) for first, second in pairs]
        common = {"section": protocol.slug, "protocol": protocol.hash, "metric": summary.column}
        for test, adjusted in zip(tests, statistics.holm([test["p"] for test in tests]), strict=True):
            rows.append(common | test | {"p_holm": adjusted, "separated": adjusted <= ALPHA})
    return pd.DataFrame(rows, columns=PAIRS)


def _test(first: str, second: str, values: Mapping[str, np.ndarray], learned: Mapping[str, bool]) -> Row:
    """Return the test of a pair of encodings, or the reason why it was not tested."""
    pooled = np.concatenate([values[first], values[second]])
    unlearned = [name for name in (first, second) if not learned[name]]
    reason = None
    if unlearned:
        reason = f"{' and '.join(unlearned)} did not learn the task"
    elif min(len(values[first]), len(values[second])) < FEWEST:
        reason = "under three seeds"
    elif np.isnan(pooled).any():
        reason = "not measured"
    elif np.ptp(pooled) <= EQUAL_WITHIN:
        reason = ALL_VALUES_EQUAL
    return {
        "encoding": first,
        "other": second,
        "seeds": len(values[first]),
        "other_seeds": len(values[second]),
        "not_tested": reason,
        "difference": sum(values[first]) / len(values[first]) - sum(values[second]) / len(values[second]),
        "p": math.nan if reason else statistics.permutation_p(values[first], values[second]),
    }
