"""Released configurations against what attention receives in each layer of transformers' models."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pe_experiments.encodings import ModelShape
from pe_experiments.encodings.released_config import released_layers
from pe_experiments.encodings.released_types import DEFAULTS
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.rope_extension import ScaledRope
from pe_experiments.encodings.rope_hf import RopeHf
from pe_experiments.encodings.softmax import is_masked
from pe_experiments.models.attention_scores import Inputs, attention_outputs, attention_scores
from tests.oracles.released import FILES, text_part, written
from tests.oracles.small_models import (
    Seen,
    attention_inputs,
    half_split,
    known_keys,
    small_fields,
    swapped,
    trailing,
    unchanged,
)
from tests.oracles.test_released import context

TOKENS = 48
LAYERS = 12
ROTARY_PART = 8  # of the 24 channels of a head with latent attention
TOLERANCE = 2e-5  # of the largest logit; transformers computes angles in float32

Reorder = Callable[[Tensor], Tensor]

SAME_CODE = {"kimi_k2": "deepseek_v3", "step3p7_text": "step3p5"}  # types without a class in transformers
# Their attention cannot be recorded, or has no positions to record.
NOT_RECORDED = ("codegen", "falcon", "gptj", "granitemoehybrid")
WITHOUT_CODE = ("internlm3", "iquestcoder")  # transformers 5.23 has their configuration alone


def logits_of(encoding: RopeHf, seen: Seen, layer: int, offset: int, reorder: Reorder) -> Tensor:
    """Logits of the first query and key, placed at all positions; masked keys are NaN.

    The first token is at position 0, where channels are only multiplied by the factor of cosines, which is
    removed here; `test_released` compares it.
    """
    width = encoding.shape.head_dim
    rope = rope_of(encoding, layer)
    q_K, k_K = (part[0, offset : offset + width].clone() for part in (seen.q_TK, seen.k_TK))
    if isinstance(rope, ScaledRope):
        for part in (q_K, k_K):
            part[: 2 * rope.pairs] /= float(rope.attention_factor_B(context(TOKENS)))
    q, k = (reorder(part).expand(1, 1, TOKENS, width) for part in (q_K, k_K))
    positions = torch.arange(TOKENS)[None]
    scores = attention_scores(encoding, Inputs(q, k, torch.zeros(1, TOKENS, width), positions), layer)[0, 0]
    return scores.masked_fill(is_masked(scores), torch.nan) * width**0.5


def rope_of(encoding: RopeHf, layer: int) -> Rope | None:
    """The RoPE of a layer."""
    return next((part for part in encoding.for_layer(layer).modules() if isinstance(part, Rope)), None)


def largest_difference(config: str, layers: list[Seen]) -> float:
    """Of all logits, as a share of the largest, where channels are laid out as fits best.

    It is infinite where other keys are masked.
    """
    worst = 0.0
    encodings: dict[int, RopeHf] = {}  # by the width of a head, which differs between layers of some models
    for index, seen in enumerate(layers):
        width = seen.q_TK.shape[-1]
        offset = width - ROTARY_PART if width == 24 else 0  # with latent attention
        width -= offset
        if width not in encodings:
            encodings[width] = RopeHf(ModelShape(width, 1, len(layers), True, 77, 77), config=config)
        encoding = encodings[width]
        rope = rope_of(encoding, index)
        expected = seen.q_TK[:, offset:] @ seen.k_TK[:, offset:].T
        expected[~(seen.visible_TT & torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril())] = torch.nan
        visible = ~expected.isnan()
        smallest = torch.inf
        for reorder in (unchanged, half_split, swapped, trailing):  # the layouts of channels in use
            layout = partial(reorder, rotated=2 * rope.pairs if rope else 0)
            logits = logits_of(encoding, seen, index, offset, layout)
            if not torch.equal(visible, ~logits.isnan()):
                return torch.inf
            difference = (logits - expected)[visible].abs().max() / expected[visible].abs().max()
            smallest = min(smallest, float(difference))
            if smallest <= TOLERANCE:
                break
        worst = max(worst, smallest)
    return worst


def recorded(fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[Seen]]:
    """The text part of a file with small sizes, and what attention receives."""
    model_type = SAME_CODE.get(fields["model_type"], fields["model_type"])
    small = small_fields(fields, known_keys(model_type), LAYERS)
    theirs = {**small, "model_type": model_type}
    if theirs.get("rope_scaling", {}) is None:
        del theirs["rope_scaling"]
    if theirs.get("sliding_window_pattern") == "LLLG":
        theirs["sliding_window_pattern"] = 4  # transformers reads only a number
    return small, attention_inputs(theirs, TOKENS)


RECORDED = [
    name
    for name, fields in FILES.items()
    if text_part(fields)["model_type"] not in NOT_RECORDED and "dual_chunk_attention_config" not in fields
]


@pytest.mark.parametrize("name", RECORDED)
def test_a_released_file_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    small, layers = recorded(text_part(FILES[name]))
    assert layers
    assert largest_difference(written(tmp_path, small), layers) <= TOLERANCE


# Their defaults cannot be made small or are no released model; files of most are compared above.
TOO_SPECIAL = (
    "longcat_flash", "ministral3", "mistral4", "muse_glimmer_text", "mimo_v2_flash", "qwen2_vl", "qwen2_5_vl",
)  # fmt: skip
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
HALF_ROTATED = {**SECTIONS, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
# What transformers needs in the file.
FURTHER_FIELDS: dict[str, dict[str, Any]] = {
    **{kind: {"head_dim": 128} for kind in ("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral")},
    **{kind: {"rope_parameters": SECTIONS} for kind in ("glm4v_text", "glm_image_text", "glm_ocr_text")},
    **{
        kind: {"rope_parameters": SECTIONS}
        for kind in ("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text")
    },
    "bailing_hybrid": {"n_group": 1, "topk_group": 1},
    "deepseek_v4": {
        "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
        * 4,
        "qk_rope_head_dim": 8,
        "num_key_value_heads": 1,
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "mlp_layer_types": ["moe"] * 12,
    },
    "glm4v_moe_text": {"rope_parameters": HALF_ROTATED},
    "flint": {"layer_types": [*["full_attention"] * 2, *["sliding_attention"] * 3, "full_attention"] * 2},
    "mellum": {"layer_types": ["sliding_attention", "full_attention"] * 6},
    "bamba": {"attn_layer_indices": [3, 9]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 6, "num_hidden_layers": 12},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2},
}


# Nothing, for the defaults of a type, and keys that some types read and others find left over in their files.
OFTEN_LEFT_OVER: dict[str, dict[str, Any]] = {
    "defaults": {},
    "sliding_window": {"sliding_window": 6},
    "max_window_layers": {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 3},
    "sliding_window_pattern": {"sliding_window": 6, "sliding_window_pattern": 3},
    "layer_types": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"] * 6},
    "partial_rotary_factor": {"partial_rotary_factor": 0.7},  # 11 of 16 channels, an odd number
    "no_rope_layers": {"no_rope_layers": [1, 0, 1] * 4},
}
# Their files spell the share otherwise (rotary_pct, or inside the block), and layers with a window of 0.
OTHERWISE_SPELT = {
    ("gpt_neox", "partial_rotary_factor"),
    ("mellum", "partial_rotary_factor"),
    ("qwen2_moe", "layer_types"),
}


@pytest.mark.slow
@pytest.mark.parametrize("key", OFTEN_LEFT_OVER)
@pytest.mark.parametrize(
    "kind", sorted(set(DEFAULTS) - {*NOT_RECORDED, *WITHOUT_CODE, *TOO_SPECIAL, *SAME_CODE, "step3p5"})
)
def test_a_type_reads_the_keys_and_has_the_defaults_of_its_code(kind: str, key: str, tmp_path: Path) -> None:
    if (kind, key) in OTHERWISE_SPELT:
        pytest.skip("no file of this type has it")
    known = known_keys(kind)
    fields: dict[str, Any] = {"num_hidden_layers": LAYERS, **FURTHER_FIELDS.get(kind, {})}
    if key == "defaults":  # long ones matter within a few tokens
        long = {"sliding_window": 4096, "attention_chunk_size": 8192}
        fields |= {name: size for name, size in long.items() if known.get(name) is not None}
    fields |= {**OFTEN_LEFT_OVER[key], "model_type": kind}
    small = small_fields(fields, known, LAYERS)
    try:
        layers = attention_inputs(small, TOKENS)
    except Exception as error:
        if key == "defaults":
            raise
        pytest.skip(f"transformers refuses it: {error}")  # no file of this type can have such a key
    assert largest_difference(written(tmp_path, small), layers) <= TOLERANCE


UNKNOWN = "is not known here and may change the encoding; if it does not matter, add ignore="


# What the error contains, and the fields of the file.
REFUSED: dict[str, dict[str, Any]] = {
    r"dual_chunk_attention_config=.*ignore=[dual_chunk_attention_config": FILES["Qwen2.5 7B Instruct 1M"],
    f"attn.rel.position_bias=1 {UNKNOWN}": {"model_type": "llama", "attn": {"rel": {"position_bias": 1}}},
    f"rope_new=3 {UNKNOWN}": {"text_config": {"model_type": "llama", "rope_new": 3}},
    "model_type=novel is not known here": {"model_type": "novel", "rope_theta": 1e4},
    "alibi=True: the model has ALiBi": {"model_type": "falcon", "alibi": True},
    "model_type is missing in the text part": {"model_type": "gemma3", "text_config": {"rope_theta": 1e6}},
    "mla_use_nope=false has no effect": {"model_type": "kimi_linear", "mla_use_nope": False},
    "layer_rope_theta is missing": {"model_type": "muse_glimmer_text", "layer_types": ["full_attention"]},
    "rope_theta has 44 values; .* of 45 layers": {"num_hidden_layers": 45, "rope_theta": [1e4] * 44},
    "rope_parameters has one block for all kinds of layers, which the code of olmo3 does not read": {
        "model_type": "olmo3",
        "rope_parameters": {"rope_type": "yarn", "factor": 8.0},
    },
    "rope_parameters has a block for each kind of layers, which the code of llama does not read": {
        "model_type": "llama",
        "rope_parameters": {"full_attention": {"rope_theta": 333.0}},
    },
    "sliding_window_pattern=LLX must": {"sliding_window": 4, "sliding_window_pattern": "LLX"},
    "sliding_window_size counts the query itself or not": {"sliding_window_size": 5},
    "rotary_scaling_factor=2.0 is not known here": {"model_type": "llama", "rotary_scaling_factor": 2.0},
    "rope_parameters.long_mscale is not .* add ignore=[long_mscale": {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0, "long_mscale": 1.2}
    },
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_not_known_is_refused_by_name(words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words.replace("[", r"\[")) as caught:
        RopeHf(ModelShape(16, 1, 4, True, 77, 77), config=written(tmp_path, REFUSED[words]))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 6},
        {"model_type": "gemma4_text", "sliding_window": 6, "num_hidden_layers": 10},
        {"model_type": "gemma3_text", "sliding_window": 6, "max_position_embeddings": 6},
        {"model_type": "granite_swa", "sliding_window": 6, "layer_rope_theta": [0, 500.0, 0, 1e4] * 3},
        {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 6},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "llama4_text", "no_rope_layers": [1, 0] * 6, "attn_scale": 0.3},
        {"model_type": "gemma2", "sliding_window": 6, "sliding_window_size": 5},
        {"model_type": "recurrent_gemma", "attention_window_size": 6,
            "block_types": ["recurrent", "recurrent", "attention"]},
        {"model_type": "olmo3", "sliding_window": 6, "rope_theta": 333.0},
        {"model_type": "modernbert-decoder", "rope_theta": 333.0, "global_rope_theta": 777.0},
        {"model_type": "modernbert-decoder", "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"model_type": "qwen2_moe", "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 5},
        {"model_type": "cohere2_moe", "sliding_window": 6, "first_k_dense_replace": 2},
        {"model_type": "cohere2_moe", "sliding_window": 6, "first_k_dense_replace": 3,
            "prefix_dense_sliding_window_pattern": 2},
        {"model_type": "deepseek_v4", "sliding_window": 6, "compress_ratios": [0, 128, 4] * 4, "rope_scaling":
            {"type": "yarn", "factor": 16, "beta_fast": 32, "original_max_position_embeddings": 64}},
    ],
)  # fmt: skip
def test_what_code_makes_of_a_file(fields: dict[str, Any], tmp_path: Path) -> None:
    """Rules of single types that neither their defaults nor keys that are often left over show."""
    layers = fields.get("num_hidden_layers", LAYERS)
    fields = {"num_hidden_layers": layers, **FURTHER_FIELDS.get(fields["model_type"], {}), **fields}
    if "compress_ratios" in fields:
        del fields["layer_types"]
    small = small_fields(fields, known_keys(fields["model_type"]), layers)
    inputs = attention_inputs(small, TOKENS)
    config = written(tmp_path, small)
    if fields["model_type"] == "gemma3_text":  # the window covers 6 positions, and the file says it is enough
        inputs = [replace(seen, visible_TT=torch.ones_like(seen.visible_TT)) for seen in inputs]
    if inputs:
        assert largest_difference(config, inputs) <= TOLERANCE
    else:
        encoding = RopeHf(ModelShape(16, 1, layers, True, 77, 77), config=config)
        assert all(rope_of(encoding, layer) is None for layer in range(layers))


@pytest.mark.parametrize("head_dim", [22, 42])
def test_an_odd_number_of_channels_is_rounded_up(head_dim: int, tmp_path: Path) -> None:
    fields = {"model_type": "glm4", "num_hidden_layers": 2}
    small = small_fields(fields, known_keys("glm4"), 2) | {"head_dim": head_dim}
    assert largest_difference(written(tmp_path, small), attention_inputs(small, TOKENS)) <= TOLERANCE


@pytest.mark.parametrize("kind", ["sliding_attention", "compressed_sparse_attention"])
@torch.no_grad()
def test_what_deepseek_v4_reads_is_rotated_back(kind: str, tmp_path: Path) -> None:
    """Its rotation of keys, which serve as values, and of what is read, on random content."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as theirs

    fields = {"model_type": "deepseek_v4", "num_hidden_layers": 1, "layer_types": [kind], "head_dim": 16}
    fields |= {"qk_rope_head_dim": 8, "sliding_window": TOKENS, "max_position_embeddings": 2 * TOKENS}
    fields["rope_parameters"] = {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": TOKENS,
    }
    config = transformers.AutoConfig.for_model(**copy.deepcopy(fields))
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, TOKENS, 16, generator=generator) for _ in range(2))
    positions = torch.arange(TOKENS)[None]
    label = "main" if kind == "sliding_attention" else "compress"
    cos, sin = theirs.DeepseekV4RotaryEmbedding(config)(q, positions, layer_type=label)
    rotated_q, rotated_k = (theirs.apply_rotary_pos_emb(x, cos, sin) for x in (q, k))
    read = functional.scaled_dot_product_attention(rotated_q, rotated_k, rotated_k, is_causal=True)
    expected = theirs.apply_rotary_pos_emb(read, cos, -sin)

    encoding = RopeHf(ModelShape(16, 1, 1, True, 77, 77), config=written(tmp_path, fields))
    q, k, expected = (trailing(x, 8) for x in (q, k, expected))
    result = attention_outputs(encoding, Inputs(q, k, torch.zeros(1, TOKENS, 16), positions), k)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


