"""Test comparisons of run directories: grouping, labels, tests, and what is left out."""

import importlib
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml  # type: ignore[import-untyped]

from pe_experiments import NUMERICS
from pe_experiments.comparison import Comparison, compare, load_runs
from pe_experiments.comparison.protocols import protocols_of
from pe_experiments.comparison.runs import read_runs
from pe_experiments.comparison.statistics import seeds_needed
from pe_experiments.configuration.choices import shipped
from pe_experiments.drawing import printed_name
from pe_experiments.store.identity import Record
from pe_experiments.store.study_folder import write_manifest
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny, tiny_in
from tests.synthetic import Accuracies, fading, write_run, write_study

PAGE = "report.html"


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tiny_in(tmp_path_factory.mktemp("comparison") / "results"), seeds=3)


@pytest.fixture
def folder(template: Path, results: Path) -> Path:
    """A results directory with three encodings of three seeds."""
    return Path(shutil.copytree(template, results))


def write_compared(results_dir: Path, **options: Any) -> Comparison:
    return compare(results_dir, out=results_dir / "comparison", **options)


@pytest.fixture
def with_figures() -> None:
    """Let `compare` draw its figures, which take most of its time."""


@pytest.fixture(autouse=True)
def _without_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "with_figures" not in request.fixturenames:
        module = importlib.import_module("pe_experiments.comparison.compare_runs")
        monkeypatch.setattr(module, "draw_all", lambda *_: [])


def notes_of(folder: Path) -> str:
    return " ".join(compare(folder).notes)


