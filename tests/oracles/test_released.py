"""Blocks of RoPE parameters against transformers: frequencies and factors of cosines and sines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.rope_extension import ExtendedRope, ScaledRope
from pe_experiments.encodings.rope_hf import RopeHf
from tests.oracles.released import FILES, written

RELATIVE = 1e-6  # transformers computes in float32


def context(tokens: int) -> AttentionContext:
    ids = torch.zeros(1, 1, dtype=torch.long)
    return AttentionContext(
        ids, ids, torch.ones(1, 1, 1, dtype=torch.bool), declared_B=torch.tensor([tokens])
    )


def rotation(encoding: PositionalEncoding, tokens: int) -> tuple[Tensor, float]:
    """Frequencies, and the factor of cosines and sines."""
    assert isinstance(encoding, Rope)
    factor = 1.0
    if isinstance(encoding, ScaledRope):
        factor = float(encoding.attention_factor_B(context(tokens)))
    return encoding.frequencies_BR(context(tokens))[0], factor


def shape_of(head_dim: int, layers: int) -> ModelShape:
    return ModelShape(2 * head_dim, 2, layers, True, 77, 77)


def assert_same(result: tuple[Tensor, float], expected: tuple[Tensor, float]) -> None:
    torch.testing.assert_close(result[0], expected[0].double(), rtol=RELATIVE, atol=0)
    assert result[1] == pytest.approx(expected[1], rel=RELATIVE)


def test_gptj_rotates_as_many_channels_as_its_file_says(tmp_path: Path) -> None:
    """Its attention cannot be recorded in `test_released_models`."""
    path = written(tmp_path, {"model_type": "gptj", "n_embd": 64, "n_head": 2, "rotary_dim": 8})
    assert len(rotation(RopeHf(shape_of(32, 2), config=path).for_layer(0), 100)[0]) == 4


def test_the_old_spelling_of_two_bases_is_the_new_one(tmp_path: Path) -> None:
    """Olmo 3, released with ``rope_scaling`` that is for layers with full attention alone."""
    new = FILES["Olmo 3 7B"]
    scaling = dict(new["rope_parameters"]["full_attention"])
    old = {key: value for key, value in new.items() if key != "rope_parameters"}
    old |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    for layer in range(4):
        rotations = []
        for fields in (old, new):
            encoding = RopeHf(shape_of(64, 4), config=written(tmp_path, fields)).for_layer(layer)
            rope = next(part for part in encoding.modules() if isinstance(part, Rope))
            rotations.append((type(rope), *rotation(rope, 100)))
        assert rotations[0][0] is rotations[1][0]
        assert_same(rotations[0][1:], rotations[1][1:])


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
    rotation_of_transformers = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[block["rope_type"]]
    for tokens in (100, original, original + 1, 5 * original):
        assert_same(rotation(encoding, tokens), rotation_of_transformers(config, seq_len=tokens))


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
