"""A run that continues another: what it takes from it, from which length encodings count, which weights."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml  # type: ignore[import-untyped]

from pe_experiments.comparison.protocols import protocols_of
from pe_experiments.comparison.runs import read_runs
from pe_experiments.configuration.compose import composed
from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.overrides import key_of, normalised
from pe_experiments.configuration.schema import check
from pe_experiments.data.batches import BATCHES_PER_DRAW, Batch
from pe_experiments.encodings import AttentionContext
from pe_experiments.encodings.rope import Rope
from pe_experiments.models import Backbone
from pe_experiments.run import run_experiment
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.identity import identify
from pe_experiments.store.parent import continued, copy_parent_weights
from pe_experiments.terminal.errors import UserError
from tests.conftest import TINY, Script, assert_one_sentence
from tests.synthetic import fading, write_run

Tiny = Callable[..., Experiment]
Child = Callable[..., Experiment]


def trained(experiment: Experiment, steps: int = 12) -> RunDirectory:
    """A finished run of this experiment, with weights as if they were trained."""
    run = write_run(experiment, fading(1, 0.02), result={"finished_step": steps})
    model = experiment.untrained_model()
    run.checkpoint.parent.mkdir()
    saved = {"state_dict": {f"model.{name}": value for name, value in model.state_dict().items()}}
    torch.save(saved | {"global_step": steps, "finished": True}, run.checkpoint)
    return run


@pytest.fixture
def child(results: Path) -> Child:
    """Resolves what train.py would be asked for by these overrides."""

    def make(parent: RunDirectory, *typed: str) -> Experiment:
        texts = [f"init_from={parent.path}", f"results_dir={results}", "logger=none", *typed]
        config = composed("config", texts)
        return resolve(check(continued(config, map(key_of, normalised(texts)))))

    return make


def test_what_is_not_typed_is_the_parents(tiny: Tiny, child: Child) -> None:
    options = ("pe=rope", "pe.base=500.0", "task=reverse", "task.vocab_size=7", "seed=3", "optimizer=sgd")
    parent = tiny(*options, "trainer.precision=64-true", "training.learning_rate=0.01")
    extended = child(trained(parent), "training.max_length=12", "trainer.threads=2")
    for section in ("pe", "positions", "task", "model", "optimizer", "evaluation", "seed"):
        assert getattr(extended.config, section) == getattr(parent.config, section), section
    there = parent.config.training.model_dump()
    assert extended.config.training.model_dump() == there | {"max_length": 12}
    assert extended.config.trainer.precision == "64-true"
    assert extended.config.trainer.threads == 2
    assert extended.label == "rope(base=500) -> rope(base=500)"


@pytest.mark.parametrize(
    "typed", ["pe=sinusoidal", "seed=0", "training.steps=2000", "trainer.precision=32-true"]
)
def test_what_is_typed_stands_also_where_it_is_the_default(typed: str, tiny: Tiny, child: Child) -> None:
    run = trained(tiny("pe=rope", "seed=3", "trainer.precision=64-true"))
    default = composed("config", [])
    section, _, key = typed.partition("=")[0].partition(".")
    config = child(run, typed).config.model_dump()
    assert (config[section][key] if key else config[section]) == (
        default[section][key] if key else default[section]
    )


def test_one_argument_is_changed_without_the_others(tiny: Tiny, child: Child) -> None:
    run = trained(tiny("pe=rope_partial"))
    extended = child(run, "pe.base=40000.0").config.pe
    assert extended == run.read_config()["pe"] | {"base": 40000.0}
    assert child(run, "pe=rope_yarn").config.pe["rotary_fraction"] == extended["rotary_fraction"]
    with pytest.raises(UserError, match=r"pe\.bas is not an argument of Rope\. Did you mean base\?"):
        child(run, "pe.bas=40000.0")


def test_a_task_that_is_typed_comes_with_its_defaults(tiny: Tiny, child: Child) -> None:
    run = trained(tiny("pe=rope"))
    assert child(run).config.training.batch_size == 8
    with pytest.raises(UserError, match=r"training\.max_length|no input"):  # 256 bytes, not 6
        child(run, "task=text", "training.min_length=300")


def test_a_run_at_one_length_continues_at_one_length(tiny: Tiny, child: Child) -> None:
    run = trained(tiny("pe=rope", "training.min_length=6"))
    assert child(run, "training.max_length=12").train_lengths == (12,)
    assert child(run, "training.max_length=12", "training.min_length=11").train_lengths == (11, 12)


def longest_row(experiment: Experiment) -> tuple[Batch, AttentionContext]:
    """The first batch, and the context of its rows without padding."""
    batch = experiment.batches.batch(0)
    ids_BP = batch.positions_BP[:, : batch.tokens_BT.shape[1]]
    at = AttentionContext(ids_BP, ids_BP, lambda a, b: torch.ones(1, b - a, 1, dtype=torch.bool),
                          batch.lengths_B, declared_B=batch.declared_B)  # fmt: skip
    return batch, at


@pytest.mark.parametrize(
    "pe", ["rope_linear", "rope_ntk", "rope_dynamic_ntk", "rope_yarn", "rope_llama3", "rope_longrope"]
)
def test_a_rescaling_is_trained_with_the_factor_from_the_parents_length(
    pe: str, tiny: Tiny, child: Child
) -> None:
    run = trained(tiny("pe=rope"))
    extended = child(run, f"pe={pe}", "training.max_length=24")
    parents = tiny("pe=rope").shape.train_length
    encoding = extended.components["pe"].build(extended.shape)
    assert extended.shape.train_length > parents
    assert encoding.original_length == parents
    batch, at = longest_row(extended)
    factor = extended.shape.train_length / parents
    stretch_B = encoding.stretch_B(at)
    if pe == "rope_dynamic_ntk":
        assert torch.allclose(stretch_B, 2 * (batch.declared_B / parents).clamp(min=1).double() - 1)
    else:
        assert torch.allclose(stretch_B, torch.full_like(stretch_B, factor))
    plain_BR = Rope(extended.shape).frequencies_BR(at)
    assert (encoding.frequencies_BR(at) / plain_BR).min() < 0.9
    alone = tiny(f"pe={pe}", "training.max_length=24")  # what it would be from the start
    untouched = alone.components["pe"].build(alone.shape)
    assert torch.allclose(untouched.frequencies_BR(at), plain_BR.expand_as(untouched.frequencies_BR(at)))


def test_a_released_block_counts_from_the_parents_length(tiny: Tiny, child: Child) -> None:
    run = trained(tiny("pe=rope"))
    block = "+pe.rope_parameters={rope_type:yarn,factor:3.0}"
    extended = child(run, "pe=rope_hf", block.lstrip("+"), "training.max_length=24")
    layer = extended.components["pe"].build(extended.shape).for_layer(0)
    assert layer.original_length == tiny("pe=rope").shape.train_length


def length_after(child: Child, run: RunDirectory, *steps: tuple[str, int]) -> int:
    """The original length at the end of a chain of encodings and training lengths."""
    for pe, longest in steps:
        experiment = child(run, f"pe={pe}", f"training.max_length={longest}")
        run = trained(experiment)
    return experiment.shape.original_length


def test_in_a_chain_the_frequencies_are_measured_from_where_they_were_trained(
    tiny: Tiny, child: Child
) -> None:
    run = trained(tiny("pe=rope"))
    at = {n: tiny(f"training.max_length={n}").shape.train_length for n in (6, 12)}
    assert length_after(child, run, ("rope_yarn", 12), ("rope_yarn", 24)) == at[6]
    assert length_after(child, run, ("rope_ntk", 10), ("rope_yarn", 20)) == at[6]
    assert length_after(child, run, ("rope", 12), ("rope_yarn", 24)) == at[12]
    stated = trained(child(run, "pe=rope_yarn", "pe.original_length=9", "training.max_length=12"))
    assert length_after(child, stated, ("rope_ntk", 24)) == 9


def test_an_encoding_keeps_the_lengths_it_was_trained_with(tiny: Tiny, child: Child) -> None:
    parent = tiny("pe=t5")
    extended = child(trained(parent), "training.max_length=24")
    before, after = (one.components["pe"].build(one.shape) for one in (parent, extended))
    assert (after.num_buckets, after.max_distance) == (before.num_buckets, before.max_distance)
    chained = child(trained(extended), "training.max_length=30")
    assert chained.components["pe"].build(chained.shape).max_distance == before.max_distance


def loaded(experiment: Experiment) -> tuple[Backbone, str]:
    model = experiment.untrained_model()
    return model, copy_parent_weights(model, experiment.config)


def test_shared_weights_are_loaded_and_new_ones_named(tiny: Tiny, child: Child) -> None:
    parent = tiny("pe=alibi")
    run = trained(parent)
    there = parent.untrained_model().state_dict()
    model, remark = loaded(child(run, "seed=7", "pe=t5"))
    assert "; new: encodings.0.table" in remark
    assert remark.startswith(f"continues {run.name} with its weights")
    backbone = {name: value for name, value in model.state_dict().items() if "encodings" not in name}
    assert backbone
    assert all(torch.equal(value, there[name]) for name, value in backbone.items())
    _, back = loaded(child(trained(child(run, "pe=t5")), "pe=none"))
    assert "; not used: encodings.0.table" in back


def test_learned_positions_keep_their_rows(tiny: Tiny, child: Child) -> None:
    parent = tiny("pe=learned")
    rows = parent.shape.train_positions
    model, remark = loaded(child(trained(parent), "training.max_length=12"))
    table = model.state_dict()["encodings.0.table"]
    assert torch.equal(table[:rows], parent.untrained_model().state_dict()["encodings.0.table"])
    assert f"new: rows {rows} to {len(table) - 1} of encodings.0.table" in remark


def test_parameters_of_another_class_are_not_shared(tiny: Tiny, child: Child) -> None:
    """Both kinds of KERPLE have parameters of these names and shapes."""
    _, remark = loaded(child(trained(tiny("pe=kerple_log")), "pe=kerple_power"))
    new = remark.partition("; new: ")[2]
    assert "encodings.0.p_H" in new
    assert "encodings.0.a_H" in new
    fire = tiny("pe=fire")
    dape, _ = loaded(child(trained(fire), "pe=dape"))  # both have linear layers of these names
    name = "encodings.0.mlp.2.bias"
    assert not torch.equal(dape.state_dict()[name], fire.untrained_model().state_dict()[name])


@pytest.mark.parametrize("typed", ["model.d_model=32", "task.vocab_size=50"])
def test_what_cannot_fit_is_one_sentence(typed: str, tiny: Tiny, child: Child) -> None:
    run = trained(tiny("pe=rope"))
    with pytest.raises(UserError, match=r"init_from=.* has the shape \[.*\] here and \[.*\] there; allowed"):
        loaded(child(run, typed))


def test_the_parent_is_part_of_the_identity_and_its_place_is_not(
    tiny: Tiny, child: Child, tmp_path: Path
) -> None:
    first = trained(tiny("pe=rope"))
    second = trained(tiny("pe=rope", "training.steps=13"))
    name = identify(child(first, "training.steps=5")).name
    assert name != identify(child(second, "training.steps=5")).name
    assert name.startswith("copy-decoder-rope-to-rope-s0-")
    moved = Path(shutil.move(first.path, tmp_path / "elsewhere"))
    assert identify(child(RunDirectory(moved), "training.steps=5")).name == name


def test_without_a_parent_nothing_is_hashed_of_it(tiny: Tiny) -> None:
    identity = identify(tiny("pe=rope"))
    assert "parent" not in str(identity)
    assert identity.name == "copy-decoder-rope-s0-d4ee122f"


def test_the_batches_follow_those_of_the_parent(tiny: Tiny, child: Child) -> None:
    parent = tiny("pe=rope")
    extended = child(trained(parent))
    same = parent.batches.batch(BATCHES_PER_DRAW)
    first = extended.batches.batch(0)
    assert all(torch.equal(one, two) for one, two in zip(same, first, strict=True))
    again = child(trained(extended))
    assert torch.equal(again.batches.batch(0).tokens_BT, parent.batches.batch(2 * BATCHES_PER_DRAW).tokens_BT)
    longer = child(trained(child(trained(tiny("pe=rope", "seed=1"))), steps=17))  # began at 16, ended at 33
    assert torch.equal(
        longer.batches.batch(0).tokens_BT,
        tiny("seed=1").batches.batch(3 * BATCHES_PER_DRAW).tokens_BT,
    )


def test_mistakes_are_one_sentence(tiny: Tiny, child: Child, tmp_path: Path) -> None:
    missing = RunDirectory(tmp_path / "missing")
    with pytest.raises(UserError, match=r"init_from=.*: there is no run; looked for .*missing.config\.yaml"):
        child(missing)
    for status, word in (("diverged", "diverged"), ("error", "failed")):
        run = write_run(tiny(f"training.steps={len(word)}"), fading(1, 0), status)
        with pytest.raises(UserError, match=f"init_from=.*: it is {word}, and only a completed run can be"):
            child(run)
    run = write_run(tiny("pe=none"), fading(1, 0))
    with pytest.raises(UserError, match="its weights are missing"):
        child(run)
    run.result.unlink()
    with pytest.raises(
        UserError, match="it is interrupted, and only a completed run can be evaluated or continued"
    ):
        child(run)
    (tmp_path / "config.yaml").write_text("a: 1\n")
    with pytest.raises(UserError, match=r"is not a valid run directory: config.yaml"):
        child(RunDirectory(tmp_path))


def test_a_stranger_needs_trust(tiny: Tiny, child: Child, tmp_path: Path, monkeypatch: Any) -> None:
    run = trained(tiny("pe=rope"))
    mark = tmp_path / "mark"
    (tmp_path / "evil.py").write_text(
        f"import pathlib\nfrom pe_experiments.encodings import PositionalEncoding\n"
        f"pathlib.Path({str(mark)!r}).touch()\nclass Evil(PositionalEncoding):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    saved = yaml.safe_load(run.config.read_text())
    saved["pe"] = {"_target_": "evil.Evil"}
    run.config.write_text(yaml.safe_dump(saved))
    with pytest.raises(UserError, match=r"^init_from=.* names evil\.Evil, from outside .* add trust=true"):
        child(run, "pe=rope")
    assert not mark.exists()
    with pytest.raises(UserError, match="changed since it was trained"):
        child(run, "trust=true")
    assert mark.exists()


def test_from_python_a_mapping_says_what_is_typed(tiny: Tiny, results: Path) -> None:
    run = trained(tiny("pe=rope", "seed=3"))
    keys = {"init_from": run.path, "pe": "none", "training": {"steps": 2}, "logger": "none"}
    result = run_experiment(keys | {"results_dir": str(results), "evaluation.examples": 10})
    assert (result.status, result.result["parent"]) == ("completed", run.name)
    config = result.experiment.config
    assert (config.seed, config.training.steps, config.training.batch_size) == (3, 2, 8)
    assert result.result["label"] == "rope -> none"


def test_a_configuration_is_not_continued_unread(tiny: Tiny) -> None:
    with pytest.raises(UserError, match="it follows from init_from"):
        check(composed("config", [*TINY, "init_from=somewhere"]))


def test_names_of_several_runs_are_a_sweep() -> None:
    several = normalised(["init_from=a-b+c=1,d", "pe.base=1.0,2.0"])
    assert several == ["init_from='a-b+c=1',d", "++pe.base=1.0,2.0"]
    assert normalised(["init_from='a,b'"]) == ["init_from='a,b'"]


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_other_commands_refuse_it(command: str, script: Script) -> None:
    run = ["run=somewhere"] if command == "evaluate" else []
    assert_one_sentence(script(command, "init_from=somewhere", *run))


def test_seeds_of_parents_are_seeds_of_one_encoding_beside_them(
    tiny: Tiny, child: Child, results: Path
) -> None:
    for seed in (0, 1):
        write_run(child(trained(tiny("pe=rope", f"seed={seed}")), "pe=rope_yarn", "training.max_length=12"),
                  fading(1, 0.01, 12))  # fmt: skip
    protocols = {protocol.max_length: protocol for protocol in protocols_of(read_runs(results))}
    assert list(protocols[12].runs["label"]) == ["rope -> rope_yarn"] * 2
    assert set(protocols[12].parents["label"]) == {"rope"}
    assert set(protocols[12].parents["seed"]) == {0, 1}
    assert protocols[6].parents.empty