LINEAR = {"rope_type": "linear", "factor": 2.0, "long_mscale": 1.2}
LLAMA: dict[str, Any] = {"model_type": "llama", "rope_theta": 500.0}
NOVEL: dict[str, Any] = {"model_type": "novel", "rope_theta": 500.0, "attn": {"position_noise": 1}}
# The fields of a file, the keys to ignore, and the base.
WITHOUT_EFFECT: dict[str, tuple[dict[str, Any], list[str], float]] = {
    "a key inside the block": ({**LLAMA, "rope_scaling": LINEAR}, ["long_mscale"], 500.0),
    "harmless keys": (
        {**LLAMA, "rotary_scaling_factor": 1.0, "indexer_rope_interleave": True, "use_rotary_pos_emb": True}
        | {"mla_scale_kv_lora": True, "max_trained_positions": 2048, "position_embedding_xdrope": False},
        [],
        500.0,
    ),
    "a key that is ignored": (NOVEL, ["model_type", "position_noise"], 500.0),
    "a path that is ignored": (NOVEL, ["model_type", "attn.position_noise", "rope_theta"], 10_000.0),
    "keys of other networks and of weights": (
        {
            "text_config": LLAMA,
            "vision_config": {"window_size": 8, "rope_theta": 100.0},
            "quantization_config": {"scale_fmt": "ue8m0"},
            "rope_theta": 500.0,
        },
        [],
        500.0,
    ),
}


@pytest.mark.parametrize("what", WITHOUT_EFFECT)
def test_what_does_not_matter_has_no_effect(what: str, tmp_path: Path) -> None:
    fields, ignore, base = WITHOUT_EFFECT[what]
    encoding = RopeHf(ModelShape(16, 1, 4, True, 77, 77), config=written(tmp_path, fields), ignore=ignore)
    assert encoding.for_layer(0).base == base


def test_keys_of_a_block_without_a_file_can_be_ignored() -> None:
    encoding = RopeHf(ModelShape(16, 1, 4, True, 77, 77), rope_parameters=LINEAR, ignore=["long_mscale"])
    assert encoding.for_layer(0).factor == 2.0


@pytest.mark.parametrize("pattern", ["LLG", "SSF", 3])
def test_a_pattern_of_windows_is_spelled_in_three_ways(pattern: str | int) -> None:
    settings = {"rope_theta": 1e4, "sliding_window": 4, "sliding_window_pattern": pattern}
    assert [layer.window for layer in released_layers(settings)] == [4, 4, None]
