"""Test the page of replications: curves of papers beside ours, with independent code."""

import itertools

import numpy as np
import pytest
from scipy import stats

from results.replications import curves
from tests import recomputation

PAGE = (curves.HERE / "README.md").read_text("utf-8")


def test_independent_code_finds_the_rank_correlation_of_released_and_replicated_runs() -> None:
    released = recomputation.read_csv(curves.HERE / "kazemnejad2023.csv")
    runs = recomputation.read_csv(curves.HERE / "conditions" / "runs.csv")
    deep = {row["name"] for row in runs if "num_layers=6" in row["command"] and row["task"] == "copy"}
    points = recomputation.read_csv(curves.HERE / "conditions" / "curves.csv")
    names = {"none": "none", "alibi": "alibi", "t5_relative_bias": "t5", "rotary": "rope_partial",
             "abs_sinusoid": "sinusoidal"}  # fmt: skip
    rhos = []
    for length in (25, 30, 40):
        means = []
        for released_name, label in names.items():
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
        if length == 40:  # "at twice the length all encodings are at 0, as in the variant of theirs"
            assert np.max(means) == 0
            continue
        rhos.append(f"{stats.spearmanr(*zip(*means, strict=True)).statistic:+.2f}")
        differences = [np.round(np.subtract(*pair), 9) for pair in itertools.combinations(means, 2)]
        untied = [difference for difference in differences if difference.all()]
        same_sign = sum(difference.prod() > 0 for difference in untied)
        assert f"in {same_sign} of {len(untied)}" in PAGE
        assert f" at {length}" in PAGE
    assert f"rho {rhos[0]} and {rhos[1]}" in PAGE


def test_all_runs_learned_scan_in_distribution() -> None:
    runs = recomputation.read_csv(curves.HERE / "scan" / "runs.csv")
    points = recomputation.read_csv(curves.HERE / "scan" / "curves.csv")
    for run in runs:
        values = [
            float(row["exact_match"])
            for row in points
            if row["name"] == run["name"] and int(row["content_length"]) <= curves.SCAN_TRAINED
        ]
        assert np.mean(values) >= 0.9


def test_independent_code_finds_the_correlation_on_scan() -> None:
    released, ours = (table.T.mean().groupby("encoding").mean() for table in curves.scan())
    assert curves.scan_values()["scan/rho"] == pytest.approx(stats.spearmanr(released, ours).statistic)


def test_independent_code_finds_the_verdicts_on_induction() -> None:
    lengths = [64, 128, 256, 512, 1024, 2048, 4096]
    original = {
        (row["encoding"], int(row["length"])): float(row["accuracy"])
        for row in recomputation.read_csv(curves.HERE / "gu2023.csv")
    }
    replicated = {
        (row["label"], int(row["content_length"])): 100 * float(row["exact_match"])
        for row in recomputation.read_csv(curves.HERE / "gu" / "curves.csv")
    }
    (verdicts,) = [line for line in PAGE.splitlines() if "2312.00752" in line]
    for name in ("learned", "rope", "xpos"):
        near = sum(abs(replicated[name, n] - original[name, n]) <= 10 for n in lengths)
        verdict = f"{'agrees' if near >= 6 else 'does not'} ({near} of 7 lengths)"
        assert f"`{name}` {verdict if replicated[name, 256] >= 99 else 'not learned'}" in verdicts
    assert replicated["rope", 256] < 99  # "the published order could not be judged"
    assert min(replicated[name, 4096] for name in ("kerple_log", "fox")) >= 99


def test_what_the_page_says_of_the_verdicts_stands_in_the_judged_values() -> None:
    rows = recomputation.read_csv(curves.HERE / "judged_values.csv")
    of_verdict = {
        word: [row for row in rows if row["verdict"].startswith(word)]
        for word in ("value", "no:", "not judged")
    }
    # "The three are errors near 0 of PaTH, and four of the five are RoPE against no encoding."
    assert {row["encoding"] for row in of_verdict["value"]} == {"path"}
    assert max(float(row["ours"]) for row in of_verdict["value"]) < 1
    against = [(row["encoding"], row["verdict"].split()[-1]) for row in of_verdict["no:"]]
    assert (len(against), sum(pair in {("rope", "none"), ("none", "rope")} for pair in against)) == (5, 4)
    # "Of the other 17, nine belong to encodings that did not learn PaTH's task, and eight could not fail."
    others = of_verdict["not judged"]
    assert len(others) == 17
    assert sum("not learned" in row["verdict"] and row["task"] == "flip-flop" for row in others) == 9
    assert sum("could not fail" in row["verdict"] for row in others) == 8


def test_alibi_and_t5_change_places_on_scan() -> None:
    released, ours = (table.groupby("encoding").mean().mean(axis="columns") for table in curves.scan())
    assert released["t5"] > released["alibi"]
    assert ours["t5"] < ours["alibi"]
