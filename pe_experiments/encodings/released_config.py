"""Read the positions of a released model from its ``config.json``: layer by layer, as transformers does.

A key that may change the encoding is read or refused by name; none is passed over.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_experiments.encodings.released_types import (
    BLOCK_BY_KIND,
    COMPLETED_BY,
    COMPRESSED,
    DEFAULTS,
    FULL,
    NEEDED_KEYS,
    READS_ROPE_SCALING,
    ROTATES_A_SHARE,
    ROTATES_WITHIN_WINDOWS,
    SCALES_FULL_LAYERS_ONLY,
    SLIDING,
    WITHOUT_ROPE,
    WITHOUT_ROTATION,
    is_read,
)
from pe_experiments.terminal.errors import allowed, shown

Block = Mapping[str, Any]

TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
# Parts of a file that describe other networks, or the format of the weights.
OTHER_PARTS = re.compile(
    "vision|visual|image|video|audio|speech|talker|code_predictor|codec|quantization|compression|projector"
)
RENAMED = {
    "rotary_emb_base": "rope_theta",
    "rotary_pct": "partial_rotary_factor",
    "rotary_emb_fraction": "partial_rotary_factor",
    "local_rope_theta": "rope_local_base_freq",
    "swa_rope_theta": "rope_local_base_freq",
    "global_rope_theta": "rope_theta",
    "layers_block_type": "layer_types",
    "block_types": "layer_types",
    "attention_window_size": "sliding_window",
    "_sliding_window_pattern": "sliding_window_pattern",
    "layer_switch": "sliding_window_pattern",
    "attn_rotary_emb": "rotary_dim",
}
ROPE_BLOCKS = ("rope_parameters", "rope_scaling")
NULL_MEANS_NONE = ("sliding_window", "attention_chunk_size")

CHUNKED = "chunked_attention"
KINDS = {
    "attention": FULL,
    "indexed_attention": FULL,  # among keys that another network selects
    "deepseek_sparse_attention": FULL,
    "minimax_m3_sparse": FULL,
    "hybrid": FULL,  # attention beside a recurrent layer
}
WITHOUT_ATTENTION = ("mamba", "mamba2", "linear_attention", "conv", "recurrent", "moe", "mlp")

# An unknown key is refused if its name contains one of these.
POSITIONAL = re.compile(
    "rope|rotary|nope|position|window|scal|theta|alibi|chunk|temperature|ntk|logn|yarn|xpos|pos_emb|relative"
    "|local_att|global_att|full_att|layer_pattern"
)
# Keys that are read here or in `rope_hf`.
READ_KEYS = (
    "rope_theta", "rope_parameters", "rope_scaling", "partial_rotary_factor", "partial_rotary_factors",
    "rotary_dim", "rope_local_base_freq", "layer_rope_theta", "no_rope_layers", "no_rope_layer_interval",
    "mla_use_nope", "position_embedding_type", "sliding_window", "sliding_window_pattern",
    "use_sliding_window", "max_window_layers", "sliding_window_size", "local_attention",
    "hybrid_layer_pattern", "global_attn_every_n_layers", "attention_chunk_size", "attn_temperature_tuning",
    "max_position_embeddings", "original_max_position_embeddings", "qk_rope_head_dim",
    "use_rope_layers", "yarn_only_types", "alibi", "compress_rope_theta",
    "prefix_dense_sliding_window_pattern",
)  # fmt: skip
# Keys that change no position. Most scale something else; interleaved channels are a permutation.
HARMLESS = (
    "rope_interleave", "rope_interleaved", "rotary_emb_interleaved", "qk_nope_head_dim", "n_positions",
    "routed_scaling_factor", "moe_routed_scaling_factor", "moe_router_scaling_factor",
    "router_scaling_factor", "route_scale", "logits_scaling", "logit_scale", "scale_emb", "scale_depth",
    "scale_embedding", "embedding_scale", "residual_scale", "scale_attn_weights", "attention_value_scale",
    "qk_scale_factor", "query_pre_attn_scalar", "altup_correct_scale", "mamba_chunk_size", "chunk_size",
    "chunk_size_feed_forward", "temperature", "full_attention_interval", "full_attn_idxs",
    "full_attn_layers", "rescale_prenorm_residual", "time_step_scale", "mtp_loss_scaling_factor",
    "add_full_attention_sink_bias", "floor_scale", "attn_scale", "w_init_variance_scale",
    "final_w_init_variance_scale", "indexer_rope_interleave", "mla_scale_q_lora", "mla_scale_kv_lora",
    "max_trained_positions",
)  # fmt: skip
# Keys that change nothing with these values.
HARMLESS_VALUES = {
    "rotary": True,
    "use_rotary_pos_emb": True,
    "use_alibi": False,
    "use_dynamic_ntk": False,
    "use_logn_attn": False,
    "position_embedding_xdrope": False,
    "rotary_scaling_factor": 1.0,
}


@dataclass(frozen=True)
class ReleasedLayer:
    """The positions of one attention layer of a released model.

    Attributes:
        block: the complete parameters of its RoPE; None without RoPE.
        window: size of its sliding window in positions; None for full attention.
        chunk: size of the chunks within which it attends; None for full attention.
        temperature: the arguments of the `PositionTemperature` of its queries; None for a constant one.
    """

    block: Block | None
    window: int | None = None
    chunk: int | None = None
    temperature: Mapping[str, float] | None = None


def read_settings(path: str, ignore: Sequence[str] = ()) -> dict[str, Any]:
    """Return the settings of the text model in a file, with the defaults of its type and without nulls.

    Args:
        path: of the ``config.json``.
        ignore: keys that do not matter although their names say otherwise.

    Raises:
        ValueError: the file cannot be read, or has a key or a ``model_type`` that is neither known nor
            ignored.
    """
    try:
        content = json.loads(Path(path).read_text())
    except OSError as error:
        raise ValueError(f"config={path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"config={path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"config={path} must contain a JSON object")
    text: dict[str, Any] = content
    while parts := [text[key] for key in TEXT_PARTS if isinstance(text.get(key), dict)]:
        text = parts[0]  # the text model inside a model of text and images
    model_type = text.get("model_type")
    if model_type in WITHOUT_ROPE:
        raise ValueError(f"config={path}: models of the type {model_type} have no RoPE")
    if model_type is None and content.get("model_type") and "model_type" not in ignore:
        raise ValueError(
            f"model_type is missing in the text part of a file of the type {content['model_type']}; "
            "with ignore=[model_type] the keys alone decide"
        )
    if model_type not in (None, *DEFAULTS) and "model_type" not in ignore:
        raise ValueError(
            f"model_type={model_type} is not known here, and its code may use positions otherwise than its "
            "keys say; with ignore=[model_type] the keys alone decide"
        )
    _refuse_unknown_keys(content, text, ignore)
    settings = dict(DEFAULTS.get(str(model_type), {}))
    for key, value in text.items():
        name = RENAMED.get(key, key)
        left_over = not (is_read(model_type, key) and (name == "rope_theta" or is_read(model_type, name)))
        if key not in ignore and not left_over and (value is not None or name in NULL_MEANS_NONE):
            settings[name] = without_ignored(value, ignore) if name in ROPE_BLOCKS else value
    if "rotary_dim" in settings:
        width = settings.get("hidden_size", settings.get("n_embd"))  # GPT-J spells the sizes as GPT-2 does
        heads = settings.get("num_attention_heads", settings.get("n_head"))
        head_dim = settings.get("head_dim") or (width and heads and width / heads)
        if not head_dim:
            raise ValueError("rotary_dim needs head_dim, or hidden_size and num_attention_heads")
        settings.setdefault("partial_rotary_factor", settings["rotary_dim"] / head_dim)
    for keys in NEEDED_KEYS.get(str(model_type), ()):
        if not any(key in settings for key in keys):
            raise ValueError(f"{allowed(keys)} is missing; models of the type {model_type} need it")
    settings = {key: value for key, value in settings.items() if value is not None}
    complete = COMPLETED_BY.get(str(settings.get("model_type")))
    return complete(settings) if complete else settings


def without_ignored(block: Any, ignore: Sequence[str]) -> Any:
    """Return a block of RoPE parameters, or one for each kind of layer, without the keys to be ignored."""
    if not isinstance(block, Mapping):
        return block
    return {key: without_ignored(value, ignore) for key, value in block.items() if key not in ignore}


def _refuse_unknown_keys(content: Block, text: Block, ignore: Sequence[str]) -> None:
    """Raise ValueError for a key that is unknown and whose name says that it concerns positions."""
    for path, value in _leaves(content, text):
        key = path.rpartition(".")[2]
        if value is None or {key, path} & {*ignore, *READ_KEYS, *HARMLESS, *RENAMED}:
            continue
        if key in HARMLESS_VALUES:
            is_known = value == HARMLESS_VALUES[key]
        else:
            is_known = not POSITIONAL.search(key.lower())
        is_copy_of_text = path != key and key in text and text[key] == value
        if not (is_known or is_copy_of_text):
            raise ValueError(
                f"{path}={shown(value)} is not known here and may change the encoding; "
                f"if it does not matter, add ignore=[{key}]"
            )


def _leaves(content: Block, text: Block, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of each key that concerns the text model."""
    for key, value in content.items():
        name = f"{path}{key}"
        yield name, value
        is_block = key in ROPE_BLOCKS  # `rope_hf` checks its keys
        if isinstance(value, Mapping) and not is_block and not OTHER_PARTS.search(key):
            yield from _leaves(value, text, "" if value is text else f"{name}.")


