"""Wrap implementations of other libraries as `PositionalEncoding` classes, one row of `ROWS` each.

A library is imported when one of its rows is built, so that a missing library affects only its own rows.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import distribution
from runpy import run_path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe_experiments.checking.wrapping import by_offset, from_start, pairs, whole
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding

HF, X = "transformers.models", "x_transformers.x_transformers"
FAR = 20_000  # positions in precomputed tables
Build = Callable[[ModelShape], Any]


class Foreign(PositionalEncoding):
    """Base class that holds the module from ``build(shape)`` and a function ``call`` that evaluates it."""

    def __init__(self, shape: ModelShape, build: Build, call: Callable[..., Tensor]):
        super().__init__(shape)
        self.module = build(shape)
        self.call = call


class Rotating(Foreign):
    """Rotate queries and keys by ``call(module, x_BHTK, positions_BT)``."""

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        rotated = self.call(self.module, q_BHTK, at.q_positions_BT)
        return rotated, self.call(self.module, k_BHSK, at.k_positions_BS)


class Biasing(Foreign):
    """Add the bias ``call(module, at)`` to the logits."""

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        return self.call(self.module, at)


class FromKeys(Foreign):
    """Add a bias that depends on keys alone: m j in place of -m (i - j), which is equal after a causal softmax.

    ``call(heads, length)`` returns the bias of keys 0 to length - 1.
    """

    causal_only = True

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        ids_BS = whole(at.k_positions_BS)
        heads = self.shape.num_heads
        bias_Hn = self.call(heads, int(ids_BS.max()) + 1).reshape(heads, -1)
        return bias_Hn[:, ids_BS].transpose(0, 1)[:, :, None].float()


class Embedding(Foreign):
    """Add ``call(module, x_BTD, positions_BT)`` to the embeddings."""

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return x_BTD + self.call(self.module, x_BTD, positions_BT)


@dataclass(frozen=True)
class Row:
    """An implementation: its package, its name there, and our encoding that it should equal."""

    package: str
    name: str
    against: str
    style: Callable[..., PositionalEncoding]
    build: Build
    call: Callable[..., Tensor]
    arguments: dict[str, Any] = field(default_factory=dict)  # of our encoding
    remark: str = ""  # explains a difference from our encoding
    torch: bool = True  # False: it does not compute with PyTorch tensors, so that casts do not affect it

    def make(self, shape: ModelShape) -> PositionalEncoding:
        return self.style(shape, self.build, self.call)


def load(path: str) -> Any:
    """Return the object at ``module:name``."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def torchtune_rope(shape: ModelShape) -> Any:
    """Return a module from one file, since other files need libraries that are not installed."""
    file = distribution("torchtune").locate_file("torchtune/modules/position_embeddings.py")
    return run_path(str(file))["RotaryPositionalEmbeddings"](shape.head_dim, max_seq_len=FAR)


def arrays(call: Callable[[Any], Any], asarray: Callable[[Any], Any], x: Tensor) -> Tensor:
    """Call a function of another array library with a tensor and return the result as a tensor."""
    return torch.from_numpy(np.array(call(asarray(x.detach().float().numpy())))).to(x.dtype)


def llama(shape: ModelShape, **rope: Any) -> Any:
    sizes = {"hidden_size": shape.d_model, "max_position_embeddings": shape.train_length}
    config = load("transformers:LlamaConfig")(
        num_attention_heads=shape.num_heads, rope_parameters={"rope_theta": 1e4, **rope}, **sizes
    )
    return load(f"{HF}.llama.modeling_llama:LlamaRotaryEmbedding")(config)


def rotate_llama(module: Any, x: Tensor, ids: Tensor) -> Tensor:
    cos, sin = module(x, ids.expand(len(x), -1))
    return load(f"{HF}.llama.modeling_llama:apply_rotary_pos_emb")(x, x, cos, sin)[0]


