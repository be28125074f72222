"""From run directories to tables: grouping, labels, what is left out, and what is never averaged away."""

from __future__ import annotations

import csv
import itertools
import json
import math
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pe_experiments.command_line import composed
from pe_experiments.comparison import Options, compare, load_runs
from pe_experiments.comparison.compare import show
from pe_experiments.comparison.presentation import plain
from pe_experiments.comparison.protocols import sections_of
from pe_experiments.comparison.style import COLOURS, KNOWN, LOOKS, styles
from pe_experiments.comparison.table import scheme_table
from pe_experiments.comparison.words import cells_of, notes
from pe_experiments.config import Experiment, check, resolve
from pe_experiments.errors import UserError
from tests.conftest import TINY
from tests.synthetic import fading, write_run, write_study

Tiny = Callable[..., Experiment]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("comparison") / "results"

    def make(*overrides: str) -> Experiment:
        return resolve(check(composed("config", [*TINY, f"results_dir={place}", *overrides])))

    return write_study(make, seeds=3)


@pytest.fixture
def folder(template: Path, results: Path) -> Path:
    return Path(shutil.copytree(template, results))


def tabulated(folder: Path) -> pd.DataFrame:
    """The table alone, without the figures that `compare` draws."""
    return scheme_table(sections_of(load_runs(folder)), "sinusoidal", "exact_match_extrapolation")


def said(folder: Path) -> str:
    """The notes of all sections."""
    table, sections = tabulated(folder), sections_of(load_runs(folder))
    found = [notes(section, cells_of(table, section), "sinusoidal") for section in sections]
    return " ".join(plain(note) for section in found for note in section)


