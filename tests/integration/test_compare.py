"""compare.py as one types it: filters, options, attention of a run, and the run it logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from pe_experiments.comparison import compare, load_runs
from pe_experiments.comparison.citations import known_entries
from pe_experiments.components import load_component, shipped
from pe_experiments.composition import composed
from pe_experiments.config import Experiment, check, resolve
from pe_experiments.encodings.alibi import Alibi
from pe_experiments.encodings.rope import Rope
from pe_experiments.experiment import run_experiment
from pe_experiments.runs import RunDirectory
from pe_experiments.tracking import read_csv
from tests.conftest import TINY, Outcome
from tests.integration.test_tracking import mirror
from tests.synthetic import fading, write_run, write_study

Script = Callable[..., Outcome]
Tiny = Callable[..., Experiment]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("compare") / "results"

    def make(*overrides: str) -> Experiment:
        return resolve(check(composed("config", [*TINY, f"results_dir={results}", *overrides])))

    write_study(make, seeds=2)
    write_run(make("pe=rope", "pe.base=500"), fading(1, 0.1))
    return results


@pytest.mark.slow
def test_filters_and_options_as_typed(folder: Path, script: Script, tmp_path: Path) -> None:
    outcome = script(
        "compare", f"results_dir={folder}", f"out={tmp_path}", "pe=[alibi,rope(base=500)]",
        "baseline=rope(base=500)", "labels={alibi:ALiBi}", "order=[rope(base=500)]", "task=copy", "width=120",
        "metric=token_accuracy_extrapolation",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    table = pd.read_csv(tmp_path / "table.csv")
    assert list(table["scheme"]) == ["rope(base=500)", "ALiBi"]
    pairs = pd.read_csv(tmp_path / "pairs.csv")
    assert list(zip(pairs["scheme"], pairs["other"], strict=True)) == [("rope(base=500)", "ALiBi")]
    assert set(table["metric"]) == {"token_accuracy_extrapolation"}
    assert f"page: {tmp_path / 'report.html'}" in outcome.out
    assert "Fewer than three seeds" in outcome.out


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("pe=rop", ["pe=rop", "Did you mean rope"]),
        ("model=encoder", ["model=encoder", "decoder"]),
        ("pe=", ["pe=", "expected a name"]),
        ("baseline=x", ["baseline=x", "alibi"]),
        ("metric=acc", ["metric=acc", "exact_match_at_2x"]),
        ("width=huge", ["width=huge", "single or double"]),
        ("width=3", ["width=3", "millimetres"]),
        ("labels=x", ["labels=x", "rope:RoPE"]),
        ("labels={x:y}", ["labels", "no run is called x"]),
        ("order=[x]", ["order", "no run is called x"]),
        ("attention=[x]", ["attention", "no completed run"]),
        ("attention={run}", ["attention", "is missing"]),
        ("logger=tensorboard", ["logger=tensorboard", "wandb"]),
        ("bseline=x", ["bseline", "Did you mean baseline"]),
        ("results_dir=/nowhere", ["results_dir=/nowhere", "train something first"]),
        ("study=3", ["study=3", "manifest.json"]),
        ("out=/proc/x/y", ["out=/proc/x/y", "cannot write"]),
    ],
)
def test_a_mistake_is_one_sentence(
    folder: Path, script: Script, tmp_path: Path, argument: str, words: list[str]
) -> None:
    argument = argument.replace("{run}", next(p.name for p in (folder / "runs").glob("*alibi*")))
    out = [] if argument.startswith("out=") else [f"out={tmp_path / 'out'}"]
    outcome = script("compare", f"results_dir={folder}", *out, argument)
    assert outcome.code == 1
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1, outcome.err
    for word in words:
        assert word in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_one_wandb_run_holds_table_figures_page_and_the_runs_ids(
    folder: Path, script: Script, tmp_path: Path
) -> None:
    for _ in range(2):  # again: still one run
        outcome = script("compare", f"results_dir={folder}", f"out={tmp_path}", "logger=wandb")
        assert outcome.code == 0, outcome.err
    assert "upload: wandb sync" in outcome.out
    history, _, found = mirror(RunDirectory(tmp_path))
    (run,) = [record.run for record in found if record.HasField("run")]
    assert run.job_type == "comparison"
    config = {item.key: item.value_json for item in run.config.update}
    for name in load_runs(folder).saved:
        assert name in config["runs"]
    logged = {key.split("/_")[0] for row in history for key in row}
    assert {"comparison/table", "comparison/page", "comparison/figures/copy-decoder"} <= {
        "/".join(key.split("/")[:3]) if "figures" in key else "/".join(key.split("/")[:2]) for key in logged
    }
    assert "not logged" in script(
        "compare", f"results_dir={folder}", f"out={tmp_path}", "logger=wandb", "logger.mode=disabled"
    ).out  # fmt: skip


def test_from_python_there_are_data_frames(folder: Path, tmp_path: Path) -> None:
    runs = load_runs(folder, pe="alibi")
    assert len(runs.runs) == 2
    assert {"length", "exact_match", "seed", "label"} <= set(runs.curves.columns)
    made = compare(folder, out=tmp_path, pe="alibi")
    assert isinstance(made.table, pd.DataFrame)
    assert set(made.runs.training["step"]) == {6, 12}


@pytest.mark.slow
def test_attention_of_a_real_run_is_drawn_and_written(tiny: Tiny, script: Script, tmp_path: Path) -> None:
    run = run_experiment(tiny("pe=alibi")).directory
    results = run.path.parents[1]
    outcome = script("compare", f"results_dir={results}", f"out={tmp_path}", f"attention=[{run.name}]")
    assert outcome.code == 0, outcome.err
    attention = pd.read_csv(tmp_path / "attention.csv")
    assert set(attention["length"]) == {6, 12}
    assert attention.groupby(["length", "layer", "head"])["weight"].max().between(0, 1).all()
    assert len(list((tmp_path / "figures").glob("attention-*"))) == 3


@pytest.mark.parametrize("group", ["pe", "positions"])
def test_every_work_a_scheme_of_ours_cites_has_a_bibtex_entry(group: str) -> None:
    for name, section in shipped(group).items():
        cls = load_component(group, section).cls
        for number in " ".join(getattr(cls, "cites", {}).values()).split():
            assert number in known_entries(), f"{group}={name} cites arXiv:{number}; add it to references.bib"


@pytest.mark.slow
def test_works_are_cited_where_they_apply(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the class, for an argument that is not at its default; a class that says nothing cites nothing."""
    monkeypatch.setattr(Rope, "cites", {"": "2104.09864", "kept_frequencies": "2410.06205"}, raising=False)
    monkeypatch.setattr(Alibi, "cites", {"": "2108.12409 9901.00001"}, raising=False)
    for pe in ("rope", "p_rope", "alibi", "none"):
        run = write_run(tiny(f"pe={pe}"), fading(1, 0))
    compare(run.path.parents[1], out=tmp_path)
    bibtex = (tmp_path / "references.bib").read_text()
    assert bibtex.count("@") == 5  # no statistics with one seed
    assert "9901.00001" in bibtex  # unknown: a bare entry
    methods = (tmp_path / "methods.md").read_text()
    cited = "p\\_rope [@su2021roformer; @barbero2024round]; rope [@su2021roformer]. Every"
    assert f"alibi [@press2022train; @arxiv990100001]; none [@kazemnejad2023impact]; {cited}" in methods


