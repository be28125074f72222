"""A study is published from one known state of the code, and only if its runs can be repeated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.published import pages
from pe_experiments.published import publish as publishing
from pe_experiments.published.adopt import witnessed
from pe_experiments.published.publish import publish
from pe_experiments.store.directory import RunDirectory, list_in_study, write_manifest
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import CONFIG_DIR
from tests.conftest import TINY, Outcome
from tests.synthetic import write_study

Script = Callable[..., Outcome]
PAGES = (
    "from pe_experiments.published import read_archive\n\n\n"
    "def pages(folder):\n"
    '    (folder / "README.md").write_text(f"{len(read_archive(folder).runs)} runs")\n'
)


def runs_of(results: Path) -> list[RunDirectory]:
    return [RunDirectory(path) for path in sorted((results / "runs").iterdir())]


def change_environment(run: RunDirectory, **facts: str | None) -> None:
    made = json.loads(run.environment.read_text())
    run.environment.write_text(json.dumps(made | facts))


def names_of(results: Path, study: str = "small") -> list[str]:
    return sorted(pd.read_csv(results / study / "provenance.csv")["name"])


@pytest.fixture
def trained(script: Script, results: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished study of a real run."""
    monkeypatch.setattr(pages, "SHIPPED", results)  # whose code is run
    monkeypatch.setattr("pe_experiments.training.device._source_revision", lambda: "a" * 40)
    assert script("train", "pe=rope", "study=small", f"results_dir={results}", *TINY).code == 0
    (results / "small" / "study.py").write_text(PAGES)
    return results


