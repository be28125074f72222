"""Test the page of the bank with independent code."""

import re

import pandas as pd
import pytest

from pe_experiments.configuration.compose import compose_config
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.schema import Config, resolved, validated
from results.bank import study as bank
from tests import recomputation
from tests.conftest import ROOT

FOLDER = ROOT / "results" / "bank"
PAGE = (FOLDER / "README.md").read_text()
CLOSE = 0.009  # printed values are rounded, and floors of flip-flop are estimated there and exact here


def cells_of(table: str) -> dict[str, list[str]]:
    """The rows of a generated table of the page by their first cell."""
    block = re.search(rf"<!-- from {table}: make results -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert block
    rows = [line.strip("| ").split(" | ") for line in block[1].splitlines()[2:]]
    return {row[0].strip("`"): row[1:] for row in rows}


def number_of(name: str) -> float:
    """A generated number in a sentence of the page."""
    found = re.search(rf"<!-- \{{{re.escape(name)}(?::[^}}]*)?\}} -->([-\d.]+)%?<!-- end -->", PAGE)
    assert found, name
    return float(found[1])


def usual_runs(shift: bool = False) -> pd.DataFrame:
    """The runs on the four tasks, also those of encodings that lack some."""
    runs = recomputation.usual_runs(recomputation.bank_runs(FOLDER), shift)
    return runs[runs["task"].isin([*bank.TASKS])]


def half(number: int) -> pd.DataFrame:
    """The runs in configurations 0 to 11, or 12 to 23, of the encodings that have all runs there."""
    runs = usual_runs()
    runs = runs[runs["seed"] // 12 == number]
    return runs[runs.groupby("label")["name"].transform("size") == len(bank.TASKS) * 12 * 2]


def without_variants() -> pd.DataFrame:
    """The first half without the variants of the pattern."""
    runs = half(0)
    return runs[~runs["label"].isin([*bank.VARIANTS])]


def said(name: str) -> str:
    """A generated text in a sentence of the page."""
    (text,) = re.findall(rf"<!-- \{{{name}\}} -->(.*?)<!-- end -->", PAGE)
    return str(text)


def test_independent_code_finds_the_ranking() -> None:
    runs = without_variants()
    rows = cells_of("ranking")
    scores = recomputation.over_tasks(runs)
    assert {*rows, "stick_breaking"} == {*scores}
    unranked = scores.pop("stick_breaking").mean()
    means = scores.mean()
    assert number_of("stick_breaking/mean") == pytest.approx(unranked, abs=CLOSE)
    assert number_of("stick_breaking/above it") == (means > unranked).sum()
    best = str(means.idxmax())
    tests = recomputation.sign_flip_tests(scores.drop(columns=best).rsub(scores[best], axis=0))
    assert next(iter(rows)) == best
    printed = [float(row[0].strip("*")) for row in rows.values()]
    assert printed == sorted(printed, reverse=True)
    by_task = recomputation.cases(runs).groupby("task").mean().loc[[*bank.TASKS]]
    at_2x = recomputation.over_tasks(runs, "2x").mean()
    learned = recomputation.cases(runs.assign(one=1), "one").sum()
    for name, (mean, *cells) in rows.items():
        expected = [means[name], *by_task[name], at_2x[name]]
        assert [float(mean.strip("*")), *map(float, cells[:5])] == pytest.approx(expected, abs=CLOSE)
        assert int(cells[5]) == learned[name]
        if name != best:
            assert mean.startswith("**") == (float(cells[7]) > 0.05)
            assert tests.loc[name, "p"] <= float(cells[7]) + CLOSE  # the calibration only raises p
    published = pd.read_csv(FOLDER / "ranking.csv", index_col="encoding")["difference"].drop(best)
    assert published.to_dict() == pytest.approx(tests["difference"].to_dict(), abs=CLOSE)


def test_independent_code_finds_what_the_option_changes() -> None:
    rows = cells_of("shift")
    with_it, without = (
        recomputation.cases(usual_runs(shift).query("rate == 0.003 and seed < 12")) for shift in (True, False)
    )
    assert {*with_it} == {*bank.SHIFTED}
    enough: list[str] = []
    for column, task in ((0, "lag"), (3, "copy")):
        changes = with_it.loc[task] - without.loc[task, bank.SHIFTED]
        assert changes.notna().all(axis=None)
        assert len(changes) == 12
        ps = recomputation.sign_flip_tests(changes)["p"]
        means, earlier = with_it.loc[task].mean(), without.loc[task].mean()
        for name in bank.SHIFTED:
            expected = [earlier[name], means[name], ps[name]]
            assert [*map(float, rows[name][column : column + 3])] == pytest.approx(expected, abs=CLOSE)
        for name in ("cpb_log", "rope_nope"):
            assert float(rows[name][column]) == pytest.approx(earlier[name], abs=CLOSE)
        if task == "lag":
            enough = [name for name in bank.SHIFTED if ps[name] <= 0.05 and means[name] >= 0.9]
        else:  # "all four rise"
            assert (ps <= 0.05).all()
            assert (changes.mean() > 0).all()
    assert re.findall(r"`([^`]+)`", said("shift/suffices")) == enough


def test_independent_code_finds_the_confirmation_of_the_option() -> None:
    shifted = usual_runs(shift=True).query("12 <= seed < 24 and rate == 0.003")
    gate = recomputation.over_tasks(shifted)[bank.GATE]
    assert len(gate) == 12
    assert number_of("shift/mean") == pytest.approx(gate.mean(), abs=CLOSE)
    others = recomputation.over_tasks(half(1))[["rope_nope", "kerple_log", "fox"]]
    assert (gate > others["rope_nope"]).all()  # "in each of twelve configurations"
    difference, p = recomputation.sign_flip_tests(others.rsub(gate, axis=0)).loc["rope_nope"]
    words = said("shift/difference").split()
    assert [float(words[0]), float(words[-1])] == pytest.approx([difference, p], abs=CLOSE)
    gains = recomputation.cases(shifted)[bank.GATE] - recomputation.cases(half(1))["rope_nope"]
    assert gains.groupby("task").mean().idxmax() == "flip_flop"  # "mainly by `flip_flop`"
    verdict = "refuted" if difference < 0 else "confirmed" if p <= 0.05 else "unclear"
    assert said("shift/verdict") == verdict


def test_independent_code_finds_that_each_part_of_the_pattern_is_needed() -> None:
    scores = recomputation.over_tasks(half(0))
    tests = recomputation.sign_flip_tests(scores[[*bank.VARIANTS]].rsub(scores["rope_nope"], axis=0))
    pattern, *rows = recomputation.read_csv(FOLDER / "patterns.csv")
    assert pattern["encoding"] == "rope_nope"
    assert (tests["p"] <= 0.05).all()  # "All four falls are significant"
    for row, (label, test) in zip(rows, tests.iterrows(), strict=True):
        assert number_of(row["encoding"]) == pytest.approx(scores[label].mean(), abs=CLOSE)
        assert [float(row["difference"]), float(row["p"])] == pytest.approx([*test], abs=CLOSE)
        assert (row["expected"] == row["found"]) == (row["encoding"] != "pattern/kerple_nope")
    without_window = scores["rope_nope(encodings=rope+none)"].mean()
    assert without_window == pytest.approx(scores["rope"].mean(), abs=0.05)


def test_independent_code_finds_the_tests_over_eleven_tasks() -> None:
    further = recomputation.bank_runs(FOLDER).query("seed >= 24")
    new = recomputation.cases(further).groupby("task").mean()
    assert {*new.index} == {*bank.FURTHER}
    means = pd.concat([recomputation.cases(half(0)).groupby("task").mean()[[*new]], new])
    tests = recomputation.sign_flip_tests(means.drop(columns=bank.PATTERN).rsub(means[bank.PATTERN], axis=0))
    assert number_of("tasks/lowest p") == pytest.approx(tests["p"].min(), abs=CLOSE)
    assert tests["p"].min() > 0.05  # "is not confirmed"
    for name, cells in cells_of("tasks").items():
        expected = [*means.loc[[*bank.TASKS, *bank.FURTHER], name], means[name].mean()]
        assert [*map(float, cells)] == pytest.approx(expected, abs=CLOSE)
    assert number_of("tasks/before") == (new.mean() > new[bank.PATTERN].mean()).sum()
    assert new["kerple_log"].mean() > new[bank.PATTERN].mean()  # "the higher mean on seven further tasks"
    difference, p = recomputation.sign_flip_tests(means[["alibi"]].rsub(means[bank.GATE], axis=0)).loc[
        "alibi"
    ]
    assert number_of("tasks/gate/difference") == pytest.approx(difference, abs=CLOSE)
    assert number_of("tasks/gate/p") == pytest.approx(p, abs=CLOSE)


def test_independent_code_finds_the_scores_in_mirrored_configurations() -> None:
    truncated = recomputation.over_tasks(recomputation.bank_runs(FOLDER, "truncated.csv"))["rope"]
    assert len(truncated) == 12
    mirrored = recomputation.over_tasks(half(1))
    rows = cells_of("mirrored")
    means = [float(rows[name][0]) for name in ("RoPE, its last tokens", "rope_nope")]
    assert means == pytest.approx([truncated.mean(), mirrored["rope_nope"].mean()], abs=CLOSE)
    others = mirrored[["fox", "kerple_log"]].set_axis(["FoX", "KERPLE"], axis="columns")
    others["RoPE, its last tokens"] = truncated
    tests = recomputation.sign_flip_tests(others.rsub(mirrored["rope_nope"], axis=0))
    for words, test in tests.iterrows():
        cell = rows[str(words)][-1].split()
        assert [float(cell[0]), float(cell[-1])] == pytest.approx([*test], abs=CLOSE)
    assert (tests["p"] <= 0.05).all()  # "the prediction is confirmed"
    assert (tests["difference"] > 0).all()
    for name in ("fox", "kerple_log"):
        difference = (mirrored[name] - truncated).mean()
        assert number_of(f"truncation/{name}/difference") == pytest.approx(difference, abs=CLOSE)


def test_the_readme_recommends_what_scores_best() -> None:
    """The encodings of its table of cases are within 0.05 of the best on their task."""
    rows = {name: [*map(float, cells[1:5])] for name, cells in cells_of("ranking").items()}
    by_task = dict(zip(bank.TASKS, zip(*rows.values(), strict=True), strict=True))
    place = {task: number for number, task in enumerate(bank.TASKS)}
    readme = (ROOT / "README.md").read_text()
    for words, task, name, typed in (
        ("copying", "copy", "rope_nope", "task=copy pe=rope_nope"),
        ("recall", "induction", "rope_nope", "task=induction pe=rope_nope"),
        ("state", "flip_flop", bank.GATE, "pe=fox pe.initial_bias=4"),
    ):
        (row,) = re.findall(rf"^\| {words}.*$", readme, re.MULTILINE)
        assert typed in row
        assert rows[name][place[task]] >= max(by_task[task]) - 0.05
    assert float(cells_of("mirrored")["RoPE, its last tokens"][2]) == 1.0  # "perfect at every length"
    runs = recomputation.bank_runs(FOLDER)
    curves = pd.read_csv(FOLDER / "curves.csv")[["name", "content_length", "exact_match"]]
    points = curves.merge(runs[["name", "task", "label", "seed", "rate", "shift", "max_length"]], on="name")
    points = points[points["seed"] < 24].assign(half=points["seed"] // 12)
    points["multiple"] = points["content_length"] / points["max_length"]
    counted = pd.read_csv(FOLDER / "scores.csv")["name"]
    keys = ["half", "task", "label", "multiple"]
    both = points[points["name"].isin(counted) & ~points["shift"]].groupby(keys)["exact_match"].mean()
    with_it = points[points["shift"]].groupby(keys)["exact_match"].mean()
    assert "99% right at 8N" in readme
    assert min(both[0, "induction", name, 8] for name in ("rope_nope", "kerple_log")) >= 0.985
    assert with_it[1, "flip_flop", bank.GATE, 8] >= 0.985  # "99% right at 8N"
    assert "at one rate they copy 81% and 85% of the inputs of length 2N there, KERPLE 65%" in readme
    at_one_rate = points[(points["rate"] == 0.003) & ~points["shift"]].groupby(keys)["exact_match"].mean()
    copied = [at_one_rate[1, "copy", name, 2] for name in ("rope_nope", "kerple_log")]
    assert [with_it[1, "copy", bank.GATE, 2], *copied] == pytest.approx([0.81, 0.85, 0.65], abs=0.005)
    assert "where none copies more than 18%" in readme
    at_8n = pd.concat([both, with_it]).xs(8, level="multiple").xs("copy", level="task")
    assert at_8n.max() == pytest.approx(0.18, abs=0.005)
    assert with_it[0, "lag", "kerple_log"].round(3).min() == 1.0  # "perfect at every length"
    ranking = pd.read_csv(FOLDER / "ranking.csv")
    assert f"Of the {len(ranking)} that are ranked `rope_nope` has the highest mean here" in readme
    mean = number_of("shift/mean")
    pattern = cells_of("mirrored")["rope_nope"][0]
    assert f"{mean:.2f} of 1, ahead of RoPE/NoPE without it, {pattern}, in each of twelve" in readme
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    assert f"tied with {words[ranking['tied'].sum() - 1]}." in readme


def test_the_variants_of_the_pattern_have_the_labels_of_their_choices() -> None:
    for label, (choice, _, _) in bank.VARIANTS.items():
        config = validated(Config, resolved(compose_config([f"pe={choice}"])))
        assert Experiment(config).label == label
