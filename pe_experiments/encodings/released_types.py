"""What the code of released models does with positions although no key of their files says so.

Facts about the classes of transformers 5.23, by ``model_type``; `tests/oracles` compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Block = Mapping[str, Any]

FULL = "full_attention"
SLIDING = "sliding_attention"

# Rotary models whose files say everything, apart from the defaults below.
PLAIN = (
    "arcee", "aria_text", "deepseek_v2", "deepseek_v3", "deepseek_v32",
    "diffllama", "eurobert", "falcon_h1", "gemma", "glm4_moe_lite", "glm4v_text", "glm_image_text",
    "glm_moe_dsa", "glm_ocr_text", "granite", "granite_docling_text", "granitemoe", "granitemoeshared",
    "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v4", "hyperclovax", "internlm3", "iquestcoder", "jais2",
    "jetmoe", "kimi_k2", "llama", "minicpm3", "nanochat", "olmo", "olmo2", "olmo_hybrid",
    "olmoe", "phi3", "seed_oss", "starcoder2", "youtu",
)  # fmt: skip

HALF: Block = {"partial_rotary_factor": 0.5}
QUARTER: Block = {"partial_rotary_factor": 0.25}
NO_WINDOW: Block = {"use_sliding_window": False}
LLAMA3: Block = {
    "rope_type": "llama3",
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def _by_kind(sliding: Block | None, full: Block | None) -> Block:
    """Return RoPE parameters for layers with a window and for the others."""
    return {"rope_parameters": {SLIDING: sliding, FULL: full}}


def _all(block: Block, *names: str) -> dict[str, Block]:
    """Return the same defaults for several types."""
    return dict.fromkeys(names, block)


# Defaults of the classes; a key of the file comes first.
DEFAULTS: dict[str, Block] = {
    **{name: {} for name in PLAIN},
    **_all(HALF, "bamba", "glm", "glm4", "glm4_moe", "glm4v_moe_text", "nemotron", "persimmon", "phi"),
    **_all(QUARTER, "gpt_neox", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "stablelm"),
    **_all(NO_WINDOW, "dots1", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    **_all({**NO_WINDOW, "rope_theta": 1e6}, "qwen2_vl", "qwen2_vl_text"),
    **_all({**NO_WINDOW, "rope_theta": 1e6}, "qwen2_5_vl", "qwen2_5_vl_text"),
    **_all({"rope_theta": 5e5}, "bitnet", "cohere", "ernie4_5", "ernie4_5_moe", "flex_olmo"),
    **_all({"rope_theta": 5e5}, "qwen3_vl_text", "qwen3_vl_moe_text"),
    **_all({"rope_theta": 1e6}, "mixtral", "phimoe", "lfm2", "lfm2_moe", "solar_open"),
    **_all({"rotary_dim": 64}, "codegen", "gptj"),
    **_all({}, "falcon", "jamba", "nemotron_h", "kimi_linear", "zamba"),
    "afmoe": {"sliding_window": 1024, "global_attn_every_n_layers": 4},
    "apertus": {"rope_theta": 12e6, "rope_parameters": {"factor": 8.0, **LLAMA3}},
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "cwm": {
        "sliding_window": 8192,
        "global_attn_every_n_layers": 4,
        "first_layer_is_full": True,
        "rope_theta": 1e6,
        "rope_parameters": {"factor": 16.0, **LLAMA3},
    },
    "exaone4": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "exaone_moe": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "flint": {"sliding_window": 513},
    "gemma2": {"sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3_text": {
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    "gemma3n_text": {
        "sliding_window": 512,
        "sliding_window_pattern": 5,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    "gemma4_text": {
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "last_layer_is_full": True,
        **_by_kind(
            {"rope_theta": 1e4},
            {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        ),
    },
    "gpt_oss": {
        "sliding_window": 128,
        "sliding_window_pattern": 2,
        "rope_theta": 150_000.0,
        "max_position_embeddings": 131_072,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    "granite_swa": {"sliding_window": 128, "global_attn_every_n_layers": 4, "first_layer_is_full": True},
    "granitemoe_swa": {"sliding_window": 128, "global_attn_every_n_layers": 4, "first_layer_is_full": True},
    "granitemoehybrid": {"position_embedding_type": "none"},  # not Granite's default, but transformers'
    "gte": {"rope_theta": 160_000.0},
    "helium": {"rope_theta": 1e5},
    "hy_v3": {"rope_theta": 11_158_840.0},
    "kolibri1": {"sliding_window": 513, "sliding_window_pattern": 5},
    "laguna": {
        "layer_types": [FULL],
        "sliding_window": 512,
        **_by_kind({"rope_theta": 1e4}, {"rope_theta": 5e5, "partial_rotary_factor": 0.5}),
    },
    "llama4_text": {
        "no_rope_layer_interval": 4,
        "rope_theta": 5e5,
        "attention_chunk_size": 8192,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    },
    "longcat_flash": {"rope_theta": 1e7},
    "mellum": {
        "layer_types": [FULL],
        "sliding_window": 1024,
        **_by_kind({"rope_theta": 1e4}, {"rope_theta": 5e5}),
    },
    "mimo_v2_flash": {
        "sliding_window": 129,
        **_by_kind(
            {"rope_theta": 1e4, "partial_rotary_factor": 0.334},
            {"rope_theta": 5e6, "partial_rotary_factor": 0.334},
        ),
    },
    "minimax_m2": {"rope_theta": 5e6},
    "ministral": {"sliding_window": 4096},
    "ministral3": {},
    "mistral": {"sliding_window": 4096},
    "mistral4": {},
    "modernbert": {
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "first_layer_is_full": True,
        "query_is_extra": 1,
        "rope_theta": 160_000.0,
        "rope_local_base_freq": 1e4,
    },
    "modernbert-decoder": {
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "first_layer_is_full": True,
        "rope_theta": 160_000.0,
        "rope_local_base_freq": 1e4,
    },
    "muse_glimmer_text": {"sliding_window": 2048},
    "nomic_bert": {"rope_theta": 1000.0},
    "olmo3": {"sliding_window": 4096, "sliding_window_pattern": 4, "rope_theta": 5e5},
    "recurrent_gemma": {"sliding_window": 2048, **HALF},
    "smollm3": {
        "no_rope_layer_interval": 4,
        "rope_theta": 2e6,
        "windows_without_rope": True,
        **NO_WINDOW,
    },
    "step3p5": {"layer_types": [FULL]},
    "step3p7_text": {"layer_types": [FULL]},
    "vaultgemma": {"sliding_window": 4096, "sliding_window_pattern": 2},
}
# Keys without a usable default: of each group one is needed.
NEEDED_KEYS: dict[str, tuple[tuple[str, ...], ...]] = {
    "mimo_v2_flash": (("layer_types", "hybrid_layer_pattern"),),
    "ministral3": (("rope_parameters",),),
    "mistral4": (("rope_parameters",),),
    "flint": (("layer_types",),),
    "muse_glimmer_text": (("layer_types",), ("layer_rope_theta",)),
}
# Types in which a block for all kinds of layers scales only layers with full attention.
SCALES_FULL_LAYERS_ONLY = ("gemma3_text", "gemma3n_text", "olmo3", "step3p5", "step3p7_text")
# Types that leave RoPE out of layers with full attention if other layers have a window.
ROTATES_WITHIN_WINDOWS = ("afmoe", "cohere2", "exaone4", "exaone_moe", "flint", "kolibri1")
# Hybrid models whose attention layers have no positions.
WITHOUT_ROTATION = ("jamba", "kimi_linear", "nemotron_h", "zamba")
# Types with another encoding than RoPE.
WITHOUT_ROPE = ("bert", "bloom", "gpt2", "gpt_bigcode", "gpt_neo", "mpt", "opt", "roberta", "t5")