def by_encoding(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return {row["encoding"]: row for row in table.to_dict("records")}


def past_training(value: float) -> Accuracies:
    """Return accuracies of 1 up to length 6 and an exact match of ``value`` beyond."""
    return lambda length: (1.0 if length <= 6 else value, 1.0)


@pytest.mark.slow
def test_the_sentence_names_the_best_and_its_significant_differences(tiny: Tiny, results: Path) -> None:
    """Five seeds each; those of T5 are all or nothing, so that it is not significantly different."""
    for seed in range(5):
        values = {
            "none": 0.001 * seed,
            "rope": 0.5 + 0.001 * seed,
            "alibi": 1.0,
            "t5": float(seed < 3),
        }
        for encoding, value in values.items():
            experiment = tiny(f"pe={encoding}", f"seed={seed}", "evaluation.lengths=[6,12]")
            write_run(experiment, past_training(value))
    comparison = compare(results)
    separated = comparison.pairs.set_index(["encoding", "other"])["separated"]
    assert all(value == ("t5" not in pair) for pair, value in separated.items())
    (sentence,) = comparison.sentences.values()
    assert sentence.startswith(
        "alibi has the highest mean exact match past the training lengths, 1.00 in all 5 seeds"
    )
    assert sentence.endswith("significantly different from rope and none.")
    assert by_encoding(comparison.table)["t5"]["reached@12"] == 3


def test_a_comparison_says_how_many_seeds_a_difference_takes(tiny: Tiny, results: Path) -> None:
    """The deviation is pooled over encodings with three seeds, 0.1 and 0 here."""
    for seed, value in enumerate((0.4, 0.5, 0.6)):
        write_run(tiny("pe=rope", f"seed={seed}", "evaluation.lengths=[6,12]"), past_training(value))
        write_run(tiny("pe=none", f"seed={seed}", "evaluation.lengths=[6,12]"), past_training(0.0))
    (plan,) = compare(results, difference=0.2).plans.values()
    seeds = seeds_needed(0.2, 0.1 / 2**0.5)
    assert f"a true difference of 0.2 in 80 % of studies, a study needs {seeds} seeds per encoding" in plan
    assert "(standard deviation over seeds 0.071, 1 test)" in plan


@pytest.mark.slow
def test_runs_of_several_protocols_are_not_loaded_as_one(folder: Path, tiny: Tiny) -> None:
    """A mean over seeds in pandas would mix runs trained to 6 and to 5."""
    assert len(load_runs(folder).runs) == 9
    run = write_run(tiny("pe=learned", "seed=7", "training.max_length=5"), fading(1, 0))
    different = r"different configurations \(copy, decoder, max_length=5 or copy, decoder, max_length=6\)"
    with pytest.raises(UserError, match=different):
        load_runs(folder)
    write_manifest(folder, "short", [run.name])
    assert list(load_runs(folder, "short").runs["name"]) == [run.name]
    write_run(tiny("pe=learned", "task=reverse", "study=two"), fading(1, 0))
    write_manifest(folder, "two", [run.name, next(folder.glob("runs/reverse*")).name])
    assert len(load_runs(folder, "two").runs) == 2
    assert len(compare(folder).protocols) == 3
    write_manifest(folder, "nested/one", [run.name])
    with pytest.raises(UserError, match=r"study=nested/two: .* studies there: nested/one, short, two"):
        read_runs(folder, "nested/two")


def test_an_edited_task_is_another_protocol(folder: Path, tiny: Tiny) -> None:
    run = write_run(tiny("pe=learned", "seed=7"), fading(1, 0))
    edited = {"task": {"mine": "edited"}}
    identity = replace(Record.read(run).identity, classes=edited)
    saved = yaml.safe_load(run.config.read_text()) | {"identity": identity.hashed | {"hash": identity.hash}}
    run.config.write_text(yaml.safe_dump(saved))
    run.result.write_text(json.dumps(json.loads(run.result.read_text()) | {"run": identity.hash}))
    assert compare(folder).table["section"].nunique() == 2
    assert [protocol.slug for protocol in protocols_of(read_runs(folder))] == [
        "copy-decoder-code1",
        "copy-decoder-code2",
    ]


def test_an_encoding_renamed_between_its_runs_is_one_encoding(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=learned", "seed=7"), fading(1, 0), result={"label": "learned_by_another_name"})
    assert sorted(load_runs(folder).runs["label"].unique()) == ["alibi", "learned", "sinusoidal"]


def test_two_encodings_under_one_label_get_different_labels(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=none", "label=learned"), fading(1, 0))
    labels = set(load_runs(folder).runs["label"])
    assert len(labels) == 4
    hashed = [label for label in labels if label.startswith("learned [")]
    assert len(hashed) == 2
    assert compare(folder, pe=hashed[:1]).encodings == ["learned"]


def test_an_encoding_has_no_horizon_if_one_of_its_seeds_has_none(tiny: Tiny, results: Path) -> None:
    for seed, far in enumerate((1.0, 1.0, 0.0)):
        write_run(tiny("pe=rope", f"seed={seed}", "evaluation.lengths=[12,24]"), past_training(far))
    (row,) = compare(results).table.to_dict("records")
    assert math.isnan(row["horizon"])
    assert row["exact_match_extrapolation"] == pytest.approx(2 / 3)


def test_protocols_are_named_by_how_they_were_evaluated(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=none", "evaluation.window=6"), fading(1, 0))
    titles = [protocol.title for protocol in protocols_of(read_runs(folder))]
    assert titles == ["copy, decoder, window=6", "copy, decoder, window=unset"]


def test_diverged_runs_count_as_unsolved_and_as_zero(folder: Path, tiny: Tiny) -> None:
    before = by_encoding(compare(folder).table)["alibi"]
    grid = "evaluation.lengths=[3,6,9,12,24,48]"
    write_run(tiny("pe=alibi", "seed=3", grid), fading(1, 0), "diverged", {"reason": "step 3"})
    after = by_encoding(compare(folder).table)["alibi"]
    assert (after["seeds"], after["diverged"], after["solved"]) == (4, 1, 3)
    for column in (
        "exact_match_in_distribution",
        "exact_match_extrapolation",
        "horizon",
        "token_accuracy@48",
    ):
        assert after[column] == pytest.approx(before[column] * 3 / 4)


@pytest.mark.usefixtures("with_figures")
def test_an_encoding_with_diverged_runs_only_has_a_row(tiny: Tiny) -> None:
    run = write_run(tiny(), fading(1, 0), "diverged")
    (row,) = compare(run.path.parents[1]).table.to_dict("records")
    assert (row["seeds"], row["diverged"], row["exact_match_extrapolation"]) == (1, 1, 0.0)


@pytest.mark.parametrize("seeds", [1, 2])
def test_under_three_seeds_no_interval_or_test_is_printed(tiny: Tiny, seeds: int) -> None:
    folder = write_study(tiny, seeds=seeds)
    comparison = write_compared(folder)
    ends = [column for column in comparison.table if column.endswith(("_low", "_high"))]
    assert comparison.table[ends].isna().all().all()
    assert comparison.pairs["p"].isna().all()
    assert "No intervals or tests, because of fewer than three seeds: every encoding." in notes_of(folder)
    page = (folder / "comparison" / PAGE).read_text()
    texts = {name: (folder / "comparison" / name).read_text() for name in ("table.tex", "references.bib")}
    texts["methods"] = page.partition("<summary>Methods")[2].partition("BibTeX")[0]
    for name, text in texts.items():
        for word in ("permutation", "Holm", "Gaffke", "Clopper", "bootstrap", "sign", "interval ["):
            assert word not in text, (name, word)


def test_areas_cover_the_lengths_that_all_runs_share(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=none", "evaluation.lengths=[3,6,12,100]"), fading(1, 0.02))
    row = by_encoding(compare(folder).table)["alibi"]
    assert row["exact_match_extrapolation"] == pytest.approx(row["exact_match@12"])
    in_summary = load_runs(folder).curves.groupby("content_length")["in_summary"].all()
    assert in_summary.to_dict() == {3: True, 6: True, 9: False, 12: True, 24: False, 48: False, 100: False}
    assert "Summaries exclude lengths that some runs lack: 9, 24, 48 and 100." in notes_of(folder)


@pytest.mark.usefixtures("with_figures")
def test_runs_without_a_common_length_have_no_area(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=none", "evaluation.lengths=[5,7]"), fading(1, 0.02))
    assert compare(folder).table["exact_match_extrapolation"].isna().all()
    assert "share no evaluated length" in notes_of(folder)


@pytest.mark.slow
def test_the_latex_table_marks_what_did_not_learn_and_the_best(tiny: Tiny, results: Path) -> None:
    exact_match = {  # within and past the training lengths
        "pe=rope positions=random_subset": (1.0, 0.9),
        "pe=alibi": (1.0, 0.899),
        "pe=sinusoidal": (1.0, 0.3),
        "pe=rope pe.base=500": (0.5, 0.4),
        "pe=none task=reverse": (1.0, 0.0),
    }
    for overrides, (within, past) in exact_match.items():
        for seed in range(8):
            experiment = tiny(*overrides.split(), f"seed={seed}", "evaluation.lengths=[6,12]")
            values = {6: within, 12: max(0.0, past - 0.005 * (seed % 4))}
            write_run(experiment, lambda n, values=values: (values[n], 1.0))
    comparison = write_compared(results)
    text = (results / "comparison" / "table.tex").read_text()
    rows = {}
    for line in text.splitlines():
        if "&" in line:
            name, *cells = (cell.strip() for cell in line.removesuffix(r" \\").split("&"))
            rows[name] = cells
    assert rows["Encoding"] == ["Seeds", "copy", "reverse"]
    assert rows["RoPE, random subset"] == ["8", r"\textbf{0.89}", "--"]
    assert rows["ALiBi"] == ["8", r"\textbf{0.89}", "--"]
    assert rows["Sinusoidal"] == ["8", "0.29", "--"]
    assert rows["RoPE (base=500)"] == ["8", r"\textit{0.39}$^{\dagger}$", "--"]
    assert rows["NoPE"] == ["8", "--", "0.00"]  # the best of its column, but 0 is not marked
    assert text.count(r"\citep{") == len(comparison.encodings)


@pytest.mark.parametrize("group", ["pe", "positions"])
def test_every_shipped_encoding_has_a_name_for_papers(group: str) -> None:
    names = [printed_name(name) for name in shipped(group)]
    assert not [name for name in names if "_" in name]
    assert len(set(names)) == len(names)
    assert printed_name("Recency(slope=0.2)+random_offset") == "Recency (slope=0.2), random offset"


def test_a_copied_run_counts_once(folder: Path) -> None:
    table = compare(folder).table.to_csv()
    run = min((folder / "runs").iterdir())
    shutil.copytree(run, run.with_name("a-copy"))
    comparison = write_compared(folder)
    assert comparison.runs.left_out == {"a-copy": f"a duplicate of {run.name}"}
    assert comparison.table.to_csv() == table
    assert "a duplicate of" in (folder / "comparison" / "report.html").read_text()
    shutil.rmtree(run)
    assert compare(folder).table.to_csv() == table


def test_runs_of_the_latest_numerics_count(folder: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(compare(folder).table["encoding"])
    monkeypatch.setattr("pe_experiments.store.identity.NUMERICS", NUMERICS + 1)
    write_study(tiny)
    comparison = write_compared(folder)
    assert set(comparison.table["encoding"]) == before
    assert {saved.numerics for saved in comparison.runs.saved.values()} == {NUMERICS + 1}
    assert all(
        f"trained with NUMERICS {NUMERICS}, and " in reason for reason in comparison.runs.left_out.values()
    )


HOSTILE = ["$\\frac$", "<script>alert(1)</script>", "a|b_c%d&e", "x" * 300]


@pytest.mark.slow
@pytest.mark.usefixtures("with_figures")
def test_hostile_labels_are_drawn_and_escaped(folder: Path, tiny: Tiny) -> None:
    for index, label in enumerate(HOSTILE):
        write_run(tiny("pe=rope", f"pe.base={500 + index}"), fading(1, 0.02), result={"label": label})
    assert set(HOSTILE) <= set(write_compared(folder).table["encoding"])
    out = folder / "comparison"
    assert "<script>alert" not in (out / PAGE).read_text()
    assert "a|b_c%d&amp;e" in (out / PAGE).read_text()
    assert r"a|b\_c\%d\&e" in (out / "table.tex").read_text()


def test_two_tuned_options_are_chosen_together(tiny: Tiny) -> None:
    """The best pair need not hold the value that is best on average over the other option."""
    losses = {(0.1, 0.0): 1.0, (0.1, 0.5): 9.0, (0.2, 0.0): 4.0, (0.2, 0.5): 3.0}
    for (rate, decay), loss in losses.items():
        options = (f"training.learning_rate={rate}", f"training.weight_decay={decay}")
        write_run(tiny(*options), fading(1, 0), result={"validation_loss": loss})
    results = Path(tiny().config.results_dir)
    names = [path.name for path in (results / "runs").iterdir()]
    tuned = ["training.learning_rate", "training.weight_decay"]
    write_manifest(results, "both", names, tuned=tuned)
    runs = read_runs(results, "both")
    assert [choice["chosen"] for choice in runs.tuning] == ["0.1, 0.0"]
    (kept,) = runs.saved.values()
    assert [kept.trained["training"][key.partition(".")[2]] for key in tuned] == [0.1, 0.0]


def test_a_run_that_was_repeated_with_one_value_does_not_decide_the_tuning(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(rate: float, loss: float) -> None:
        result = {"validation_loss": loss}
        write_run(tiny(f"training.learning_rate={rate}"), fading(1, 0), result=result)

    write(0.1, 1.0)
    write(0.2, 2.0)
    monkeypatch.setattr("pe_experiments.store.identity.NUMERICS", NUMERICS + 1)
    write(0.2, 2.0)
    results = Path(tiny().config.results_dir)
    names = [path.name for path in (results / "runs").iterdir()]
    write_manifest(results, "rates", names, tuned=["training.learning_rate"])
    runs = read_runs(results, "rates")
    assert [choice["chosen"] for choice in runs.tuning] == ["0.1"]
    assert len(runs.left_out) == 1
