"""The identity of a run: its configuration, data files, user classes and NUMERICS."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pe_experiments.configuration.choices import shipped
from pe_experiments.configuration.component import load_component
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.schema import Config, validated
from pe_experiments.run import evaluate_run, run_experiment
from pe_experiments.store.identity import data_digests, identify
from pe_experiments.store.own_code import code_digests
from pe_experiments.store.requested import Run
from tests.conftest import Tiny
from tests.synthetic import fading, write_run

ENCODINGS = "pe_experiments.encodings"


def name_of(experiment: Experiment) -> str:
    return identify(experiment).name


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


def test_callbacks_of_lightning_that_only_watch_do_not_count(tiny: Tiny) -> None:
    watched, timed = (
        name_of(tiny(f"trainer.callbacks=[{{_target_: pytorch_lightning.callbacks.{name}}}]"))
        for name in ("LearningRateMonitor", "Timer")
    )
    assert watched == name_of(tiny()) != timed


def test_two_ways_to_write_a_configuration_give_one_name(tiny: Tiny) -> None:
    assert name_of(tiny("task=repeat_copy")) == name_of(tiny("task=copy", "task.vocab_size=2"))
    by_path = tiny("pe=pe_experiments.encodings.PositionalEncoding")
    assert name_of(by_path) == name_of(tiny("pe=none"))
    assert name_of(tiny("label=my_label"))[-8:] == name_of(tiny())[-8:]


@pytest.mark.slow
def test_a_new_argument_with_a_default_keeps_evaluations(tiny: Tiny) -> None:
    config = tiny("pe=rope").config
    run = run_experiment(config).run
    result = json.loads(run.result.read_text())
    del result["evaluation"]["pe"]["base"]  # as in a run from before the argument existed
    run.result.write_text(json.dumps(result))
    assert run_experiment(config).done == "found"
    changes = {"evaluation": {"lengths": [3], "examples": 4}}
    assert "evaluated as" not in evaluate_run(run.path, changes).result["label"]
    result["evaluation"]["pe"]["base"] = 7.0
    run.result.write_text(json.dumps(result))
    assert run_experiment(config).done == "evaluated"


def test_a_new_run_says_how_it_differs_from_the_nearest_cached_run(tiny: Tiny) -> None:
    write_run(tiny(), fading(1, 0))
    nearest = write_run(tiny("training.steps=13"), fading(1, 0))
    difference = Run(tiny("training.steps=13", "training.weight_decay=0.5").config).difference_to_cached_run()
    assert difference == f"not the run {nearest.name}: training.weight_decay=0.5 (cached run: 0.01)"
    assert Run(tiny("seed=1").config).difference_to_cached_run() == ""


@pytest.mark.slow
def test_a_class_of_an_installed_library_counts_by_name_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from hypothesis.stateful import RuleBasedStateMachine

    digests = code_digests([RuleBasedStateMachine])
    assert list(digests) == ["hypothesis"]
    assert digests["hypothesis"].count(".") == 2


def test_data_files_count_by_their_content(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ("task=text", "task.path=texts", "training.max_length=40")
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("a" * 60_000)
    (texts / "b.txt").write_text("b" * 60_000)
    monkeypatch.chdir(tmp_path)
    before = identify(tiny(*overrides))
    assert set(before.hashed["data"]) == {"a.txt", "b.txt"}
    (tmp_path / "elsewhere").mkdir()
    texts = texts.rename(tmp_path / "elsewhere" / "texts")
    monkeypatch.chdir(texts.parent)  # a moved project keeps its runs
    assert identify(tiny(*overrides)) == before
    (texts / "b.txt").write_text("c" * 60_000)
    assert identify(tiny(*overrides)) != before


def test_files_of_one_name_that_parts_in_a_list_name_all_count(tmp_path: Path) -> None:
    files = [tmp_path / folder / "config.json" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text("same")
    parts = [
        {"_target_": f"{ENCODINGS}.rope_hf.RopeHf", "_partial_": True, "config": str(file)} for file in files
    ]
    component = load_component("pe", {"_target_": f"{ENCODINGS}.mixtures.Composition", "encodings": parts})
    before = data_digests([], [component])
    assert len(before) == 2
    files[1].write_text("edited")
    assert data_digests([], [component]) != before


def test_a_file_named_like_another_argument_of_ours_does_not_count(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = identify(tiny())
    monkeypatch.chdir(tmp_path)
    for name in ("auto", "gelu"):
        Path(name).touch()
    assert identify(tiny()) == before


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
        experiment = Experiment(validated(Config, config | {"pe": section}))
        stated = config | {"pe": experiment.components["pe"].section}
        assert name_of(Experiment(validated(Config, stated))) == name_of(experiment)
        names[choice] = name_of(experiment)[-8:]
    assert len(set(names.values())) == len(names)
