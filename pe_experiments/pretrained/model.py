"""A causal language model of transformers, read from local files and built with another RoPE block."""

import copy
import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pe_experiments.terminal.errors import UserError, sentence
from pe_experiments.training.preflight import memory_bytes

Rope = Literal["as_is", "linear", "ntk", "yarn", "llama3"]
Block = dict[str, Any]
INSTALL = 'pip install -c constraints.txt -e ".[pretrained]" installs it'
PICKLES = ("*.bin", "*.pt", "*.pth")
LLAMA_3_1 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


class PretrainedModel:
    """The files of a model, its configuration and its tokenizer; `load` reads the weights.

    Args:
        path: a folder with ``config.json`` and safetensors, a GGUF file, or a folder with one GGUF file.
        trust: also read weights that are pickles.

    Raises:
        UserError: a package, a file or a weight is missing.
    """

    def __init__(self, path: str, dtype: torch.dtype, trust: bool):
        self.path = path
        self.dtype = dtype
        self.trust = trust
        self.folder, self.files, self.gguf = _locate(path, trust)
        self.name = Path(self.gguf).stem if self.gguf else self.folder.resolve().name

    def read(self) -> None:
        """Read the configuration and the tokenizer."""
        for package in ("transformers", *(("gguf", "accelerate") if self.gguf else ())):
            if not find_spec(package):
                raise UserError(f"model={self.path}: {package} is not installed; {INSTALL}")
        os.environ["HF_HUB_OFFLINE"] = "1"  # before the import
        import transformers

        transformers.logging.set_verbosity_error()
        self.source = {"gguf_file": self.gguf, "local_files_only": True, "trust_remote_code": False}
        with self._reading():
            self.config = transformers.AutoConfig.from_pretrained(self.folder, **self.source)
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder, **self.source)
        if self.config.is_encoder_decoder:
            raise UserError(f"model={self.path}: {self.config.model_type} is not a causal language model")
        text_config = self.config.get_text_config()
        block = getattr(text_config, "rope_parameters", None) or {}
        self.rope: Block | None = block if "rope_theta" in block else None
        longest = getattr(text_config, "max_position_embeddings", None)
        stated = getattr(text_config, "original_max_position_embeddings", None)
        self.original_length: int | None = block.get("original_max_position_embeddings") or stated or longest
        self.table_length = longest if not block else None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with redirect_stderr(io.StringIO()):  # progress bars of libraries
                yield
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"model={self.path} cannot be read: {sentence(error)}") from error

    def prefix(self) -> list[int]:
        """Return the token before every window: the one that the tokenizer begins texts with, if any."""
        start = self.tokenizer("").input_ids[:1]
        return start if start == [self.tokenizer.bos_token_id] else []

    def block(self, rope: Rope, factor: float) -> Block | None:
        """Return the ``rope_parameters`` of a rescaling; at a factor of 1 they are those of plain RoPE."""
        if rope == "as_is":
            return self.rope
        if self.rope is None or not self.original_length:
            several = getattr(self.config.get_text_config(), "rope_parameters", None)
            why = "has several RoPEs" if several and self.rope is None else "has no RoPE of a known length"
            raise UserError(f"rope={rope}: {self.name} {why}; allowed: as_is")
        shared = {key: self.rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in self.rope}
        if factor == 1:
            return {"rope_type": "default"} | shared
        if rope == "ntk":  # a larger base, under which the slowest pair turns as under linear
            config = self.config.get_text_config()
            head_dim = getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None)
            head_dim = head_dim or config.hidden_size // config.num_attention_heads
            pairs = int(head_dim * shared.get("partial_rotary_factor", 1.0)) // 2
            base = shared["rope_theta"] * factor ** (pairs / (pairs - 1))
            return {"rope_type": "default"} | shared | {"rope_theta": base}
        block = {"rope_type": rope, "factor": factor} | shared
        if rope != "linear":
            block["original_max_position_embeddings"] = self.original_length
        return block | (LLAMA_3_1 if rope == "llama3" else {})

    def load(self, block: Block | None, device: str) -> Any:
        """Return the model with this RoPE block in its configuration, for evaluation."""
        from transformers import AutoModelForCausalLM

        config = copy.deepcopy(self.config)
        if block is not None:
            config.get_text_config().rope_parameters = dict(block)
        weights = {} if self.gguf or self.trust else {"use_safetensors": True}
        with self._reading():
            model, info = AutoModelForCausalLM.from_pretrained(
                self.folder,
                config=config,
                dtype=self.dtype,
                output_loading_info=True,
                **weights,
                **self.source,
            )
        if missing := sorted(info["missing_keys"]):
            raise UserError(f"model={self.path}: its files lack {len(missing)} weights, such as {missing[0]}")
        model = model.to(device).eval()
        self._refuse_looking_ahead(model)
        return model

    @torch.no_grad()
    def _refuse_looking_ahead(self, model: Any) -> None:
        tokens_T = torch.arange(8) % self.config.get_text_config().vocab_size
        rows_BT = tokens_T.repeat(2, 1)
        rows_BT[1, -1] = 0
        first, second = (model(row[None].to(model.device), use_cache=False).logits[0, :-1] for row in rows_BT)
        if (first - second).abs().max() > 1e-5 * first.abs().max():
            raise UserError(
                f"model={self.path}: {self.config.model_type} is not a causal language model: a later token "
                "changes what is predicted before it"
            )

    def refuse_large(self, length: int, scored: int, device: str) -> None:
        """Refuse a context length that needs more memory than there is, by an estimate.

        The weights (twice while a GGUF file is converted), the activations of one layer, and the logits.
        """
        from transformers import AutoModelForCausalLM

        with self._reading(), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config)
        weights = sum(parameter.numel() for parameter in model.parameters()) * self.dtype.itemsize
        config = self.config.get_text_config()
        width = 10 * config.hidden_size + 4 * (
            getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        )
        activations = length * width * self.dtype.itemsize + 3 * scored * config.vocab_size * 4
        need = (2 if self.gguf else 1) * weights + activations
        have = memory_bytes(device == "cuda")
        if have is not None and need > have:
            raise UserError(
                f"lengths={length}: the model needs about {need / 1e9:,.1f} GB of memory "
                f"({weights / 1e9:,.1f} for its weights), this machine has {have / 1e9:,.1f}; shorten "
                "lengths or set dtype=bfloat16"
            )


