"""Test the fine-tuning of pretrained models against a plain loop."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from pe_experiments.pretrained import finetune as finetune_module
from pe_experiments.pretrained.finetune import FinetuneSettings, windows
from pe_experiments.tasks.text import Text
from pe_experiments.terminal.errors import UserError
from tests.unit.pretrained.conftest import FINETUNE, TRAINED, Evaluate
from tests.unit.pretrained.test_pretrained import opened

pytest.importorskip("transformers")

STEPS = 30
Finetune = Callable[..., Path]


@pytest.fixture(scope="module")
def other_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "others.txt"
    path.write_text("the other theory é € then 7 " * 2500)
    return path


@pytest.fixture
def finetuned(evaluate: Evaluate, other_text: Path) -> Finetune:
    """Return a function that evaluates the tiny model before and after fine-tuning."""

    def run(finetune: dict[str, Any] | None = None, **changed: Any) -> Path:
        options = FINETUNE | {"steps": STEPS, "text": str(other_text)} | (finetune or {})
        return evaluate(finetune=options, **changed)

    return run


def plain_loop(network: Any, batches: list[torch.Tensor]) -> None:
    """Train with AdamW, warm-up over a tenth of the steps, and clipped gradients."""
    parameters = list(network.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0)
    for step, tokens_BT in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, step / (STEPS // 10))
        logits_BTV = network(tokens_BT).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()


def test_a_rescaled_model_is_finetuned_as_by_a_plain_loop(
    finetuned: Finetune, llama: Path, other_text: Path
) -> None:
    from transformers import AutoModelForCausalLM

    ropes = ["as_is", "truncated", "yarn", "none"]
    folder = finetuned(rope=ropes)
    tuned = {path.name.split("-")[0]: path for path in (folder / "finetuned").iterdir()}
    assert sorted(tuned) == sorted(ropes)
    model = opened(llama)
    settings = FinetuneSettings.model_validate(FINETUNE | {"steps": STEPS, "text": str(other_text)})
    for rope, length in (("yarn", 64), ("truncated", TRAINED)):  # factor 2; 64 is the longest of lengths
        expected = model.load(model.block(rope, 2.0), "cpu")
        plain_loop(expected, list(islice(windows(Text(str(other_text)), model, length, settings), STEPS)))
        loaded = AutoModelForCausalLM.from_pretrained(tuned[rope])
        assert loaded.config.rope_parameters == expected.config.rope_parameters
        assert loaded.config.max_position_embeddings == length
        for name, parameter in loaded.named_parameters():
            assert torch.allclose(parameter, expected.get_parameter(name), atol=1e-5), name
        assert len(pd.read_csv(tuned[rope] / "losses.csv")) == STEPS
    losses = pd.read_csv(folder / "bits_per_byte.csv").set_index(["length", "rope"])["bits_per_byte"]
    for length in (16, 64):
        for rope in ropes:
            assert losses[length, f"{rope}_finetuned"] < losses[length, rope] - 1
    before = pd.read_csv(
        finetuned({"steps": 0, "text": None}, rope=["yarn"], factor=2.0) / "bits_per_byte.csv"
    )
    assert before["bits_per_byte"].tolist() == losses[:, "yarn"].tolist()


def test_a_finetuned_model_is_trained_once(finetuned: Finetune, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    original = finetune_module._fit

    def count(network: Any, batches: Iterator[torch.Tensor], *arguments: Any) -> list[dict[str, float]]:
        trained.append(next(batches).shape[1])
        if len(trained) == 2:
            raise KeyboardInterrupt
        return original(network, batches, *arguments)

    monkeypatch.setattr(finetune_module, "_fit", count)
    fixed = {"length": 64}
    with pytest.raises(KeyboardInterrupt):
        finetuned(fixed, rope=["as_is", "linear"])
    finetuned(fixed, rope=["as_is", "linear"], lengths=[16, 64])
    finetuned(fixed, rope=["linear"], lengths=[24])
    assert trained == [64, 64, 64]
    finetuned({"length": 16}, rope=["as_is", "linear", "truncated"], lengths=[24])  # all are plain RoPE
    assert trained == [64, 64, 64, 16]


def test_an_edited_text_is_trained_on_again(finetuned: Finetune, tmp_path: Path) -> None:
    edited = tmp_path / "edited.txt"
    losses = []
    for words in ("the other theory then 7 ", "no more of that, but 7 "):
        edited.write_text(words * 2500)
        table = pd.read_csv(
            finetuned({"text": str(edited), "length": 16}, lengths=[24]) / "bits_per_byte.csv"
        )
        losses.append(table["bits_per_byte"].tolist())
    assert losses[0] != losses[1]


def test_mistakes_are_named(finetuned: Finetune, text: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    mistakes: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"text": str(text)}, {}, r"finetune\.text=.*words\.txt is also in text, .*; allowed: other files"),
        ({}, {"model": str(tmp_path)}, r"model=.*: a GGUF file cannot be fine-tuned; allowed: safetensors"),
        ({}, {"dtype": "float16"}, r"dtype=float16: .*; allowed: float32, bfloat16"),
        ({"learning_rate": 1e30}, {}, r"finetune\.learning_rate=1e\+30: the loss is not finite at step"),
        ({"batch_size": 10**9}, {}, r"finetune\.length=64: the model needs about .* GB"),
    ]  # fmt: skip
    for finetune, changed, message in mistakes:
        with pytest.raises(UserError, match=message):
            finetuned(finetune, **changed)
