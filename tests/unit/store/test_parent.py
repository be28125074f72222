"""What a run takes from its parent (``init_from``): configuration, original length and weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml  # type: ignore[import-untyped]

from pe_experiments.comparison.protocols import protocols_of
from pe_experiments.comparison.runs import read_runs
from pe_experiments.configuration.choices import key_of
from pe_experiments.configuration.compose import compose_config
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.schema import Config, validated
from pe_experiments.data.batches import BATCHES_PER_DRAW
from pe_experiments.encodings import AttentionContext
from pe_experiments.models import Backbone
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.identity import identify
from pe_experiments.store.parent import copy_parent_weights, inherited
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny
from tests.synthetic import fading, write_run, write_trained_run

Child = Callable[..., Experiment]


@pytest.fixture
def child(results: Path) -> Child:
    """Return a function that resolves a child as train.py would."""

    def make(parent: RunDirectory, *overrides: str) -> Experiment:
        overrides = (f"init_from={parent.path}", f"results_dir={results}", "logger=none", *overrides)
        config = compose_config(list(overrides))
        return Experiment(validated(Config, inherited(config, map(key_of, overrides))))

    return make


def test_settings_that_are_not_typed_are_the_parents(tiny: Tiny, child: Child) -> None:
    options = ("pe=rope", "pe.base=500.0", "task=reverse", "task.vocab_size=7", "seed=3", "optimizer=sgd")
    parent = tiny(*options, "trainer.precision=64-true", "training.learning_rate=0.01")
    extended = child(write_trained_run(parent), "training.max_length=12", "trainer.threads=2")
    for section in ("pe", "positions", "task", "model", "optimizer", "evaluation", "seed"):
        assert getattr(extended.config, section) == getattr(parent.config, section), section
    assert extended.config.training.model_dump() == parent.config.training.model_dump() | {"max_length": 12}
    assert extended.config.trainer.precision == "64-true"
    assert extended.config.trainer.threads == 2
    assert extended.label == "rope(base=500) -> rope(base=500)"


def test_naming_the_task_of_the_parent_again_keeps_its_training(
    tiny: Tiny, child: Child, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 4000)
    text = ("task=text", f"task.path={tmp_path}/a.txt")
    sizes = ("training.max_length=32", "training.min_length=32", "evaluation.lengths=[32,64]")
    for task in (("task=two_token_recall",), text):
        parent = tiny(*task, *sizes)
        run = write_trained_run(parent)
        further = ("trust=true", "training.max_length=40")
        assert child(run, *task, *further).config.training == child(run, *further).config.training
        assert child(run, *task, *further).config.evaluation == parent.config.evaluation
        assert child(run, *task, "trust=true").config.training == parent.config.training


def test_a_typed_setting_counts_even_if_it_is_the_default(tiny: Tiny, child: Child) -> None:
    run = write_trained_run(tiny("pe=rope", "seed=3", "trainer.precision=64-true"))
    defaults = compose_config([])
    assert child(run, "pe=sinusoidal").config.pe == defaults["pe"]
    assert child(run, "seed=0").config.seed == defaults["seed"] == 0
    steps = child(run, "training.steps=2000").config.training.steps
    assert steps == defaults["training"]["steps"] == 2000
    precision = child(run, "trainer.precision=32-true").config.trainer.precision
    assert precision == defaults["trainer"]["precision"] == "32-true"


def test_an_argument_changes_without_the_others(tiny: Tiny, child: Child) -> None:
    run = write_trained_run(tiny("pe=rope_partial"))
    extended = child(run, "pe.base=40000.0").config.pe
    assert extended == run.read_config()["pe"] | {"base": 40000.0}
    assert child(run, "pe=rope_yarn").config.pe["rotary_fraction"] == extended["rotary_fraction"]
    with pytest.raises(UserError, match=r"that is not listed is written \+pe.rotary_fraction=1"):
        child(run, "pe.rotary_fraction=1")
    assert child(run, "++pe.rotary_fraction=1").config.pe["rotary_fraction"] == 1


def test_a_child_of_a_run_at_one_length_trains_at_one_length(tiny: Tiny, child: Child) -> None:
    run = write_trained_run(tiny("pe=rope", "training.min_length=6"))
    assert child(run, "training.max_length=12").train_lengths == (12,)
    assert child(run, "training.max_length=12", "training.min_length=11").train_lengths == (11, 12)


@pytest.mark.parametrize("pe", ["rope_yarn", "rope_dynamic_ntk"])
def test_a_rescaling_trains_with_the_factor_from_the_parents_length(
    pe: str, tiny: Tiny, child: Child
) -> None:
    extended = child(write_trained_run(tiny("pe=rope")), f"pe={pe}", "training.max_length=24")
    parents = tiny("pe=rope").shape.train_length
    encoding = extended.components["pe"].build(extended.shape)
    assert encoding.original_length == parents
    batch = extended.batches.batch(0)
    ids_BP = batch.positions_BP[:, : batch.tokens_BT.shape[1]]
    at = AttentionContext(ids_BP, ids_BP, not_needed, batch.lengths_B, declared_B=batch.declared_B)
    stretch_B = encoding.stretch_B(at)
    factor = extended.shape.train_length / parents
    assert factor > 1
    if pe == "rope_dynamic_ntk":
        assert torch.allclose(stretch_B, 2 * (batch.declared_B / parents).clamp(min=1).double() - 1)
    else:
        assert torch.allclose(stretch_B, torch.full_like(stretch_B, factor))


def not_needed(start: int, end: int) -> torch.Tensor:
    raise NotImplementedError


def length_after(child: Child, run: RunDirectory, *steps: tuple[str, int]) -> int:
    """Return the original length at the end of a chain of encodings and training lengths."""
    for pe, longest in steps:
        experiment = child(run, f"pe={pe}", f"training.max_length={longest}")
        run = write_trained_run(experiment)
    return experiment.shape.original_length


def test_a_chain_of_runs_hands_the_original_length_down(tiny: Tiny, child: Child) -> None:
    run = write_trained_run(tiny("pe=rope"))
    trained_at_6, trained_at_12 = (tiny(f"training.max_length={n}").shape.train_length for n in (6, 12))
    assert length_after(child, run, ("rope_yarn", 12), ("rope_yarn", 24)) == trained_at_6
    assert length_after(child, run, ("rope_ntk", 10), ("rope_yarn", 20)) == trained_at_6
    assert length_after(child, run, ("rope", 12), ("rope_yarn", 24)) == trained_at_12
    stated = write_trained_run(child(run, "pe=rope_yarn", "pe.original_length=9", "training.max_length=12"))
    assert length_after(child, stated, ("rope_ntk", 24)) == 9


def loaded(experiment: Experiment) -> tuple[Backbone, str]:
    """Return the model with its parent's weights, and the remark about them."""
    model = experiment.untrained_model()
    return model, copy_parent_weights(model, experiment)


