"""The RoPE of a released model, read from its configuration in the format of transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.encodings.mixtures import ByLayer, Composition
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.rope_extension import RopeDynamicNtk, RopeLinear, RopeYarn
from pe_experiments.encodings.rope_released import RopeLlama3, RopeLongRope
from pe_experiments.encodings.temperature import PositionTemperature
from pe_experiments.encodings.windows import SlidingWindow
from pe_experiments.terminal.errors import allowed, nearest

Block = Mapping[str, Any]

OLD_TYPES = {"su": "longrope", "mrope": "default"}  # old names of types
OLD_KEYS = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}  # in GPT-NeoX
# Keys of a block of any type.
COMMON_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
# For each type: the further keys of its block, required ones first, and the number of required keys.
KEYS: dict[str, tuple[tuple[str, ...], int]] = {
    "default": ((), 0),
    "linear": (("factor",), 1),
    "dynamic": (("factor",), 1),
    "yarn": (
        ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
        1,
    ),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), 3),
    "longrope": (("short_factor", "long_factor", "factor", "attention_factor"), 2),
    "proportional": (("factor",), 0),
}
IGNORED_KEYS = ("mrope_section", "mrope_interleaved", "finetuned")  # for images, or without effect
# Defaults of configuration classes in transformers, by model type.
HALF: Block = {"partial_rotary_factor": 0.5}
QUARTER: Block = {"partial_rotary_factor": 0.25}
NO_WINDOW: Block = {"use_sliding_window": False}
MODEL_DEFAULTS: dict[str, Block] = {
    **dict.fromkeys(("bamba", "glm", "glm4", "glm4_moe", "glm4v_moe_text", "nemotron"), HALF),
    **dict.fromkeys(("persimmon", "phi", "recurrent_gemma"), HALF),
    **dict.fromkeys(("gpt_neox", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "stablelm"), QUARTER),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), NO_WINDOW),
    "codegen": {"rotary_dim": 64},
    "gptj": {"rotary_dim": 64},
    "gemma2": {"sliding_window_pattern": 2},
    "gemma3_text": {"sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
    "gpt_oss": {"sliding_window_pattern": 2},
    "olmo3": {"sliding_window_pattern": 4},
    "smollm3": {"no_rope_layer_interval": 4, **NO_WINDOW},
    "llama4_text": {
        "no_rope_layer_interval": 4,
        "rope_theta": 5e5,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    },
}
# Model types in which a block for all kinds of layers scales only layers with full attention.
SCALES_FULL_LAYERS_ONLY = ("gemma3_text", "olmo3")
# Model types whose code, not their file, leaves RoPE out of full-attention layers if others have a window.
ROTATES_WITHIN_WINDOWS = ("afmoe", "cohere2", "cohere2_moe", "exaone4", "exaone_moe")
WITHOUT_ROPE = ("bert", "bloom", "gpt2", "gpt_bigcode", "gpt_neo", "mpt", "opt", "roberta", "t5")
ATTENTION_KINDS = ("full_attention", "sliding_attention", "chunked_attention")


class RopeHf(ByLayer):
    """The RoPE of a released model, from its ``config.json`` or from its block of RoPE parameters.

    The block is ``rope_parameters`` or the older ``rope_scaling`` with ``rope_theta``. Its type selects the
    encoding:
        ``default``       `Rope`
        ``linear``        `RopeLinear`
        ``dynamic``       `RopeDynamicNtk`
        ``yarn``          `RopeYarn`
        ``llama3``        `RopeLlama3`
        ``longrope``      `RopeLongRope`
        ``proportional``  `Rope` with ``kept_frequencies`` (Gemma 4)

    A file also says which layers have no RoPE, which have a sliding window and which have a separate
    base. The pattern is repeated for as many layers as the model has. Frequencies follow from the head_dim of
    the model here, not of the released one.

    Parts of a released model that are not its encoding are ignored: normalised q and k, attention sinks,
    DeepSeek's scale of all logits, and the chunks of Llama 4.

    Source: ``ROPE_INIT_FUNCTIONS`` of transformers. Parameters: none. Beyond training: as the encodings
    above. In decoders and encoders.

    Args:
        config: path to a ``config.json``. For a model of text and images, the part for text is read.
        rope_parameters: the block alone, in place of a file; the original length is then taken from the block
            or from the shape. With neither argument the encoding is `Rope` with base 10,000.

    Raises:
        ValueError: for a file that cannot be read or describes a model without RoPE, and for a block whose
            type or keys are unknown or incomplete.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        config: str | None = None,
        rope_parameters: Mapping[str, Any] | None = None,
    ):
        if config is not None and rope_parameters is not None:
            raise ValueError("config and rope_parameters are both given; give one of them")
        settings = {"rope_parameters": rope_parameters or {}} if config is None else _read_settings(config)
        pattern = _shortest_period(_attention_layers(settings))
        encodings = [_layer_encoding(settings, *layer) for layer in pattern[: shape.num_layers]]
        super().__init__(shape, encodings=encodings)
        remarks = []
        if config is None and rope_parameters is None:
            remarks.append("without config or rope_parameters the encoding is RoPE with base 10,000")
        if len(pattern) > shape.num_layers:
            remarks.append(
                f"the model has the first {shape.num_layers} of a pattern of {len(pattern)} layers"
            )
        if any(kind == "chunked_attention" for kind, _ in pattern):
            remarks.append("layers that attend within chunks in the released model see all earlier tokens")
        self.remark = "; ".join(remarks)


