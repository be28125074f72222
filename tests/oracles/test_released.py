"""Released RoPEs against transformers: frequencies and factors of cosines and sines, layer by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.mixtures import Composition
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.rope_extension import (
    ExtendedRope,
    RopeLinear,
    RopeYarn,
    ScaledRope,
)
from pe_experiments.encodings.rope_hf import RopeHf
from pe_experiments.encodings.rope_released import RopeLlama3, RopeLongRope
from pe_experiments.encodings.temperature import PositionTemperature
from pe_experiments.encodings.windows import Chunks, SlidingWindow
from tests.oracles.released import FILES, written

RELATIVE = 1e-6  # transformers computes in float32

# Two files are simplified: the factors of Phi-4-mini have its shape but other values, and Gemma 4 has heads
# of two widths, which no model here has.
# The repeated pattern of layers: class of the encoding, and its window.
SLIDING = (Rope, 1024)
FULL = (RopeLinear, None)
PATTERNS: dict[str, list[tuple[type, int | None]]] = {
    "Llama 3.1 8B": [(RopeLlama3, None)],
    "Qwen2.5 7B": [(RopeYarn, None)],
    "DeepSeek-V3": [(RopeYarn, None)],
    "gpt-oss 20B": [(RopeYarn, 128), (RopeYarn, None)],
    "Olmo 3 7B": [*[(Rope, 4096)] * 3, (RopeYarn, None)],
    "Gemma 3 4B": [*[SLIDING] * 5, FULL],
    "Phi-4-mini": [(RopeLongRope, None)],
    "SmolLM3 3B": [*[(Rope, None)] * 3, (PositionalEncoding, None)],
    "Llama 4 Scout": [*[(RopeLlama3, 8192)] * 3, (PositionTemperature, None)],
    "Qwen3-Next 80B": [(Rope, None)],
    "Gemma 4": [*[(Rope, 512)] * 5, FULL],
}


def context(tokens: int) -> AttentionContext:
    ids = torch.zeros(1, 1, dtype=torch.long)
    return AttentionContext(
        ids, ids, torch.ones(1, 1, 1, dtype=torch.bool), declared_B=torch.tensor([tokens])
    )


def parts(encoding: PositionalEncoding) -> tuple[PositionalEncoding, int | None]:
    """The encoding of a layer without its sliding window or chunk, and their size."""
    if not isinstance(encoding, Composition):
        return encoding, None
    inner, near = (part[0] for part in encoding.parts)  # type: ignore[index]
    assert isinstance(near, SlidingWindow | Chunks)
    return inner, near.window if isinstance(near, SlidingWindow) else near.chunk


def rotation(encoding: PositionalEncoding, tokens: int) -> tuple[Tensor, float]:
    """Frequencies, and the factor of cosines and sines."""
    assert isinstance(encoding, Rope)
    factor = 1.0
    if isinstance(encoding, ScaledRope):
        factor = float(encoding.attention_factor_B(context(tokens)))
    return encoding.frequencies_BR(context(tokens))[0], factor


def rotation_of_transformers(
    config: Any, kind: str | None, tokens: int, head_dim: int
) -> tuple[Tensor, float]:
    """The same from transformers, which has no function for plain RoPE."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    block = config.rope_parameters if kind is None else config.rope_parameters[kind]
    if block["rope_type"] != "default":
        return ROPE_INIT_FUNCTIONS[block["rope_type"]](config, seq_len=tokens, layer_type=kind)
    width = int(head_dim * block.get("partial_rotary_factor", 1.0))
    return 1 / block["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float64) / width), 1.0


def shape_of(head_dim: int, layers: int) -> ModelShape:
    return ModelShape(2 * head_dim, 2, layers, True, 77, 77)


def assert_same(result: tuple[Tensor, float], expected: tuple[Tensor, float]) -> None:
    torch.testing.assert_close(result[0], expected[0].double(), rtol=RELATIVE, atol=0)
    assert result[1] == pytest.approx(expected[1], rel=RELATIVE)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_released_file_gives_the_numbers_of_transformers(name: str, tmp_path: Path) -> None:
    """Within the original length and past it."""
    transformers = pytest.importorskip("transformers")
    fields = FILES[name]
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps(fields)))
    width = next((fields[key] for key in ("qk_rope_head_dim", "head_dim") if key in fields), None)
    width = width or fields["hidden_size"] // fields["num_attention_heads"]
    encoding = RopeHf(shape_of(width, 12), config=written(tmp_path, fields))
    nested = any(isinstance(value, dict) for value in config.rope_parameters.values())
    for layer in range(12):
        inner, window = parts(encoding.for_layer(layer))
        kind, expected_window = PATTERNS[name][layer % len(PATTERNS[name])]
        assert (type(inner), window) == (kind, expected_window)
        if not isinstance(inner, Rope):
            continue
        layer_type = config.layer_types[layer] if nested else None
        for tokens in (100, config.max_position_embeddings):
            assert_same(rotation(inner, tokens), rotation_of_transformers(config, layer_type, tokens, width))