def test_shared_weights_are_loaded_and_new_ones_named(tiny: Tiny, child: Child) -> None:
    parent = tiny("pe=alibi")
    run = write_trained_run(parent)
    parents_weights = parent.untrained_model().state_dict()
    model, remark = loaded(child(run, "seed=7", "pe=t5"))
    assert "; new: encodings.0.table" in remark
    assert remark.startswith(f"continues {run.name} with its weights")
    backbone = {name: value for name, value in model.state_dict().items() if "encodings" not in name}
    assert backbone
    assert all(torch.equal(value, parents_weights[name]) for name, value in backbone.items())
    _, remark = loaded(child(write_trained_run(child(run, "pe=t5")), "pe=none"))
    assert "; not used: encodings.0.table" in remark


def test_learned_positions_keep_their_rows(tiny: Tiny, child: Child) -> None:
    parent = tiny("pe=learned")
    rows = parent.shape.train_positions
    model, remark = loaded(child(write_trained_run(parent), "training.max_length=12"))
    table = model.state_dict()["encodings.0.table"]
    assert torch.equal(table[:rows], parent.untrained_model().state_dict()["encodings.0.table"])
    assert f"new: rows {rows} to {len(table) - 1} of encodings.0.table" in remark


def test_parameters_of_another_class_are_not_shared(tiny: Tiny, child: Child) -> None:
    """The parameters of both KERPLE classes have the same names and shapes."""
    _, remark = loaded(child(write_trained_run(tiny("pe=kerple_log")), "pe=kerple_power"))
    new = remark.partition("; new: ")[2]
    assert "encodings.0.p_H" in new
    assert "encodings.0.a_H" in new