def _locate(path: str, trust: bool) -> tuple[Path, list[Path], str | None]:
    """Return the folder of a model, the files that are read, and the name of a GGUF file if it is one."""
    place = Path(path).expanduser()
    if place.is_dir() and not (place / "config.json").exists():
        gguf_files = sorted(place.glob("*.gguf"))
        if len(gguf_files) != 1:
            holds = (
                f"{len(gguf_files)} GGUF files; name one"
                if gguf_files
                else "neither config.json nor a GGUF file"
            )
            raise UserError(f"model={path}: the folder holds {holds}")
        place = gguf_files[0]
    if place.is_file() and place.suffix == ".gguf":
        return place.parent, [place], place.name
    if not place.is_dir():
        raise UserError(f"model={path}: expected a local folder with config.json, or a GGUF file")
    pickles = [file for pattern in PICKLES for file in place.glob(pattern)]
    if not any(place.glob("*.safetensors")) and not (trust and pickles):
        pickled = "its weights are pickles, which can run code; trust=true reads them"
        raise UserError(f"model={path}: {pickled if pickles else 'the folder holds no *.safetensors'}")
    patterns = ("*.safetensors", "*.json", "*.model", "*.txt", *(PICKLES if trust else ()))
    return place, sorted(file for pattern in patterns for file in place.glob(pattern)), None


def bits(model: Any, tokens_T: Tensor, scored: int) -> float:
    """Return the loss of the last ``scored`` tokens, each after all before it; only they get logits."""
    tokens_BT = tokens_T[None].to(model.device)
    logits_BSV = model(tokens_BT, use_cache=False, logits_to_keep=scored + 1).logits
    logits_SV = logits_BSV[0, -scored - 1 : -1].float()
    nats = torch.nn.functional.cross_entropy(logits_SV, tokens_BT[0, -scored:], reduction="sum")
    return nats.item() / math.log(2)
