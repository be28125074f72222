"""Runs from strangers: a configuration runs no code and reads no files unless the user trusts it."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from pe_experiments.analysis.trained_model import TrainedModel, load_model
from pe_experiments.comparison import load_runs
from pe_experiments.comparison.citations import cite
from pe_experiments.configuration.choices import key_of
from pe_experiments.configuration.component import load_component
from pe_experiments.configuration.compose import compose_config, merged_with_request
from pe_experiments.configuration.schema import resolved
from pe_experiments.run import Result, evaluate, evaluate_run
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.finished import finished_run
from pe_experiments.store.requested import Run
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import CONFIG_DIR
from tests.conftest import Script, Tiny, assert_one_sentence
from tests.synthetic import fading, opened, write_run, write_trained_run

pytestmark = pytest.mark.slow

Spoil = Callable[[dict[str, Any]], object]
TEXT = "pe_experiments.tasks.text.Text"
ESCAPED = r"\${oc.create:{_target_:pandas.read_pickle,filepath_or_buffer:evil.pkl}}"
OTHER_LENGTHS = {"evaluation": {"lengths": [7], "examples": 20}}
WANDB = yaml.safe_load((CONFIG_DIR / "logger" / "wandb.yaml").read_text())["wandb"]
EVIL = "import pathlib\nfrom pe_experiments.encodings import PositionalEncoding\n"
EVIL += "pathlib.Path({mark!r}).touch()\nclass Evil(PositionalEncoding):\n"
EVIL += "    def __init__(self, shape, **arguments):\n        super().__init__(shape)\n"


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a path that exists once the module ``evil`` or the pickle ``evil.pkl`` was loaded."""
    mark = tmp_path / "mark"
    (tmp_path / "evil.py").write_text(EVIL.format(mark=str(mark)))
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Touches(str(mark))))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    monkeypatch.setenv("SECRET", "hunter2")
    return mark


class Touches:
    def __init__(self, mark: str):
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.mark),)


@pytest.fixture
def run(tiny: Tiny) -> RunDirectory:
    """A finished run with a checkpoint."""
    return write_trained_run(tiny())


def edit_config(run: RunDirectory, spoil: Spoil) -> None:
    saved = yaml.safe_load(run.config.read_text())
    spoil(saved)
    run.config.write_text(yaml.safe_dump(saved))


def readers(run: RunDirectory) -> list[Callable[[], object]]:
    """Return functions that read the configuration of a run."""
    return [
        lambda: load_model(run.path),
        lambda: evaluate_run(run.path, OTHER_LENGTHS),
        lambda: evaluate_run(run.path, {"task": {"_target_": "pe_experiments.tasks.copying.Reverse"}}),
    ]


def test_a_valid_run_is_loaded_and_evaluated(run: RunDirectory) -> None:
    model, other_lengths, other_task = (read() for read in readers(run))
    assert isinstance(model, TrainedModel)
    for evaluated, lengths in ((other_lengths, [7]), (other_task, [4, 6, 9])):
        assert isinstance(evaluated, Result)
        assert evaluated.done == "evaluated"
        assert [row["content_length"] for row in evaluated.curve] == lengths


INTERPOLATIONS: dict[str, Spoil] = {
    "escaped": lambda saved: saved.update(task={"_target_": TEXT, "path": ESCAPED}),
    "a part": lambda saved: saved.update(pe="${oc.create:{_target_:evil.Evil}}"),
    "a key": lambda saved: saved["logger"].update({"${oc.env:SECRET}": "project"}),
}  # fmt: skip


@pytest.mark.parametrize("spoil", INTERPOLATIONS.values(), ids=list(INTERPOLATIONS))
def test_saved_configurations_are_not_interpolated(run: RunDirectory, marked: Path, spoil: Spoil) -> None:
    edit_config(run, spoil)
    for read in readers(run):
        with pytest.raises(UserError, match=r"saved configurations are not interpolated"):
            read()
    assert not marked.exists()
    written = (path.read_bytes() for path in run.path.rglob("*") if path.is_file())
    assert not any(b"hunter2" in content for content in written)


OUTSIDE: dict[str, Spoil] = {
    "a class": lambda saved: saved["pe"].update(_target_="evil.Evil"),
    "almost of the package": lambda saved: saved["pe"].update(_target_="pe_experiments_evil.Evil"),
    "of another room": lambda saved: saved["pe"].update(_target_="pe_experiments.benchmark.peers.Evil"),
    "nested": lambda saved: saved["pe"].update(parts=[{"_target_": "evil.Evil", "_partial_": True}]),
    "a file": lambda saved: saved.update(task={"_target_": TEXT, "path": "evil.pkl"}),
    "a file that is no model": lambda saved: saved["model"].update(activation="/proc/kcore"),
    "by a path in between": lambda saved: saved["pe"].update(_target_="pe_experiments.encodings./evil.Evil"),
}


@pytest.mark.parametrize("spoil", OUTSIDE.values(), ids=list(OUTSIDE))
def test_code_and_files_from_outside_the_package_need_trust(
    run: RunDirectory, marked: Path, spoil: Spoil
) -> None:
    edit_config(run, spoil)
    for read in readers(run):
        with pytest.raises(UserError, match=r"names .*, from outside this package; .*add trust=true, which"):
            read()
    assert not marked.exists()


STRANGER = {"wandb": {"mode": "online", "project": "strangers", "entity": "stranger", "tags": ["x"]}}


@pytest.mark.parametrize("typed", [[], ["logger.wandb.project=my_project"]])
def test_the_account_that_a_run_names_is_not_used(run: RunDirectory, typed: list[str]) -> None:
    edit_config(run, lambda saved: saved.update(logger=STRANGER))
    logger = opened(run, *typed).config.logger
    project = "my_project" if typed else "pe_experiments"
    assert logger == {"wandb": WANDB | {"project": project}}


