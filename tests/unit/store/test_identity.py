"""What makes two runs the same: their configuration, data, the user's own classes, and NUMERICS."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.parts import shipped
from pe_experiments.configuration.schema import check
from pe_experiments.encodings import alibi
from pe_experiments.models import attention
from pe_experiments.run import run_experiment
from pe_experiments.store import identity
from pe_experiments.store.identity import config_key, identify, source_text
from pe_experiments.store.names import differences
from pe_experiments.store.status import run_status
from pe_experiments.terminal.console import Lines
from pe_experiments.terminal.errors import UserError
from tests.synthetic import fading, write_run

Tiny = Callable[..., Experiment]
MINE = """
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
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes and imports ``mine.py`` anew, with this text."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str) -> None:
        (tmp_path / "mine.py").write_text(text)
        sys.modules.pop("mine", None)
        importlib.invalidate_caches()

    return write


def name_of(experiment: Experiment) -> str:
    return identify(experiment).name


def test_what_was_trained_is_the_identity(tiny: Tiny) -> None:
    same = [
        "evaluation.examples=7", "study=s", "logger=wandb", "trainer.threads=2", "pe.base=10000",
        "model.attention_implementation=sdpa", "results_dir=/elsewhere", "task.vocab_size=10",
    ]  # fmt: skip
    for override in same:
        assert name_of(tiny(override)) == name_of(tiny()), override
    others = [
        "pe=none", "positions=random_offset", "task=reverse", "model=encoder", "seed=1", "training.steps=13",
        "pe.base=9999", "training.weight_decay=0.02", "model.num_layers=1", "trainer.precision=bf16-mixed",
    ]  # fmt: skip
    hashes = {name_of(tiny(override))[-8:] for override in ["seed=0", *others]}
    assert len(hashes) == len(others) + 1


def test_the_same_thing_said_differently_is_one_run(tiny: Tiny) -> None:
    assert name_of(tiny("task=repeat_copy")) == name_of(tiny("task=copy", "task.vocab_size=2"))
    again = tiny("pe=none", "pe._target_=pe_experiments.encodings.PositionalEncoding")
    assert name_of(again) == name_of(tiny("pe=none"))
    assert name_of(tiny("label=mine"))[-8:] == name_of(tiny())[-8:]