def _read_settings(path: str) -> dict[str, Any]:
    """Return the settings in a file, without nulls and with defaults; for images and text, the text part."""
    try:
        settings = json.loads(Path(path).read_text())
    except OSError as error:
        raise ValueError(f"config={path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"config={path} is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"config={path} must contain a JSON object")
    if isinstance(settings.get("text_config"), dict):
        settings = settings["text_config"]
    settings = {OLD_KEYS.get(key, key): value for key, value in settings.items() if value is not None}
    model_type = str(settings.get("model_type"))
    if model_type in WITHOUT_ROPE:
        raise ValueError(f"config={path}: models of the type {model_type} have no RoPE")
    settings = {**MODEL_DEFAULTS.get(model_type, {}), **settings}
    if "rotary_dim" in settings:
        share = settings["rotary_dim"] / _head_dim(settings)
        settings.setdefault("partial_rotary_factor", share)
    return settings


def _head_dim(settings: Block) -> float:
    """Return the width of a head; GPT-J and CodeGen spell the sizes as GPT-2 does."""
    if "head_dim" in settings:
        return settings["head_dim"]
    width = settings.get("hidden_size", settings.get("n_embd"))
    heads = settings.get("num_attention_heads", settings.get("n_head"))
    if not (width and heads):
        raise ValueError("rotary_dim needs head_dim, or hidden_size and num_attention_heads")
    return width / heads


def _attention_layers(settings: Block) -> list[tuple[str, bool]]:
    """Return the kind of each attention layer, as in ``layer_types``, and whether it has RoPE."""
    kinds = _layer_kinds(settings)
    has_rope = _rope_per_layer(settings)
    number = math.lcm(len(kinds), len(has_rope))
    layers = [(kinds[i % len(kinds)], bool(has_rope[i % len(has_rope)])) for i in range(number)]
    if settings.get("model_type") in ROTATES_WITHIN_WINDOWS and _window(settings):
        layers = [(kind, rotates and kind == "sliding_attention") for kind, rotates in layers]
    attention_layers = [layer for layer in layers if layer[0] in ATTENTION_KINDS]
    if not attention_layers:
        raise ValueError(f"layer_types must contain {allowed(ATTENTION_KINDS)}")
    return attention_layers


def _layer_kinds(settings: Block) -> Sequence[str]:
    """Return the kind of each layer, up to where the pattern repeats."""
    if "layer_types" in settings:
        return settings["layer_types"]
    if "sliding_window_pattern" in settings:
        return ["sliding_attention"] * (settings["sliding_window_pattern"] - 1) + ["full_attention"]
    if not _window(settings):
        return ["full_attention"]
    layers = settings.get("num_hidden_layers", 1)
    full = min(settings.get("max_window_layers", 0), layers)
    return ["full_attention"] * full + ["sliding_attention"] * (layers - full)


def _rope_per_layer(settings: Block) -> Sequence[bool]:
    """Return whether each layer has RoPE, up to where the pattern repeats."""
    if settings.get("no_rope_layers"):
        return settings["no_rope_layers"]  # 1 where a layer has RoPE, despite the name
    if "no_rope_layer_interval" in settings:
        return [True] * (settings["no_rope_layer_interval"] - 1) + [False]
    return [True]


def _window(settings: Block) -> int | None:
    """Return the size of the sliding window in positions; None if there is none or it covers everything."""
    window = settings.get("sliding_window") if settings.get("use_sliding_window", True) else None
    longest = settings.get("max_position_embeddings", math.inf)
    return window if window and window < longest else None


def _shortest_period(layers: Sequence[tuple[str, bool]]) -> Sequence[tuple[str, bool]]:
    """Return the shortest prefix whose repetition gives all layers."""
    for period in range(1, len(layers)):
        if all(layer == layers[i % period] for i, layer in enumerate(layers)):
            return layers[:period]
    return layers


