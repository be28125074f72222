"""What the code of released models does with positions although no key of their files says so.

Facts about the classes of transformers 5.23, by ``model_type``; `tests/oracles` compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Block = Mapping[str, Any]

FULL = "full_attention"
SLIDING = "sliding_attention"
COMPRESSED = "compressed_attention"  # DeepSeek-V4: a window, and compressed keys beyond it

# Rotary models whose files say everything, apart from the defaults below.
PLAIN = (
    "arcee", "aria_text", "deepseek_v2", "deepseek_v3", "deepseek_v32", "diffllama", "eurobert", "falcon",
    "falcon_h1", "gemma", "glm4_moe_lite", "glm4v_text", "glm_image_text", "glm_moe_dsa", "glm_ocr_text",
    "granite", "granite_docling_text", "granitemoe", "granitemoeshared", "hunyuan_v1_dense", "hunyuan_v1_moe",
    "hy_v4", "hyperclovax", "internlm3", "iquestcoder", "jais2", "jamba", "jetmoe", "kimi_k2", "kimi_linear",
    "llama", "minicpm3", "ministral3", "mistral4", "nanochat", "nemotron_h", "olmo", "olmo2", "olmo_hybrid",
    "olmoe", "phi3", "seed_oss", "starcoder2", "youtu", "zamba",
)  # fmt: skip

HALF: Block = {"partial_rotary_factor": 0.5}
QUARTER: Block = {"partial_rotary_factor": 0.25}
NO_WINDOW: Block = {"use_sliding_window": False}
QWEN2_VL: Block = {"use_sliding_window": False, "sliding_window": 4096, "rope_theta": 1e6}
MODERNBERT: Block = {
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "first_layer_is_full": True,
    "rope_theta": 160_000.0,
    "rope_local_base_freq": 1e4,
}
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
    return dict.fromkeys(names, block)


def _windows(size: int, pattern: int) -> Block:
    """Return defaults in which every ``pattern``-th layer sees everything and the others have a window."""
    return {"sliding_window": size, "sliding_window_pattern": pattern}


# Defaults of the classes; a key of the file comes first.
DEFAULTS: dict[str, Block] = {
    **{name: {} for name in PLAIN},
    **_all(HALF, "bamba", "glm", "glm4", "glm4_moe", "glm4v_moe_text", "nemotron", "persimmon", "phi"),
    **_all(QUARTER, "gpt_neox", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "stablelm"),
    **_all({**NO_WINDOW, "sliding_window": 4096, "max_window_layers": 28}, "qwen2", "qwen2_moe", "qwen3"),
    **_all(
        {**QWEN2_VL, "max_window_layers": 80}, "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"
    ),
    "qwen2_5_omni_text": {**QWEN2_VL, "max_window_layers": 28},
    "qwen3_moe": {**NO_WINDOW, "sliding_window": 4096},
    "dots1": {"sliding_window": 4096, "max_window_layers": 62},
    **_all({"rope_theta": 5e5}, "bitnet", "cohere", "ernie4_5", "ernie4_5_moe", "flex_olmo"),
    **_all({"rope_theta": 5e5}, "qwen3_vl_text", "qwen3_vl_moe_text"),
    **_all({"rope_theta": 1e6}, "mixtral", "phimoe", "lfm2", "lfm2_moe", "solar_open"),
    **_all({"rope_theta": 1e6}, "qwen3_omni_moe_text"),
    **_all({"rotary_dim": 64}, "codegen", "gptj"),
    "afmoe": {"sliding_window": 1024, "global_attn_every_n_layers": 4},
    "apertus": {"rope_theta": 12e6, "rope_parameters": {"factor": 8.0, **LLAMA3}},
    "bailing_hybrid": {"rope_theta": 6e6},
    **_all(_windows(4096, 4), "cohere2", "cohere2_moe", "exaone4", "exaone_moe"),
    "cwm": {
        "sliding_window": 8192,
        "global_attn_every_n_layers": 4,
        "first_layer_is_full": True,
        "rope_theta": 1e6,
        "rope_parameters": {"factor": 16.0, **LLAMA3},
    },
    "deepseek_v4": {
        "num_hidden_layers": 43,
        "head_dim": 512,
        "sliding_window": 128,
        "rope_theta": 1e4,
        "compress_rope_theta": 160_000.0,
    },
    "flint": {"sliding_window": 513},
    **_all(_windows(4096, 2), "gemma2", "vaultgemma"),
    "gemma3_text": {**_windows(4096, 6), "rope_theta": 1e6, "rope_local_base_freq": 1e4},
    "gemma3n_text": {**_windows(512, 5), "rope_theta": 1e6, "rope_local_base_freq": 1e4},
    "gemma4_text": {
        **_windows(512, 6),
        "last_layer_is_full": True,
        **_by_kind(
            {"rope_theta": 1e4},
            {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        ),
    },
    "gpt_oss": {
        **_windows(128, 2),
        "rope_theta": 150_000.0,
        "max_position_embeddings": 131_072,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    **_all(
        {"sliding_window": 128, "global_attn_every_n_layers": 4, "first_layer_is_full": True},
        "granite_swa",
        "granitemoe_swa",
    ),
    "granitemoehybrid": {"position_embedding_type": "none"},  # not Granite's default, but transformers'
    "gte": {"rope_theta": 160_000.0},
    "helium": {"rope_theta": 1e5},
    "hy_v3": {"rope_theta": 11_158_840.0},
    "kolibri1": _windows(513, 5),
    "laguna": {
        "layer_types": [FULL],
        "sliding_window": 512,
        **_by_kind({"rope_theta": 1e4}, {"rope_theta": 5e5, "partial_rotary_factor": 0.5}),
    },
    "lfm3": {
        "layer_types": [FULL, SLIDING],
        "sliding_window": 256,
        **_by_kind(
            {"rope_theta": 1e4},
            {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e6},
        ),
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
    **_all({"rope_theta": 5e6}, "minimax_m2", "minimax_m3_vl_text"),
    **_all({"sliding_window": 4096}, "ministral", "mistral"),
    "modernbert": {**MODERNBERT, "query_is_extra": 1},
    "modernbert-decoder": MODERNBERT,
    "muse_glimmer_text": {"sliding_window": 2048},
    "nomic_bert": {"rope_theta": 1000.0},
    "olmo3": {**_windows(4096, 4), "rope_theta": 5e5},
    "phi4_multimodal": {"original_max_position_embeddings": 4096, "max_position_embeddings": 131_072},
    "recurrent_gemma": {"sliding_window": 2048, **HALF},
    "smollm3": {"no_rope_layer_interval": 4, "rope_theta": 2e6, "windows_without_rope": True, **NO_WINDOW},
    **_all({"layer_types": [FULL]}, "step3p5", "step3p7_text"),
}
# Keys without a usable default: of each group one is needed.
NEEDED_KEYS: dict[str, tuple[tuple[str, ...], ...]] = {
    "mimo_v2_flash": (("layer_types", "hybrid_layer_pattern"),),
    "ministral3": (("rope_parameters",),),
    "mistral4": (("rope_parameters",),),
    "flint": (("layer_types",),),
    "muse_glimmer_text": (("layer_types",), ("layer_rope_theta",)),
}
# Keys that only the code of types reads that have a default for them. In the file of any other known type
# they are left over.
READ_WITH_DEFAULT = (
    "attention_chunk_size", "attn_temperature_tuning", "local_attention", "max_window_layers",
    "no_rope_layer_interval", "position_embedding_type", "rope_local_base_freq", "rotary_dim",
    "sliding_window", "use_sliding_window",
)  # fmt: skip
# Keys that only the code of these types reads, beside those above.
READ_BY: dict[str, tuple[str, ...]] = {
    "attention_window_size": ("recurrent_gemma",),
    "attn_rotary_emb": (),
    "global_attn_every_n_layers": ("afmoe", "modernbert", "modernbert-decoder"),
    "hybrid_layer_pattern": ("mimo_v2_flash",),
    "layer_rope_theta": ("granite_swa", "granitemoe_swa", "muse_glimmer_text"),
    "layer_switch": (),
    "layer_types": (
        "afmoe", "bailing_hybrid", "bamba", "cohere2", "cohere2_moe", "cwm", "deepseek_v4", "dots1",
        "exaone4", "exaone_moe", "falcon_h1", "flint", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text",
        "gpt_oss", "granite_swa", "granitemoe_swa", "granitemoehybrid", "jamba", "kimi_linear", "kolibri1",
        "laguna", "lfm2", "lfm2_moe", "lfm3", "llama4_text", "mellum", "mimo_v2_flash", "ministral",
        "modernbert", "modernbert-decoder", "muse_glimmer_text", "nemotron_h", "olmo3", "olmo_hybrid",
        "qwen2", "qwen2_5_omni_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl",
        "qwen2_vl_text", "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "recurrent_gemma",
        "smollm3", "step3p5", "step3p7_text", "vaultgemma", "zamba",
    ),
    "no_rope_layers": ("llama4_text", "smollm3"),
    "rotary_dim": ("minimax_m2",),
    "sliding_window": (
        "ministral3", "mixtral", "modernbert", "modernbert-decoder", "phi3", "phi4_multimodal", "phimoe",
        "smollm3", "starcoder2", "step3p5", "step3p7_text",
    ),
    "sliding_window_pattern": ("cohere2", "cohere2_moe", "exaone4", "exaone_moe", "gemma3_text"),
    "sliding_window_size": ("mimo_v2_flash",),
}  # fmt: skip
# Keys that the code of most types reads, but not of these.
NOT_READ = (
    ("bamba", "partial_rotary_factor"),  # it rotates half of the channels
    ("modernbert", "rope_theta"),  # but ``global_rope_theta``
    ("modernbert-decoder", "rope_theta"),
)
# Types that rotate a share of the channels without any extension of RoPE, beside those with a default for it;
# the others read it only with one.
ROTATES_A_SHARE = (
    "deepseek_v4", "glm4_moe_lite", "glm4v_text", "glm_image_text", "glm_ocr_text", "laguna", "mellum",
    "mimo_v2_flash", "minimax_m2", "minimax_m3_vl_text", "phi3", "phi4_multimodal", "solar_open", "step3p5",
    "step3p7_text",
)  # fmt: skip
# Types in which a block for all kinds of layers, the older ``rope_scaling``, scales only full attention.
SCALES_FULL_LAYERS_ONLY = ("gemma3_text", "gemma3n_text", "olmo3", "step3p5", "step3p7_text")
# Types that read a block of RoPE parameters for each kind of layer, and the older ``rope_scaling``, a block
# for all kinds of layers, too.
READS_ROPE_SCALING = (*SCALES_FULL_LAYERS_ONLY, "modernbert", "modernbert-decoder")
# Types that read a block for each kind of layers; all others read one for all layers.
BLOCK_BY_KIND = (
    *READS_ROPE_SCALING, "deepseek_v4", "gemma4_text", "laguna", "lfm3", "mellum", "mimo_v2_flash"
)  # fmt: skip
# Types that leave RoPE out of layers with full attention if other layers have a window.
ROTATES_WITHIN_WINDOWS = ("afmoe", "cohere2", "cohere2_moe", "exaone4", "exaone_moe", "flint", "kolibri1")
# Hybrid models whose attention layers have no positions.
WITHOUT_ROTATION = ("jamba", "kimi_linear", "nemotron_h", "zamba")
# Types with another encoding than RoPE.
WITHOUT_ROPE = ("bert", "bloom", "gpt2", "gpt_bigcode", "gpt_neo", "mpt", "opt", "roberta", "t5")


def is_read(model_type: str | None, key: str) -> bool:
    """Return whether the code of a type reads a key; of a type that is not known here, every key."""
    if (model_type, key) in NOT_READ:
        return False
    if model_type not in DEFAULTS or key not in (*READ_BY, *READ_WITH_DEFAULT):
        return True
    has_default = key in READ_WITH_DEFAULT and key in DEFAULTS[model_type]
    return has_default or model_type in READ_BY.get(key, ())


def _deepseek_v4(settings: dict[str, Any]) -> dict[str, Any]:
    """DeepSeek-V4: layers with a window alone have plain RoPE, those with compressed keys another base."""
    layers = settings["num_hidden_layers"]
    kinds = settings.get("layer_types")
    if kinds is None and "compress_ratios" in settings:
        kinds = [COMPRESSED if ratio else SLIDING for ratio in settings["compress_ratios"]]
    kinds = [COMPRESSED if "compressed" in kind else kind for kind in kinds or [COMPRESSED]]
    rotary_width = settings.pop("qk_rope_head_dim", 64 / 512 * settings["head_dim"])
    share = settings.pop("partial_rotary_factor", rotary_width / settings["head_dim"])
    block = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    plain = {"rope_theta": settings["rope_theta"], "partial_rotary_factor": share}
    if "main" not in block or "compress" not in block:
        stretched = {**block, "rope_theta": settings["compress_rope_theta"], "partial_rotary_factor": share}
        if "yarn" in (block.get("rope_type"), block.get("type")):
            stretched.setdefault("attention_factor", 1.0)
        block = {"main": plain, "compress": stretched}
    by_kind = {SLIDING: {**plain, **block["main"]}, COMPRESSED: {**plain, **block["compress"]}}
    settings.pop("rope_scaling", None)
    return {**settings, "layer_types": kinds[:layers], "rope_parameters": by_kind}


def _cohere2_moe(settings: dict[str, Any]) -> dict[str, Any]:
    """Command's mixture of experts: the first, dense layers have a pattern of their own, and RoPE."""
    layers = settings.get("num_hidden_layers", 40)
    dense = settings.get("first_k_dense_replace", 0)
    dense_pattern = settings.get("prefix_dense_sliding_window_pattern", 1)
    pattern = settings["sliding_window_pattern"]
    kinds = [FULL if (i + 1) % dense_pattern == 0 else SLIDING for i in range(dense)]
    kinds += [FULL if (i + 1) % pattern == 0 else SLIDING for i in range(layers - dense)]
    kinds = settings.get("layer_types", kinds)[:layers]
    mlp_kinds = settings.get("mlp_layer_types", ["dense"] * dense + ["sparse"] * (layers - dense))
    always_rotates = [kind == "dense" and dense_pattern == 1 for kind in mlp_kinds[:layers]]
    rotates = [kind == SLIDING or always for kind, always in zip(kinds, always_rotates, strict=True)]
    return {**settings, "num_hidden_layers": layers, "layer_types": kinds, "use_rope_layers": rotates}