def test_devices_are_the_users_and_the_arithmetic_is_the_runs(run: RunDirectory) -> None:
    edit_config(run, lambda saved: saved["trainer"].update(accelerator="gpu", precision="bf16-mixed"))
    for typed in ("trainer.threads=1", "trainer=cpu"):
        settings = resolved(compose_config([typed], "evaluate"))
        trainer = merged_with_request(run.read_config(), settings, [key_of(typed)])["trainer"]
        assert (trainer["accelerator"] == "gpu", trainer["precision"]) == (False, "bf16-mixed")
    with pytest.raises(UserError, match=r"trainer\.precision is fixed by the training; allowed: bf16-mixed"):
        opened(run, "trainer.precision=32-true")


def test_devices_and_callbacks_that_write_are_not_inherited(run: RunDirectory, tmp_path: Path) -> None:
    edit_config(run, lambda saved: saved["trainer"].update(devices=6, num_nodes=2))
    config = finished_run(run).config
    assert (config.trainer.devices, config.trainer.num_nodes) == (1, 1)
    checkpoint = {"_target_": "pytorch_lightning.callbacks.ModelCheckpoint", "dirpath": str(tmp_path)}
    edit_config(run, lambda saved: saved["trainer"].update(callbacks=[checkpoint]))
    for read in readers(run):
        with pytest.raises(UserError, match=r"names pytorch_lightning.callbacks.ModelCheckpoint.*trust=true"):
            read()


@pytest.mark.parametrize("group", ["pe", "task", "optimizer", "model"])
def test_a_module_in_the_runs_own_folder_needs_trust(
    run: RunDirectory, marked: Path, group: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory is above it, and the run claims to have been trained with the class."""
    monkeypatch.chdir(run.path.parents[2])
    evil = ".".join(run.path.relative_to(Path.cwd()).parts)
    (run.path / "evil.py").write_text((marked.parent / "evil.py").read_text())

    def forge(saved: dict[str, Any]) -> None:
        saved[group]["_target_"] = f"{evil}.evil.Evil"
        saved["identity"]["classes"] = {group: {f"{evil}.evil": "0" * 12}}

    edit_config(run, forge)
    for read in readers(run):
        with pytest.raises(UserError, match=r"from outside this package; .*add trust=true, which"):
            read()
    excluded = load_runs(run.path.parents[1]).left_out[run.name]  # as compare.py, which asks for no trust
    assert "Evil is from outside this package" in excluded
    Run(tiny("training.steps=13").config).difference_to_cached_run()
    assert not marked.exists()


def test_a_run_is_compared_and_given_another_encoding_without_importing_its_own_class(
    tiny: Tiny, marked: Path
) -> None:
    run = write_run(tiny("pe=evil.Evil"), fading(1, 0.02))
    marked.unlink()
    del sys.modules["evil"]
    assert run.name in load_runs(run.path.parents[1]).saved
    opened(run, "pe=rope")
    assert not marked.exists()


@pytest.mark.parametrize("spoil", ["checkpoint", "config", "result"])
def test_a_file_of_another_run_is_refused(run: RunDirectory, tiny: Tiny, spoil: str) -> None:
    other = write_trained_run(tiny("seed=1"))
    file = {"checkpoint": run.checkpoint, "config": run.config, "result": run.result}[spoil]
    replacement = other.path / file.relative_to(run.path)
    file.write_bytes(replacement.read_bytes())
    with pytest.raises(UserError, match=r"another run|changed"):
        load_model(run.path)


def test_a_flipped_bit_of_the_weights_is_noticed(run: RunDirectory) -> None:
    weights = bytearray(run.checkpoint.read_bytes())
    weights[len(weights) // 2] ^= 1
    run.checkpoint.write_bytes(bytes(weights))
    with pytest.raises(UserError, match="damaged"):
        load_model(run.path)


def test_trust_imports_the_class(run: RunDirectory, marked: Path, script: Script) -> None:
    edit_config(run, lambda saved: saved["pe"].update(_target_="evil.Evil"))
    assert_one_sentence(script("show_model", f"run={run.path}"), "names evil.Evil", "add trust=true")
    assert not (run.results_dir / "models").exists()
    with pytest.raises(UserError, match=r"its config\.yaml records no identity"):
        load_model(run.path, trust=True)
    assert marked.exists()


def test_a_class_that_was_typed_needs_no_trust(run: RunDirectory, marked: Path) -> None:
    assert evaluate(opened(run, "pe=evil.Evil")).done == "evaluated"
    assert marked.exists()


def test_trust_is_true_or_false(run: RunDirectory) -> None:
    for given in ("false", 1):
        with pytest.raises(UserError, match=f"trust={given}: expected true or false"):
            load_model(run.path, trust=given)  # type: ignore[arg-type]


def test_arguments_of_components_are_not_interpolated(marked: Path) -> None:
    for path in ("${oc.env:SECRET}", ESCAPED.removeprefix("\\")):
        with pytest.raises(UserError, match=r"path=\$\{oc.*\}: there is no such file"):
            load_component("task", {"_target_": TEXT, "path": path}).build()
    assert not marked.exists()


def test_modules_outside_the_package_are_not_read_for_citations(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside.py").write_text("def")
    monkeypatch.syspath_prepend(tmp_path)
    run = write_run(tiny("pe=rope"), fading(1, 0.02))
    runs = load_runs(run.path.parents[1])
    for module in ("rope.beside", "../../beside"):
        target = f"pe_experiments.encodings.{module}.Encoding"
        runs.saved[run.name].trained["pe"]["_target_"] = target
        assert cite(runs)[0] == {"rope": []}
