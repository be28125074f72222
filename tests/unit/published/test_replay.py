"""Which runs of a published study stand for its others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from pe_experiments.published.archive import SHIPPED, read_archive, where
from pe_experiments.published.replay import BEYOND, kinds_of
from pe_experiments.store.identity import identify


def test_a_kind_is_a_scheme_and_protocol_or_where_settings_do_not_repeat_a_task_and_model() -> None:
    study, nothing = read_archive(SHIPPED / "precision"), pd.DataFrame({"name": []})
    assert len(kinds_of(study, nothing)) == 3 * 3 * 2  # schemes, tasks and precisions
    settings = where(study, study.runs["seed"] == 0)
    assert len(kinds_of(settings, nothing)) == 3 * 3


def test_settings_stay_settings_where_two_of_a_task_agree_in_all_but_the_seed() -> None:
    bank = read_archive(SHIPPED / "bank" / "v2")
    alike = bank.runs.groupby(["task", "model", "scheme"]).ngroups
    assert len(kinds_of(bank, pd.DataFrame({"name": []}))) == alike < len(bank.runs) / 8


def test_a_beginning_is_as_long_before_publishing_as_after() -> None:
    """An archive keeps the rows with a check alone; the training curve of a run has others before it."""
    study = read_archive(SHIPPED / "precision")
    name = study.runs["name"].iloc[0]
    row = study.training[study.training["name"] == name].iloc[:1]
    row = row.assign(step=10.0, token_accuracy=float("nan"))
    before = replace(study, training=pd.concat([row, study.training]))
    own = where(before, before.runs["name"] == name)
    assert kinds_of(own, pd.DataFrame({"name": []}))[0].beginning().until == 100 + BEYOND


def test_a_kind_has_its_data_while_the_files_lie_here_as_they_were(tmp_path: Path) -> None:
    kind = kinds_of(read_archive(SHIPPED / "text"), pd.DataFrame({"name": []}))[0]
    path = tmp_path / "book.txt"
    path.write_text("In the beginning. " * 5000)
    book = {"task": kind.trained["task"] | {"path": str(path)}}
    own = replace(kind, trained=kind.trained | book)
    own = replace(own, data={"book.txt": identify(own.experiment()).sources["task"]["book.txt"]})
    assert own.has_data
    path.write_text("In the beginning! " * 5000)
    assert not own.has_data
    path.unlink()
    assert not own.has_data
    assert kinds_of(read_archive(SHIPPED / "precision"), pd.DataFrame({"name": []}))[0].has_data  # reads none
