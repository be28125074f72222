"""The ledger of published values: what its page counts, and its curves by other code."""

from __future__ import annotations

import itertools

import numpy as np
from scipy import stats

from results.replications import kazemnejad, statements, study
from tests import stranger


def test_the_page_counts_what_could_be_judged_first() -> None:
    counts = study.counts(study.judge_ledger())
    assert counts["judged"] + counts["unlearned"] + counts["sure"] == counts["all"] == 30
    assert [counts[key] for key in ("value", "order", "turned", "unlearned", "sure")] == [3, 5, 5, 9, 8]
    rows = statements.blocks()["statements"].splitlines()[2:]
    whole = [row.split("|")[4].strip() for row in rows]
    counted = [whole.count(one) for one in (statements.AGREES, statements.SAME, statements.NOT_LEARNED)]
    assert counted == [2, 1, 5]


def test_a_stranger_ranks_the_released_runs_and_ours_alike() -> None:
    released = stranger.read_csv(kazemnejad.HERE / "kazemnejad2023.csv")
    rows = stranger.read_csv(kazemnejad.HERE / "conditions" / "runs.csv")
    deep = {row["name"] for row in rows if "num_layers=6" in row["command"] and row["task"] == "copy"}
    points = stranger.read_csv(kazemnejad.HERE / "conditions" / "curves.csv")
    page = (kazemnejad.HERE / "README.md").read_text("utf-8")
    rhos = []
    for length in (25, 30):
        both = []
        for theirs, name in kazemnejad.ENCODINGS.items():
            one = [
                float(row["exact_match"])
                for row in released
                if (row["variant"], row["encoding"], row["length"]) == ("cmc_tr20_ts40", theirs, str(length))
            ]
            other = [
                float(row["exact_match"])
                for row in points
                if row["name"] in deep and row["label"] == name and int(row["content_length"]) == length
            ]
            assert (len(one), len(other)) == (3, 5)
            both.append((np.mean(one), np.mean(other)))
        rhos.append(f"{stats.spearmanr(*zip(*both, strict=True)).statistic:+.2f}")
        pairs = [np.round(np.subtract(*pair), 9) for pair in itertools.combinations(both, 2)]
        untied = [(theirs, ours) for theirs, ours in pairs if theirs and ours]
        same = sum(theirs * ours > 0 for theirs, ours in untied)
        assert f"in {same} of {len(untied)}" in page
        assert f" at {length}" in page
    assert f"rho {rhos[0]} and {rhos[1]}" in page
    theirs, ours = kazemnejad.curves()
    assert max(study_[40].max() for study_ in (theirs, ours)) == 0  # as the page says
    means = theirs.groupby("encoding").mean()
    assert (means.loc["alibi"] >= means.loc["none"]).all()
    assert (means.loc["t5"] >= means.loc["none"]).all()