def released_layers(settings: Block) -> list[ReleasedLayer]:
    """Return the attention layers of a model in order, up to where their pattern repeats.

    Raises:
        ValueError: the settings contradict each other or describe something that is not implemented here.
    """
    if settings.get("alibi"):
        raise ValueError(f"alibi={settings['alibi']}: the model has ALiBi, not RoPE; take pe=alibi")
    kinds = _layer_kinds(settings)
    if settings.get("last_layer_is_full"):  # Gemma 4, whatever the file says
        layers_of_model = settings.get("num_hidden_layers", len(kinds))
        kinds = [kinds[layer % len(kinds)] for layer in range(layers_of_model)]
        kinds[-1] = FULL
    rotates = _rotates(settings, kinds)
    bases = _per_layer(settings, "layer_rope_theta") or _per_layer(settings, "rope_theta")
    shares = _per_layer(settings, "partial_rotary_factors")
    layers = []
    for index in range(math.lcm(len(kinds), len(rotates), len(bases) or 1, len(shares) or 1)):
        kind = kinds[index % len(kinds)]
        if kind in WITHOUT_ATTENTION:
            continue
        has_rope = rotates[index % len(rotates)] and (not bases or bases[index % len(bases)])
        block = _block(settings, kind) if has_rope else None
        if block is not None and shares:
            block["partial_rotary_factor"] = shares[index % len(shares)]
        if block is not None and bases:
            block["rope_theta"] = bases[index % len(bases)]
        window = _window(settings) if kind in (SLIDING, COMPRESSED) else None
        if not window or window >= settings.get("max_position_embeddings", math.inf):
            window = None  # or it covers everything
        chunk = settings.get("attention_chunk_size") if kind == CHUNKED else None
        layers.append(ReleasedLayer(block, window, chunk, _temperature(settings, block)))
    if not layers:
        raise ValueError(f"layer_types must contain {allowed((FULL, SLIDING, CHUNKED))}")
    return layers


