"""The identity of a run: its configuration, data files, user classes and NUMERICS."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pe_experiments.analysis.trained_model import load_model
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.parts import shipped
from pe_experiments.configuration.schema import Config
from pe_experiments.run import evaluate_run, run_experiment
from pe_experiments.store.identity import config_key, data_digests, identify
from pe_experiments.store.names import jsonable
from pe_experiments.store.own_code import UNTRACKED, code_digests
from pe_experiments.store.run import Run
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny
from tests.synthetic import fading, write_run

SOURCE = """
from pe_experiments.encodings import PositionalEncoding

FACTOR = 1.0


class Base(PositionalEncoding):
    power = 1


class Slope(Base):
    def __init__(self, shape, slope: float = 0.1):
        super().__init__(shape)
        self.slope = slope

    def bias(self, q_BHTK, k_BHSK, at):
        return -self.slope * FACTOR * at.relative_positions_BTS[:, None].abs().float()
"""


@pytest.fixture
def write_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that writes ``user_code.py``, which the next import reads."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str) -> None:
        (tmp_path / "user_code.py").write_text(text)
        sys.modules.pop("user_code", None)
        importlib.invalidate_caches()

    return write


def name_of(experiment: Experiment) -> str:
    return identify(experiment).name()


def test_only_what_changes_the_training_changes_the_name(tiny: Tiny) -> None:
    ignored = [
        "evaluation.examples=7", "evaluation.window=4", "study=s", "logger=wandb", "results_dir=/elsewhere",
        "pe.base=10000", "task.vocab_size=10", "optimizer=adamw",
        "optimizer._target_=torch.optim.adamw.AdamW", "model.attention_implementation=sdpa",
        "trainer=cpu", "trainer.threads=2", "trainer.matmul=default", "trainer.strategy=ddp",
    ]  # fmt: skip
    for override in ignored:
        assert name_of(tiny(override)) == name_of(tiny()), override
    hashed = [
        "pe=none", "positions=random_offset", "task=reverse", "model=encoder", "seed=1", "training.steps=13",
        "pe.base=9999", "training.weight_decay=0.02", "model.num_layers=1", "trainer.precision=bf16-mixed",
        "trainer.precision=64-true", "trainer.accumulate_grad_batches=2", "optimizer.eps=1e-6",
        "optimizer.betas=[0.9,0.95]",
        *(f"optimizer={name}" for name in shipped("optimizer") if name != "adamw"),
    ]  # fmt: skip
    hashes = {name_of(tiny(override))[-8:] for override in ["seed=0", *hashed]}
    assert len(hashes) == len(hashed) + 1


@pytest.mark.parametrize(("callback", "counts"), [("LearningRateMonitor", False), ("Timer", True)])
def test_callbacks_of_lightning_that_only_watch_do_not_count(callback: str, counts: bool, tiny: Tiny) -> None:
    watched = tiny(f"trainer.callbacks=[{{_target_: pytorch_lightning.callbacks.{callback}}}]")
    assert (name_of(watched) != name_of(tiny())) is counts


def test_two_ways_to_write_a_configuration_give_one_name(tiny: Tiny) -> None:
    assert name_of(tiny("task=repeat_copy")) == name_of(tiny("task=copy", "task.vocab_size=2"))
    by_path = tiny("pe=pe_experiments.encodings.PositionalEncoding")
    assert name_of(by_path) == name_of(tiny("pe=none"))
    assert name_of(tiny("label=my_label"))[-8:] == name_of(tiny())[-8:]


def test_a_new_argument_with_a_default_keeps_the_names_of_earlier_runs(tiny: Tiny) -> None:
    trained = jsonable(tiny("pe=fox").trained)
    key = config_key(trained, {})
    del trained["pe"]["initial_bias"]  # as in a run from before the argument existed
    assert config_key(trained, {}) == key
    trained["pe"]["initial_bias"] = 4.0
    assert config_key(trained, {}) != key


HELPER = "def helper(distance):\n    return distance.abs()\n"


@pytest.mark.parametrize(
    ("edit", "new"),
    [
        (("slope: float = 0.1", "slope: float = 0.2"), True),
        (("return -self.slope", "return -2 * self.slope"), True),
        (("power = 1", "power = 2"), True),  # in its base class
        (("FACTOR = 1.0", "FACTOR = 2.0"), True),  # a constant beside it
        (("FACTOR = 1.0", "FACTOR = 1.0  # a comment\n"), False),
    ],
)
def test_edits_of_the_file_of_a_user_class_make_a_new_run(
    tiny: Tiny, write_code: Callable[[str], None], edit: tuple[str, str], new: bool
) -> None:
    write_code(SOURCE)
    before = name_of(tiny("pe=user_code.Slope"))
    write_code(SOURCE.replace(*edit))
    assert (name_of(tiny("pe=user_code.Slope")) != before) == new


@pytest.mark.parametrize(
    "statement", ["import user_helper", "from user_helper import helper", "from user_helper import *"]
)
def test_edits_of_a_module_that_it_imports_make_a_new_run(
    statement: str, tiny: Tiny, write_code: Callable[[str], None], tmp_path: Path
) -> None:
    helper = tmp_path / "user_helper.py"
    helper.write_text(HELPER)
    write_code(f"{statement}\n{SOURCE}")
    before = name_of(tiny("pe=user_code.Slope"))
    helper.write_text(HELPER + "\n\n# a comment\n")
    write_code(f"{statement}\n{SOURCE}")
    assert name_of(tiny("pe=user_code.Slope")) == before
    helper.write_text(HELPER.replace("distance.abs()", "2 * distance.abs()"))
    write_code(f"{statement}\n{SOURCE}")
    assert name_of(tiny("pe=user_code.Slope")) != before


@pytest.mark.slow
def test_an_edited_run_is_trained_and_evaluated_anew(tiny: Tiny, write_code: Callable[[str], None]) -> None:
    write_code(SOURCE)
    first = run_experiment(tiny("pe=user_code.Slope").config)
    shipped_run = run_experiment(tiny("pe=none").config)
    changes = {"pe": {"_target_": "user_code.Slope"}}
    assert evaluate_run(shipped_run.directory.path, changes).done == "evaluated"
    assert evaluate_run(shipped_run.directory.path, changes).done == "found"
    write_code(SOURCE.replace("FACTOR = 1.0", "FACTOR = 2.0"))
    assert evaluate_run(shipped_run.directory.path, changes).done == "evaluated"
    difference = Run(tiny("pe=user_code.Slope").config).difference_to_cached_run()
    assert difference == f"not the run {first.run.name}: user_code has been edited"
    assert run_experiment(tiny("pe=user_code.Slope").config).done == "trained"
    with pytest.raises(UserError, match="user_code changed since it was trained"):
        load_model(first.run.path, trust=True)


def test_a_new_run_says_how_it_differs_from_the_nearest_cached_run(tiny: Tiny) -> None:
    write_run(tiny(), fading(1, 0))
    nearest = write_run(tiny("training.steps=13"), fading(1, 0))
    difference = Run(tiny("training.steps=13", "training.weight_decay=0.5").config).difference_to_cached_run()
    assert difference == f"not the run {nearest.name}: training.weight_decay=0.5 (cached run: 0.01)"
    assert Run(tiny("seed=1").config).difference_to_cached_run() == ""


NOTEBOOK = """
from pe_experiments.encodings import PositionalEncoding

