"""Test the ledger of published values: its curves with independent code."""

from __future__ import annotations

import itertools

import numpy as np
from scipy import stats

from results.replications import kazemnejad
from tests import recomputation


def test_independent_code_finds_the_rank_correlation_of_released_and_replicated_runs() -> None:
    released = recomputation.read_csv(kazemnejad.HERE / "kazemnejad2023.csv")
    runs = recomputation.read_csv(kazemnejad.HERE / "conditions" / "runs.csv")
    deep = {row["name"] for row in runs if "num_layers=6" in row["command"] and row["task"] == "copy"}
    points = recomputation.read_csv(kazemnejad.HERE / "conditions" / "curves.csv")
    page = (kazemnejad.HERE / "README.md").read_text("utf-8")
    rhos = []
    for length in (25, 30):
        means = []
        for released_name, label in kazemnejad.ENCODINGS.items():
            condition = ("cmc_tr20_ts40", released_name, str(length))
            released_values = [
                float(row["exact_match"])
                for row in released
                if (row["variant"], row["encoding"], row["length"]) == condition
            ]
            of_label = [row for row in points if row["name"] in deep and row["label"] == label]
            values = [float(row["exact_match"]) for row in of_label if row["content_length"] == str(length)]
            assert (len(released_values), len(values)) == (3, 5)
            means.append((np.mean(released_values), np.mean(values)))
        rhos.append(f"{stats.spearmanr(*zip(*means, strict=True)).statistic:+.2f}")
        differences = [np.round(np.subtract(*pair), 9) for pair in itertools.combinations(means, 2)]
        untied = [difference for difference in differences if difference.all()]
        same_sign = sum(difference.prod() > 0 for difference in untied)
        assert f"in {same_sign} of {len(untied)}" in page
        assert f" at {length}" in page
    assert f"rho {rhos[0]} and {rhos[1]}" in page


def test_statements_written_by_hand_about_copying_are_true() -> None:
    released, replicated = kazemnejad.curves()
    assert released[40].max() == replicated[40].max() == 0
    means = released.groupby("encoding").mean()
    assert (means.loc["alibi"] >= means.loc["none"]).all()
    assert (means.loc["t5"] >= means.loc["none"]).all()