def _temperature(settings: Block, block: Block | None) -> Mapping[str, float] | None:
    """Return the arguments of the temperature of a layer with this block; None if it has none."""
    if block is None and settings.get("attn_temperature_tuning"):
        return {"step": settings["floor_scale"], "strength": float(settings["attn_scale"]), "first": 1}
    if block is not None and block.get("llama_4_scaling_beta"):
        step = block.get("original_max_position_embeddings") or settings.get("max_position_embeddings")
        if not step:
            raise ValueError("llama_4_scaling_beta needs original_max_position_embeddings")
        return {"step": int(step), "strength": float(block["llama_4_scaling_beta"]), "first": 0}
    return None


def _layer_kinds(settings: Block) -> list[str]:
    """Return the kind of each layer as the file states it, up to where the pattern repeats."""
    layers = settings.get("num_hidden_layers")
    if "layer_types" in settings:
        kinds = [KINDS.get(kind, kind) for kind in settings["layer_types"][:layers]]
        for kind in kinds:
            if kind not in (FULL, SLIDING, CHUNKED, COMPRESSED, *WITHOUT_ATTENTION):
                raise ValueError(f"layer_types contains {kind}, which is not implemented here")
        return kinds
    if "hybrid_layer_pattern" in settings:  # MiMo: 1 where a layer has a window
        return [SLIDING if slides else FULL for slides in settings["hybrid_layer_pattern"][:layers]]
    if "attention_chunk_size" in settings:  # Llama 4: layers without RoPE see everything
        return [CHUNKED if rotates else FULL for rotates in _rotates(settings, [FULL])]
    if not _window(settings):
        return [FULL]
    if settings.get("windows_without_rope"):
        return [FULL if rotates else SLIDING for rotates in _rotates(settings, [FULL])]
    if (
        "sliding_window_pattern" in settings
    ):  # LLLG (local, global), SSSF (sliding, full) or 4, which mean the same
        pattern = settings["sliding_window_pattern"]
        if isinstance(pattern, int) and pattern >= 0:
            return [SLIDING] * (pattern - 1) + [FULL]
        if not isinstance(pattern, str) or not pattern or set(pattern) - set("LSGF"):
            raise ValueError(
                f"sliding_window_pattern={shown(pattern)} must be a number of layers, or like LLLG"
            )
        return [SLIDING if letter in "LS" else FULL for letter in pattern]
    if "global_attn_every_n_layers" in settings:
        every = settings["global_attn_every_n_layers"]
        if settings.get("first_layer_is_full"):
            return [FULL] + [SLIDING] * (every - 1)
        return [SLIDING] * (every - 1) + [FULL]
    layers = layers or 1
    full = min(settings.get("max_window_layers", 0), layers)
    return [FULL] * full + [SLIDING] * (layers - full)