@pytest.fixture
def written(tiny: Callable[..., Experiment], results: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished study of nine runs that nobody trained, so that none is repeated."""
    monkeypatch.setattr(publishing, "repeat_some", lambda *_: witnessed([]))
    monkeypatch.setattr(pages, "SHIPPED", results)  # whose code is run
    write_study(tiny, seeds=3)
    for run in runs_of(results):
        change_environment(run, source="a" * 40)
        list_in_study(results, "small", run.name)
    (results / "small" / "study.py").write_text(PAGES)
    return results


def test_a_study_may_have_a_version(written: Path) -> None:
    """``bank/v2``: found, published and made from its CSVs like any other."""
    for run in runs_of(written):
        list_in_study(written, "many/v1", run.name)
    folder = written / "many" / "v1"
    (folder / "study.py").write_text(PAGES)
    publish("many/v1", written)
    assert (folder / "README.md").read_text() == "9 runs"
    (folder / "README.md").unlink()
    assert pages.published(written) == [folder]
    pages.regenerate(folder)
    assert (folder / "README.md").read_text() == "9 runs"
    assert pages.differences(folder) == []


@pytest.mark.slow
def test_runs_are_repeated_before_they_are_published(trained: Path) -> None:
    publish("small", trained)
    (run,) = runs_of(trained)
    assert names_of(trained) == [run.name]
    assert (trained / "small" / "README.md").read_text() == "1 runs"
    before = (trained / "small" / "runs.csv").read_bytes()
    curve = run.curve.read_text().splitlines()
    cells = curve[-1].split(",")
    cells[6] = "0.4321"
    run.curve.write_text("\n".join([*curve[:-1], ",".join(cells)]) + "\n")
    with pytest.raises(UserError, match=r"repeated on the same kind of machine differs at length 9"):
        publish("small", trained)
    assert (trained / "small" / "runs.csv").read_bytes() == before


@pytest.mark.slow
def test_rounding_on_another_machine_is_said_and_more_is_refused(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def other_machine(run: RunDirectory, factor: float) -> None:
        change_environment(run, processor="another")
        header, first, *rest = run.metrics.read_text().splitlines()
        step, loss, *cells = first.split(",")
        run.metrics.write_text(
            "\n".join([header, ",".join([step, f"{float(loss) * factor!r}", *cells]), *rest]) + "\n"
        )

    (run,) = runs_of(trained)
    other_machine(run, 1 + 1e-6)
    publish("small", trained)
    assert "repeated up to rounding, on another machine" in capsys.readouterr().out
    other_machine(run, 1.3)
    with pytest.raises(UserError, match="repeated differs from step 6 on: loss"):
        publish("small", trained)


@pytest.mark.parametrize("source", ["b" * 40 + "+edited", None])
def test_edited_and_unknown_sources_are_refused(written: Path, source: str | None) -> None:
    run = runs_of(written)[0]
    change_environment(run, source=source)
    with pytest.raises(UserError, match=rf"1 of 9 runs are of an edited or unknown source \({run.name}\)"):
        publish("small", written)
    assert not (written / "small" / "runs.csv").exists()


def test_runs_of_different_code_are_refused(written: Path) -> None:
    run = runs_of(written)[0]
    saved = run.config.read_text()
    digest = next(iter(run.read_config()["identity"]["sources"]["shared"].values()))
    run.config.write_text(saved.replace(digest, "0" * 12))
    with pytest.raises(UserError, match="made by different states of the training code"):
        publish("small", written)
    run.config.write_text(saved)
    result = json.loads(run.result.read_text())
    code = result["evaluation"]["code"]
    code[next(name for name in code if name.endswith("evaluation"))] = "0" * 12
    run.result.write_text(json.dumps(result))
    with pytest.raises(UserError, match="made by different states of the code that evaluates"):
        publish("small", written)


def test_a_study_that_is_not_finished_is_refused(written: Path) -> None:
    """A run without a result, and a seed that one combination lacks."""
    one = next(run for run in runs_of(written) if "-s1-" in run.name)
    result = one.result.read_text()
    one.result.unlink()
    with pytest.raises(UserError, match=rf"publish=small: not finished \({one.name}: unfinished"):
        publish("small", written)
    one.result.write_text(result)
    write_manifest(written, "small", [run.name for run in runs_of(written) if run.name != one.name])
    with pytest.raises(UserError, match="some combinations lack seeds that others have"):
        publish("small", written)
    assert not (written / "small" / "runs.csv").exists()


@pytest.mark.parametrize("sweep", ["core", "replicate_text"])  # the second inherits it from another sweep
def test_a_study_that_grows_adds_what_is_finished_and_keeps_the_rest(written: Path, sweep: str) -> None:
    study = str(OmegaConf.load(CONFIG_DIR / "sweep" / f"{sweep}.yaml")["study"])
    for run in runs_of(written):
        list_in_study(written, study, run.name)
    everything = [run.name for run in runs_of(written)]
    waiting = RunDirectory(written / "runs" / everything[-1])
    result = waiting.result.read_text()
    waiting.result.unlink()
    publish(sweep, written)
    assert names_of(written, study) == everything[:-1]
    whole = (written / study / "curves.csv").read_text().splitlines()
    waiting.result.write_text(result)
    for name in everything[:4]:  # published, and gone since
        shutil.rmtree(written / "runs" / name)
    publish(sweep, written)
    assert names_of(written, study) == everything
    now = (written / study / "curves.csv").read_text().splitlines()
    assert set(whole) < set(now)
    for run in runs_of(written):  # what was published was trained by other code than what is there now
        saved = run.config.read_text()
        digest = next(iter(run.read_config()["identity"]["sources"]["shared"].values()))
        run.config.write_text(saved.replace(digest, "0" * 12))
    with pytest.raises(UserError, match="made by different states of the training code"):
        publish(sweep, written)
    assert names_of(written, study) == everything


def test_a_study_nobody_ran_is_named(results: Path) -> None:
    with pytest.raises(UserError, match=r"study=small: .* does not exist"):
        publish("small", results)


def test_no_published_study_is_said(script: Script, results: Path) -> None:
    results.mkdir()
    outcome = script("results", f"results_dir={results}")
    assert outcome.code == 1
    assert "no published study there; publish=STUDY makes one" in outcome.err
