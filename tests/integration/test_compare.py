"""compare.py: filters, options, citations, and which evaluations it leaves out."""

from __future__ import annotations

import inspect
from itertools import chain
from pathlib import Path

import pandas as pd
import pytest

from pe_experiments.comparison import compare, load_runs
from pe_experiments.comparison.citations import cites, known_entries
from pe_experiments.configuration.choices import shipped
from pe_experiments.configuration.component import load_component
from tests.conftest import TINY, Script, assert_one_sentence, tiny_in
from tests.synthetic import fading, write_run, write_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("compare") / "results"
    make = tiny_in(results)
    write_study(make, seeds=2)
    write_run(make("pe=rope", "pe.base=500"), fading(1, 0.1))
    write_run(make("pe=none"), fading(1, 0.1)).result.unlink()
    return results


@pytest.mark.slow
def test_filters_and_options(folder: Path, script: Script, tmp_path: Path) -> None:
    out = script(
        "compare", f"results_dir={folder}", f"out={tmp_path}", 'pe=[alibi,"rope(base=500)"]',
        'baseline="rope(base=500)"', "metric=token_accuracy_extrapolation",
    ).succeeded()  # fmt: skip
    table = pd.read_csv(tmp_path / "table.csv")
    assert list(table["encoding"]) == ["alibi", "rope(base=500)"]
    pairs = pd.read_csv(tmp_path / "pairs.csv")
    assert list(zip(pairs["encoding"], pairs["other"], strict=True)) == [("alibi", "rope(base=500)")]
    assert set(table["metric"]) == {"token_accuracy_extrapolation"}
    assert f"page: {tmp_path / 'report.html'}" in out
    assert "excluded: copy-decoder-none-s0-" in out
    assert "No intervals or tests" in out
    assert "result: copy, decoder: " in out


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("results_dir=/nowhere", ["results_dir=/nowhere", "train a run first"]),
        ("out=/proc/x/y", ["out=/proc/x/y", "cannot write"]),
        ("pe=[alibi,alib]", ["pe=alib: no finished run", "Did you mean alibi"]),
        ("pe=rope,alibi", ["several values need brackets", "encodings=[rope,alibi]"]),
        ("baseline=none", ["baseline=none is not a compared encoding", "allowed: alibi"]),
        ("difference=inf", ["difference=inf: expected a finite number"]),
    ],
)
def test_a_mistake_is_one_sentence(
    folder: Path, script: Script, tmp_path: Path, argument: str, words: list[str]
) -> None:
    out = [] if argument.startswith("out=") else [f"out={tmp_path / 'out'}"]
    assert_one_sentence(script("compare", f"results_dir={folder}", *out, argument), *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("group", ["pe", "positions"])
def test_every_cited_work_has_a_bibtex_entry(group: str) -> None:
    for name, section in shipped(group).items():
        cls = load_component(group, section).cls
        for number in chain.from_iterable(cites(inspect.getdoc(cls) or "").values()):
            assert number in known_entries(), f"{group}={name} cites arXiv:{number}; add it to references.bib"


@pytest.mark.slow
def test_evaluations_with_another_task_decoding_window_or_encoding_are_left_out(
    results: Path, script: Script, tmp_path: Path
) -> None:
    script("train", *TINY, "pe=none", f"results_dir={results}")
    (run,) = (results / "runs").iterdir()
    evaluate = ("evaluate", f"run={run}", "task=reverse", "evaluation.lengths=[3,5]")
    assert script(*evaluate).code == 0
    assert script(*evaluate, "evaluation.decoding=greedy").code == 0
    assert script("evaluate", f"run={run}", "pe=sinusoidal", "evaluation.lengths=[7]").code == 0
    assert script("evaluate", f"run={run}", "evaluation.window=5", "evaluation.lengths=[7]").code == 0
    runs = load_runs(results)
    assert set(runs.curves["content_length"]) == {4, 6, 9}
    assert all(name.startswith(f"{run.name}/evaluations/") for name in runs.left_out)
    reasons = [reason.partition(" than the run; its values are in ")[0] for reason in runs.left_out.values()]
    different = ("encoding", "task", "task and decoding", "window")
    assert sorted(reasons) == [f"evaluated with a different {part}" for part in different]
    compare(results, out=tmp_path)
    assert "evaluated with a different encoding than the run" in (tmp_path / "report.html").read_text()