def by_scheme(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return {row["scheme"]: row for row in table.to_dict("records")}


def test_an_independent_script_finds_the_same_figures_in_curves_csv(tiny: Tiny) -> None:
    """Nothing of ours but the files: csv, numpy and scipy."""
    folder = write_study(tiny)
    write_run(tiny("pe=learned", "seed=9", "evaluation.lengths=[3,6,9,12,24,48]"), fading(0, 0), "diverged")
    written = by_scheme(compare(folder).table)
    curves: dict[str, dict[int, dict[int, tuple[float, float]]]] = defaultdict(lambda: defaultdict(dict))
    with (folder / "comparison" / "curves.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            point = float(row["exact_match"]), float(row["token_accuracy"])
            curves[row["label"]][int(row["seed"])][int(row["content_length"])] = point

    def area(curve: dict[int, tuple[float, float]], which: int) -> float:
        points = [(math.log2(n / 6), curve[n][which]) for n in sorted(curve) if n >= 6]
        strips = [(b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points)]
        return sum(strips) / 3

    beyond = {s: {seed: area(curve, 0) for seed, curve in runs.items()} for s, runs in curves.items()}
    assert sorted(beyond["learned"]) == [0, 1, 2, 3, 4, 9]
    for scheme, runs in curves.items():
        row = written[scheme]
        inside = [np.mean([curve[n][0] for n in (3, 6)]) for curve in runs.values()]
        for values, column in (
            (inside, "exact_match_in_distribution"),
            ([curve[12][0] for curve in runs.values()], "exact_match_at_2x"),
            (list(beyond[scheme].values()), "exact_match_extrapolation"),
            ([area(curve, 1) for curve in runs.values()], "token_accuracy_extrapolation"),
        ):
            assert row[column] == pytest.approx(np.mean(values))
            half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
            ends_t = np.mean(values) - half, np.mean(values) + half
            assert (row[f"{column}_low"], row[f"{column}_high"]) == pytest.approx(ends_t)
        solved = [seed for seed, value in zip(runs, inside, strict=True) if value >= 0.9]
        assert row["solved"] == len(solved)
        assert row["exact_match_extrapolation_solved"] == pytest.approx(
            np.mean([beyond[scheme][seed] for seed in solved])
        )
        grid = np.array([[curve[n][0] for n in sorted(curve)] for curve in runs.values()])
        rng = np.random.default_rng(5)
        draws = np.array([grid[rng.integers(len(grid), size=len(grid))].mean(0) for _ in range(4000)])
        ends = np.quantile(draws, [0.025, 0.975], axis=0)
        for place, length in enumerate(sorted(next(iter(runs.values())))):
            assert row[f"exact_match@{length}"] == pytest.approx(grid[:, place].mean())
            band = row[f"exact_match@{length}_low"], row[f"exact_match@{length}_high"]
            assert band == pytest.approx(ends[:, place], abs=0.03)
    raw = {}
    for scheme in ("learned", "alibi"):
        seeds = sorted(set(beyond[scheme]) & set(beyond["sinusoidal"]))
        mine, base = ([beyond[s][seed] for seed in seeds] for s in (scheme, "sinusoidal"))
        theirs = stats.ttest_rel(mine, base)
        interval = theirs.confidence_interval(0.95)
        row = written[scheme]
        assert row["pairs"] == 5
        assert row["difference"] == pytest.approx(np.mean(mine) - np.mean(base))
        assert (row["difference_low"], row["difference_high"]) == pytest.approx((interval.low, interval.high))
        raw[scheme] = theirs.pvalue
        wins = stats.mannwhitneyu(list(beyond[scheme].values()), list(beyond["sinusoidal"].values()))
        share = wins.statistic / (len(beyond[scheme]) * 5)
        assert row["probability_of_improvement"] == pytest.approx(share)
    small, large = sorted(raw, key=lambda scheme: raw[scheme])
    assert written[small]["p_t_holm"] == pytest.approx(2 * raw[small])
    assert written[large]["p_t_holm"] == pytest.approx(max(2 * raw[small], raw[large]))
    assert written["learned"]["seeds_without_pair"] == "9"


def test_the_written_table_is_the_returned_one(folder: Path) -> None:
    made = compare(folder)
    written = pd.read_csv(folder / "comparison" / "table.csv")
    pd.testing.assert_frame_equal(written, made.table, check_dtype=False)
    assert list(made.table["scheme"]) == ["alibi", "learned", "sinusoidal"]
    assert list(made.table["seeds"]) == [3, 3, 3]


def test_the_same_runs_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    first, second = (compare(folder, out=tmp_path / name).files for name in "ab")
    assert [path.name for path in first] == [path.name for path in second]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_protocols_are_never_pooled(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=learned", "training.steps=13"), fading(1, 0))
    table, text = tabulated(folder), said(folder)
    assert table.groupby("protocol")["seeds"].sum().sort_values().tolist() == [1, 9]
    assert table["section"].nunique() == 2
    assert "never pooled. This one has training.steps=13." in text
    assert "never pooled. This one has training.steps=12." in text


def test_an_edited_task_is_another_protocol(folder: Path, tiny: Tiny) -> None:
    run = write_run(tiny("pe=learned", "seed=7"), fading(1, 0))
    run.config.write_text(run.config.read_text().replace("tasks.copying: ", "tasks.copying: edited"))
    assert tabulated(folder)["section"].nunique() == 2
    assert "edited training code" in said(folder)


def test_two_schemes_under_one_label_are_told_apart(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=none", "label=learned"), fading(1, 0))
    labels = set(load_runs(folder).runs["label"])
    assert len(labels) == 4
    assert sum(label.startswith("learned [") for label in labels) == 2


def test_a_scheme_keeps_its_label_over_several_tasks(folder: Path, tiny: Tiny) -> None:
    for task in ("reverse", "precedence"):
        write_run(tiny("pe=learned", f"task={task}"), fading(1, 0))
    assert set(load_runs(folder).runs["label"]) == {"alibi", "learned", "sinusoidal"}


def test_diverged_runs_count_as_unsolved_and_as_zero(folder: Path, tiny: Tiny) -> None:
    before = by_scheme(tabulated(folder))["alibi"]
    grid = "evaluation.lengths=[3,6,9,12,24,48]"
    write_run(tiny("pe=alibi", "seed=3", grid), fading(1, 0), "diverged", {"reason": "step 3"})
    after = by_scheme(tabulated(folder))["alibi"]
    assert (after["seeds"], after["diverged"], after["solved"]) == (4, 1, 3)
    for column in (
        "exact_match_in_distribution",
        "exact_match_extrapolation",
        "horizon",
        "token_accuracy@48",
    ):
        assert after[column] == pytest.approx(before[column] * 3 / 4)
    solved = "exact_match_extrapolation_solved"
    assert after[solved] == pytest.approx(before[solved])


def test_only_diverged_runs_are_still_a_row(tiny: Tiny) -> None:
    run = write_run(tiny(), fading(1, 0), "diverged")
    (row,) = compare(run.path.parents[1]).table.to_dict("records")
    assert (row["seeds"], row["diverged"], row["exact_match_extrapolation"]) == (1, 1, 0.0)


def test_under_three_seeds_there_are_points_and_a_line_that_says_so(tiny: Tiny) -> None:
    folder = write_study(tiny, seeds=2)
    table = tabulated(folder)
    ends = [column for column in table if column.endswith(("_low", "_high"))]
    assert table[ends].isna().all().all()
    assert "under three seeds" in said(folder)


def test_areas_are_over_the_lengths_all_runs_share(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=none", "evaluation.lengths=[3,6,12,100]"), fading(1, 0.02))
    assert set(tabulated(folder)["area_to"]) == {12}
    row = by_scheme(tabulated(folder))["alibi"]
    ends = row["exact_match@6"], row["exact_match@12"]
    assert row["exact_match_extrapolation"] == pytest.approx(sum(ends) / 2)
    alone = load_runs(folder).curves.groupby("content_length")["in_summary"].all()
    assert alone.to_dict() == {3: True, 6: True, 9: False, 12: True, 24: False, 48: False, 100: False}
    assert "measured at length 9, 24, 48, 100" in said(folder)


def test_runs_without_a_common_length_are_no_crash(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=none", "evaluation.lengths=[5,7]"), fading(1, 0.02))
    made = compare(folder)
    assert made.table["exact_match_extrapolation"].isna().all()
    assert "share no evaluated length" in (folder / "comparison" / "report.md").read_text()


def test_filters_and_options(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=rope", "pe.base=500"), fading(1, 0.02))
    assert set(load_runs(folder, pe="rope").runs["label"]) == {"rope(base=500)"}
    assert set(load_runs(folder, pe=["rope(base=500)", "alibi"]).runs["label"]) == {"rope(base=500)", "alibi"}
    assert load_runs(folder, task="copy", model="decoder").runs.shape[0] == 10
    made = compare(folder, options=Options(baseline="alibi", order=["learned"], labels={"alibi": "ALiBi"}))
    assert made.table["scheme"].iloc[0] == "learned"
    assert set(made.table["baseline"]) == {"ALiBi"}


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ({"pe": "rop"}, {}, "pe=rop: no finished run has it"),
        ({"task": ["copy", "x"]}, {}, "task=x: no finished run has it"),
        ({"model": "encoder"}, {}, "model=encoder: no finished run has it"),
        ({}, {"baseline": "rope"}, "baseline=rope: no run is called that; allowed: alibi"),
        ({}, {"metric": "accuracy"}, "metric=accuracy is not a figure"),
        ({}, {"order": ["x"]}, "order: no run is called x"),
        ({}, {"labels": {"x": "y"}}, "labels: no run is called x"),
        ({}, {"labels": {"alibi": "learned"}}, "labels: learned would be two schemes"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    folder: Path, arguments: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words.partition("(")[0]):
        compare(folder, **arguments, options=Options(**options))
    assert not (folder / "comparison").exists()


def damage(run: Path, how: str) -> None:
    """One of the ways in which a directory is no sound run."""
    result = json.loads((run / "result.json").read_text())
    curve, config = (run / "extrapolation.csv").read_text(), (run / "config.yaml").read_text()
    writes = {
        "half a result": ("result.json", "{"),
        "a list as result": ("result.json", "[1]"),
        "an error": ("result.json", json.dumps({**result, "status": "error", "reason": "boom"})),
        "unknown status": ("result.json", json.dumps({**result, "status": "fine"})),
        "another run's result": ("result.json", json.dumps({**result, "name": "other"})),
        "another seed": ("result.json", json.dumps({**result, "seed": 77})),
        "a seed in words": ("result.json", json.dumps({**result, "seed": "one"})),
        "no config": ("config.yaml", "a: [1"),
        "a foreign config": ("config.yaml", "lr: 0.1\n"),
        "sections that are none": ("config.yaml", config.replace("    task:\n", "    task: x\n    was:\n")),
        "half a curve": ("extrapolation.csv", "".join(curve.splitlines(keepends=True)[:3])),
        "no curve": ("extrapolation.csv", ""),
        "not a number": ("extrapolation.csv", curve.replace(",0.", ",nan").replace(",1.0,", ",nan,")),
        "above one": ("extrapolation.csv", curve.replace(",1.0,", ",3.0,")),
        "other columns": ("extrapolation.csv", curve.replace("exact_match,", "accuracy,")),
    }
    if how == "unfinished":
        (run / "result.json").unlink()
    elif how == "empty":
        shutil.rmtree(run)
        run.mkdir()
    elif how == "bytes":
        (run / "result.json").write_bytes(b"\xff\xfe\x00{")
    elif how == "a folder as result":
        (run / "result.json").unlink()
        (run / "result.json").mkdir()
    elif how == "a file":
        shutil.rmtree(run)
        run.write_text("x")
    else:
        name, text = writes[how]
        (run / name).write_text(text)


DAMAGES = {
    "half a result": "damaged", "a list as result": "damaged", "an error": "error: boom",
    "unknown status": "damaged", "another run's result": "belongs to", "another seed": "seed 77",
    "a seed in words": "seed one", "no config": "config.yaml", "a foreign config": "config.yaml",
    "sections that are none": "a section that is none", "half a curve": "not the lengths",
    "no curve": "damaged", "not a number": "damaged", "above one": "damaged", "other columns": "damaged",
    "unfinished": "unfinished", "empty": "no run", "bytes": "damaged", "a folder as result": "damaged",
    "a file": "a file",
}  # fmt: skip


@pytest.mark.parametrize("how", DAMAGES)
def test_what_is_no_sound_run_is_left_out_with_the_reason(folder: Path, tiny: Tiny, how: str) -> None:
    sound = tabulated(folder).to_csv()
    bad = write_run(tiny("pe=learned", "seed=8", "evaluation.lengths=[3,6,9]"), fading(1.0, 0.001)).path
    damage(bad, how)
    assert DAMAGES[how] in load_runs(folder).left_out[bad.name]
    assert tabulated(folder).to_csv() == sound


def test_a_copied_run_is_a_duplicate_and_counts_once(folder: Path) -> None:
    sound = tabulated(folder).to_csv()
    run = sorted((folder / "runs").iterdir())[0]
    shutil.copytree(run, run.with_name("a-copy"))
    made = compare(folder)
    assert made.runs.left_out == {"a-copy": f"a duplicate: the same training as {run.name}"}
    assert made.table.to_csv() == sound
    assert "a-copy: a duplicate" in (folder / "comparison" / "report.md").read_text()
    shutil.rmtree(run)
    assert tabulated(folder).to_csv() == sound


def test_a_damaged_evaluation_costs_the_evaluation_alone(folder: Path) -> None:
    sound = tabulated(folder).to_csv()
    run = sorted((folder / "runs").iterdir())[0]
    (run / "evaluations" / "12345678").mkdir(parents=True)
    (run / "evaluations" / "12345678" / "result.json").write_text("{")
    assert list(load_runs(folder).left_out) == [f"{run.name}/evaluations/12345678"]
    assert tabulated(folder).to_csv() == sound


def test_nothing_sound_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    for run in (folder / "runs").iterdir():
        damage(run, "half a result")
    with pytest.raises(UserError, match="no finished run to compare"):
        compare(folder, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_schemes_keep_their_colour() -> None:
    assert (
        styles(["sinusoidal", "x"])["sinusoidal"] == styles(["none", "sinusoidal", "learned"])["sinusoidal"]
    )
    assert styles(["RoPE"], {"RoPE": "rope"})["RoPE"] == styles(["rope"])["rope"]
    many = styles([f"s{i}" for i in range(LOOKS - len(KNOWN))] + list(KNOWN))
    assert len(set(many.values())) == len(many) == LOOKS
    assert {colour for colour, _ in many.values()} <= set(COLOURS)
    assert len(styles([f"s{i}" for i in range(LOOKS + 20)])) == LOOKS + 20


HOSTILE = ["$\\frac$", "<script>alert(1)</script>", "a|b_c%d&e", "_leading", "編碼", "x" * 300, "q\"'`\n#"]


def test_hostile_labels_are_drawn_and_stay_text(folder: Path, tiny: Tiny) -> None:
    for place, label in enumerate(HOSTILE):
        write_run(
            tiny("pe=rope", f"pe.base={500 + place}"),
            fading(1, 0.02),
            result={"label": label},
        )
    assert set(HOSTILE) <= set(compare(folder).table["scheme"])
    out = folder / "comparison"
    assert "<script>" not in (out / "report.md").read_text()
    assert r"a\|b\_c%d&amp;e" in (out / "report.md").read_text()
    assert r"a\textbar{}b\_c\%d\&e" in (out / "table.tex").read_text()


def test_every_figure_there_is_data_for(folder: Path, tiny: Tiny) -> None:
    for seed in range(3):
        write_run(tiny("pe=learned", "task=reverse", f"seed={seed}"), fading(0.95, 0.01))
    out = folder / "comparison"
    names = {path.stem for path in compare(folder).files if path.suffix == ".svg"}
    family = {f"{kind}-decoder" for kind in ("tasks", "heatmap", "horizon", "cost", "training")}
    assert names == {"copy-decoder", "reverse-decoder"} | family
    mine = out / "figures" / "mine.png"
    mine.write_text("")
    compare(folder, task="copy", pe="alibi", options=Options(baseline="alibi", width="single"))
    left = {path.stem for path in (out / "figures").glob("*.png")}
    assert left == {"copy-decoder", "horizon-decoder", "cost-decoder", "training-decoder", "mine"}
    with pytest.raises(UserError, match="width=3: expected single or double"):
        compare(folder, options=Options(width=3))


def test_a_damaged_training_curve_costs_the_curve_alone(tiny: Tiny, tmp_path: Path) -> None:
    run = write_run(tiny("pe=rope"), fading(1, 0))
    (run.path / "metrics.csv").write_bytes(b"\xff\x00")
    runs = load_runs(run.path.parents[1])
    assert len(runs.runs) == 1
    assert "damaged" in runs.left_out[f"{run.name}/metrics.csv"]


def test_markup_in_a_label_stays_text(tiny: Tiny, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = write_run(tiny("pe=rope"), fading(1, 0))
    show(compare(run.path.parents[1], out=tmp_path, options=Options(labels={"rope": "[/b] [c51d]"})))
    assert "[/b] [c51d]" in capsys.readouterr().out