OFFSET, SLOPE = 1.0, 0.1


def helper():
    return OFFSET


class Slope(PositionalEncoding):
    powers = [1]

    def __init__(self, shape, slope: float = SLOPE):
        super().__init__(shape)
        self.slope = slope

    def bias(self, q_BHTK, k_BHSK, at):
        return helper() - self.slope * at.relative_positions_BTS[:, None].abs().float()
"""


def notebook_digest(text: str, file: str) -> str:
    """Return the digest of `Slope` in a cell with this text; IPython keeps the text in `linecache`."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"__name__": "a_shell"}
    exec(compile(text, file, "exec"), scope)
    return code_digests([scope["Slope"]])["a_shell.Slope"]


@pytest.mark.parametrize(
    ("edit", "new"),
    [
        (("return OFFSET", "return 2 * OFFSET"), True),  # in a helper function
        (("SLOPE = 1.0, 0.1", "SLOPE = 2.0, 0.1"), True),  # read by the helper function
        (("SLOPE = 1.0, 0.1", "SLOPE = __import__('torch').ones(1), 0.1"), True),
        (("SLOPE = 1.0, 0.1", "SLOPE = 1.0, 0.2"), True),  # the default of an argument
        (("powers = [1]", "powers = [2]"), True),
        (("def helper", "UNUSED = 3\n\n\ndef helper"), False),
    ],
)
def test_a_class_in_a_notebook_counts_with_what_it_reads(edit: tuple[str, str], new: bool) -> None:
    texts = (NOTEBOOK, NOTEBOOK.replace(*edit))
    digests = [notebook_digest(text, f"<ipython-{i}-{edit}>") for i, text in enumerate(texts)]
    assert UNTRACKED not in digests
    assert (digests[0] != digests[1]) == new


