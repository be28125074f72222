"""Test the evaluation of pretrained models: against slow loops, resumption and error messages."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from pe_experiments.pretrained import measures
from pe_experiments.pretrained.model import PretrainedModel
from pe_experiments.store.csv_files import read_csv
from pe_experiments.terminal.errors import UserError
from tests.conftest import Outcome, assert_one_sentence
from tests.unit.pretrained.conftest import Evaluate, save_llama, save_tokenizer

pytest.importorskip("transformers")

ROPES = ["as_is", "linear", "ntk", "yarn", "llama3"]
Measure = Callable[..., pd.DataFrame]


@pytest.fixture
def measure(evaluate: Evaluate) -> Measure:
    """Return a function that evaluates the tiny model and returns ``bits_per_byte.csv``."""
    return lambda **changed: pd.read_csv(evaluate(**changed) / "bits_per_byte.csv")


def opened(path: Path) -> PretrainedModel:
    model = PretrainedModel(str(path), torch.float32, trust=False)
    model.read()
    return model


def slow_bits_per_byte(folder: Path, text: bytes, length: int, prefix: list[int]) -> float:
    """Predict the last 8 tokens of two windows, each by itself, and count the bytes of the tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    byte_of = {symbol: byte for byte, symbol in bytes_to_unicode().items()}
    bits, count = 0.0, 0
    for part in (text[: len(text) // 2], text[len(text) // 2 :]):
        tokens = tokenizer.encode(part.decode(errors="ignore"), add_special_tokens=False)[-length:]
        tokens[: len(prefix)] = prefix
        symbols = [tokenizer.backend_tokenizer.id_to_token(token) for token in tokens]
        first = length - 8
        while 0x80 <= byte_of[symbols[first][0]] < 0xC0:  # the window starts within a character
            first += 1
        for place in range(first, length):
            with torch.no_grad():
                logits = model(torch.tensor([tokens[:place]])).logits[0, -1].double()
            bits -= torch.log_softmax(logits, 0)[tokens[place]].item() / math.log(2)
            count += len(symbols[place])
    return bits / count


def test_bits_per_byte_equal_a_slow_loop(llama: Path, text: Path, measure: Measure) -> None:
    table = measure().set_index("length")
    for length in (16, 64):
        expected = slow_bits_per_byte(llama, text.read_bytes(), length, prefix=[])
        assert table.loc[length, "bits_per_byte"] == pytest.approx(expected, rel=1e-5)
    assert table["bytes"].nunique() == 1


def test_rescaled_frequencies_have_the_published_values(llama: Path) -> None:
    """Two in closed form, since `test_rescaled_ropes_differ_only_past_the_original_length` has the others."""
    model = opened(llama)
    plain, linear, ntk = (
        model.load(model.block(rope, 4.0), "cpu").model.rotary_emb.inv_freq
        for rope in ("as_is", "linear", "ntk")
    )
    assert torch.allclose(linear, plain / 4)
    assert torch.allclose(ntk[[0, -1]], torch.stack([plain[0], plain[-1] / 4]))


def test_rescaled_ropes_differ_only_past_the_original_length(measure: Measure) -> None:
    table = measure(rope=ROPES).pivot(index="length", columns="rope", values="bits_per_byte")
    assert (table.loc[[16, 32]].nunique(axis=1) == 1).all()
    assert table.loc[64].nunique() == len(ROPES)
    assert table["as_is"].tolist() == measure()["bits_per_byte"].tolist()


def test_a_truncated_model_reads_the_last_tokens_of_its_original_length(measure: Measure) -> None:
    table = measure(rope=["truncated"], lengths=[16, 64, 96])
    losses = dict(zip(table["length"], table["bits_per_byte"], strict=True))
    shorter = measure(rope=["as_is"], lengths=[16, 32])["bits_per_byte"].tolist()  # 32: its original length
    assert losses == {16: shorter[0], 64: shorter[1], 96: shorter[1]}
    with pytest.raises(UserError, match=r"rope=truncated: tiny-llama has 32; allowed: .* than scored=40"):
        measure(rope=["truncated"], lengths=[64], scored=40)


def test_a_scaled_model_keeps_its_scaling(tmp_path: Path) -> None:
    common = {"rope_theta": 500.0, "original_max_position_embeddings": 16}
    scaled = common | {"rope_type": "linear", "factor": 2.0}
    model = opened(save_llama(tmp_path / "scaled", rope_parameters=scaled))
    assert model.original_length == 16
    assert model.block("as_is", 4.0) == scaled
    assert model.block("yarn", 4.0) == common | {"rope_type": "yarn", "factor": 4.0}
    assert model.block("yarn", 1.0) == {"rope_type": "default", "rope_theta": 500.0}


@pytest.mark.slow
def test_an_interrupted_evaluation_loses_one_window(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    lengths: list[int] = []
    original = measures.bits

    def stop_at_the_fourth(*arguments: Any) -> float:
        lengths.append(len(arguments[1]))
        if len(lengths) == 4:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(measures, "bits", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        measure(rope=["as_is", "yarn"])
    assert lengths == [64, 64, 64, 64]  # the longest come first
    resumed = measure(rope=["as_is", "yarn"])
    assert lengths[4:] == [64, 32, 32, 16, 16]  # the second stretch of YaRN, and what both share
    pd.testing.assert_frame_equal(measure(rope=["as_is", "yarn"]), resumed)
    assert len(lengths) == 9
    assert measure(lengths=[16, 24])["length"].tolist() == [16, 24]
    assert lengths[9:] == [24, 24]
    shutil.rmtree(results)
    pd.testing.assert_frame_equal(measure(rope=["as_is", "yarn"]), resumed)


@pytest.mark.slow
def test_another_text_and_another_model_are_measured_again(
    measure: Measure, results: Path, llama: Path, text: Path, tmp_path: Path
) -> None:
    first = measure(lengths=[16])
    other_text = tmp_path / "words.txt"
    other_text.write_text(text.read_text().replace("t", "7"))
    assert (measure(lengths=[16], text=str(other_text))["bits_per_byte"] != first["bits_per_byte"]).all()
    other_model = tmp_path / llama.name
    save_llama(other_model, rms_norm_eps=0.5)
    assert (measure(lengths=[16], model=str(other_model))["bits_per_byte"] != first["bits_per_byte"]).all()
    assert len(list((results / "pretrained_models").iterdir())) == 3


def test_a_token_that_begins_texts_begins_windows(
    llama: Path, text: Path, tmp_path: Path, measure: Measure
) -> None:
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    folder = shutil.copytree(llama, tmp_path / "begins")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="! $A", special_tokens=[("!", 0)])
    tokenizer.bos_token = "!"
    tokenizer.save_pretrained(folder)
    (measured,) = measure(model=str(folder), lengths=[16])["bits_per_byte"]
    assert measured == pytest.approx(slow_bits_per_byte(folder, text.read_bytes(), 16, [0]), rel=1e-5)


def test_the_command_prints_a_table_and_writes_a_page(
    script: Callable[..., Outcome], llama: Path, text: Path, results: Path
) -> None:
    arguments = [
        f"model={llama}", f"text={text}", "rope=[as_is,yarn]", "lengths=[16,64]", "stretches=2", "scored=8",
        f"results_dir={results}", "logger=csv", "device=cpu",
    ]  # fmt: skip
    folder = results / "mine"
    (folder / "csv").mkdir(parents=True)  # of the user, no logger's
    (folder / "csv" / "kept.txt").touch()
    arguments.append(f"out={folder}")
    out = script("evaluate_pretrained", *arguments).succeeded()
    assert (folder / "csv" / "kept.txt").exists()
    page = (folder / "report.html").read_text()
    assert "data:image/png" in page
    table = pd.read_csv(folder / "bits_per_byte.csv")
    for value in table["bits_per_byte"]:
        assert f"{value:.3f}" in out
        assert f"{value:.3f}" in page
    logged = read_csv(folder / "loggers" / "csv" / "metrics.csv")
    yarn = table.loc[table["rope"] == "yarn", "bits_per_byte"]
    assert [float(row["bits_per_byte/yarn"]) for row in logged] == yarn.tolist()
    assert json.loads((folder / "settings.json").read_text())["blocks"]["yarn at 64"]["factor"] == 2
    assert script("evaluate_pretrained", *arguments).out.startswith("found finished")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("settings.json", "[]"),
        ("stretches.csv", "measured,block,length,stretch,bytes,bits,seconds\na,b,16,0,8,x,1\n"),
    ],
)
def test_a_foreign_file_in_the_folder_is_named_with_a_cure(
    evaluate: Evaluate, tmp_path: Path, name: str, content: str
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=f"{name} is missing or damaged .*; delete it and settings.json"):
        evaluate(lengths=[16], out=str(folder))
    assert (folder / name).read_text() == content


@pytest.fixture
def broken_models(tmp_path: Path) -> Path:
    """A folder of models that cannot be evaluated."""
    from transformers import BertConfig, BertLMHeadModel, GPT2Config, GPT2LMHeadModel

    gpt2 = GPT2Config(vocab_size=258, n_embd=16, n_head=2, n_layer=1, n_positions=32)
    GPT2LMHeadModel(gpt2).save_pretrained(tmp_path / "gpt2")
    sizes = {"vocab_size": 258, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    bert = BertConfig(**sizes, intermediate_size=16, max_position_embeddings=32)
    BertLMHeadModel(bert).save_pretrained(tmp_path / "bert")
    save_tokenizer(tmp_path / "gpt2")
    save_tokenizer(tmp_path / "bert")
    (tmp_path / "pickles").mkdir()
    (tmp_path / "pickles" / "config.json").write_text("{}")
    (tmp_path / "pickles" / "pytorch_model.bin").write_bytes(b"")
    return tmp_path


@pytest.mark.slow
def test_mistakes_are_one_sentence(
    script: Callable[..., Outcome], broken_models: Path, llama: Path, text: Path, results: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    settings = [
        f"text={text}", "lengths=[16,32]", "stretches=2", "scored=8", f"results_dir={results}", "device=cpu",
        "rope=[as_is]", "logger=none",
    ]  # fmt: skip
    mistakes: dict[tuple[str, ...], tuple[str, ...]] = {
        (f"model={broken_models}/none",): ("none: expected a local folder with config.json",),
        (f"model={broken_models}/pickles",): ("pickles", "trust=true"),
        (f"model={broken_models}/bert",): ("bert is not a causal language model", "later token"),
        (f"model={broken_models}/gpt2", "rope=[yarn]"): ("rope=yarn: gpt2 has no RoPE", "allowed: as_is"),
        (f"model={broken_models}/gpt2", "lengths=[64]"): ("lengths=64", "at most 32"),
        (f"model={llama}", "lengths=[100000000]"): ("lengths=100000000", "GB of memory"),
        (f"model={llama}", "lenghts=[16]"): ("lenghts is not a setting", "Did you mean lengths"),
    }
    for arguments, words in mistakes.items():
        assert_one_sentence(script("evaluate_pretrained", *settings, *arguments), *words)
    monkeypatch.setattr("pe_experiments.pretrained.model.find_spec", lambda name: None)
    outcome = script("evaluate_pretrained", *settings, f"model={llama}")
    assert "transformers is not installed; pip install" in outcome.err