def _layer_encoding(settings: Block, kind: str, rotates: bool) -> MakeEncoding:
    """Return a function that builds the encoding of a layer of this kind, with or without RoPE."""
    if not rotates and settings.get("attn_temperature_tuning"):
        return partial(
            PositionTemperature, step=settings["floor_scale"], strength=float(settings["attn_scale"])
        )
    encoding = _layer_rope(settings, kind) if rotates else PositionalEncoding
    window = _window(settings)
    if kind != "sliding_attention" or window is None:
        return encoding
    return partial(Composition, encodings=[encoding, partial(SlidingWindow, window=window)])


def _layer_rope(settings: Block, kind: str) -> MakeEncoding:
    """Return a function that builds the RoPE of the layers of this kind."""
    block = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    defaults = {key: settings[key] for key in ("rope_theta", "partial_rotary_factor") if key in settings}
    if any(isinstance(value, Mapping) for value in block.values()):  # a block for each kind of layers
        if kind not in block:
            raise ValueError(f"rope_parameters has no block for {kind}")
        if block[kind] is None:
            return PositionalEncoding
        block = block[kind]
    elif kind == "sliding_attention" and settings.get("model_type") in SCALES_FULL_LAYERS_ONLY:
        block = {}
        if "rope_local_base_freq" in settings:
            defaults["rope_theta"] = settings["rope_local_base_freq"]
    values = {key: value for key, value in block.items() if value is not None}
    return _block_encoding({**defaults, **values}, settings)


def _block_encoding(block: dict[str, Any], settings: Block) -> MakeEncoding:
    """Return a function that builds the encoding of one complete block."""
    name = block.get("rope_type", block.get("type", "default"))
    rope_type = OLD_TYPES.get(name, name)
    if rope_type not in KEYS:
        raise ValueError(f"rope_parameters.rope_type={name} must be one of {', '.join(KEYS)}")
    longest = settings.get("max_position_embeddings")
    original = _original_length(block, settings)
    if rope_type in ("yarn", "longrope") and longest and original:
        block.setdefault("factor", max(1.0, longest / original))
    _check(block, rope_type)

    shared: dict[str, Any] = {"base": float(block.get("rope_theta", 10_000.0))}
    share = float(block.get("partial_rotary_factor", 1.0))
    if rope_type == "proportional":
        make = partial(RopeLinear, factor=float(block.get("factor", 1.0)), **shared)
        return partial(_proportional, make, share)
    shared["rotary_fraction"] = share
    if rope_type == "default":
        return partial(Rope, **shared)
    arguments: dict[str, Any] = {}
    for key in KEYS[rope_type][0]:
        if key in block:
            value = block[key]
            arguments[key] = value if isinstance(value, bool) else _floats(value)
    if rope_type == "dynamic":
        original = longest or original
    classes = {
        "linear": RopeLinear,
        "dynamic": RopeDynamicNtk,
        "yarn": RopeYarn,
        "llama3": RopeLlama3,
        "longrope": RopeLongRope,
    }
    return partial(classes[rope_type], original_length=original, **shared, **arguments)


def _proportional(make: MakeEncoding, share: float, shape: ModelShape) -> PositionalEncoding:
    """Return RoPE with this share of the head's frequencies, fastest first; their number is rounded down."""
    rotated_pairs = int(share * shape.head_dim // 2)
    return make(shape, kept_frequencies=rotated_pairs / (shape.head_dim // 2))  # type: ignore[call-arg]


def _original_length(block: Block, settings: Block) -> int | None:
    """Return the length before any extension, else ``max_position_embeddings``; None if neither is given."""
    length = settings.get("original_max_position_embeddings") or block.get("original_max_position_embeddings")
    return int(length) if length else settings.get("max_position_embeddings")


def _floats(value: Any) -> Any:
    """Return a number, or each number of a list, as a float."""
    return [float(part) for part in value] if isinstance(value, Sequence) else float(value)


def _check(block: Block, rope_type: str) -> None:
    """Raise ValueError for a key that is unknown, missing or not a number."""
    keys, required = KEYS[rope_type]
    allowed_keys = (*COMMON_KEYS, *keys)
    for key, value in block.items():
        if key in IGNORED_KEYS:
            continue
        if key not in allowed_keys:
            raise ValueError(
                f"rope_parameters.{key} is not a key of the type {rope_type}.{nearest(key, allowed_keys)}"
            )
        is_list = key in ("short_factor", "long_factor") and isinstance(value, Sequence)
        numbers = value if is_list else [value]
        if key not in ("rope_type", "type") and not all(isinstance(part, int | float) for part in numbers):
            raise ValueError(f"rope_parameters.{key}={value} must be a number")
    for key in keys[:required]:
        if key not in block:
            raise ValueError(f"rope_parameters.{key} is missing; the type {rope_type} requires it")
