"""The positions of a released model, read from its configuration in the format of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.encodings.mixtures import ByLayer, Composition
from pe_experiments.encodings.released_config import (
    Block,
    ReleasedLayer,
    read_settings,
    released_layers,
    without_ignored,
)
from pe_experiments.encodings.released_types import COMPRESSED
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.rope_extension import RopeDynamicNtk, RopeLinear, RopeNtk, RopeYarn
from pe_experiments.encodings.rope_released import RopeLlama3, RopeLongRope
from pe_experiments.encodings.rope_values import RopeValues
from pe_experiments.encodings.temperature import PositionTemperature
from pe_experiments.encodings.windows import Chunks, SlidingWindow
from pe_experiments.terminal.errors import nearest, shown

OLD_TYPES = {"su": "longrope", "mrope": "default"}  # old names of types
# Keys of a block of any type.
COMMON_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings")


class RopeType(NamedTuple):
    """A type of a block: the class of its encoding, and the further keys that it requires and allows."""

    cls: Callable[..., Rope]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


YARN_KEYS = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
TYPES = {
    "default": RopeType(Rope),
    "linear": RopeType(RopeLinear, ("factor",)),
    "dynamic": RopeType(RopeDynamicNtk, ("factor",), ("alpha",)),
    "yarn": RopeType(RopeYarn, ("factor",), YARN_KEYS),
    "llama3": RopeType(RopeLlama3, ("factor", "low_freq_factor", "high_freq_factor")),
    "longrope": RopeType(RopeLongRope, ("short_factor", "long_factor"), ("factor", "attention_factor")),
    "proportional": RopeType(RopeLinear, (), ("factor",)),
}
# For positions of images, read elsewhere, or without effect.
IGNORED_KEYS = (
    "mrope_section", "mrope_interleaved", "interleaved", "finetuned", "llama_4_scaling_beta",
    "max_position_embeddings",
)  # fmt: skip
IGNORED_BESIDE_ALPHA = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # Hunyuan's


class RopeHf(ByLayer):
    """The positions of a released model, from its ``config.json`` or from its block of RoPE parameters.

    The block is ``rope_parameters`` or the older ``rope_scaling`` with ``rope_theta``. Its type selects the
    encoding:
        ``default``       `Rope`
        ``linear``        `RopeLinear`
        ``dynamic``       `RopeDynamicNtk`
        ``yarn``          `RopeYarn`
        ``llama3``        `RopeLlama3`
        ``longrope``      `RopeLongRope`
        ``proportional``  `Rope` with ``kept_frequencies`` (Gemma 4)

    A file also says which layers have no RoPE, which see a sliding window or a chunk, and which have a
    separate base or a temperature. The pattern is repeated for as many layers as the model has. Frequencies
    follow from the head_dim of the model here, not of the released one; in models with latent attention
    (``qk_rope_head_dim``) only part of a head rotates, here all of it. A key that is not known and may change
    the encoding is refused by name.

    Parts of a released model that are not its encoding are ignored: layers without attention, normalised q
    and k, attention sinks, selected or compressed keys, and DeepSeek's scale of all logits.

    Source: transformers 5.23: ``ROPE_INIT_FUNCTIONS`` and the code of each model. Parameters: none. Beyond
    training: as the encodings above. In decoders and encoders.

    Args:
        config: path to a ``config.json``. For a model of text and images, the part for text is read.
        rope_parameters: the block alone, in place of a file; the original length is then taken from the block
            or from the shape. With neither argument the encoding is `Rope` with base 10,000.
        ignore: keys of the file or its block that do not matter although they are unknown here;
            ``model_type`` for a model whose keys say everything. None means no key.

    Raises:
        ValueError: for a file that cannot be read or describes a model without RoPE, for a key or a model
            type that is unknown, and for a block whose type or keys are unknown or incomplete.
    """

    file_arguments = ("config",)  # the content of this file is part of a run's identity

    def __init__(
        self,
        shape: ModelShape,
        *,
        config: str | None = None,
        rope_parameters: Mapping[str, Any] | None = None,
        ignore: Sequence[str] | None = None,
    ):
        if config is not None and rope_parameters is not None:
            raise ValueError("config and rope_parameters are both given; give one of them")
        if config is None:
            settings: dict[str, Any] = {
                "rope_parameters": without_ignored(rope_parameters or {}, ignore or ())
            }
        else:
            settings = read_settings(config, ignore or ())
        pattern = _shortest_period(released_layers(settings))
        encodings = [_layer_encoding(settings, layer) for layer in pattern[: shape.num_layers]]
        super().__init__(shape, encodings=encodings)
        blocks = [layer.block for layer in pattern if layer.block is not None]
        remarks = []
        if config is None and rope_parameters is None:
            remarks.append("without config or rope_parameters the encoding is RoPE with base 10,000")
        if len(pattern) > shape.num_layers:
            remarks.append(
                f"the model has the first {shape.num_layers} of a pattern of {len(pattern)} layers"
            )
        if settings.get("qk_rope_head_dim") and any(block.get("mscale_all_dim") for block in blocks):
            remarks.append("the released model also multiplies all logits by a factor from mscale_all_dim")
        if COMPRESSED in settings.get("layer_types", ()):
            remarks.append("the released model also attends to compressed keys beyond its window")
        if not blocks:
            remarks.append("no layer with attention has RoPE in the released model")
        self.remark = "; ".join(remarks)


def _shortest_period(layers: Sequence[ReleasedLayer]) -> Sequence[ReleasedLayer]:
    """Return the shortest prefix whose repetition gives all layers."""
    for period in range(1, len(layers)):
        if all(layer == layers[i % period] for i, layer in enumerate(layers)):
            return layers[:period]
    return layers


def _layer_encoding(settings: Block, layer: ReleasedLayer) -> MakeEncoding:
    parts: list[MakeEncoding] = []
    if layer.block is not None:
        parts.append(_block_encoding(dict(layer.block), settings))
    if layer.temperature is not None:
        parts.append(partial(PositionTemperature, **layer.temperature))  # type: ignore[arg-type]
    if not parts:
        parts.append(PositionalEncoding)
    if layer.window is not None:
        parts.append(partial(SlidingWindow, window=layer.window))
    if layer.chunk is not None:
        parts.append(partial(Chunks, chunk=layer.chunk))
    return parts[0] if len(parts) == 1 else partial(Composition, encodings=parts)


def _block_encoding(block: dict[str, Any], settings: Block) -> MakeEncoding:
    name = block.get("rope_type", block.get("type", "default"))
    rope_type = OLD_TYPES.get(name, name)
    if rope_type not in TYPES:
        raise ValueError(f"rope_parameters.rope_type={name} must be one of {', '.join(TYPES)}")
    rotates_values = settings.get("model_type") == "deepseek_v4"  # and what is read rotates back
    longest = settings.get("max_position_embeddings")
    key = "original_max_position_embeddings"  # before any extension; that of the file comes first
    original = settings.get(key) or block.get(key)
    original = int(original) if original else longest
    if rope_type in ("yarn", "longrope") and longest and original:
        block.setdefault("factor", max(1.0, longest / original))
    _check(block, rope_type)

    shared: dict[str, Any] = {"base": float(block.get("rope_theta", 10_000.0))}
    share = float(block.get("partial_rotary_factor", 1.0))
    if settings.get("qk_rope_head_dim") and "partial_rotary_factor" in block:  # of a head's rotary part
        share *= settings.get("head_dim", settings["qk_rope_head_dim"]) / settings["qk_rope_head_dim"]
    if rope_type == "proportional":
        make = partial(RopeLinear, factor=float(block.get("factor", 1.0)), **shared)
        return partial(_proportional, make, share)
    shared["rotary_fraction"] = share
    if rope_type == "dynamic" and block.get("alpha"):  # Hunyuan: the same at every length
        return partial(RopeNtk, factor=float(block["alpha"]), **shared)
    if rope_type == "default":
        return partial(RopeValues, **shared) if rotates_values else partial(_rope, **shared)
    arguments: dict[str, Any] = {}
    for key in (*TYPES[rope_type].required, *TYPES[rope_type].optional):
        if key not in block:
            continue
        value = block[key]
        if isinstance(value, Sequence):
            arguments[key] = [float(number) for number in value]
        else:
            arguments[key] = value if isinstance(value, bool) else float(value)
    if rope_type == "dynamic":
        original = longest or original
    cls = TYPES[rope_type].cls
    if rotates_values:
        if rope_type != "yarn":
            raise ValueError(f"rope_parameters.rope_type={name} is not implemented for rotated values")
        cls = _YarnOfValues
    return partial(cls, original_length=original, **shared, **arguments)


class _YarnOfValues(RopeValues, RopeYarn):
    """YaRN that rotates values, too (DeepSeek-V4)."""


def _rope(shape: ModelShape, *, base: float, rotary_fraction: float) -> PositionalEncoding:
    """Return RoPE on a share of the channels.

    An odd number n of channels is rounded up, and theta_m = base^(-2m/n), as in GLM-4.
    """
    channels = int(rotary_fraction * shape.head_dim)
    if channels % 2 and channels < shape.head_dim:
        rotary_fraction = min(1.0, (channels + 1.5) / shape.head_dim)  # `Rope` rounds down
        base = base ** ((channels + 1) / channels)  # `Rope` divides exponents by n + 1
    return Rope(shape, base=base, rotary_fraction=rotary_fraction)


def _proportional(make: MakeEncoding, share: float, shape: ModelShape) -> PositionalEncoding:
    """Return RoPE with this share of the head's frequencies, fastest first; their number is rounded down."""
    rotated_pairs = int(share * shape.head_dim // 2)
    return make(shape, kept_frequencies=rotated_pairs / (shape.head_dim // 2))  # type: ignore[call-arg]


def _check(block: Block, rope_type: str) -> None:
    """Raise ValueError for a key that is unknown, missing or not a number."""
    _, required, optional = TYPES[rope_type]
    allowed_keys = (*COMMON_KEYS, *required, *optional)
    has_alpha = rope_type == "dynamic" and "alpha" in block
    for key, value in block.items():
        if key in IGNORED_KEYS or (has_alpha and key in IGNORED_BESIDE_ALPHA):
            continue
        if key not in allowed_keys:
            raise ValueError(
                f"rope_parameters.{key} is not a key of the type {rope_type}.{nearest(key, allowed_keys)} "
                f"If it does not matter, add ignore=[{key}]"
            )
        is_list = key in ("short_factor", "long_factor") and isinstance(value, Sequence)
        numbers = value if is_list else [value]
        if key not in ("rope_type", "type") and not all(isinstance(part, int | float) for part in numbers):
            raise ValueError(f"rope_parameters.{key}={shown(repr(value))} must be a number")
    for key in required:
        if key not in block:
            raise ValueError(f"rope_parameters.{key} is missing; the type {rope_type} requires it")