# Files that leave the share of rotated channels to the code or the defaults of their class.
PARTIAL: dict[str, dict[str, Any]] = {
    "gptj": {"n_embd": 64, "n_head": 2, "rotary_dim": 8},
    "minimax_m2": {"hidden_size": 64, "num_attention_heads": 2, "head_dim": 32, "rotary_dim": 16},
    "qwen2": {"hidden_size": 64, "num_attention_heads": 2, "sliding_window": 16},
}


@pytest.mark.parametrize("kind", PARTIAL)
def test_defaults_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind, **PARTIAL[kind])
    path = written(tmp_path, {"model_type": kind, **PARTIAL[kind]})
    inner, window = parts(RopeHf(shape_of(32, 2), config=path).for_layer(0))
    assert isinstance(inner, Rope)
    assert window is None
    block = getattr(config, "rope_parameters", None) or {}
    share = config.rotary_dim / 32 if kind == "gptj" else block.get("partial_rotary_factor", 1.0)
    assert len(rotation(inner, 100)[0]) == share * 16


def test_the_old_spelling_of_two_bases_is_the_new_one(tmp_path: Path) -> None:
    """Gemma 3 and Olmo 3, released with ``rope_scaling`` that is for layers with full attention alone."""
    old = {key: value for key, value in FILES["Olmo 3 7B"].items() if key != "rope_parameters"}
    scaling = dict(FILES["Olmo 3 7B"]["rope_parameters"]["full_attention"])
    old |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    released = RopeHf(shape_of(64, 4), config=written(tmp_path, old))
    again = RopeHf(shape_of(64, 4), config=written(tmp_path, FILES["Olmo 3 7B"]))
    for layer in range(4):
        inner, window = parts(released.for_layer(layer))
        inner_again, window_again = parts(again.for_layer(layer))
        assert (type(inner), window) == (type(inner_again), window_again)
        assert_same(rotation(inner, 100), rotation(inner_again, 100))
    wrapped = {
        "model_type": "gemma3",
        "text_config": FILES["Gemma 3 4B"],
        "vision_config": {"hidden_size": 3},
    }
    gemma = RopeHf(shape_of(64, 6), config=written(tmp_path, wrapped))
    bases = [parts(gemma.for_layer(layer))[0].base for layer in range(6)]
    assert bases == [1e4] * 5 + [1e6]


BLOCKS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "dynamic", "factor": 2.5},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0},
    {"rope_type": "yarn", "factor": 64.0, "beta_fast": 1.0, "beta_slow": 1.0},
    {"rope_type": "yarn", "factor": 4.0, "truncate": False, "attention_factor": 0.7},
    {"rope_type": "yarn", "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.3},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "llama3", "factor": 3.0, "low_freq_factor": 2.5, "high_freq_factor": 9.0},
    {"rope_type": "longrope", "factor": 5.0},
    {"rope_type": "longrope", "attention_factor": 1.25},
    {"rope_type": "proportional", "partial_rotary_factor": 0.45},  # 3.6 of 8 pairs
    {"rope_type": "proportional", "partial_rotary_factor": 0.75, "factor": 8.0},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
]


@pytest.mark.parametrize(("head_dim", "original"), [(16, 8192), (96, 256), (128, 8192)])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_gives_the_numbers_of_transformers(
    block: dict[str, Any], head_dim: int, original: int
) -> None:
    transformers = pytest.importorskip("transformers")
    block = {**block, "rope_theta": 50_000.0, "original_max_position_embeddings": original}
    if block["rope_type"] == "longrope":
        pairs = head_dim // 2
        block |= {
            "short_factor": [1 + m / 9 for m in range(pairs)],
            "long_factor": [2.0 + m for m in range(pairs)],
        }
    longest = original if block["rope_type"] == "dynamic" else 4 * original
    sizes = {"hidden_size": 2 * head_dim, "num_attention_heads": 2, "head_dim": head_dim}
    config = transformers.LlamaConfig(**sizes, max_position_embeddings=longest, rope_parameters=dict(block))
    if block == {**block, "attention_factor": 1.25}:
        block["factor"] = 4.0  # of transformers: max_position_embeddings / original
    encoding = RopeHf(shape_of(head_dim, 2), rope_parameters=block).for_layer(0)
    for tokens in (100, original, original + 1, 5 * original):
        assert_same(rotation(encoding, tokens), rotation_of_transformers(config, None, tokens, head_dim))


def test_the_original_length_is_read_in_order_of_precedence(tmp_path: Path) -> None:
    """The file's, else the block's, else max_position_embeddings; for dynamic NTK always the last."""
    fields: dict[str, Any] = {"max_position_embeddings": 800}
    for kind, expected in (("yarn", [800, 200, 100]), ("dynamic", [800, 800, 800])):
        block = {"rope_type": kind, "factor": 2.0}
        longer = {**block, "original_max_position_embeddings": 200}
        files = [fields | {"rope_scaling": block}, fields | {"rope_scaling": longer}]
        files.append(fields | {"rope_scaling": longer, "original_max_position_embeddings": 100})
        lengths = []
        for content in files:
            encoding = RopeHf(shape_of(8, 1), config=written(tmp_path, content)).for_layer(0)
            assert isinstance(encoding, ExtendedRope)
            lengths.append(encoding.original_length)
        assert lengths == expected