def rotate_gptj(module: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    sin, cos = module[whole(ids)].expand(len(x), -1, -1).chunk(2, dim=-1)
    apply = load(f"{HF}.gptj.modeling_gptj:apply_rotary_pos_emb")
    return apply(x.transpose(1, 2), sin, cos).transpose(1, 2)


def rotate_fla(module: None, x: Tensor, ids: Tensor) -> Tensor:
    frequencies = 10_000.0 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    apply = load("fla.modules.rotary.ops:rotary_embedding_ref")
    rows = [
        apply(row[None].transpose(1, 2), angles.cos(), angles.sin()).transpose(1, 2)
        for row, angles in zip(x, (ids[..., None].float() * frequencies).expand(len(x), -1, -1), strict=True)
    ]
    return torch.cat(rows)


def rotate_diffusers(module: None, x: Tensor, ids: Tensor) -> Tensor:
    make = load("diffusers.models.embeddings:get_1d_rotary_pos_embed")
    apply = load("diffusers.models.embeddings:apply_rotary_emb")
    rows = zip(x, ids.expand(len(x), -1), strict=True)
    return torch.cat(
        [apply(row[None], make(x.shape[-1], row_ids.float(), use_real=True)) for row, row_ids in rows]
    )


def rotate_mlx(module: Any, x: Tensor, ids: Tensor) -> Tensor:
    array = load("mlx.core:array")
    return by_offset(lambda part, offset: arrays(lambda a: module(a, offset=offset), array, part), x, ids)


def rotate_equinox(module: Any, x: Tensor, ids: Tensor) -> Tensor:
    def rotate(sequence: Tensor) -> Tensor:
        return arrays(load("jax:vmap")(module), load("jax.numpy:asarray"), sequence[0])[None]

    # Few lengths, since each is compiled.
    length = next(length for length in (32, 128, 2_048, FAR, 1 << 18) if length > ids.max())
    return from_start(rotate, x, ids, length)


def equinox_after_other_base(shape: ModelShape) -> Any:
    """Return a module of base 500 after one of base 10,000 was used in the same process."""
    rope = load("equinox.nn:RotaryPositionalEmbedding")
    rope(shape.head_dim)(load("jax.numpy:zeros")((FAR, shape.head_dim)))
    return rope(shape.head_dim, theta=500.0)


def t5(shape: ModelShape) -> Any:
    config = load("transformers:T5Config")(
        d_model=shape.d_model, num_heads=shape.num_heads, d_kv=shape.head_dim, is_decoder=shape.causal
    )
    attention = load(f"{HF}.t5.modeling_t5:T5Attention")(config, True, layer_idx=0)
    for name in "qkvo":
        delattr(attention, name)
    return attention


def whole_sequence(module: Any, x: Tensor, ids: Tensor) -> Tensor:
    """Return the vectors at the ids, from a module that maps zeros [1, n, D] to [n, D] or [1, n, D]."""
    zeros = x.new_zeros(1, int(whole(ids).max()) + 1, x.shape[-1])
    return module(zeros).reshape(zeros.shape[1:])[whole(ids)]


LLAMA = "LlamaRotaryEmbedding"
ROWS = (
    Row("transformers", LLAMA, "rope", Rotating, lambda s: llama(s, rope_type="default"), rotate_llama),
    Row("transformers", f"{LLAMA}, linear, factor 4", "rope_linear", Rotating,
        lambda s: llama(s, rope_type="linear", factor=4.0), rotate_llama, {"factor": 4.0}),
    Row("transformers", f"{LLAMA}, dynamic, factor 2", "rope_dynamic_ntk", Rotating,
        lambda s: llama(s, rope_type="dynamic", factor=2.0), rotate_llama, {"factor": 2.0},
        "the length is the largest id of a batch, or of an earlier longer one; a fresh module agrees on ids 0 .. n-1"),
    Row("transformers", f"{LLAMA}, yarn, factor 4", "rope_yarn", Rotating,
        lambda s: llama(s, rope_type="yarn", factor=4.0, original_max_position_embeddings=s.train_length),
        rotate_llama, {"factor": 4.0}),
    Row("transformers", "GPT-J apply_rotary_pos_emb", "rope", Rotating,
        lambda s: load(f"{HF}.gptj.modeling_gptj:create_sinusoidal_positions")(FAR, s.head_dim),
        rotate_gptj),
    Row("transformers", "BLOOM build_alibi_tensor", "alibi", FromKeys, lambda s: None, lambda heads, n:
        load(f"{HF}.bloom.modeling_bloom:build_alibi_tensor")(torch.ones(1, n), heads, torch.float32)),
    Row("transformers", "Falcon build_alibi_tensor", "alibi", FromKeys, lambda s: None, lambda heads, n:
        load(f"{HF}.falcon.modeling_falcon:build_alibi_tensor")(torch.ones(1, n).long(), heads, torch.float32)),
    Row("transformers", "MPT build_mpt_alibi_tensor", "alibi", FromKeys, lambda s: None, lambda heads, n:
        load(f"{HF}.mpt.modeling_mpt:build_mpt_alibi_tensor")(heads, n)),
    Row("transformers", "T5Attention.compute_bias", "t5", Biasing, t5,
        lambda module, here: pairs(lambda n: module.compute_bias(n, n)[0], here),
        {"num_buckets": 32, "max_distance": 128}),
    Row("x-transformers", "RotaryEmbedding", "rope", Rotating,
        lambda s: load(f"{X}:RotaryEmbedding")(s.head_dim),
        lambda module, x, ids: load(f"{X}:apply_rotary_pos_emb")(x, *module(ids.expand(len(x), -1)))),
    Row("x-transformers", "AlibiPositionalBias", "alibi", Biasing,
        lambda s: load(f"{X}:AlibiPositionalBias")(s.num_heads, s.num_heads),
        lambda module, here: pairs(lambda n: module(n, n).reshape(-1, n, n), here)),
    Row("x-transformers", "RelativePositionBias", "t5", Biasing,
        lambda s: load(f"{X}:RelativePositionBias")(1.0, s.causal, 32, 128, s.num_heads),
        lambda module, here: pairs(lambda n: module(n, n), here), {"num_buckets": 32, "max_distance": 128}),
    Row("x-transformers", "ScaledSinusoidalEmbedding", "sinusoidal_scaled", Embedding,
        lambda s: load(f"{X}:ScaledSinusoidalEmbedding")(s.d_model), whole_sequence),
    Row("rotary-embedding-torch", "rotate_queries_or_keys(offset=)", "rope", Rotating,
        lambda s: load("rotary_embedding_torch:RotaryEmbedding")(s.head_dim),
        lambda module, x, ids: by_offset(
            lambda part, offset: module.rotate_queries_or_keys(part, offset=offset), x, ids)),
    Row("torchtune", "RotaryPositionalEmbeddings", "rope", Rotating, torchtune_rope,
        lambda module, x, ids: module(
            x.transpose(1, 2), input_pos=whole(ids).expand(len(x), -1)).transpose(1, 2)),
    Row("fla-core", "rotary_embedding_ref", "rope", Rotating, lambda s: None, rotate_fla),
    Row("litgpt", "apply_rope", "rope", Rotating,
        lambda s: load("litgpt.model:build_rope_cache")(FAR, s.head_dim),
        lambda module, x, ids: load("litgpt.model:apply_rope")(x, *(table[whole(ids)] for table in module))),
    Row("diffusers", "get_1d_rotary_pos_embed", "rope", Rotating, lambda s: None, rotate_diffusers),
    Row("diffusers", "SinusoidalPositionalEmbedding", "sinusoidal", Embedding,
        lambda s: load("diffusers.models.embeddings:SinusoidalPositionalEmbedding")(s.d_model, FAR),
        whole_sequence),  # it adds to zeros here
    Row("fair-esm", "RotaryEmbedding", "rope", Rotating,
        lambda s: load("esm.rotary_embedding:RotaryEmbedding")(s.head_dim),
        lambda module, x, ids: from_start(lambda line: module(line[0], line[0])[0][None], x, ids)),
    Row("local-attention", "SinusoidalEmbeddings", "rope", Rotating,
        lambda s: load("local_attention.rotary:SinusoidalEmbeddings")(s.head_dim),
        lambda module, x, ids: from_start(
            lambda line: load("local_attention.rotary:apply_rotary_pos_emb")(line, line, *module(line))[0], x, ids)),
    Row("labml-nn", "RotaryPositionalEmbeddings", "rope", Rotating,
        lambda s: load("labml_nn.transformers.rope:RotaryPositionalEmbeddings")(s.head_dim),
        lambda module, x, ids: from_start(
            lambda line: module(line.permute(2, 0, 1, 3)).permute(1, 2, 0, 3), x, ids)),
    Row("labml-nn", "get_alibi_biases", "alibi", FromKeys, lambda s: None, lambda heads, n: load(
        "labml_nn.transformers.alibi:get_alibi_biases")(heads, torch.ones(1, n, dtype=torch.bool))[0].T),
    Row("positional-encodings", "PositionalEncoding1D", "sinusoidal", Embedding,
        lambda s: load("positional_encodings.torch_encodings:PositionalEncoding1D")(s.d_model), whole_sequence),
    Row("equinox", "RotaryPositionalEmbedding", "rope", Rotating,
        lambda s: load("equinox.nn:RotaryPositionalEmbedding")(s.head_dim), rotate_equinox, torch=False),
    Row("equinox", "RotaryPositionalEmbedding, base 500 after one of 10,000", "rope", Rotating,
        equinox_after_other_base, rotate_equinox, {"base": 500.0}, torch=False),
    Row("mlx", "nn.RoPE", "rope", Rotating, lambda s: load("mlx.nn:RoPE")(s.head_dim), rotate_mlx, torch=False),
    Row("mlx", "nn.RoPE, traditional", "rope", Rotating,
        lambda s: load("mlx.nn:RoPE")(s.head_dim, traditional=True), rotate_mlx, torch=False),
    Row("mlx", "nn.ALiBi", "alibi", Biasing, lambda s: lambda n: torch.from_numpy(
        np.array(load("mlx.nn:ALiBi").create_alibi_matrix(n, n, s.num_heads))[0]), pairs, torch=False),
    Row("keras-hub", "RotaryEmbedding", "rope", Rotating,
        lambda s: load("keras_hub.layers:RotaryEmbedding")(), lambda module, x, ids: arrays(
            partial(module, positions=ids.expand(len(x), -1).numpy()), np.asarray, x.transpose(1, 2)
        ).transpose(1, 2), torch=False),
    Row("keras-hub", "SinePositionEncoding", "sinusoidal", Embedding,
        lambda s: partial(arrays, load("keras_hub.layers:SinePositionEncoding")(), np.asarray), whole_sequence,
        torch=False),
)  # fmt: skip
