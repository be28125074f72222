"""Test the page of replications: curves of papers beside ours, with independent code."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from results.replications import curves

PAGE = (curves.HERE / "README.md").read_text("utf-8")


def test_independent_code_finds_the_rank_correlation_of_released_and_replicated_runs() -> None:
    released = pd.read_csv(curves.HERE / "kazemnejad2023.csv").query("variant == 'cmc_tr20_ts40'")
    runs = pd.read_csv(curves.HERE / "conditions" / "runs.csv").query("task == 'copy'")
    deep = runs[runs["command"].str.contains("num_layers=6", regex=False)]
    points = pd.read_csv(curves.HERE / "conditions" / "curves.csv")
    points = points[points["name"].isin(deep["name"])]
    names = {"none": "none", "alibi": "alibi", "t5_relative_bias": "t5", "rotary": "rope_partial",
             "abs_sinusoid": "sinusoidal"}  # fmt: skip
    theirs = released.replace({"encoding": names}).groupby(["length", "encoding"])["exact_match"]
    ours = points.groupby(["content_length", "label"])["exact_match"]
    rhos = []
    for length in (25, 30):
        assert set(theirs.size()[length]) == {3}
        assert set(ours.size()[length][[*names.values()]]) == {5}
        means = [(theirs.mean()[length, label], ours.mean()[length, label]) for label in names.values()]
        rhos.append(f"{stats.spearmanr(*zip(*means, strict=True)).statistic:+.2f}")
        differences = [np.round(np.subtract(*pair), 9) for pair in itertools.combinations(means, 2)]
        untied = [difference for difference in differences if difference.all()]
        same_sign = sum(difference.prod() > 0 for difference in untied)
        assert f"in {same_sign} of {len(untied)}" in PAGE
        assert f" at {length}" in PAGE
    assert f"rho {rhos[0]} and {rhos[1]}" in PAGE
    # "all encodings are at 0 at twice the length, the planned measure, as in the variant of theirs"
    assert theirs.max()[40].max() == ours.max()[40].max() == 0


def test_independent_code_finds_the_correlation_on_scan() -> None:
    released, ours = (table.T.mean().groupby("encoding").mean() for table in curves.scan())
    assert curves.scan_values()["scan/rho"] == pytest.approx(stats.spearmanr(released, ours).statistic)
    assert released["t5"] > released["alibi"]  # "ALiBi and T5 change places"
    assert ours["t5"] < ours["alibi"]


def test_independent_code_finds_the_verdicts_on_induction() -> None:
    original = pd.read_csv(curves.HERE / "gu2023.csv").set_index(["encoding", "length"])["accuracy"]
    points = pd.read_csv(curves.HERE / "gu" / "curves.csv")
    replicated = 100 * points.set_index(["label", "content_length"])["exact_match"]
    (verdicts,) = [line for line in PAGE.splitlines() if "2312.00752" in line]
    for name in ("learned", "rope", "xpos"):
        near = sum(abs(replicated[name, 2**n] - original[name, 2**n]) <= 10 for n in range(6, 13))
        verdict = f"{'agrees' if near >= 6 else 'does not'} ({near} of 7 lengths)"
        assert f"`{name}` {verdict if replicated[name, 256] >= 99 else 'not learned'}" in verdicts
    assert replicated["rope", 256] < 99  # "the published order could not be judged"
    assert min(replicated[name, 4096] for name in ("kerple_log", "fox")) >= 99