def test_edits_of_the_package_leave_names_alone_and_numerics_changes_them(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = name_of(tiny("pe=alibi"))
    monkeypatch.setattr(attention, "BLOCK_LOGITS", 1 << 10)
    monkeypatch.setattr(alibi, "alibi_slopes", lambda heads: torch.ones(heads))
    assert name_of(tiny("pe=alibi")) == before
    monkeypatch.setattr(identity, "NUMERICS", identity.NUMERICS + 1)
    assert name_of(tiny("pe=alibi")) != before


def test_a_new_argument_with_a_default_orphans_no_run(tiny: Tiny, mine: Callable[[str], None]) -> None:
    """Of the user's class the text changes; of one of ours only the arguments stated count."""
    trained = identify(tiny("pe=fox")).trained
    key = config_key(trained, {})
    del trained["pe"]["initial_bias"]  # as in a run from before the argument was there
    assert config_key(trained, {}) == key
    trained["pe"]["initial_bias"] = 4.0
    assert config_key(trained, {}) != key


@pytest.mark.parametrize(
    ("edit", "new"),
    [
        (("slope: float = 0.1", "slope: float = 0.2"), True),
        (("return -self.slope", "return -2 * self.slope"), True),
        (("power = 1", "power = 2"), True),  # of its ancestor
        (("FACTOR = 1.0", "FACTOR = 2.0"), False),
        (("class Base", "class Another(PositionalEncoding):\n    pass\n\n\nclass Base"), False),
    ],
)
def test_an_edit_of_my_class_makes_a_new_run(
    tiny: Tiny, mine: Callable[[str], None], edit: tuple[str, str], new: bool
) -> None:
    mine(MINE)
    before = name_of(tiny("pe._target_=mine.Slope"))
    mine(MINE.replace(*edit))
    assert (name_of(tiny("pe._target_=mine.Slope")) != before) == new


@pytest.mark.slow
def test_what_changed_beside_my_class_is_said(
    tiny: Tiny, mine: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    mine(MINE)
    assert run_experiment(tiny("pe._target_=mine.Slope"), Lines()).done == "trained"
    assert run_experiment(tiny("pe._target_=mine.Slope"), Lines()).done == "found"
    assert "the file of mine" not in capsys.readouterr().out
    mine(MINE.replace("FACTOR = 1.0", "FACTOR = 2.0"))
    assert run_experiment(tiny("pe._target_=mine.Slope"), Lines()).done == "found"
    assert "the file of mine has changed since, outside the classes of this run" in capsys.readouterr().out
    mine(MINE.replace("return -self.slope", "return -2 * self.slope"))
    assert run_experiment(tiny("pe._target_=mine.Slope"), Lines()).done == "trained"
    assert "This is a new run, not the run copy-decoder-Slope-s0-" in (out := capsys.readouterr().out)
    assert "mine.Slope has been edited" in out


def test_a_new_run_says_which_it_is_not(tiny: Tiny) -> None:
    write_run(tiny(), fading(1, 0))
    other = write_run(tiny("training.steps=13"), fading(1, 0))
    asked = run_status(tiny("training.steps=14", "training.weight_decay=0.5"))
    assert asked.difference_to_cached_run().endswith("weight_decay=0.5 (there 0.01)")
    near = run_status(tiny("training.steps=13", "training.weight_decay=0.5"))
    assert (
        near.difference_to_cached_run() == f"not the run {other.name}: training.weight_decay=0.5 (there 0.01)"
    )
    assert run_status(tiny("seed=1")).difference_to_cached_run() == ""


def test_differences_name_what_differs(tiny: Tiny) -> None:
    one = identify(tiny("pe=rope", "pe.base=500")).hashed
    other = identify(tiny("pe=rope")).hashed | {"numerics": 0}
    texts = differences(one, other)
    assert "pe.base=500.0 (there default)" in texts
    assert f"NUMERICS={identity.NUMERICS} (there 0)" in texts


def test_a_class_typed_into_a_shell_is_said_not_to_be_tracked() -> None:
    scope: dict[str, Any] = {"__name__": "a_shell"}
    exec(MINE, scope)
    assert source_text(scope["Slope"]) is None
    assert identity.class_digests([scope["Slope"]])["a_shell.Slope"] == identity.UNTRACKED


def test_a_class_typed_into_a_notebook_is_tracked() -> None:
    """IPython keeps the text of its cells in `linecache`."""
    import linecache

    texts = []
    for number, text in enumerate((MINE, MINE.replace("-self.slope", "-2 * self.slope"))):
        file = f"<ipython-input-{number}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        scope: dict[str, Any] = {"__name__": "a_shell"}
        exec(compile(text, file, "exec"), scope)
        texts.append(source_text(scope["Slope"]))
    assert texts[0] is not None
    assert "-self.slope" in texts[0]
    assert texts[0] != texts[1]


@pytest.mark.slow
def test_a_class_of_an_installed_library_counts_by_name_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from hypothesis.stateful import RuleBasedStateMachine

    digests = identity.class_digests([type("Mine", (RuleBasedStateMachine,), {"__module__": "builtins"})])
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
    asked = ("task=text", "task.path=texts", "training.max_length=40")
    before = identify(tiny(*asked))
    assert set(before.hashed["data"]) == {"a.txt", "b.txt"}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    texts.rename(elsewhere / "texts")
    monkeypatch.chdir(elsewhere)  # a moved project keeps its runs
    assert identify(tiny(*asked)).name == before.name
    (elsewhere / "texts" / "b.txt").write_text("c" * 60_000)
    assert identify(tiny(*asked)).name != before.name


def test_data_files_that_a_class_names_count(
    tiny: Tiny, mine: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine(MINE.replace("slope: float = 0.1", "slope: float = 0.1, table: str = ''"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.txt").write_text("1")
    asked = ("pe._target_=mine.Slope", "+pe.table=table.txt")
    before = name_of(tiny(*asked))
    (tmp_path / "table.txt").write_text("2")
    assert name_of(tiny(*asked)) != before


def test_a_missing_data_file_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"the data file .*nowhere does not exist"):
        identity.data_digests(["nowhere"], [])


def test_a_relabelled_or_moved_run_is_found_again(tiny: Tiny, results: Path, tmp_path: Path) -> None:
    write_run(tiny(), fading(1, 0))
    assert run_status(tiny("label=other")).state == "finished"
    results.rename(tmp_path / "moved")
    assert run_status(tiny(f"results_dir={tmp_path / 'moved'}")).state == "finished"


def test_every_shipped_part_has_a_key_of_its_own(tiny: Tiny) -> None:
    """Stating all defaults is the same configuration, and no two choices share one."""
    names = {}
    for choice in shipped("pe"):
        if shipped("pe")[choice]["_target_"] == "???":
            continue
        experiment = tiny(f"pe={choice}", "model.d_model=32")
        stated = experiment.config.model_dump() | {"pe": experiment.components["pe"].section}
        assert name_of(resolve(check(stated))) == name_of(experiment)
        names[choice] = name_of(experiment)[-8:]
    assert len(set(names.values())) == len(names)


def test_a_file_that_is_edited_later_does_not_change_the_class_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class still computes what it did, and so its digest stays."""
    (tmp_path / "edited_later.py").write_text("class Mine:\n    slope = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    mine = importlib.import_module("edited_later").Mine
    before = identity.class_digests([mine])
    (tmp_path / "edited_later.py").write_text("class Mine:\n    slope = 2\n")
    assert identity.class_digests([mine]) == before
