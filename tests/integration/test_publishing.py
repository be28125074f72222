"""A study is published from one known state of the code, and only if its runs can be repeated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from pe_experiments.studies import publishing
from pe_experiments.studies.publishing import Study, publish

from pe_experiments.errors import UserError
from pe_experiments.runs import RunDirectory
from tests.conftest import TINY, Outcome

Script = Callable[..., Outcome]


@pytest.fixture
def study(script: Script, results: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished study of two runs; its pages are no concern here."""
    monkeypatch.setattr("pe_experiments.environment._source_revision", lambda: "a" * 40)
    monkeypatch.setitem(publishing.STUDIES, "small", Study(lambda *_: None, lambda *_: None))
    for scheme in ("none", "rope"):
        arguments = [f"pe={scheme}", "study=small", f"results_dir={results}", *TINY]
        assert script("train", *arguments).code == 0
    return results


def runs_of(results: Path) -> list[RunDirectory]:
    return [RunDirectory(path) for path in sorted((results / "runs").iterdir())]


def test_runs_are_repeated_before_they_are_published(study: Path) -> None:
    publish("small", study)
    provenance = pd.read_csv(study / "small" / "provenance.csv")
    assert len(provenance) == 2
    assert provenance["code"].nunique() == 1


def test_a_run_that_comes_out_otherwise_is_refused(study: Path) -> None:
    for run in runs_of(study):
        curve = run.curve.read_text().splitlines()
        cells = curve[-1].split(",")
        cells[4] = "0.4321"
        run.curve.write_text("\n".join([*curve[:-1], ",".join(cells)]) + "\n")
    with pytest.raises(UserError, match=r"comes out otherwise.*extrapolation\.csv.*same kind of machine"):
        publish("small", study)
    assert not (study / "small" / "runs.csv").exists()


def test_rounding_on_another_machine_is_said_and_more_is_refused(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def other_machine(run: RunDirectory, factor: float) -> None:
        made = json.loads(run.environment.read_text())
        run.environment.write_text(json.dumps(made | {"processor": "another"}))
        header, first, *rest = run.metrics.read_text().splitlines()
        step, loss, *cells = first.split(",")
        run.metrics.write_text(
            "\n".join([header, ",".join([step, f"{float(loss) * factor!r}", *cells]), *rest]) + "\n"
        )

    for run in runs_of(study):
        other_machine(run, 1 + 1e-6)
    publish("small", study)
    assert "up to rounding, on another machine (processor: another there" in capsys.readouterr().out
    for run in runs_of(study):
        other_machine(run, 1.1)
    with pytest.raises(
        UserError, match=r"more than rounding: first recorded loss .* \(processor: another there"
    ):
        publish("small", study)


@pytest.mark.parametrize(
    ("source", "what"), [("b" * 40 + "+edited", "an edited source"), (None, "unknown source")]
)
def test_edited_and_unknown_sources_are_refused(study: Path, source: str | None, what: str) -> None:
    run = runs_of(study)[0]
    made = json.loads(run.environment.read_text())
    run.environment.write_text(json.dumps(made | {"source": source}))
    with pytest.raises(UserError, match=f"1 of 2 runs are of {what} \\({run.name}\\)"):
        publish("small", study)


def test_runs_of_different_code_are_refused(study: Path) -> None:
    run = runs_of(study)[0]
    saved = run.config.read_text()
    digest = run.read_config()["identity"]["sources"]["shared"]["pe_experiments.training"]
    run.config.write_text(saved.replace(digest, "0" * 12))
    with pytest.raises(UserError, match=r"trained by different states of pe_experiments\.training"):
        publish("small", study)
    run.config.write_text(saved)
    result = json.loads(run.result.read_text())
    result["evaluation"]["code"]["pe_experiments.evaluation"] = "0" * 12
    run.result.write_text(json.dumps(result))
    with pytest.raises(UserError, match=r"evaluated by different states of pe_experiments\.evaluation"):
        publish("small", study)
