"""Folders that are damaged or that somebody else filled: links, swapped files, odd values.

A bad directory among the runs is reported in one sentence, and the others are compared.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pe_experiments.analysis.trained_model import load_model
from pe_experiments.comparison import load_runs
from pe_experiments.comparison.compare_runs import runs_csv
from pe_experiments.configuration.experiment import trained_sections
from pe_experiments.run import run_experiment
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.names import file_digest
from pe_experiments.store.requested import Run
from pe_experiments.store.study_folder import read_manifest
from pe_experiments.studies.archive import read_archive
from pe_experiments.studies.reproduce import compare_with_published, published_config, reproduce
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import consistent_files, inside, read_yaml, replace_together
from tests.conftest import ROOT, Tiny
from tests.synthetic import fading, save_checkpoint, write_run

Spoil = Callable[[RunDirectory, RunDirectory], object]


def with_digests(run: RunDirectory) -> RunDirectory:
    """Record the digests of the tables, as a run does."""
    edit_result(run, files={path.name: file_digest(path) for path in run.path.glob("*.csv")})
    return run


def edit(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text()))


def without_last_row(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[:-1])


def write_huge_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(30 << 30)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def edit_result(directory: RunDirectory, **entries: object) -> None:
    edit(directory.result, lambda text: json.dumps(json.loads(text) | entries))


def replace_text(path: Path, old: str, new: str) -> None:
    edit(path, lambda text: text.replace(old, new, 1))


def set_column(run: RunDirectory, column: str, text: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run.curve.read_text())))
    with run.curve.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0] | {column: text})
        writer.writeheader()
        writer.writerows([row | {column: text} for row in rows])


BAD: dict[str, tuple[Callable[[RunDirectory], object], str]] = {
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
    "half a curve": (lambda run: edit(run.curve, without_last_row), "its lengths differ from"),
    "other columns": (lambda run: replace_text(run.curve, "exact_match,", "accuracy,"), "damaged"),
    "a column that is a formula": (lambda run: replace_text(run.curve, "chance", "=cmd"), "=cmd is not"),
    "a column of the comparison": (lambda run: set_column(run, "label", "1"), "label"),
    "deep YAML": (lambda run: run.config.write_text("[" * 200_000), "nested more than 100 deep"),
    "aliases": (lambda run: run.config.write_text("a: &a [x]\nb: *a\n"), "a YAML alias"),
    "large YAML": (lambda run: write_huge_file(run.config), "at most .* MB are read"),
    "large CSV": (lambda run: write_huge_file(run.curve), "it has 32,212.3 MB, and at most .* MB are read"),
    "a pipe": (lambda run: replace_by_pipe(run.curve), "not a regular file"),
    "half a row": (lambda run: set_column(run, "token_accuracy", ""), "an accuracy is missing"),
    "a large accuracy": (lambda run: set_column(run, "exact_match", "7.5"), "exact_match=7.5: expected"),
    "no number": (lambda run: set_column(run, "token_accuracy", "nan"), "token_accuracy=nan: expected a"),
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
    (run.path / "index.csv").write_text("length,index,token_accuracy,tokens,seed\n6,0,1,1,1\n")
    loaded = load_runs(run.path.parents[1])
    assert list(loaded.runs["name"]) == [run.name]
    assert {f"{run.name}/{name}.csv" for name in ("metrics", "text", "index")} <= set(loaded.left_out)


def test_weights_that_are_not_finite_are_refused(tiny: Tiny) -> None:
    run = write_run(tiny(), fading(1, 0))
    weights = tiny().untrained_model().state_dict()
    next(iter(weights.values())).fill_(math.nan)
    save_checkpoint(run, weights)
    with pytest.raises(UserError, match="its weights are NaN or infinite"):
        load_model(run.path)


SWAPPED: dict[str, Spoil] = {
    "a curve without its last row": lambda run, other: edit(run.curve, without_last_row),
    "the curve of another run": lambda run, other: shutil.copyfile(other.curve, run.curve),
    "the result of another run": lambda run, other: shutil.copyfile(other.result, run.result),
    "result and curve of another run": lambda run, other: [
        shutil.copyfile(other.path / name, run.path / name) for name in ("result.json", "extrapolation.csv")
    ],
    "an edited number": lambda run, other: edit(run.curve, lambda text: text.replace("0.9", "0.8")),
}


@pytest.mark.parametrize("spoil", SWAPPED)
def test_a_table_that_the_result_does_not_name_is_not_found_and_not_compared(spoil: str, tiny: Tiny) -> None:
    run = with_digests(write_run(tiny(), fading(1, 0.02)))
    other = with_digests(write_run(tiny("seed=1"), fading(0.9, 0.04)))
    assert Run(tiny().config).state == "finished"
    SWAPPED[spoil](run, other)
    with pytest.raises(UserError, match=r"names; add rerun=true|belongs to another run; delete it"):
        run_experiment(tiny().config)
    runs = load_runs(run.path.parents[1])
    assert list(runs.saved) == [other.name]
    assert run.name in runs.left_out


def test_an_edited_table_is_left_out_of_comparisons_and_refused_by_its_run(tiny: Tiny) -> None:
    run = write_run(tiny(), fading(1, 0.02))
    index = run.path / "index.csv"
    index.write_text("length,index,tokens,token_accuracy\n4,0,20,0.5\n")
    with_digests(run)
    edit(index, lambda text: text.replace("0.5", "0.9"))
    runs = load_runs(run.path.parents[1])
    assert list(runs.saved) == [run.name]
    assert f"{run.name}/index.csv" in runs.left_out
    with pytest.raises(UserError, match=r"index\.csv is not the file that its result\.json names; add rerun"):
        run_experiment(tiny().config)
    index.unlink()  # a large table may be deleted
    assert run_experiment(tiny().config).done == "found"


LINKS: dict[str, Callable[[RunDirectory], object]] = {
    "config.yaml": lambda run: run.read_config(),
    "result.json": lambda run: run.read_result(),
    "extrapolation.csv": lambda run: run.curve,
    "index.csv": lambda run: run.table("index.csv"),
    "error.log": lambda run: run.error_log,
    ".lock": lambda run: run.lock(),
    "checkpoints": lambda run: run.checkpoint,
    "checkpoints/last.ckpt": lambda run: run.checkpoint,
    "evaluations": lambda run: run.evaluation("abc"),
    "evaluations/abc": lambda run: run.evaluation("abc"),
}


@pytest.mark.parametrize("name", LINKS)
def test_no_link_out_of_a_run_is_followed(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    run = RunDirectory(tmp_path / "run")
    (run.path / name).parent.mkdir(parents=True)
    (run.path / name).symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=r"leads out of .* through a link"):
        LINKS[name](run)


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (tmp_path / "b").symlink_to("a")
    assert inside(tmp_path, "b") == tmp_path / "b"
    (tmp_path / "loop").symlink_to("loop")
    assert inside(tmp_path, "loop")
    with pytest.raises(UserError, match="leads out of"):
        inside(tmp_path, "..", "other")


def test_the_figures_of_a_study_are_not_written_through_a_link(tmp_path: Path) -> None:
    outside, study, fresh = (tmp_path / name for name in ("outside", "study", "fresh"))
    for folder in (outside, study, fresh / "figures", study / ".ready" / "figures"):
        folder.mkdir(parents=True)
    (study / "figures").symlink_to(outside)
    (fresh / "figures" / "a.png").write_text("new")
    (study / ".ready" / "figures" / "b.png").write_text("new")
    with pytest.raises(UserError, match="leads out of"), consistent_files(study):
        pass
    shutil.rmtree(study / ".ready")
    with pytest.raises(UserError, match="leads out of"):
        replace_together(fresh, study, [Path("figures/a.png")])
    (study / "figures").unlink()
    (study / ".copies").symlink_to(outside)
    replace_together(fresh, study, [Path("figures/a.png")])
    assert (study / "figures" / "a.png").read_text() == "new"
    assert not list(outside.iterdir())


def copied(source: RunDirectory, target: Path) -> None:
    shutil.copytree(source.path, target)


RERUNS: dict[str, Spoil] = {
    "of another run": lambda run, other: copied(other, run.rerun.path),
    "a link": lambda run, other: run.rerun.path.symlink_to(other.path),
    "with a curve of another run": lambda run, other: [
        copied(run, run.rerun.path), shutil.copyfile(other.curve, run.rerun.curve)
    ],
    "with a result of another run": lambda run, other: [
        copied(run, run.rerun.path), shutil.copyfile(other.result, run.rerun.result)
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", RERUNS)
def test_only_a_finished_rerun_of_a_run_takes_its_place(kind: str, tiny: Tiny) -> None:
    run = with_digests(write_run(tiny(), fading(1, 0.02)))
    other = with_digests(write_run(tiny("seed=1"), fading(0.9, 0.04)))
    before = run.curve.read_bytes()
    RERUNS[kind](run, other)
    run.complete_rerun()
    assert run.curve.read_bytes() == before
    assert other.path.exists()
    assert run.rerun.path.exists()


@pytest.mark.parametrize("first", [*"=+-@", " =", "\n=", "\t="])
def test_a_read_text_cannot_be_a_formula(first: str, tiny: Tiny) -> None:
    run = write_run(tiny(), fading(1, 0.02), result={"label": f"{first}cmd|' /C calc'!A0"})
    (reason,) = load_runs(run.path.parents[1]).left_out.values()
    assert "would be a formula in a spreadsheet" in reason


@pytest.mark.parametrize(
    "changed",
    [{"device": "=1+1"}, {"pe_experiments": "@v"}, {"commit": 5}, {"libraries": 3}, {"command": [1]},
     {"earlier": {}}],
)  # fmt: skip
def test_an_odd_environment_counts_as_missing(changed: dict[str, Any], tiny: Tiny) -> None:
    run = write_run(tiny(), fading(1, 0.02))
    environment = run.read_environment()
    assert environment
    run.environment.write_text(json.dumps(environment | changed))
    assert run.read_environment() == {}


@pytest.mark.parametrize(
    ("command", "written"), [(["=1+1"], ""), (["-c", "pe=rope"], ""), (["train.py"], "train.py")]
)
def test_a_command_with_a_formula_is_not_written(command: list[str], written: str, tiny: Tiny) -> None:
    """Python itself calls a program of `python -c` by -c, so that its environment counts."""
    run = write_run(tiny(), fading(1, 0.02))
    run.environment.write_text(json.dumps(run.read_environment() | {"command": command}))
    (row,) = csv.DictReader(io.StringIO(runs_csv(load_runs(run.path.parents[1]))))
    assert row["command"] == written


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("finished_step", 10**400),
        ("parameters", "<script>"),
        ("files", {"a\0b": "x"}),
        ("files", {"/etc/passwd": "x"}),
        ("seed", True),
        ("evaluation", {"lengths": 5, "pe": {}}),
        ("evaluation", {"lengths": [5], "pe": 1}),
        ("label", "\x1b[31mred"),
    ],
)
def test_a_result_with_a_value_of_another_type_is_damaged(key: str, value: Any, tiny: Tiny) -> None:
    run = write_run(tiny(), fading(1, 0.02), result={key: value})
    with pytest.raises(UserError, match=r"result\.json is damaged"):
        run.read_result()


def test_a_number_in_base_60_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"seed: {':'.join(['1'] * 500_000)}")
    with pytest.raises(ValueError, match="a number with colons"):
        read_yaml(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text(f"seed: !!int {':'.join(['1'] * 500_000)}")
    with pytest.raises(ValueError, match="the YAML tag"):
        read_yaml(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("a: '12:30'\nb: C:x\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": "12:30", "b": "C:x"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tuned", ["__class__.x"]),
        ("runs", ["a/b"]),
        ("runs", ["a" * 5000]),
        ("runs", "a"),
    ],
)
def test_a_manifest_names_runs_and_options(key: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"runs": [], key: value}))
    with pytest.raises(UserError, match=rf"is damaged \(.*({key}|is not the name of a file)"):
        read_manifest(tmp_path.parent, tmp_path.name)


class Published:
    """What `compare_with_published` and `reproduce` read of a published study."""

    def __init__(self, steps: list[int], trained: dict[str, Any] | None = None):
        self.training = pd.DataFrame({"name": "a", "step": steps, "loss": [1.0] * len(steps)})
        self.curves = pd.DataFrame({"name": "a", "length": [4, 6, 9], "exact_match": [1.0] * 3})
        self.runs = pd.DataFrame({"name": ["a"], "status": ["completed"]})
        self.saved = {"a": type("Saved", (), {"trained": trained})}


@pytest.mark.parametrize("steps", [[1000, 8000], [], [6, 8000]])
def test_a_repetition_without_the_published_steps_cannot_be_compared(steps: list[int], tiny: Tiny) -> None:
    published: Any = Published(steps)
    words, agrees = compare_with_published(published, "a", run_experiment(tiny().config))
    assert not agrees
    assert words.startswith("cannot be compared: ")


@pytest.mark.parametrize("section", ["pe", "callbacks", "file"])
def test_a_published_study_of_a_stranger_is_not_trained(
    section: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = trained_sections(tiny().full_config)
    if section == "pe":
        trained["pe"] = {"_target_": "evil.Rec"}
    elif section == "callbacks":
        trained["trainer"]["callbacks"] = [{"_target_": "pytorch_lightning.callbacks.Timer"}]
    else:
        trained["task"] = {"_target_": "pe_experiments.tasks.text.Text", "path": "secret.txt"}
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "provenance.csv").write_text("")
    monkeypatch.setattr("pe_experiments.studies.reproduce.read_archive", lambda _: Published([6], trained))
    with pytest.raises(UserError, match=r"reproduce=stranger: its configuration names .*trust=true"):
        reproduce("stranger", 1, tmp_path, Display())


@pytest.mark.parametrize("dollar", ["$", r"\u0024"])  # as it is, or as JSON may write it
def test_a_published_configuration_is_not_interpolated(dollar: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results" / "longer_training", tmp_path / "study")
    provenance = tmp_path / "study" / "provenance.csv"
    text = provenance.read_text()
    provenance.write_text(text.replace('""symmetric""', f'""{dollar}{{oc.env:HOME}}""'))
    published = read_archive(tmp_path / "study")
    name = next(name for name, record in published.saved.items() if "symmetry" in record.trained["pe"])
    with pytest.raises(UserError, match=r"symmetry=\$\{oc.env:HOME\}: expected"):
        run_experiment(published_config(published, name, str(tmp_path)))


@pytest.mark.parametrize("spoil", ["link", "fifo"])
def test_the_files_of_a_published_study_are_data(spoil: str, tmp_path: Path) -> None:
    study = tmp_path / "study"
    shutil.copytree(ROOT / "results" / "longer_training", study)
    provenance = study / "provenance.csv"
    text = provenance.read_text()
    provenance.unlink()
    if spoil == "link":
        (tmp_path / "secret.csv").write_text(text)
        provenance.symlink_to(tmp_path / "secret.csv")
    else:
        os.mkfifo(provenance)
    with pytest.raises(UserError, match=r"is not a published study|through a link"):
        read_archive(study)
