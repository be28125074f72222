"""Published studies: everything follows from their CSVs, and the pages say what these say."""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pe_experiments import NUMERICS
from pe_experiments.comparison import Runs, compare, compared, load_runs, write_comparison
from pe_experiments.comparison.compare import output_of
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.published import mean_in_words, read_archive, with_settings
from pe_experiments.published.archive import (
    FILES,
    config_key_of,
    merge_runs,
    published_keys,
    select_runs,
    write_archive,
)
from pe_experiments.published.blocks import NUMBER, answer_of, fill_page, fill_project_readme
from pe_experiments.published.pages import differences, list_studies, load_study, regenerate
from pe_experiments.published.publish import require_committed_code
from pe_experiments.store.csv_files import METRICS, to_csv
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.manifest import list_in_study, read_manifest, write_manifest
from pe_experiments.terminal.errors import UserError
from results.precision import study as precision
from tests import stranger
from tests.conftest import ROOT
from tests.synthetic import fading, write_run, write_study

RESULTS = ROOT / "results"


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_study_read_back_gives_the_same_comparison(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    """From the runs and from their CSVs the same table; and of these CSVs the same CSVs."""
    runs = load_runs(write_study(tiny))
    write_archive(runs, tmp_path / "a")
    read = read_archive(tmp_path / "a")
    write_archive(read, tmp_path / "b")
    assert filecmp.cmpfiles(tmp_path / "a", tmp_path / "b", FILES, shallow=False)[0] == list(FILES)
    direct, again = (write_comparison(compared(made), "t", tmp_path / "c").table for made in (runs, read))
    pd.testing.assert_frame_equal(again, direct)


@pytest.mark.slow
def test_runs_published_earlier_stay_beside_those_of_today(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    runs = load_runs(write_study(tiny))
    names = sorted(runs.saved)
    write_archive(select_runs(runs, runs.runs["name"].isin(names[:9])), tmp_path / "a")
    earlier = read_archive(tmp_path / "a")
    today = select_runs(runs, runs.runs["name"].isin(names[7:]))
    both = merge_runs(earlier, today)
    assert both.runs["name"].tolist() == names == sorted(both.environments)
    write_archive(both, tmp_path / "b")
    write_archive(runs, tmp_path / "whole")
    assert all(filecmp.cmp(tmp_path / "b" / file, tmp_path / "whole" / file, shallow=False) for file in FILES)


def test_what_is_joined_is_summarised_over_the_lengths_that_all_share(
    tiny: Callable[..., Experiment],
) -> None:
    runs = load_runs(write_study(tiny, seeds=2))
    names = sorted(runs.saved)
    fewer = runs.curves[~(runs.curves["name"].eq(names[0]) & runs.curves["content_length"].eq(48))]
    earlier = select_runs(
        Runs(runs.runs, fewer, {}, runs.training, runs.saved, runs.environments),
        runs.runs["name"].isin(names[:1]),
    )
    both = merge_runs(earlier, select_runs(runs, runs.runs["name"].isin(names[1:])))
    assert not both.curves.loc[both.curves["content_length"] == 48, "in_summary"].any()
    assert both.curves.loc[both.curves["content_length"] < 48, "in_summary"].all()
    first, full = (frame.set_index("name")["exact_match_extrapolation"] for frame in (both.runs, runs.runs))
    assert (first.sort_index() >= full.sort_index()).all()
    assert not first.sort_index().equals(full.sort_index())


def test_classes_from_outside_are_not_published(tiny: Callable[..., Experiment]) -> None:
    runs = load_runs(write_study(tiny, seeds=2))
    require_committed_code("t", runs)
    next(iter(runs.saved.values()))["identity"]["trained"]["pe"]["_target_"] = "mine.Mine"
    with pytest.raises(UserError, match=r"mine\.Mine of .* is not code of this project"):
        require_committed_code("t", runs)


def test_what_repeats_from_run_to_run_is_said_once_and_read_back(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    runs = load_runs(write_study(tiny, seeds=2))
    write_archive(runs, tmp_path / "a")
    read = read_archive(tmp_path / "a")
    for name, saved in runs.saved.items():
        identity = read.saved[name]["identity"]
        assert identity["trained"] == saved["identity"]["trained"], name
        assert identity["hashed"]["numerics"] == saved["identity"]["hashed"]["numerics"] == NUMERICS
        assert read.environments[name] == runs.environments[name], name
    cells = pd.read_csv(tmp_path / "a" / "provenance.csv")
    assert cells["commit"].count() == 1
    assert cells["trained"].count() == len(cells) > 3


def test_how_a_setting_was_tuned_is_published_with_the_runs(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    runs = load_runs(write_study(tiny, seeds=1))
    first = runs.runs.iloc[0]
    rate = str(runs.saved[first["name"]]["identity"]["trained"]["training"]["learning_rate"])
    losses = [
        {"name": f"run-{value}-{seed}", "seed": seed, "value": value, "loss": loss}
        for value, seed, loss in ((rate, 100, 0.5), (rate, 101, 0.7), ("0.3", 100, 0.2), ("0.3", 101, None))
    ]
    choice = {"protocol": first["protocol"], "family": first["encoding"]}
    choice |= {"encoding": "rope", "task": "copy", "model": "decoder", "settings": {"vocab_size": 10}}
    choice |= {"setting": "training.learning_rate", "seed": [100, 101], "chosen": rate, "losses": losses}
    runs.tuning.append(choice | {"tried": {rate: 0.6, "0.3": None}})
    write_archive(runs, tmp_path / "a")
    read = read_archive(tmp_path / "a")
    (found,) = read.tuning
    assert {key: found[key] for key in ("tried", "chosen", "seed", "settings")} == {
        "tried": {rate: pytest.approx(0.6), "0.3": None},  # a value at which a seed diverged is not chosen
        "chosen": rate,
        "seed": [100, 101],
        "settings": {"vocab_size": 10},
    }
    write_archive(merge_runs(read, runs), tmp_path / "b")
    assert filecmp.cmp(tmp_path / "a" / "tuning.csv", tmp_path / "b" / "tuning.csv", shallow=False)


def test_a_grown_grid_replaces_runs_at_the_value_that_is_no_longer_chosen(
    tiny: Callable[..., Experiment], results: Path
) -> None:
    """Two tasks with grids of their own; every run of both is known as published, and no other."""

    def run(task: str, rate: float, loss: float) -> None:
        for seed in (0, 1):
            run = write_run(
                tiny(f"task={task}", f"seed={seed}", f"training.learning_rate={rate}"), fading(1, 0)
            )
            run.metrics.write_text(to_csv(METRICS, [{"step": 12, "validation_loss": loss}]))
            list_in_study(results, "s", run.name)
        manifest = read_manifest(results / "s" / "manifest.json")
        write_manifest(results, "s", manifest["runs"], tuned=["training.learning_rate"])

    def rates(runs: Runs) -> dict[str, list[float]]:
        table = with_settings(runs, rate="training.learning_rate")
        return {str(task): group.tolist() for task, group in table.groupby("task")["rate"]}

    for task, rate, loss in (("copy", 0.1, 0.5), ("copy", 0.3, 0.4), ("reverse", 0.1, 0.2)):
        run(task, rate, loss)
    published = results / "s"
    write_archive(load_runs(results, "s"), published)
    assert rates(read_archive(published)) == {"copy": [0.3, 0.3], "reverse": [0.1, 0.1]}
    paths = (results / "runs").iterdir()
    assert set(published_keys(published)) == {
        config_key_of(RunDirectory(path).read_config()) for path in paths
    }
    run("copy", 0.9, 0.1)
    both = merge_runs(read_archive(published), load_runs(results, "s"))
    assert rates(both) == {"copy": [0.9, 0.9], "reverse": [0.1, 0.1]}
    assert [choice["chosen"] for choice in both.tuning] == ["0.9"]


def test_what_is_published_is_not_overwritten_by_a_comparison(
    tiny: Callable[..., Experiment], results: Path
) -> None:
    write_study(tiny, "study=s", seeds=1)
    list_in_study(results, "s", *load_runs(results).saved)
    assert output_of(results, "s") == results / "s"
    write_archive(load_runs(results, "s"), results / "s")
    assert output_of(results, "s") == results / "comparison" / "s"
    with pytest.raises(UserError, match="holds a published study"):
        compare(results, "s", results / "s")


@pytest.mark.slow
def test_a_study_without_code_of_its_own_is_its_comparison(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    write_archive(load_runs(write_study(tiny, seeds=1)), folder)
    regenerate(folder)
    assert {*FILES, "report.html", "table.csv"} <= set(files_of(folder))
    (folder / "table.csv").write_text("edited")
    (folder / "more.md").write_text("of nobody")
    (folder / "plan.md").write_text("by hand")
    assert [path.name for path in differences(folder)] == ["more.md", "table.csv"]


def test_a_study_with_code_of_its_own_is_what_that_writes(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe_experiments.published.pages.SHIPPED", tmp_path)
    folder = tmp_path / "mine"
    write_archive(load_runs(write_study(tiny, seeds=1)), folder)
    (folder / "words.py").write_text('WORDS = "of {} runs"\n')
    (folder / "study.py").write_text(
        "from .words import WORDS\n\n\n"
        "def pages(folder):\n"
        '    (folder / "page.md").write_text("drawn")\n\n\n'
        "def blocks(folder):\n"
        '    lines = (folder / "runs.csv").read_text().count("\\n") - 1\n'
        '    return {"table": WORDS.format(lines), "runs": lines / 4, "more": "and more"}\n'
    )
    page = (
        "by hand\n<!-- from table: make results -->\n{}\n<!-- end -->\n"
        "<!-- answer -->\nIt has <!-- {{runs:.1f}} -->{}<!-- end -->.\n<!-- end of answer -->\nafter\n"
    )
    (folder / "README.md").write_text(page.format("old", "old"))
    regenerate(folder)
    assert files_of(folder) == sorted(["README.md", "page.md", "study.py", "words.py", *FILES])
    made = page.format("of 3 runs", "0.8")
    assert (folder / "README.md").read_text() == made
    assert differences(folder) == []
    for changed in (made.replace("3 runs", "3  runs"), made.replace("0.8", "0.9")):
        (folder / "README.md").write_text(changed)
        assert [path.name for path in differences(folder)] == ["README.md"]
    (folder / "README.md").write_text(made)
    project = "first\n<!-- from results/mine: make results -->\n{}\n<!-- end -->\n"
    assert fill_project_readme(project.format("old"), tmp_path) == project.format("It has 0.8.")
    for unknown in ("<!-- from tabel: make results -->\n<!-- end -->", "<!-- {tabel} --><!-- end -->"):
        (folder / "README.md").write_text(unknown)
        with pytest.raises(UserError, match="block tabel is unknown; allowed: more, runs"):
            regenerate(folder)


def test_code_that_came_with_somebody_elses_results_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "study.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert hasattr(load_study(tmp_path / "text"), "blocks")  # the project's study of that name
    for other in (tmp_path / "other", RESULTS / "mine" / "text"):
        assert not hasattr(load_study(other), "blocks")
    assert not (tmp_path / "ran").exists()


def test_values_read_alike_everywhere() -> None:
    assert mean_in_words([1.0, 1.0, 1.0]) == "1.00 in all 3 seeds"
    assert mean_in_words([0.5]) == "0.50 (1 seed)"
    assert mean_in_words([0.0] * 9, "setting") == "0.00 in all 9 settings"
    assert mean_in_words([0.0, 0.5, 0.7]).startswith("0.40 [0.0")


@pytest.mark.slow
def test_a_stranger_recomputes_a_published_table_from_curves_csv() -> None:
    """With the protocol's runs read from the CSV, by code that shares nothing with ours."""
    folder = RESULTS / "tutorial_claims"
    rows, pairs, curves = (stranger.read_csv(folder / f"{name}.csv") for name in ("table", "pairs", "curves"))
    tested = 0
    for protocol in {row["protocol"] for row in rows}:
        mine = [row for row in rows if row["protocol"] == protocol]
        runs = stranger.curves_of([row for row in curves if row["protocol"] == protocol])
        for row in mine:
            stranger.check_table(row, runs)
        differences_ = [row for row in pairs if row["protocol"] == protocol]
        assert len(differences_) == len(mine) * (len(mine) - 1) // 2
        tested += stranger.check_pairs(differences_, runs, int(mine[0]["max_length"]))
    assert tested > 5


def test_equivalence_is_a_reading_of_its_own() -> None:
    full = np.array([0.5, 0.4, 0.6, 0.0, 0.1])
    assert precision.verdict(np.array([0.55, 0.35, 0.6, 0.01, 0.1]) - full) == "equivalent"
    assert precision.verdict(np.array([0.5, 0.4, 0.6, 0.2, 0.1]) - full) == "not decided"  # a seed by 0.2
    assert precision.verdict(0.2 + 0.001 * np.arange(8)) == "changed"


def test_equivalence_needs_every_one_of_five_within_the_margin() -> None:
    assert precision.equivalence_p(np.array([0.09, -0.05, 0.0, 0.02, 0.01])) == pytest.approx(1 / 32)
    assert precision.equivalence_p(np.array([0.11, -0.05, 0.0, 0.02, 0.01])) > 0.05
    assert precision.equivalence_p(np.array([0.3, 0.3, 0.3, 0.3, 0.3])) == 1.0


def test_rows_that_cannot_move_are_left_out() -> None:
    pairs = ([0.0, 0.0], [0.0, 0.0]), ([1.0, 1.0], [1.0, 1.0]), ([1.0, 1.0], [1.0, 0.9]), ([0.0], [1.0])
    frames = [pd.DataFrame({"float32": first, "bfloat16": second}) for first, second in pairs]
    assert [precision.can_change(frame) for frame in frames] == [False, False, True, True]


def test_settings_are_those_that_were_trained() -> None:
    runs = read_archive(RESULTS / "tutorial_claims")
    table = with_settings(runs, width="model.d_model", nothing="task.nothing")
    assert set(table["width"]) > {64, 128}
    assert table["nothing"].isna().all()


@pytest.mark.slow
@pytest.mark.parametrize("study", list_studies(RESULTS), ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_pages_figures_and_tables_follow_from_the_csvs_byte_for_byte(study: Path) -> None:
    assert differences(study) == []


def test_a_table_needs_a_place_in_the_page() -> None:
    page = "<!-- from a: make results -->\n<!-- end -->\n"
    assert "| x |" in fill_page(page, {"a": "| x |", "b": 1.0})
    with pytest.raises(UserError, match="no mark for table b"):
        fill_page(page, {"a": "| x |", "b": "| y |"})


@pytest.mark.parametrize("page", [ROOT / "README.md", *RESULTS.rglob("README.md")], ids=str)
def test_no_line_of_a_page_begins_with_the_mark_of_a_number(page: Path) -> None:
    """Markdown would take the whole line for HTML and show its asterisks and backticks."""
    for line in page.read_text("utf-8").splitlines():
        assert not NUMBER.match(line.lstrip(" ->")), line


@pytest.mark.slow
def test_the_values_in_the_projects_readme_are_those_of_the_csvs() -> None:
    text = (ROOT / "README.md").read_text()
    assert fill_project_readme(text, RESULTS) == text
    assert fill_project_readme(text.replace("0.", "9."), RESULTS) != text.replace("0.", "9.")


def test_the_numbers_written_by_hand_in_the_projects_readme_are_those_of_the_studies() -> None:
    """Its table of studies; the other numbers are filled in."""
    text = (ROOT / "README.md").read_text()
    for study, told, here in (
        ("replications", "13 published values that could be judged", "13 could be judged"),
        ("replications", "3 agree in value, 5 in order and 5 do not", "3 agree in value, 5 in their order"),
        ("replications", "17 could not be judged", "30 published values"),
        ("tutorial_claims", "Nine of 19 mathematical claims", "**9 of the 19 mathematical claims"),
        ("precision", "by less than 0.1 on three tasks", "its mean changes by less than 0.1"),
        ("implementations", "31 implementations in 14 libraries", "of 31 implementations in 14 libraries"),
        ("implementations", "28 compute the encoding they are named after", "3 of 31"),
        ("implementations", "11 fail at least one check", "11 fail at least one check"),
    ):
        assert told in text, told
        assert here in answer_of((RESULTS / study / "README.md").read_text("utf-8")), here