@pytest.mark.parametrize("typed", ["model.d_model=32", "task.vocab_size=50"])
def test_a_model_of_another_shape_is_refused(typed: str, tiny: Tiny, child: Child) -> None:
    run = write_trained_run(tiny("pe=rope"))
    with pytest.raises(UserError, match=r"init_from=.* has the shape \[.*\] here and \[.*\] there; allowed"):
        loaded(child(run, typed))


def test_the_parent_is_part_of_the_identity_and_its_path_is_not(
    tiny: Tiny, child: Child, tmp_path: Path
) -> None:
    first = write_trained_run(tiny("pe=rope"))
    second = write_trained_run(tiny("pe=rope", "training.steps=13"))
    name = identify(child(first, "training.steps=5")).name
    assert name != identify(child(second, "training.steps=5")).name
    assert name.startswith("copy-decoder-rope-to-rope-s0-")
    moved = Path(shutil.move(first.path, tmp_path / "elsewhere"))
    assert identify(child(RunDirectory(moved), "training.steps=5")).name == name


def test_the_batches_follow_those_of_the_parent(tiny: Tiny, child: Child) -> None:
    parent = tiny("pe=rope")
    run = write_trained_run(parent)
    extended = child(run)
    next_batch = parent.batches.batch(BATCHES_PER_DRAW)
    assert all(map(torch.equal, next_batch, extended.batches.batch(0)))
    grandchild = child(write_trained_run(extended))
    next_batch = parent.batches.batch(2 * BATCHES_PER_DRAW)
    assert torch.equal(grandchild.batches.batch(0).tokens_BT, next_batch.tokens_BT)


def test_a_parent_that_is_not_a_completed_run_is_refused(tiny: Tiny, child: Child, tmp_path: Path) -> None:
    missing = RunDirectory(tmp_path / "missing")
    with pytest.raises(UserError, match=r"init_from=.*: there is no run; looked for .*missing.config\.yaml"):
        child(missing)
    run = write_run(tiny("seed=1"), fading(1, 0), "diverged")
    with pytest.raises(UserError, match=r"init_from=.*: it is diverged, and only a completed run can be"):
        child(run)
    run = write_run(tiny(), fading(1, 0))
    with pytest.raises(UserError, match="its weights are missing"):
        child(run)


def test_a_parent_with_foreign_code_needs_trust(
    tiny: Tiny, child: Child, tmp_path: Path, monkeypatch: Any
) -> None:
    run = write_trained_run(tiny("pe=rope"))
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    saved = yaml.safe_load(run.config.read_text()) | {"pe": {"_target_": "evil.Evil"}}
    run.config.write_text(yaml.safe_dump(saved))
    with pytest.raises(UserError, match=r"^init_from=.* names evil\.Evil, from outside .* add trust=true"):
        child(run, "pe=rope")


def test_a_comparison_shows_children_beside_their_parents(tiny: Tiny, child: Child, results: Path) -> None:
    for seed in (0, 1):
        parent = write_trained_run(tiny("pe=rope", f"seed={seed}"))
        write_run(child(parent, "pe=rope_yarn", "training.max_length=12"), fading(1, 0.01, 12))
    protocols = {protocol.max_length: protocol for protocol in protocols_of(read_runs(results))}
    assert list(protocols[12].runs["label"]) == ["rope -> rope_yarn"] * 2
    assert set(protocols[12].parents["label"]) == {"rope"}
    assert set(protocols[12].parents["seed"]) == {0, 1}
    assert protocols[6].parents.empty
