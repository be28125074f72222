"""The evaluation of pretrained models against slow loops, its resumption, and its mistakes."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from pe_experiments.pretrained import evaluate
from pe_experiments.pretrained.evaluate import PretrainedSettings, evaluate_pretrained
from pe_experiments.pretrained.model import PretrainedModel
from pe_experiments.store.csv_files import read_csv
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import UserError
from tests.conftest import Outcome, assert_one_sentence
from tests.unit.pretrained.conftest import save_llama, save_tokenizer

pytest.importorskip("transformers")

ROPES = ["as_is", "linear", "ntk", "yarn", "llama3"]
SETTINGS: dict[str, Any] = {
    "rope": ["as_is"], "lengths": [16, 32, 64], "factor": None, "stretches": 2, "scored": 8,
    "dtype": "float32", "device": "cpu", "threads": None, "trust": False, "out": None, "logger": {},
}  # fmt: skip
Evaluate = Callable[..., pd.DataFrame]


@pytest.fixture
def measure(llama: Path, text: Path, results: Path) -> Evaluate:
    """Evaluates the tiny model with some settings; returns ``bits_per_byte.csv``."""

    def run(**changed: Any) -> pd.DataFrame:
        asked = SETTINGS | {"model": str(llama), "text": str(text), "results_dir": str(results)} | changed
        folder = evaluate_pretrained(PretrainedSettings.model_validate(asked), Display())
        return pd.read_csv(folder / "bits_per_byte.csv")

    return run


def opened(path: Path) -> PretrainedModel:
    model = PretrainedModel(str(path), torch.float32, trust=False)
    model.read()
    return model


def slow_bits_per_byte(
    model: Any, tokenizer: Any, text: bytes, parts: int, length: int, scored: int
) -> float:
    """Token by token, each predicted from a window of its own; bytes counted by the tokens themselves."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_of = {sign: byte for byte, sign in bytes_to_unicode().items()}
    bits, count = 0.0, 0
    for index in range(parts):
        part = text[len(text) * index // parts : len(text) * (index + 1) // parts].decode(errors="ignore")
        tokens = tokenizer.encode(part)[-length:]
        signs = [tokenizer.backend_tokenizer.id_to_token(token) for token in tokens]
        first = length - scored
        while 0x80 <= byte_of[signs[first][0]] < 0xC0:  # within a character
            first += 1
        for place in range(first, length):
            with torch.no_grad():
                logits = model(torch.tensor([tokens[:place]])).logits[0, -1].double()
            bits -= torch.log_softmax(logits, 0)[tokens[place]].item() / math.log(2)
            count += len(signs[place])
    return bits / count


def test_bits_per_byte_are_those_of_a_slow_loop(llama: Path, text: Path, measure: Evaluate) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(llama), AutoTokenizer.from_pretrained(llama)
    table = measure().set_index("length")
    for length in (16, 64):
        expected = slow_bits_per_byte(model, tokenizer, text.read_bytes(), 2, length, 8)
        assert table.loc[length, "bits_per_byte"] == pytest.approx(expected, rel=1e-5)
    assert set(table["bytes"]) == {int(table["bytes"].iloc[0])}


def test_rescalings_change_the_frequencies_as_transformers_defines_them(llama: Path) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    model = opened(llama)
    plain = model.load(model.block("as_is", 4.0), "cpu").model.rotary_emb
    seen = [plain.inv_freq]
    for rope in ("linear", "yarn", "llama3"):
        network = model.load(model.block(rope, 4.0), "cpu")
        expected, scaling = ROPE_INIT_FUNCTIONS[rope](network.config, "cpu")
        rotary = network.model.rotary_emb
        assert torch.equal(rotary.inv_freq, expected)
        assert rotary.attention_scaling == scaling
        seen.append(rotary.inv_freq)
    seen.append(model.load(model.block("ntk", 4.0), "cpu").model.rotary_emb.inv_freq)
    assert torch.allclose(seen[1], plain.inv_freq / 4)
    assert torch.allclose(seen[-1][[0, -1]], torch.stack([plain.inv_freq[0], plain.inv_freq[-1] / 4]))
    for index, frequencies in enumerate(seen):
        assert not any(torch.allclose(frequencies, other) for other in seen[:index])


def test_ropes_differ_past_the_original_length_only(measure: Evaluate) -> None:
    table = measure(rope=ROPES).pivot(index="length", columns="rope", values="bits_per_byte")
    assert (table.loc[[16, 32]].nunique(axis=1) == 1).all()
    assert table.loc[64].nunique() == len(ROPES)
    assert table["as_is"].tolist() == measure()["bits_per_byte"].tolist()


def test_a_factor_of_the_users_applies_at_every_length(measure: Evaluate) -> None:
    table = measure(rope=["as_is", "linear"], factor=2.0)
    assert table.loc[table["rope"] == "linear", "factor"].tolist() == [2, 2, 2]
    bits = table.pivot(index="length", columns="rope", values="bits_per_byte")
    assert (bits["as_is"] != bits["linear"]).all()


def test_a_scaled_model_keeps_its_block_as_it_is(tmp_path: Path) -> None:
    scaled = {
        "rope_type": "linear",
        "factor": 2.0,
        "rope_theta": 500.0,
        "original_max_position_embeddings": 16,
    }
    model = opened(save_llama(tmp_path / "scaled", rope_parameters=scaled))
    assert model.original_length == 16
    assert model.block("as_is", 4.0) == scaled
    assert model.block("yarn", 4.0) == {
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0, "original_max_position_embeddings": 16,
    }  # fmt: skip
    assert model.block("yarn", 1.0) == {"rope_type": "default", "rope_theta": 500.0}


@pytest.mark.slow
def test_a_kill_loses_the_window_at_work(
    measure: Evaluate, monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    calls: list[int] = []
    true_bits = evaluate.bits

    def stops_at_the_fourth(*arguments: Any) -> float:
        calls.append(len(arguments[1]))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return true_bits(*arguments)

    monkeypatch.setattr(evaluate, "bits", stops_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        measure(rope=["as_is", "yarn"])
    assert calls == [64, 64, 64, 64]  # the longest first
    resumed = measure(rope=["as_is", "yarn"])
    assert calls[4:] == [64, 32, 32, 16, 16]  # yarn's second stretch, and what both share
    again = measure(rope=["as_is", "yarn"])
    assert len(calls) == 9
    pd.testing.assert_frame_equal(again, resumed)
    assert measure(lengths=[16, 24])["length"].tolist() == [16, 24]
    assert calls[9:] == [24, 24]
    shutil.rmtree(results)
    pd.testing.assert_frame_equal(measure(rope=["as_is", "yarn"]), resumed)


@pytest.mark.slow
def test_another_text_and_another_model_are_measured_again(
    measure: Evaluate, results: Path, llama: Path, text: Path, tmp_path: Path
) -> None:
    first = measure(lengths=[16])
    other_text = tmp_path / "words.txt"
    other_text.write_text(text.read_text().replace("t", "7"))
    assert (measure(lengths=[16], text=str(other_text))["bits_per_byte"] != first["bits_per_byte"]).all()
    other_model = tmp_path / llama.name
    save_llama(other_model, rms_norm_eps=0.5)
    assert (measure(lengths=[16], model=str(other_model))["bits_per_byte"] != first["bits_per_byte"]).all()
    assert len(list((results / "pretrained_models").iterdir())) == 3
    here = {"lengths": [16], "out": str(tmp_path / "here")}
    assert (measure(**here)["bits_per_byte"] == first["bits_per_byte"]).all()
    assert (measure(**here, model=str(other_model))["bits_per_byte"] != first["bits_per_byte"]).all()


def test_a_tokenizer_that_begins_texts_begins_windows(
    llama: Path, tmp_path: Path, measure: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "begins"
    shutil.copytree(llama, folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="! $A", special_tokens=[("!", 0)])
    tokenizer.bos_token = "!"
    tokenizer.save_pretrained(folder)
    assert opened(folder).prefix() == [0]
    assert opened(llama).prefix() == []
    windows: list[list[int]] = []
    true_bits = evaluate.bits

    def noted(model: Any, tokens_T: torch.Tensor, scored: int) -> float:
        windows.append(tokens_T.tolist())
        return true_bits(model, tokens_T, scored)

    monkeypatch.setattr(evaluate, "bits", noted)
    measure(model=str(folder), lengths=[16])
    measure(lengths=[16])
    assert windows[0] == [0, *windows[2][1:]]


def test_the_command_prints_a_table_and_leaves_a_page(
    script: Callable[..., Outcome], llama: Path, text: Path, results: Path
) -> None:
    typed = [
        f"model={llama}",
        f"text={text}",
        "rope=[as_is,yarn]",
        "lengths=[16,64]",
        "stretches=2",
        "scored=8",
    ]
    typed += [f"results_dir={results}", "logger=csv", "device=cpu"]
    done = script("evaluate_pretrained", *typed)
    assert done.code == 0, done.err
    (folder,) = (results / "pretrained_models").iterdir()
    page = (folder / "report.html").read_text()
    assert "tiny-llama over context length" in page
    assert '"rope_type": "yarn"' in page
    assert "data:image/png" in page
    assert "http" not in page.replace("Content-Security-Policy", "").replace("http-equiv", "")
    assert (folder / "bits_per_byte.png").read_bytes().startswith(b"\x89PNG")
    table = pd.read_csv(folder / "bits_per_byte.csv")
    for value in table["bits_per_byte"]:
        assert f"{value:.3f}" in done.out
        assert f"{value:.3f}" in page
    logged = read_csv(folder / "csv" / "metrics.csv")
    yarn = table.loc[table["rope"] == "yarn", "bits_per_byte"]
    assert [float(row["bits_per_byte/yarn"]) for row in logged] == yarn.tolist()
    assert json.loads((folder / "settings.json").read_text())["blocks"]["yarn at 64"]["factor"] == 2
    again = script("evaluate_pretrained", *typed)
    assert again.out.startswith("found finished")


@pytest.mark.slow
def test_wandb_is_offline_unless_asked(
    script: Callable[..., Outcome], llama: Path, text: Path, results: Path
) -> None:
    typed = [f"model={llama}", f"text={text}", "rope=[as_is]", "lengths=[16]", "stretches=1", "scored=8"]
    done = script("evaluate_pretrained", *typed, f"results_dir={results}", "device=cpu")
    assert done.code == 0, done.err
    assert len(list(results.glob("pretrained_models/*/wandb/offline-run-*/*.wandb"))) == 1


@pytest.mark.slow
def test_mistakes_are_one_sentence(
    script: Callable[..., Outcome], llama: Path, text: Path, results: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from transformers import BertConfig, BertLMHeadModel, GPT2Config, GPT2LMHeadModel, T5Config

    sizes = {"vocab_size": 258, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    gpt2, bert, t5, pickles = (tmp_path / name for name in ("gpt2", "bert", "t5", "pickles"))
    GPT2LMHeadModel(
        GPT2Config(vocab_size=258, n_embd=16, n_head=2, n_layer=1, n_positions=32)
    ).save_pretrained(gpt2)
    BertLMHeadModel(BertConfig(**sizes, intermediate_size=16, max_position_embeddings=32)).save_pretrained(
        bert
    )
    for folder in (gpt2, bert):
        save_tokenizer(folder)
    shutil.copytree(llama, t5)
    T5Config().save_pretrained(t5)
    pickles.mkdir()
    (pickles / "config.json").write_text("{}")
    (pickles / "pytorch_model.bin").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    short = tmp_path / "short.txt"
    short.write_text("word " * 11_000)
    here = [
        f"text={text}",
        "lengths=[16,32]",
        "stretches=2",
        "scored=8",
        f"results_dir={results}",
        "device=cpu",
    ]
    here += ["rope=[as_is]", "logger=none"]
    mistakes: dict[tuple[str, ...], tuple[str, ...]] = {
        (): ("model is missing",),
        (f"model={tmp_path / 'none'}",): ("none: expected a local folder with config.json",),
        (f"model={tmp_path / 'empty'}",): ("neither config.json nor a GGUF file",),
        (f"model={pickles}",): ("pickles", "trust=true"),
        (f"model={t5}",): ("t5 is not a causal language model",),
        (f"model={bert}",): ("bert is not a causal language model", "later token"),
        (f"model={gpt2}", "rope=[yarn]"): ("rope=yarn: gpt2 has no RoPE", "allowed: as_is"),
        (f"model={gpt2}", "lengths=[64]"): ("lengths=64", "at most 32"),
        (f"model={llama}", "lengths=[8]"): ("lengths=8: expected more than scored=8",),
        (f"model={llama}", "rope=[yarm]"): ("rope.0=yarm",),
        (f"model={llama}", f"text={short}", "lengths=[40000]"): (
            "55,000 bytes are too short",
            "about ",
            "fewer",
        ),
        (f"model={llama}", f"text={tmp_path / 'no'}"): ("text=", "there is no such file"),
        (f"model={llama}", "lengths=[100000000]"): ("lengths=100000000", "GB of memory"),
        (f"model={llama}", "lenghts=[16]"): ("lenghts is not a setting", "Did you mean lengths"),
    }
    for typed, words in mistakes.items():
        assert_one_sentence(script("evaluate_pretrained", *here, *typed), *words)
    gguf_file = tmp_path / "empty" / "model.gguf"
    gguf_file.touch()
    monkeypatch.setattr("pe_experiments.pretrained.model.find_spec", lambda name: name == "transformers")
    for gguf_model in (gguf_file, gguf_file.parent):
        failed = script("evaluate_pretrained", *here, f"model={gguf_model}")
        assert "gguf is not installed; pip install" in failed.err
    monkeypatch.setattr("pe_experiments.pretrained.model.find_spec", lambda name: None)
    failed = script("evaluate_pretrained", *here, f"model={llama}")
    assert "transformers is not installed; pip install" in failed.err


def test_weights_that_are_missing_are_named(llama: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "lacking"
    shutil.copytree(llama, folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    model = opened(folder)
    with pytest.raises(UserError, match=r"lack 1 weights, such as model\.norm\.weight"):
        model.load(model.block("as_is", 1.0), "cpu")
