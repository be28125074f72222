"""A damaged or foreign directory among the runs is reported in one sentence and skipped."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest

from pe_experiments.analysis.trained_model import load_model
from pe_experiments.comparison import load_runs
from pe_experiments.run import run_experiment
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.requested import Run
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny
from tests.synthetic import fading, save_checkpoint, write_run

pytestmark = pytest.mark.slow

Spoil = Callable[[RunDirectory], object]


def write_huge_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(30 << 30)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def edit_result(directory: RunDirectory, **entries: object) -> None:
    content = json.loads(directory.result.read_text()) | entries
    directory.result.write_text(json.dumps(content))


def replace_text(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new, 1))


def set_column(run: RunDirectory, column: str, text: str) -> None:
    rows = list(csv.DictReader(StringIO(run.curve.read_text())))
    with run.curve.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows([row | {column: text} for row in rows])


BAD: dict[str, tuple[Spoil, str]] = {
    "empty": (lambda run: [path.unlink() for path in run.path.iterdir() if path.is_file()], "not a run"),
    "unfinished": (lambda run: run.result.unlink(), "unfinished"),
    "bytes": (lambda run: run.result.write_bytes(b"\xff\xfe\x00{"), "damaged"),
    "error": (lambda run: edit_result(run, status="error", reason="boom"), "error: boom"),
    "another run's result": (lambda run: edit_result(run, run="0" * 64), "belongs to another run"),
    "no config": (lambda run: run.config.write_text("a: [1"), "config.yaml"),
    "a foreign config": (lambda run: run.config.write_text("lr: 0.1\n"), "config.yaml"),
    "a number in place of a section": (
        lambda run: replace_text(run.config, "derived:\n", "derived: 5\nold:\n"),
        "config.yaml: derived=5: expected names with values",
    ),
    "half a curve": (
        lambda run: run.curve.write_text("".join(run.curve.read_text().splitlines(keepends=True)[:3])),
        "its lengths differ from",
    ),
    "other columns": (lambda run: replace_text(run.curve, "exact_match,", "accuracy,"), "damaged"),
    "a column that is a formula": (
        lambda run: replace_text(run.curve, "chance", "=cmd"),
        "=cmd is not",
    ),
    "deep YAML": (lambda run: run.config.write_text("[" * 200_000), "nested more than 100 deep"),
    "aliases": (lambda run: run.config.write_text("a: &a [x]\nb: *a\n"), "a YAML alias"),
    "large YAML": (lambda run: write_huge_file(run.config), "at most .* MB are read"),
    "large CSV": (lambda run: write_huge_file(run.curve), "it has 32,212.3 MB, and at most .* MB are read"),
    "a pipe": (lambda run: replace_by_pipe(run.curve), "not a regular file"),
    "half a row": (lambda run: set_column(run, "token_accuracy", ""), "an accuracy is missing"),
    "a large accuracy": (
        lambda run: set_column(run, "exact_match", "7.5"),
        "exact_match=7.5: expected",
    ),
    "a negative bound": (
        lambda run: set_column(run, "exact_match_high", "-0.1"),
        "exact_match_high=-0.1: expected",
    ),
    "no number": (
        lambda run: set_column(run, "token_accuracy", "nan"),
        "token_accuracy=nan: expected a number",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_directory_is_named_and_the_others_are_compared(bad: str, tiny: Tiny) -> None:
    run = write_run(tiny("seed=1"), fading(1, 0))
    good = write_run(tiny(), fading(1, 0))
    spoil, sentence = BAD[bad]
    spoil(run)
    loaded = load_runs(good.path.parents[1])
    assert list(loaded.runs["name"]) == [good.name]
    (reason,) = loaded.left_out.values()
    assert re.search(sentence, reason), reason
    assert reason.isprintable()
    assert len(reason) < 500


def test_a_run_whose_name_cannot_be_printed_is_left_out(tiny: Tiny) -> None:
    run = write_run(tiny(), fading(1, 0))
    run.path.rename(run.path.with_name(f"\x1b[31m{run.name}"))
    (reason,) = load_runs(run.path.parents[1]).left_out.values()
    assert reason == "its name has characters that cannot be printed"


def test_a_run_directory_that_is_a_link_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """A rerun would delete the files of the linked folder."""
    experiment = tiny()
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years")
    run = Run(experiment.config).directory
    run.path.parent.mkdir(parents=True, exist_ok=True)
    run.path.symlink_to(home)
    with pytest.raises(UserError, match="is a link"):
        run_experiment(experiment.config)
    assert (home / "thesis.tex").read_text() == "years"


def test_bad_files_that_a_comparison_does_not_need_are_left_out(tiny: Tiny) -> None:
    run = write_run(tiny(), fading(1, 0))
    run.metrics.write_text("step,loss\n" + "1,2\n" * 4_000_000)
    write_huge_file(run.path / "text.csv")
    loaded = load_runs(run.path.parents[1])
    assert list(loaded.runs["name"]) == [run.name]
    assert {f"{run.name}/metrics.csv", f"{run.name}/text.csv"} <= set(loaded.left_out)


def test_weights_that_are_not_finite_are_refused(tiny: Tiny) -> None:
    run = write_run(tiny(), fading(1, 0))
    weights = tiny().untrained_model().state_dict()
    next(iter(weights.values())).fill_(math.nan)
    save_checkpoint(run, weights)
    with pytest.raises(UserError, match="its weights are NaN or infinite"):
        load_model(run.path)