def test_an_address_in_the_text_of_a_value_does_not_count() -> None:
    text = NOTEBOOK.replace("return OFFSET", "return OTHERS").replace(
        "class", "OTHERS = [object()]\n\n\nclass"
    )
    assert notebook_digest(text, "<ipython-a>") == notebook_digest(text, "<ipython-b>")


def test_a_package_counts_with_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "library" / "user_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"from .helper import helper\n{SOURCE}")
    (package / "helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path / "library")
    digests = code_digests([importlib.import_module("user_package").Slope])
    assert set(digests) == {"user_package", "user_package.helper"}


@pytest.mark.slow
def test_a_class_of_an_installed_library_counts_by_name_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from hypothesis.stateful import RuleBasedStateMachine

    digests = code_digests([RuleBasedStateMachine])
    assert list(digests) == ["hypothesis"]
    assert digests["hypothesis"].count(".") == 2


def test_data_files_count_by_their_content(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name, letter in (("a.txt", "a"), ("b.txt", "b")):
        (texts / name).write_text(letter * 60_000)
    monkeypatch.chdir(tmp_path)
    overrides = ("task=text", "task.path=texts", "training.max_length=40")
    before = identify(tiny(*overrides))
    assert set(before.hashed["data"]) == {"a.txt", "b.txt"}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    texts.rename(elsewhere / "texts")
    monkeypatch.chdir(elsewhere)  # a moved project keeps its runs
    assert identify(tiny(*overrides)) == before
    (elsewhere / "texts" / "b.txt").write_text("c" * 60_000)
    assert identify(tiny(*overrides)) != before


def test_files_of_one_name_that_parts_in_a_list_name_all_count(tmp_path: Path) -> None:
    files = [tmp_path / folder / "config.json" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text("same")
    arguments = {"encodings": [{"config": str(file)} for file in files]}
    component: Any = SimpleNamespace(arguments=arguments)
    before = data_digests([], [component])
    assert len(before) == 2
    files[1].write_text("edited")
    assert data_digests([], [component]) != before


def test_evaluations_whose_hashes_begin_alike_are_told_apart(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_experiment(tiny().config).directory
    monkeypatch.setattr("pe_experiments.store.run.short_hash", lambda content: "00000000")
    for length in (5, 7):
        result = evaluate_run(run.path, {"evaluation": {"lengths": [length], "examples": 4}})
        assert [row["length"] for row in result.curve] == [length]
    assert len(run.evaluations()) == 2


def test_a_relabelled_or_moved_run_is_cached(tiny: Tiny, results: Path, tmp_path: Path) -> None:
    write_run(tiny(), fading(1, 0))
    assert Run(tiny("label=other").config).state == "finished"
    results.rename(tmp_path / "moved")
    assert Run(tiny(f"results_dir={tmp_path / 'moved'}").config).state == "finished"


def test_stating_defaults_keeps_the_name_and_no_two_encodings_share_one(tiny: Tiny) -> None:
    config = tiny("model.d_model=32").config.model_dump()
    names = {}
    for choice, section in shipped("pe").items():
        if section["_target_"] == "???":
            continue
        experiment = Experiment(Config.checked(config | {"pe": section}))
        stated = config | {"pe": experiment.components["pe"].section}
        assert name_of(Experiment(Config.checked(stated))) == name_of(experiment)
        names[choice] = name_of(experiment)[-8:]
    assert len(set(names.values())) == len(names)


def test_editing_a_file_does_not_change_the_digest_of_a_loaded_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class in memory still computes what it did."""
    (tmp_path / "edited_later.py").write_text("class Slope:\n    slope = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    user_class = importlib.import_module("edited_later").Slope
    before = code_digests([user_class])
    (tmp_path / "edited_later.py").write_text("class Slope:\n    slope = 2\n")
    assert code_digests([user_class]) == before