@pytest.mark.slow
def test_evaluations_on_another_task_stand_apart(results: Path, script: Script) -> None:
    """They are in a table and a file of their own, and never in the curve of the task trained on."""
    for pe in ("none", "sinusoidal"):
        script("train", *TINY, f"pe={pe}", f"results_dir={results}")
    scores = {}
    for run in sorted((results / "runs").iterdir()):
        evaluate = ("evaluate", f"run={run}", "task=reverse", "evaluation.lengths=[3,5]")
        assert script(*evaluate).code == 0
        assert script(*evaluate, "evaluation.decoding=greedy").code == 0
        scores[run.name] = [float(row["exact_match"]) for row in other_curve(run)]
    comparison = compare(results, out=results / "comparison")
    assert set(comparison.runs.curves["content_length"]) == {4, 6, 9}
    stored = pd.read_csv(comparison.folder / "other_tasks.csv")
    assert set(stored["evaluated_on"]) == {"reverse"}
    assert set(stored["decoding"]) == {"teacher_forcing", "greedy"}
    for name, expected in scores.items():
        for _, rows in stored[stored["name"] == name].groupby("decoding"):
            assert list(rows["exact_match"]) == expected
    assert '"other_tasks":[{"lengths":[3,5]' in (comparison.folder / "report.html").read_text()


def other_curve(run: Path) -> list[dict[str, str]]:
    return read_csv(next((run / "evaluations").iterdir()) / "extrapolation.csv")
