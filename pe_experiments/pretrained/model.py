"""Load a causal language model of transformers from local files, with its own or rescaled RoPE parameters."""

import copy
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from pe_experiments.terminal.errors import UserError, sentence

Rescaling = Literal["as_is", "truncated", "linear", "ntk", "yarn", "llama3", "none"]
UNCHANGED = ("as_is", "truncated")  # which read all tokens, or the last ones of the original length
WITHOUT_FACTOR = (*UNCHANGED, "none")
Block = dict[str, Any]  # ``rope_parameters`` of a configuration of transformers
INSTALL = 'pip install -c constraints.txt -e ".[pretrained]" installs it'
PICKLES = ("*.bin", "*.pt", "*.pth")
NO_ROTATION = 1e12  # factor of linear scaling with which no vector turns by more than rounding errors
LLAMA_3_1 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


class PretrainedModel:
    """The files of a model, its configuration and its tokenizer (`read`), and its weights (`load`).

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
        for package in ("transformers", *(("gguf", "accelerate") if self.gguf else ())):
            if not find_spec(package):
                raise UserError(f"model={self.path}: {package} is not installed; {INSTALL}")
        os.environ["HF_HUB_OFFLINE"] = "1"  # read by transformers when it is imported
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.source = {"gguf_file": self.gguf, "local_files_only": True, "trust_remote_code": False}
        with self._reading():
            self.config = transformers.AutoConfig.from_pretrained(self.folder, **self.source)
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder, **self.source)
        if self.config.is_encoder_decoder:
            raise UserError(f"model={self.path}: {self.config.model_type} is not a causal language model")
        text_config = self.config.get_text_config()
        block = getattr(text_config, "rope_parameters", None) or {}
        self.rope: Block | None = block if "rope_theta" in block else None
        max_length = getattr(text_config, "max_position_embeddings", None)
        # A model trained with a rescaled RoPE states the length before the rescaling.
        original = block.get("original_max_position_embeddings")
        original = original or getattr(text_config, "original_max_position_embeddings", None)
        self.original_length: int | None = original or max_length
        self.table_length = max_length if not block else None  # rows of a table of position embeddings

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Hide progress bars, and raise a UserError if files cannot be read."""
        try:
            with redirect_stderr(io.StringIO()):
                yield
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"model={self.path} cannot be read: {sentence(error)}") from error

    def prefix(self) -> list[int]:
        """Return the token that the tokenizer puts before a text, if any; every window starts with it."""
        start = self.tokenizer("").input_ids[:1]
        return start if start == [self.tokenizer.bos_token_id] else []

    def block(self, rope: Rescaling, factor: float) -> Block | None:
        """Return the ``rope_parameters`` of a rescaling by this factor; a factor of 1 gives plain RoPE.

        Without rotation (``none``) attention does not see positions. Linear scaling by a large factor says so
        in a configuration that every version of transformers reads.
        """
        if rope in UNCHANGED:
            return self.rope
        if self.rope is None or not self.original_length:
            parameters = getattr(self.config.get_text_config(), "rope_parameters", None)
            reason = "has no RoPE of a known length"
            if parameters and self.rope is None:
                reason = "has several RoPEs"
            raise UserError(f"rope={rope}: {self.name} {reason}; allowed: as_is")
        shared_keys = ("rope_theta", "partial_rotary_factor")
        shared: Block = {key: self.rope[key] for key in shared_keys if key in self.rope}
        if rope == "none":
            return {"rope_type": "linear", "factor": NO_ROTATION, **shared}
        if factor == 1:
            return {"rope_type": "default", **shared}
        # A larger base, with which the slowest pair rotates as slowly as with linear scaling.
        if rope == "ntk":
            config = self.config.get_text_config()
            head_dim = getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None)
            head_dim = head_dim or config.hidden_size // config.num_attention_heads
            pairs = int(head_dim * shared.get("partial_rotary_factor", 1.0)) // 2
            base = shared["rope_theta"] * factor ** (pairs / (pairs - 1))
            return {"rope_type": "default", **shared, "rope_theta": base}
        block: Block = {"rope_type": rope, "factor": factor, **shared}
        if rope != "linear":
            block["original_max_position_embeddings"] = self.original_length
        if rope == "llama3":
            block.update(LLAMA_3_1)
        return block

    def load(self, block: Block | None, device: str) -> Any:
        """Return the model for evaluation, with these RoPE parameters in its configuration."""
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
        missing = sorted(info["missing_keys"])
        if missing:
            raise UserError(f"model={self.path}: its files lack {len(missing)} weights, such as {missing[0]}")
        model = model.to(device).eval()
        self._refuse_looking_ahead(model)
        return model

    @torch.no_grad()
    def _refuse_looking_ahead(self, model: Any) -> None:
        """Raise a UserError if another last token changes earlier predictions of the model."""
        tokens_T = torch.arange(8) % self.config.get_text_config().vocab_size
        changed_T = tokens_T.clone()
        changed_T[-1] = 0
        logits, changed_logits = (
            model(row_T[None].to(model.device), use_cache=False).logits[0, :-1]
            for row_T in (tokens_T, changed_T)
        )
        if (logits - changed_logits).abs().max() > 1e-5 * logits.abs().max():
            raise UserError(
                f"model={self.path}: {self.config.model_type} is not a causal language model: a later token "
                "changes what is predicted before it"
            )

    def refuse_large(self, length: int, scored: int, device: str, batch_size: int | None = None) -> None:
        """Raise a UserError if a context length needs more memory than the machine has, by an estimate.

        The estimate contains the weights (twice for a GGUF file, which is converted), the activations of one
        layer and the logits. With a ``batch_size`` it is that of fine-tuning: also gradients and the two
        moments of AdamW, and the activations of all layers.
        """
        from transformers import AutoModelForCausalLM

        with self._reading(), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config)
        weights = sum(parameter.numel() for parameter in model.parameters()) * self.dtype.itemsize
        config = self.config.get_text_config()
        intermediate_size = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        values_per_token = 10 * config.hidden_size + 4 * intermediate_size
        activations = length * values_per_token * self.dtype.itemsize
        logits = 3 * scored * config.vocab_size * 4
        copies = 2 if self.gguf else 1
        if batch_size:
            copies = 4
            activations *= batch_size * config.num_hidden_layers
            logits *= batch_size
        needed = copies * weights + activations + logits
        if device == "cuda":
            available = torch.cuda.get_device_properties(0).total_memory
        else:
            try:
                available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            except (AttributeError, ValueError, OSError):
                return  # the system does not say
        if needed > available:
            option = "finetune.length" if batch_size else "lengths"
            raise UserError(
                f"{option}={length}: the model needs about {needed / 1e9:,.1f} GB of memory "
                f"({weights / 1e9:,.1f} for its weights), this machine has {available / 1e9:,.1f}; shorten "
                f"{option} or set dtype=bfloat16"
            )


