"""Save tiny models of transformers with a byte-level tokenizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAINED = 32  # max_position_embeddings
FINETUNE = {"steps": 0, "text": None, "length": None, "batch_size": 2, "learning_rate": 1e-3, "seed": 0}
SETTINGS: dict[str, Any] = {
    "measure": "loss", "rope": ["as_is"], "lengths": [16, 32, 64], "factor": None, "stretches": 2,
    "scored": 8, "examples": 2, "finetune": FINETUNE,
    "dtype": "float32", "device": "cpu", "threads": None, "trust": False, "out": None, "logger": {},
}  # fmt: skip
Evaluate = Callable[..., Path]


def save_tokenizer(folder: Path) -> None:
    """Save a tokenizer with a token for each byte and two merges, so that tokens differ in length."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate([*symbols, "th", "the"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("t", "h"), ("th", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def save_llama(folder: Path, **config: Any) -> Path:
    """Save a Llama whose random weights are large enough for positions to matter."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
             "num_key_value_heads": 1, "vocab_size": 258, "max_position_embeddings": TRAINED,
             "initializer_range": 0.3}  # fmt: skip
    LlamaForCausalLM(LlamaConfig(**sizes | config)).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    return save_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text with letters of one, two and three bytes, some of them at the cuts between parts."""
    words = "the other theory é € then 7 "
    path = tmp_path_factory.mktemp("texts") / "words.txt"
    path.write_text("".join(words[index % 11 :] for index in range(4000)))
    return path


@pytest.fixture
def evaluate(llama: Path, text: Path, results: Path) -> Evaluate:
    """Return a function that evaluates the tiny model and returns the folder of results."""
    from pe_experiments.pretrained.context_curve import PretrainedSettings, evaluate_pretrained
    from pe_experiments.terminal.console import Display

    def run(**changed: Any) -> Path:
        paths = {"model": str(llama), "text": str(text), "results_dir": str(results)}
        return evaluate_pretrained(PretrainedSettings.model_validate(SETTINGS | paths | changed), Display())

    return run
