"""`export.py` writes a model as a folder of the Hub; `load_model` reads it back without running its code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pe_experiments import load_model
from pe_experiments.configuration import compose
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.run import run_experiment
from pe_experiments.terminal.errors import UserError
from tests.conftest import Script, Tiny, assert_one_sentence

RECENCY = "tests.integration.user_encodings.Recency"
TIED = ("model=llama", "model.output_head=tied", "pe=t5", "trainer.precision=64-true")


def exported(script: Script, experiment: Experiment, out: Path, *arguments: str) -> Path:
    """Train a tiny run and export it; return its directory."""
    run = run_experiment(experiment.config).directory.path
    script("export", f"run={run}", f"out={out}", *arguments).succeeded()
    return run


@pytest.mark.parametrize("options", [("pe=learned",), TIED, ("task=text", "pe=rope"), ("model=encoder",)])
def test_a_loaded_folder_computes_what_the_run_does(
    tiny: Tiny, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    shared = tmp_path / "shared"
    expected = load_model(exported(script, tiny(*options), shared))
    monkeypatch.setattr(compose.hydra, "compose", lambda *_, **__: pytest.fail("composed by Hydra"))
    loaded = load_model(shared)
    tokens_BT, _, lengths_B, declared_B, ids_BP = expected.experiment.batches.batch(0)
    inputs = (tokens_BT, ids_BP, lengths_B, declared_B)
    with torch.no_grad():
        assert torch.equal(loaded.model(*inputs), expected.model(*inputs))
    assert not loaded.model.training
    assert str(tmp_path) not in (shared / "config.json").read_text()  # a path of the author
    card = (shared / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: pe_experiments\n")
    assert "![" in card
    assert "| 9 | 1.5 |" in card
    assert (shared / "extrapolation.png").stat().st_size > 0


def test_files_of_others_are_not_overwritten(tiny: Tiny, script: Script, tmp_path: Path) -> None:
    mine = tmp_path / "README.md"
    mine.write_text("mine")
    run = run_experiment(tiny().config).directory.path
    outcome = script("export", f"run={run}", f"out={tmp_path}")
    assert_one_sentence(outcome, "README.md is not of a shared model; allowed: an empty or a new folder")
    assert mine.read_text() == "mine"
    for _ in range(2):
        assert script("export", f"run={run}", f"out={tmp_path / 'shared'}").code == 0


def test_tokens_of_another_text_are_refused(tiny: Tiny, script: Script, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    text = tmp_path / "corpus.txt"
    text.write_text("".join(f"line {n} of the corpus, word{n % 97}\n" for n in range(4000)))
    tokens = ("task=text", "task.tokenizer=bpe", "task.vocab_size=300")
    run = run_experiment(tiny(*tokens, f"task.path={text}").config).directory.path
    outcome = script("export", f"run={run}", f"out={tmp_path / 'own'}", "trust=true")
    assert_one_sentence(outcome, "the tokens of task.path are not shared with a model")


def test_a_continued_run_keeps_the_length_of_its_parent(tiny: Tiny, script: Script, tmp_path: Path) -> None:
    parent = run_experiment(tiny("pe=rope").config).directory.path
    options = {"init_from": str(parent), "pe": "rope_yarn", "training.max_length": 12, "training.steps": 3}
    options |= {"results_dir": str(parent.parents[1]), "logger": "none", "evaluation.examples": 20}
    child = run_experiment(options).directory.path
    assert script("export", f"run={child}", f"out={tmp_path / 'shared'}").code == 0
    loaded = load_model(tmp_path / "shared")
    assert loaded.experiment.shape == load_model(child).experiment.shape
    assert loaded.experiment.shape.parent_length == 14  # 6 symbols, copied, and two marks


def test_code_of_the_author_needs_trust(tiny: Tiny, script: Script, tmp_path: Path) -> None:
    exported(script, tiny(f"pe={RECENCY}"), tmp_path / "shared", "trust=true")
    with pytest.raises(UserError, match=f"{RECENCY}, from outside this package.*trust=true"):
        load_model(tmp_path / "shared")
    assert type(load_model(tmp_path / "shared", trust=True).encoding).__name__ == "Recency"
    config = json.loads((tmp_path / "shared" / "config.json").read_text())
    config["classes"]["pe"] = dict.fromkeys(config["classes"]["pe"], "of another version")
    (tmp_path / "shared" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="user_encodings changed since"):
        load_model(tmp_path / "shared", trust=True)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was executed",)


def not_finite(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["head.weight"].fill_(torch.nan)
    save_file(weights, folder / "model.safetensors")


def edit(folder: Path, **sections: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    for name, value in sections.items():
        config[name] = config[name] | value if isinstance(value, dict) else value
    (folder / "config.json").write_text(json.dumps(config))


SPOILT: dict[str, Callable[[Path], object]] = {
    "is missing, damaged": lambda folder: torch.save({"x": Evil()}, folder / "model.safetensors"),
    "NaN or infinite": not_finite,
    "of another model": lambda folder: edit(folder, model={"d_model": 32}),
    "names evil.Task": lambda folder: edit(folder, task={"_target_": "evil.Task"}),
    "names evil.Callback": lambda folder: edit(
        folder, trainer={"callbacks": [{"_target_": "evil.Callback"}]}
    ),
    "tokens are those of another": lambda folder: edit(folder, vocabulary="0" * 16),
    "not that of a shared model": lambda folder: (folder / "config.json").write_text("{}"),
    "config.json is not that of a shared": lambda folder: edit(folder, classes=[1]),
    "needs at least 1,048,576,000 weights": lambda folder: edit(
        folder, model={"num_layers": 1000, "d_model": 1024}
    ),
}


def test_a_spoilt_folder_is_refused(
    tiny: Tiny, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    run = exported(script, tiny("task=text", "pe=rope"), tmp_path / "0")
    for number, (sentence, spoil) in enumerate(SPOILT.items(), start=1):
        folder = tmp_path / str(number)
        assert script("export", f"run={run}", f"out={folder}").code == 0
        spoil(folder)
        with pytest.raises(UserError, match=sentence):
            load_model(folder)


def test_upload(tiny: Tiny, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    api = SimpleNamespace(
        create_repo=lambda repository, exist_ok: None, upload_folder=lambda **options: calls.append(options)
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=lambda: api))
    run = exported(script, tiny("pe=rope"), tmp_path / "a")
    assert not calls  # only if the user asks
    arguments = [f"run={run}", f"out={tmp_path / 'a'}"]
    outcome = script("export", *arguments, "push_to_hub=org/name")
    assert "https://huggingface.co/org/name" in outcome.out
    assert calls[0]["repo_id"] == "org/name"
    assert {path.name for path in (tmp_path / "a").iterdir()} == set(calls[0]["allow_patterns"])
    assert_one_sentence(script("export", *arguments, "push_to_hub=name"), "push_to_hub=name", "ORG/NAME")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    missing = script("export", *arguments, "push_to_hub=org/name")
    assert_one_sentence(missing, "push_to_hub", "pip install huggingface_hub")