def _locate(path: str, trust: bool) -> tuple[Path, list[Path], str | None]:
    """Return the folder of a model, the files to read, and the name of the file if it is a GGUF file."""
    place = Path(path).expanduser()
    if place.is_dir() and not (place / "config.json").exists():
        gguf_files = sorted(place.glob("*.gguf"))
        if len(gguf_files) != 1:
            content = "neither config.json nor a GGUF file"
            if gguf_files:
                content = f"{len(gguf_files)} GGUF files; name one"
            raise UserError(f"model={path}: the folder holds {content}")
        place = gguf_files[0]
    if place.is_file() and place.suffix == ".gguf":
        return place.parent, [place], place.name
    if not place.is_dir():
        how = f"hf download {path} --local-dir FOLDER" if path.count("/") == 1 else "docs/pretrained.md"
        allowed = "expected a local folder with config.json, or a GGUF file"
        raise UserError(f"model={path}: {allowed}; to get one: {how}")
    pickles = [file for pattern in PICKLES for file in place.glob(pattern)]
    if not any(place.glob("*.safetensors")) and not (trust and pickles):
        reason = "the folder holds no *.safetensors"
        if pickles:
            reason = "its weights are pickles, which can run code; trust=true reads them"
        raise UserError(f"model={path}: {reason}")
    patterns = ("*.safetensors", "*.json", "*.model", "*.txt", *(PICKLES if trust else ()))
    return place, sorted(file for pattern in patterns for file in place.glob(pattern)), None