def _rotates(settings: Block, kinds: Sequence[str]) -> list[bool]:
    """Return whether each layer has RoPE, up to where the pattern repeats."""
    model_type = settings.get("model_type")
    scheme = settings.get("position_embedding_type", "rope")
    without = scheme in ("nope", "none")
    if not (without or scheme.startswith(("rope", "rotary"))):
        raise ValueError(f"position_embedding_type={scheme} is not RoPE")
    if settings.get("mla_use_nope") is False:
        raise ValueError(
            "mla_use_nope=false has no effect in transformers, where attention has no RoPE then either; "
            "add ignore=[mla_use_nope] if that is meant"
        )
    if without or model_type in WITHOUT_ROTATION or settings.get("mla_use_nope"):
        return [False]
    listed = settings.get("no_rope_layers") or settings.get("use_rope_layers")
    if listed:  # 1 where a layer has RoPE, despite the name of the former
        rotates = [bool(has_rope) for has_rope in listed]
    elif "no_rope_layer_interval" in settings:
        rotates = [True] * (settings["no_rope_layer_interval"] - 1) + [False]
    else:
        rotates = [True]
    if (
        model_type in ROTATES_WITHIN_WINDOWS
        and not listed
        and (settings.get("sliding_window") or SLIDING in kinds)
    ):
        rotates = [kind == SLIDING for kind in kinds]
    return rotates


def _window(settings: Block) -> int | None:
    """Return the size of the sliding window: a query sees the keys less than so many positions away."""
    if not settings.get("use_sliding_window", True):
        return None
    window = settings.get("sliding_window")
    if "local_attention" in settings:  # ModernBERT: of both sides together
        window = (window or settings["local_attention"] // 2) + settings.get("query_is_extra", 0)
    if "sliding_window_size" in settings and settings.get("model_type") != "mimo_v2_flash":
        if window is None:
            raise ValueError(
                "sliding_window_size counts the query itself or not, depending on the model's code; "
                "give sliding_window, or add ignore=[sliding_window_size]"
            )
    elif "sliding_window_size" in settings:  # MiMo: without the query itself
        window = settings["sliding_window_size"] + 1
    if window and settings.get("use_bidirectional_attention") in (True, "all"):
        window = window // 2 + 1
    return window


def _per_layer(settings: Block, key: str) -> list[float]:
    """Return the values of a list with one number per layer; an empty list if the key is no list."""
    values = settings.get(key)
    if not isinstance(values, list):
        return []
    layers = settings.get("num_hidden_layers", len(values))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if len(values) < layers or not numbers:
        raise ValueError(f"{key} has {len(values)} values; it needs one number for each of {layers} layers")
    return [float(value) for value in values[:layers]]


def _block(settings: Block, kind: str) -> dict[str, Any] | None:
    """Return the RoPE parameters of the layers of this kind, complete; None if they have no RoPE."""
    block = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    if not isinstance(block, Mapping):
        raise ValueError(f"rope_scaling={shown(block)} must be a block of parameters")
    model_type = settings.get("model_type")
    by_kind = any(isinstance(value, Mapping) for value in block.values())  # a block for each kind of layers
    key = "rope_scaling" if settings.get("rope_scaling") else "rope_parameters"
    reads_form = by_kind == (model_type in BLOCK_BY_KIND)
    reads_both = key == "rope_scaling" and model_type in READS_ROPE_SCALING
    if block and model_type in DEFAULTS and not (reads_form or reads_both):
        form = "a block for each kind of layers" if by_kind else "one block for all kinds of layers"
        raise ValueError(f"{key} has {form}, which the code of {model_type} does not read")
    defaults = {key: settings[key] for key in ("rope_theta", "partial_rotary_factor") if key in settings}
    if by_kind:
        if kind not in block:
            raise ValueError(f"rope_parameters has no block for {kind}")
        if block[kind] is None:
            return None
        block = block[kind]
    elif kind == SLIDING:
        if model_type in SCALES_FULL_LAYERS_ONLY or "yarn_only_types" in settings:
            block = {}
        if model_type == "olmo3":  # reads the base of its file for layers with full attention alone
            defaults["rope_theta"] = DEFAULTS["olmo3"]["rope_theta"]
        if "rope_local_base_freq" in settings:
            defaults["rope_theta"] = settings["rope_local_base_freq"]
    values = {**defaults, **{key: value for key, value in block.items() if value is not None}}
    is_plain = values.get("rope_type", values.get("type", "default")) in ("default", "mrope")
    has_default = {"partial_rotary_factor", "rotary_dim"} & DEFAULTS.get(str(model_type), {}).keys()
    reads_share = model_type not in DEFAULTS or model_type in ROTATES_A_SHARE or has_default
    if is_plain and not reads_share:
        values.pop("partial_rotary_factor", None)
    return values
