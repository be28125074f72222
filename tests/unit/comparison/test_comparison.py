"""From run directories to tables: grouping, labels, what is left out, and what is never averaged away."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pe_experiments import NUMERICS
from pe_experiments.comparison import Comparison, compare, load_runs
from pe_experiments.comparison.compare import show
from pe_experiments.comparison.latex import printed
from pe_experiments.comparison.protocols import distinctive_settings, protocols_of
from pe_experiments.comparison.runs import read_runs
from pe_experiments.comparison.table import encoding_table
from pe_experiments.comparison.words import caveats, mean, number
from pe_experiments.configuration.compose import composed
from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.parts import shipped
from pe_experiments.configuration.schema import check
from pe_experiments.store.manifest import write_manifest
from pe_experiments.terminal.errors import UserError
from tests import stranger
from tests.conftest import TINY
from tests.synthetic import fading, write_run, write_study

Tiny = Callable[..., Experiment]
PAGE = "report.html"


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("comparison") / "results"

    def make(*overrides: str) -> Experiment:
        return resolve(check(composed("config", [*TINY, f"results_dir={place}", *overrides])))

    return write_study(make, seeds=3)


@pytest.fixture
def folder(template: Path, results: Path) -> Path:
    return Path(shutil.copytree(template, results))


def written(results_dir: Path, study: str | None = None, **options: Any) -> Comparison:
    """The comparison, with its files where the command puts them."""
    return compare(results_dir, study, results_dir / (study or "comparison"), **options)


@pytest.fixture
def drawn() -> None:
    """For tests that look at the figures; the others do without, which take most of the time."""


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawn" not in request.fixturenames:
        module = importlib.import_module("pe_experiments.comparison.compare")
        monkeypatch.setattr(module, "draw_all", lambda *_: [])


def tabulated(folder: Path) -> pd.DataFrame:
    """The table alone, without the figures that `compare` draws."""
    return encoding_table(protocols_of(read_runs(folder)), "exact_match_extrapolation")


def said(folder: Path) -> str:
    """The notes of all protocols."""
    table = tabulated(folder)
    rows = {protocol: own.to_dict("records") for protocol, own in table.groupby("protocol")}
    protocols = protocols_of(read_runs(folder))
    return " ".join(note for protocol in protocols for note in caveats(protocol, rows[protocol.hash]))


def by_encoding(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return {row["encoding"]: row for row in table.to_dict("records")}


@pytest.mark.slow
def test_a_stranger_finds_the_same_values_in_curves_csv(tiny: Tiny) -> None:
    """Means, counts, intervals, tests and their adjustment, from the files alone and by other code."""
    folder = write_study(tiny)
    grid = "evaluation.lengths=[3,6,9,12,24,48]"
    write_run(tiny("pe=learned", "seed=9", grid), fading(0, 0), "diverged")
    for seed in range(4):
        write_run(tiny("pe=rope", f"seed={seed}", grid), fading(1, 0.2 if seed % 2 else 0.0))
    written(folder)
    rows, pairs = (stranger.read_csv(folder / "comparison" / f"{name}.csv") for name in ("table", "pairs"))
    runs = stranger.curves_of(stranger.read_csv(folder / "comparison" / "curves.csv"))
    assert sorted(runs["learned"]) == [0, 1, 2, 3, 4, 9]
    for row in rows:
        stranger.check_table(row, runs)
    assert stranger.check_pairs(pairs, runs, 6) == len(pairs) == 6


@pytest.mark.slow
def test_words_follow_the_adjusted_tests(tiny: Tiny) -> None:
    """Five seeds each: three encodings whose seeds are all 0, 0.5 or 1 past training, and one in between."""
    levels = {"none": 0.0, "rope": 0.5, "alibi": 1.0}
    for encoding, level in levels.items():
        for seed in range(5):
            noise = 0.001 * seed if level < 1 else 0.0
            write_run(
                tiny(f"pe={encoding}", f"seed={seed}", "evaluation.lengths=[6,12]"),
                lambda n, at=level + noise: (1.0, 1.0) if n <= 6 else (at, 1.0),
            )
    for seed in range(5):  # all or nothing
        write_run(
            tiny("pe=t5", f"seed={seed}", "evaluation.lengths=[6,12]"),
            lambda n, s=seed: (1.0, 1.0) if n <= 6 else (float(s < 3), 1.0),
        )
    folder = Path(tiny().config.results_dir)
    made = written(folder)
    rows = by_encoding(made.table)
    apart = made.pairs.set_index(["encoding", "other"])["separated"]
    assert all(separated == ("t5" not in pair) for pair, separated in apart.items())
    (words,) = made.sentences.values()
    assert words.startswith(
        "alibi has the highest mean exact match past the training lengths, 1.00 [0.48, 1.00]"
    )
    assert words.endswith("significantly different from rope and none.")
    assert len(words.split()) <= 25
    assert rows["t5"]["reached@12"] == 3


@pytest.mark.slow
def test_too_many_pairs_for_the_seeds_is_said_and_a_baseline_helps(tiny: Tiny) -> None:
    """Five against five give 2 in 252 at the least: seven tests, and nothing can be below 0.05.

    The best alone is in four tests, which the sentence is about.
    """
    encodings = ("none", "sinusoidal", "learned", "rope", "alibi")
    for place, encoding in enumerate(encodings):
        for seed in range(5):
            write_run(tiny(f"pe={encoding}", f"seed={seed}"), fading(1, 0.01 * place + 0.001 * seed))
    folder = Path(tiny().config.results_dir)
    made = written(folder)
    assert len(made.pairs) == 10
    assert not made.pairs["separated"].any()
    page = (folder / "comparison" / "report.html").read_text()
    assert "10 tests the adjusted p value is at least 0.079, so no difference can be significant" in page
    (sentence,) = made.sentences.values()
    assert sentence.endswith("significantly different from sinusoidal, learned, rope and alibi.")
    assert bold_in_table(folder) == ["NoPE"]
    made = written(folder, baseline="alibi")
    assert len(made.pairs) == 4
    assert made.pairs["separated"].all()
    assert (
        "The differences from alibi of a protocol were tested" in (folder / "comparison" / PAGE).read_text()
    )
    assert bold_in_table(folder) == ["NoPE"]


def bold_in_table(folder: Path) -> list[str]:
    """The encodings of five seeds that the table for a paper marks as the best."""
    return re.findall(r"(\w+) & 5 & \\textbf", (folder / "comparison" / "table.tex").read_text())


@pytest.mark.slow
def test_an_encoding_that_did_not_learn_is_not_tested_past_training(folder: Path, tiny: Tiny) -> None:
    for seed in range(3):
        write_run(tiny("pe=rope", f"seed={seed}"), fading(0.5 + 0.01 * seed, 0.01))
    made = compare(folder)
    unlearnt = made.pairs[(made.pairs["encoding"] == "rope") | (made.pairs["other"] == "rope")]
    assert set(unlearnt["not_tested"]) == {"rope did not learn the task"}
    assert unlearnt["p"].isna().all()
    assert "Most seeds did not learn the training lengths: rope." in said(folder)
    inside = compare(folder, metric="exact_match_in_distribution").pairs
    assert inside["p"].notna().all()  # there it is the question itself


@pytest.mark.slow
def test_a_caveat_names_the_tasks_it_is_about(folder: Path, tiny: Tiny) -> None:
    for task in ("reverse", "lag"):
        write_run(tiny("pe=rope", f"task={task}"), fading(0.5, 0.01))
    unlearned, few = compare(folder).notes
    assert unlearned == "lag, decoder; reverse, decoder: Most seeds did not learn the training lengths: rope."
    assert few.startswith("lag, decoder; reverse, decoder: No intervals or tests")
    shutil.rmtree(folder)
    for task in ("reverse", "lag"):
        write_run(tiny("pe=rope", f"task={task}"), fading(1, 0.01))
    (everywhere,) = compare(folder).notes
    assert everywhere.startswith("all tasks: No intervals or tests")


def test_too_few_seeds_to_find_anything_are_no_sign_of_equality(tiny: Tiny) -> None:
    """Three seeds against three, all of one above all of the other: p is 0.1 at the least."""
    for encoding, level in (("none", 0.1), ("alibi", 0.9), ("rope", 0.2)):
        for seed in range(3):
            write_run(tiny(f"pe={encoding}", f"seed={seed}"), fading(1, 0.1 - 0.1 * level - 0.001 * seed))
    (sentence,) = compare(tiny().config.results_dir).sentences.values()
    assert sentence.startswith("alibi has the highest mean exact match past the training lengths")
    assert sentence.endswith("; with 3 seeds no difference from the 2 others can become significant.")


def test_encodings_that_are_the_same_throughout_are_not_tested(tiny: Tiny) -> None:
    for encoding in ("none", "rope", "alibi"):
        for seed in range(3):
            level = 0.0 if encoding != "alibi" else 0.1 * (seed + 1)
            write_run(
                tiny(f"pe={encoding}", f"seed={seed}"), lambda n, at=level: (1.0, 1.0) if n <= 6 else (at, at)
            )
    pairs = compare(Path(tiny().config.results_dir)).pairs.set_index(["encoding", "other"])
    assert pairs.loc[("none", "rope"), "not_tested"] == "all seeds of both have the same value"


def test_numbers_read_alike() -> None:
    row = {"x": 0.321, "x_low": 0.2, "x_high": 0.4789, "y": -0.001, "z": float("nan")}
    assert mean(row, "x") == "0.32 [0.20, 0.48]"
    assert [mean(row, "y"), mean(row, "z"), mean(row, "nowhere")] == ["0.00", "–", "–"]
    assert number(-0.25) == "-0.25"


def test_runs_evaluated_on_other_numbers_of_examples_are_not_pooled(folder: Path, tiny: Tiny) -> None:
    run = write_run(tiny("pe=learned", "seed=7", "evaluation.examples=77"), fading(1, 0))
    assert tabulated(folder)["section"].nunique() == 2
    assert [protocol.title for protocol in protocols_of(read_runs(folder))] == [
        "copy, decoder, examples=20",
        "copy, decoder, examples=77",
    ]
    again = run.path.parents[1] / "runs" / sorted(p.name for p in (folder / "runs").iterdir())[0]
    extra = again / "evaluations" / "12345678"
    extra.mkdir(parents=True)
    result = json.loads((again / "result.json").read_text())
    result["evaluation"] |= {"examples": 5, "lengths": [200]}
    (extra / "result.json").write_text(json.dumps(result))
    assert 200 not in set(read_runs(folder).curves["content_length"])  # its own lengths, other examples


def test_a_one_token_answer_has_chance_below_its_exact_match(tiny: Tiny) -> None:
    for encoding, level in (("none", 0.5), ("rope", 0.75)):
        for seed in range(3):
            at = level + 0.001 * seed
            write_run(
                tiny(f"pe={encoding}", "task=precedence", f"seed={seed}"),
                lambda n, at=at: (1.0, 1.0) if n <= 6 else (at, at),
            )
    made = compare(Path(tiny().config.results_dir))
    rows = by_encoding(made.table)
    assert rows["rope"]["exact_match_extrapolation"] == pytest.approx(0.502)
    assert rows["none"]["exact_match_extrapolation"] == pytest.approx(0.002)


def test_the_written_table_is_the_returned_one(folder: Path) -> None:
    made = written(folder)
    read = pd.read_csv(folder / "comparison" / "table.csv")
    pd.testing.assert_frame_equal(read, made.table, check_dtype=False)
    assert list(made.table["encoding"]) == ["alibi", "learned", "sinusoidal"]
    assert list(made.table["seeds"]) == [3, 3, 3]


@pytest.mark.slow
@pytest.mark.usefixtures("drawn")
def test_the_same_runs_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    first, second = (compare(folder, out=tmp_path / name).files for name in "ab")
    assert [path.name for path in first] == [path.name for path in second]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


@pytest.mark.slow
@pytest.mark.usefixtures("drawn")
def test_protocols_are_never_pooled(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=learned", "training.steps=13"), fading(1, 0))
    table = tabulated(folder)
    assert table.groupby("protocol")["seeds"].sum().sort_values().tolist() == [1, 9]
    assert table["section"].nunique() == 2
    assert list(written(folder).sentences) == ["copy, decoder, steps=12", "copy, decoder, steps=13"]
    names = {path.stem for path in (folder / "comparison" / "figures").glob("copy*.png")}
    assert names == {"copy-decoder-steps12", "copy-decoder-steps13"}


@pytest.mark.slow
def test_runs_of_several_protocols_are_not_loaded_as_one(folder: Path, tiny: Tiny) -> None:
    """Their mean over seeds, one line of pandas, would mix runs trained to 6 and to 5."""
    assert len(load_runs(folder).runs) == 9
    run = write_run(tiny("pe=learned", "seed=7", "training.max_length=5"), fading(1, 0))
    with pytest.raises(UserError, match="copy, decoder have different configurations"):
        load_runs(folder)
    write_manifest(folder, "short", [run.name])
    assert list(load_runs(folder, "short").runs["name"]) == [run.name]
    write_run(tiny("pe=learned", "task=reverse", "study=two"), fading(1, 0))  # another task is a column
    write_manifest(folder, "two", [run.name, next(folder.glob("runs/reverse*")).name])
    assert len(load_runs(folder, "two").runs) == 2
    assert len(compare(folder).protocols) == 3


def test_an_edited_task_is_another_protocol(folder: Path, tiny: Tiny) -> None:
    run = write_run(tiny("pe=learned", "seed=7"), fading(1, 0))
    saved = run.config.read_text()
    run.config.write_text(saved.replace("classes: {}", "classes: {task: {mine.Copy: edited}}"))
    assert tabulated(folder)["section"].nunique() == 2
    assert [s.slug for s in protocols_of(read_runs(folder))] == ["copy-decoder-code1", "copy-decoder-code2"]


def test_protocols_are_told_apart_by_the_fewest_settings() -> None:
    """Never by a hash, never by what was tuned."""
    wide = {"model.d_model": "64", "training.steps": "100", "trainer.precision": "32-true"}
    others = [
        wide | {"model.d_model": "128"},
        wide | {"model.d_model": "128", "trainer.precision": "bf16-mixed"},
    ]
    assert distinctive_settings([wide, *others]) == [
        ("d_model=64", "precision=32-true"),
        ("d_model=128", "precision=32-true"),
        ("d_model=128", "precision=bf16-mixed"),
    ]
    tuned = {"training.learning_rate": "0.1 (none), 0.01 (rope)", "task.source": "ab"}
    assert distinctive_settings([tuned, tuned | {"task.source": "cd"}]) == [("code=1",), ("code=2",)]
    assert distinctive_settings([wide]) == [()]


def test_an_encoding_renamed_between_its_runs_is_one_encoding(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=learned", "seed=7"), fading(1, 0), result={"label": "learned_by_another_name"})
    assert sorted(load_runs(folder).runs["label"].unique()) == ["alibi", "learned", "sinusoidal"]


def test_two_encodings_under_one_label_are_told_apart(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=none", "label=learned"), fading(1, 0))
    labels = set(load_runs(folder).runs["label"])
    assert len(labels) == 4
    assert sum(label.startswith("learned [") for label in labels) == 2


def test_an_encoding_keeps_its_label_over_several_tasks(folder: Path, tiny: Tiny) -> None:
    for task in ("reverse", "precedence"):
        write_run(tiny("pe=learned", f"task={task}"), fading(1, 0))
    assert set(load_runs(folder).runs["label"]) == {"alibi", "learned", "sinusoidal"}


def test_diverged_runs_count_as_unsolved_and_as_zero(folder: Path, tiny: Tiny) -> None:
    before = by_encoding(tabulated(folder))["alibi"]
    grid = "evaluation.lengths=[3,6,9,12,24,48]"
    write_run(tiny("pe=alibi", "seed=3", grid), fading(1, 0), "diverged", {"reason": "step 3"})
    after = by_encoding(tabulated(folder))["alibi"]
    assert (after["seeds"], after["diverged"], after["solved"]) == (4, 1, 3)
    for column in (
        "exact_match_in_distribution",
        "exact_match_extrapolation",
        "horizon",
        "token_accuracy@48",
    ):
        assert after[column] == pytest.approx(before[column] * 3 / 4)


@pytest.mark.usefixtures("drawn")
def test_only_diverged_runs_are_still_a_row(tiny: Tiny) -> None:
    run = write_run(tiny(), fading(1, 0), "diverged")
    (row,) = compare(run.path.parents[1]).table.to_dict("records")
    assert (row["seeds"], row["diverged"], row["exact_match_extrapolation"]) == (1, 1, 0.0)


@pytest.mark.parametrize("seeds", [1, 2])
def test_under_three_seeds_nothing_is_printed_of_intervals_and_tests(tiny: Tiny, seeds: int) -> None:
    folder = write_study(tiny, seeds=seeds)
    made = written(folder)
    ends = [column for column in made.table if column.endswith(("_low", "_high"))]
    assert made.table[ends].isna().all().all()
    assert made.pairs["p"].isna().all()
    assert "No intervals or tests, because of fewer than three seeds: every encoding." in said(folder)
    names = ("table.tex", "references.bib", PAGE)
    for name in names:
        text = (
            (folder / "comparison" / name).read_text().partition("<summary>Methods")[2 if name == PAGE else 0]
        )
        text = text.partition("BibTeX")[0]
        for word in (
            "permutation",
            "Holm",
            "Gaffke",
            "Clopper",
            "bootstrap",
            "sign",
            "interval [",
        ):
            assert word not in text, (name, word)


def test_areas_are_over_the_lengths_all_runs_share(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=none", "evaluation.lengths=[3,6,12,100]"), fading(1, 0.02))
    row = by_encoding(tabulated(folder))["alibi"]
    assert row["exact_match_extrapolation"] == pytest.approx(row["exact_match@12"])
    alone = load_runs(folder).curves.groupby("content_length")["in_summary"].all()
    assert alone.to_dict() == {3: True, 6: True, 9: False, 12: True, 24: False, 48: False, 100: False}
    assert "Summaries exclude lengths that some runs lack: 9, 24, 48 and 100." in said(folder)


@pytest.mark.usefixtures("drawn")
def test_runs_without_a_common_length_are_no_crash(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=none", "evaluation.lengths=[5,7]"), fading(1, 0.02))
    made = compare(folder)
    assert made.table["exact_match_extrapolation"].isna().all()
    assert "share no evaluated length" in said(folder)


def test_filters_and_options(folder: Path, tiny: Tiny) -> None:
    write_run(tiny("pe=rope", "pe.base=500"), fading(1, 0.02))
    assert set(load_runs(folder, pe=["rope(base=500)", "alibi"]).runs["label"]) == {"rope(base=500)", "alibi"}
    made = compare(folder, baseline="alibi")
    assert all("alibi" in pair for pair in zip(made.pairs["encoding"], made.pairs["other"], strict=True))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"pe": ["alibi", "alib"]}, "pe=alib: no finished run has this encoding. Did you mean alibi"),
        ({"baseline": "rope"}, "baseline=rope is not a compared encoding; allowed: alibi"),
        ({"metric": "accuracy"}, "metric=accuracy is not a metric"),
    ],
)
def test_a_wrong_option_is_one_sentence(folder: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words.partition("(")[0]):
        compare(folder, **arguments)
    assert not (folder / "comparison").exists()


def cells_of(text: str) -> dict[str, list[str]]:
    """The rows of a table by the name that stands in them."""
    rows = [
        [cell.strip() for cell in line.removesuffix(r" \\").split("&")]
        for line in text.splitlines()
        if "&" in line
    ]
    return {name: cells for name, *cells in rows}


def levels(tiny: Tiny, means: dict[str, tuple[float, float]]) -> Path:
    """Eight seeds of encodings (and tasks) with an exact match within and past the training lengths."""
    for settings, (within, past) in means.items():
        for seed in range(8):
            exact = max(0.0, past - 0.005 * (seed % 4))
            run = write_run(
                tiny(*settings.split(), f"seed={seed}", "evaluation.lengths=[6,12]"),
                lambda n, exact=exact, within=within: (within if n <= 6 else exact, 1.0),
            )
    return run.path.parents[1]


@pytest.mark.slow
def test_the_table_for_a_paper_marks_what_did_not_learn_and_the_best(tiny: Tiny) -> None:
    folder = levels(tiny, {
        "pe=rope positions=random_subset": (1.0, 0.9), "pe=alibi": (1.0, 0.899), "pe=sinusoidal": (1.0, 0.3),
        "pe=rope pe.base=500": (0.5, 0.4), "pe=none task=reverse": (1.0, 0.0),
    })  # fmt: skip
    made = written(folder)
    text = (folder / "comparison" / "table.tex").read_text()
    rows = cells_of(text)
    assert rows["Encoding"] == ["Seeds", "copy", "reverse"]
    assert rows["Longest training input"] == ["", "6", "6"]
    assert rows["RoPE, random subset"] == ["8", r"\textbf{0.89}", "--"]
    assert rows["ALiBi"] == ["8", r"\textbf{0.89}", "--"]
    assert rows["Sinusoidal"] == ["8", "0.29", "--"]
    assert rows["RoPE (base=500)"] == ["8", r"\textit{0.39}$^{\dagger}$", "--"]
    assert rows["NoPE"] == ["8", "--", "0.00"]  # the best of its column, and nothing to be proud of
    assert "$^{\\dagger}$Not learned: most seeds" in text
    assert r"each of the others alone, $p \le 0.05$ after Holm's" in text
    bibtex = (folder / "comparison" / "references.bib").read_text()
    for keys in re.findall(r"\\cite\w+\{(.*?)\}", text):
        assert all(f"{{{key}," in bibtex for key in keys.split(","))
    assert text.count(r"\citep{") == len(made.encodings)
    assert r"{\scriptsize \citep{su2021roformer,ruoss2023randomized}}" in rows


@pytest.mark.parametrize("group", ["pe", "positions"])
def test_every_encoding_of_ours_has_a_name_in_print(group: str) -> None:
    names = [printed(name) for name in shipped(group)]
    assert not [name for name in names if "_" in name]
    assert len(set(names)) == len(names)
    assert printed("Recency(slope=0.2)+random_offset") == "Recency (slope=0.2), random offset"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="LaTeX is not installed")
def test_the_table_compiles(folder: Path, tiny: Tiny) -> None:
    for label in (*HOSTILE[:4], "[/b]", "a^b~c\\d{e}"):
        write_run(tiny("pe=none", f"seed={len(label)}"), fading(1, 0.02), result={"label": label})
    write_run(tiny("pe=rope", "task=reverse", "model=encoder"), fading(0.2, 0), "diverged")
    out = written(folder).files[0].parent
    packages = r"\documentclass{article}\usepackage{booktabs,graphicx,natbib}\begin{document}\input{table}"
    (out / "paper.tex").write_text(
        packages + r"\bibliographystyle{plainnat}\bibliography{references}\end{document}"
    )
    for command in ("pdflatex", "bibtex", "pdflatex", "pdflatex"):
        options = ["-interaction=nonstopmode", "-halt-on-error"] * (command == "pdflatex")
        done = subprocess.run(
            [command, *options, "paper"], cwd=out, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
    for word in ("undefined", "Overfull", "Missing character"):
        assert word not in done.stdout


def test_times_are_shown_of_several_runs_on_one_kind_of_machine(folder: Path, tiny: Tiny) -> None:
    def seconds() -> dict[str, float]:
        return tabulated(folder).set_index("encoding")["seconds_per_step"].dropna().to_dict()

    assert seconds() == {}  # of machines nobody knows
    write_run(tiny("pe=none"), fading(1, 0))
    paths = sorted(folder.glob("runs/*/environment.json"))
    for path in paths:
        path.write_text(json.dumps({"processor": "fast", "device": "cpu", "threads": 1}))
    assert seconds() == dict.fromkeys(("alibi", "learned", "sinusoidal"), 0.002)  # not of the one run of none
    paths[0].write_text(json.dumps({"processor": "slow", "device": "cpu", "threads": 1}))
    assert seconds() == {}


def test_a_copied_run_is_a_duplicate_and_counts_once(folder: Path) -> None:
    sound = tabulated(folder).to_csv()
    run = sorted((folder / "runs").iterdir())[0]
    shutil.copytree(run, run.with_name("a-copy"))
    made = written(folder)
    assert made.runs.left_out == {"a-copy": f"a duplicate of {run.name}"}
    assert made.table.to_csv() == sound
    assert "a duplicate of" in (folder / "comparison" / "report.html").read_text()
    shutil.rmtree(run)
    assert tabulated(folder).to_csv() == sound


def test_of_two_versions_of_the_package_the_later_counts(
    folder: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(tabulated(folder)["encoding"])
    monkeypatch.setattr("pe_experiments.store.identity.NUMERICS", NUMERICS + 1)
    write_study(tiny)
    made = written(folder)
    assert set(made.table["encoding"]) == before
    assert {saved["identity"]["hashed"]["numerics"] for saved in made.runs.saved.values()} == {NUMERICS + 1}
    assert all(f"trained with NUMERICS {NUMERICS}, and " in reason for reason in made.runs.left_out.values())


def test_a_damaged_evaluation_costs_the_evaluation_alone(folder: Path) -> None:
    sound = tabulated(folder).to_csv()
    run = sorted((folder / "runs").iterdir())[0]
    (run / "evaluations" / "12345678").mkdir(parents=True)
    (run / "evaluations" / "12345678" / "result.json").write_text("{")
    assert list(load_runs(folder).left_out) == [f"{run.name}/evaluations/12345678"]
    assert tabulated(folder).to_csv() == sound


def test_nothing_sound_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    for run in (folder / "runs").iterdir():
        (run / "result.json").write_text("{")
    with pytest.raises(UserError, match="no finished run to compare"):
        compare(folder, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


HOSTILE = ["$\\frac$", "<script>alert(1)</script>", "a|b_c%d&e", "_leading", "編碼", "x" * 300, "q\"'`#"]


@pytest.mark.slow
@pytest.mark.usefixtures("drawn")
def test_hostile_labels_are_drawn_and_stay_text(folder: Path, tiny: Tiny) -> None:
    for place, label in enumerate(HOSTILE):
        write_run(
            tiny("pe=rope", f"pe.base={500 + place}"),
            fading(1, 0.02),
            result={"label": label},
        )
    assert set(HOSTILE) <= set(written(folder).table["encoding"])
    out = folder / "comparison"
    assert "<script>alert" not in (out / PAGE).read_text()
    assert "a|b_c%d&amp;e" in (out / PAGE).read_text()
    assert r"a|b\_c\%d\&e" in (out / "table.tex").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("drawn")
def test_every_figure_there_is_data_for(folder: Path, tiny: Tiny) -> None:
    for seed in range(3):
        write_run(tiny("pe=learned", "task=reverse", f"seed={seed}"), fading(0.95, 0.01))
    names = {path.stem for path in written(folder).files if path.suffix == ".svg"}
    assert names == {"copy-decoder", "reverse-decoder", "tasks"}


def test_markup_in_a_label_stays_text(tiny: Tiny, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = write_run(tiny("pe=rope"), fading(1, 0), result={"label": "[/b] [c51d]"})
    show(compare(run.path.parents[1], out=tmp_path))
    assert "[/b] [c51d]" in capsys.readouterr().out