def _qwen2_moe(settings: dict[str, Any]) -> dict[str, Any]:
    """Qwen2's mixture of experts: every other one of the first layers has the window."""
    if not settings["use_sliding_window"] or "layer_types" in settings:
        return settings
    layers = settings.get("num_hidden_layers", 24)
    windowed = [i % 2 == 0 and i < settings["max_window_layers"] for i in range(layers)]
    return {**settings, "layer_types": [SLIDING if has_window else FULL for has_window in windowed]}


def _recurrent_gemma(settings: dict[str, Any]) -> dict[str, Any]:
    """RecurrentGemma: all attention is local, whatever a file calls it."""
    kinds = settings.get("layer_types", ["recurrent", "recurrent", "attention"])
    return {**settings, "layer_types": ["recurrent" if kind == "recurrent" else SLIDING for kind in kinds]}


def _phi3(settings: dict[str, Any]) -> dict[str, Any]:
    """Phi-3 and Phi-4: an early name of LongRoPE was yarn."""
    block = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    if "yarn" not in (block.get("rope_type"), block.get("type")):
        return settings
    settings.pop("rope_scaling", None)
    return {**settings, "rope_parameters": {**block, "rope_type": "longrope"}}


def _smollm3(settings: dict[str, Any]) -> dict[str, Any]:
    """SmolLM3: layers that are listed with a window have it, whatever ``use_sliding_window`` says."""
    return settings | ({"use_sliding_window": True} if "layer_types" in settings else {})


# What writes out in settings what only the code of a type computes from other keys.
COMPLETED_BY = {
    "cohere2_moe": _cohere2_moe,
    "deepseek_v4": _deepseek_v4,
    "phi3": _phi3,
    "phi4_multimodal": _phi3,
    "qwen2_moe": _qwen2_moe,
    "recurrent_gemma": _recurrent_gemma,
    "smollm3": _smollm3,
}
