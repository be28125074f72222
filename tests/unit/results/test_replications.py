"""The ledger of published values: verdicts by rules that can go either way."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
from scipy import stats

from results.replications import kazemnejad, statements, study
from tests import stranger


def verdicts(ours: dict[str, float], arxiv: str = study.PATH, trained: float = 5.0) -> list[str]:
    """Of three encodings published at 1, 10 and 40; the last one has the error ``trained`` as trained."""
    found = {(arxiv, "t", "sparse", encoding): np.full(3, value) for encoding, value in ours.items()}
    found |= {(arxiv, "t", "as trained", one): np.full(3, 5.0) for one in ours}
    found |= {(arxiv, "t", "as trained", "c"): np.full(3, trained)} if "c" in ours else {}
    ledger = pd.DataFrame({"encoding": ["a", "b", "c"] * 2, "published": [5.0, 5.0, 5.0, 1.0, 10.0, 40.0]})
    settings = ["as trained"] * 3 + ["sparse"] * 3
    made = study.judge(ledger.assign(arxiv=arxiv, task="t", setting=settings), found)
    return made["verdict"].tolist()[3:]


def test_a_value_is_reproduced_within_a_point_or_a_quarter() -> None:
    assert verdicts({"a": 1.9, "b": 12.4, "c": 36.0}) == [study.REPRODUCED] * 3
    assert verdicts({"a": 2.1, "b": 12.6, "c": 50.0}) == [study.ORDER] * 3


def test_an_encoding_that_did_not_learn_has_no_rank() -> None:
    made = verdicts({"a": 2.1, "b": 12.6, "c": 36.0}, trained=35.0)
    assert made == [study.ORDER, study.ORDER, study.NOT_LEARNED]
    assert verdicts({"a": 1.0, "b": 30.0, "c": 20.0}, trained=35.0)[1] == study.ORDER


def test_without_a_common_unit_only_the_order_counts() -> None:
    assert verdicts({"a": 1.0, "b": 10.0, "c": 40.0}, study.TEXT) == [study.ORDER] * 3


def test_an_encoding_out_of_order_is_named() -> None:
    made = verdicts({"a": 20.0, "b": 15.0, "c": 60.0})
    assert made == [f"{study.NOT}: against b", f"{study.NOT}: against a", study.ORDER]


def test_a_column_where_nothing_is_apart_from_nought_could_not_fail() -> None:
    ledger = pd.DataFrame({"encoding": ["a", "b"], "published": [0.0, 0.01], "setting": "up to 50"})
    ledger = ledger.assign(arxiv=study.HUANG, task="majority")
    for ours, verdict in ((0.3, study.CERTAIN), (5.0, study.REPRODUCED)):
        found = {
            (study.HUANG, "majority", "up to 50", encoding): np.full(3, x)
            for encoding, x in (("a", 0.1), ("b", ours))
        }
        assert study.judge(ledger, found)["verdict"].iloc[0] == verdict


def test_values_too_close_together_have_no_order() -> None:
    made = verdicts({"a": 14.9, "b": 15.0, "c": 60.0})
    assert made == [study.OPEN, study.OPEN, study.ORDER]


def statement_verdicts(better: list[float], worse: list[float], learned: bool = True) -> list[str]:
    """Of one statement about two encodings, and of one about an encoding that was not run."""
    runs = pd.DataFrame(
        [("t", "a", value, learned, 1.0) for value in better]
        + [("t", "b", value, True, 1.0) for value in worse],
        columns=[
            "title",
            "label",
            "exact_match_at_2x",
            "solved_in_distribution",
            "exact_match_in_distribution",
        ],
    )
    said = pd.DataFrame({"arxiv": "0000.00000", "task": "t", "better": ["a", "a"], "worse": ["b", "c"]})
    return statements.judge(said.assign(metric="exact_match_at_2x"), runs)["verdict"].tolist()


def test_a_statement_agrees_only_where_seeds_separate_the_encodings() -> None:
    high, low = [0.9, 0.8, 0.85, 0.95, 0.9], [0.1, 0.2, 0.15, 0.1, 0.3]
    assert statement_verdicts(high, low) == [statements.AGREES, statements.WAITING]
    assert statement_verdicts(low, high) == [statements.CONTRARY, statements.WAITING]
    assert statement_verdicts(high, [0.1, 0.9, 0.9, 0.9, 0.9])[0] == statements.OPEN
    assert statement_verdicts(high, low, learned=False)[0] == statements.NOT_LEARNED
    assert statement_verdicts(high[:4], low)[0] == statements.WAITING  # a seed is missing
    assert statement_verdicts(high, [*low[:4], np.nan])[0] == statements.OPEN
    assert statement_verdicts([0.0] * 5, [0.0] * 5)[0] == statements.SAME


def test_a_statement_about_several_pairs_agrees_only_if_all_do() -> None:
    agrees, contrary, open_ = statements.AGREES, statements.CONTRARY, statements.OPEN
    assert statements.verdict_on_statement([agrees, agrees]) == agrees
    assert statements.verdict_on_statement([agrees, contrary, open_]) == contrary
    assert (
        statements.verdict_on_statement([agrees, open_])
        == statements.verdict_on_statement([agrees, statements.NOT_LEARNED])
        == open_
    )
    assert statements.verdict_on_statement([statements.NOT_LEARNED] * 2) == statements.NOT_LEARNED
    assert statements.verdict_on_statement([contrary, statements.WAITING]) == statements.WAITING


def test_runs_are_titled_by_what_a_statement_is_about() -> None:
    row = {"label": "none", "max_length": 20, "layers": 2, "symbols": 10, "steps": 5000}
    runs = pd.DataFrame([row | {"task": task} for task in ("copy", "lag", "reverse")])
    assert statements.with_titles(runs)["title"].tolist() == [
        "copy of 10 symbols to 20, 2 layers",
        "lag to 20, 2 layers",
        "reverse to 20, 2 layers, 5,000 steps",
    ]


def test_a_row_per_initial_gate_and_task() -> None:
    columns = ["title", "label", "exact_match_in_distribution", "exact_match_at_2x"]
    runs = pd.DataFrame([("t", "fox", 1.0, 0.5), ("t", "rope", 1.0, 0.0)] * 5, columns=columns)
    assert statements.gate_table(runs).splitlines()[2:] == [
        "| t | `fox` | 1.00 in all 5 seeds | 0.50 in all 5 seeds |"
    ]


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
