"""Queries and keys as attention receives them in small models of transformers.

All tokens are equal, and every layer's output is set to 0, so that hidden states are the same at all
positions: queries differ by their positions alone, whatever the architecture.
"""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

# Sizes that replace those of a file, if it or the class of its configuration has the key.
SIZES = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64,
    "intermediate_size": 32, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "n_shared_experts": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "rotary_dim": 8, "global_head_dim": 32, "num_global_key_value_heads": 2,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64, "num_kv_shared_layers": 0,
    "floor_scale": 7, "attention_chunk_size": 8,
    "o_groups": 2, "o_lora_rank": 8, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4, "hc_mult": 2,
    "linear_num_heads": 2, "linear_head_dim": 8, "ffn_hidden_size": 32, "num_experts_per_token": 2,
    "mamba_n_heads": 8, "mamba_d_ssm": 64, "mamba_d_state": 16, "mamba_chunk_size": 16,
}  # fmt: skip
# Lengths that replace those of a file, so that they matter within a few tokens.
LENGTHS = {
    "sliding_window": 6, "sliding_window_size": 5, "local_attention": 6, "attention_window_size": 6,
}  # fmt: skip
# Text models whose class does not follow from that of their configuration.
TEXT_MODELS = {
    "qwen2_5_omni_text": "Qwen2_5OmniThinkerTextModel",
    "qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextModel",
}
STEP = 7  # of a temperature that is given beside YaRN
RESIDUAL = re.compile(
    r"(o_proj|o_b_proj|out_proj|down_proj|c_proj|dense|dense_4h_to_h|Wo|w2|wo|fc2|output_linear|linear_out)\b"
)


@dataclass(frozen=True)
class Seen:
    """What one call of attention receives: queries and keys [T, K] of the first head, the mask [T, T]."""

    q_TK: Tensor
    k_TK: Tensor
    visible_TT: Tensor


def small_fields(fields: Mapping[str, Any], known: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The keys of a file with small sizes; ``known`` are the keys of the class of its configuration."""
    number = fields.get("num_hidden_layers", layers)
    small = dict(fields)
    for sizes, present in ((SIZES, {*known, *fields}), (LENGTHS, {*fields})):
        small |= {
            key: size for key, size in sizes.items() if key in present and fields.get(key, 0) is not None
        }
    for key, value in fields.items():
        if isinstance(value, list) and len(value) == number:
            small[key] = value[:layers]
    if "head_dim" not in fields and (known.get("head_dim") is None or "qk_rope_head_dim" in known):
        small.pop("head_dim", None)
    if "linear_attn_config" in fields:
        lists = fields["linear_attn_config"]
        small["linear_attn_config"] = {key: [n for n in lists[key] if n <= layers] for key in lists}
    block = fields.get("rope_parameters") or {}
    if "llama_4_scaling_beta" in block:
        small["rope_parameters"] = {**block, "original_max_position_embeddings": STEP}
    scaling = fields.get("rope_scaling") or {}
    if "long_factor" in scaling:
        pairs = int(fields["partial_rotary_factor"] * SIZES["head_dim"]) // 2
        lists = {key: scaling[key][:pairs] for key in ("short_factor", "long_factor")}
        small["rope_scaling"] = {**scaling, **lists}
    small["num_hidden_layers"] = layers
    return small


def known_keys(model_type: str) -> dict[str, Any]:
    """The keys of the class of a configuration, with their defaults."""
    transformers = pytest.importorskip("transformers")
    return transformers.AutoConfig.for_model(model_type).to_dict()


def attention_inputs(fields: Mapping[str, Any], tokens: int) -> list[Seen]:
    """What each layer's attention receives, in their order."""
    transformers = pytest.importorskip("transformers")
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    seen: list[Seen] = []

    def record(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any
    ) -> Any:
        visible = torch.ones(tokens, tokens, dtype=torch.bool)
        if attention_mask is not None:
            is_bool = attention_mask.dtype == torch.bool
            visible = attention_mask[0, 0] if is_bool else attention_mask[0, 0] > -1
            visible = visible[:, :tokens]  # DeepSeek-V4 appends compressed keys
        seen.append(Seen(query[0, 0].detach(), key[0, 0, :tokens].detach(), visible))
        return query.new_zeros(*query.shape[:1], query.shape[2], query.shape[1], value.shape[-1]), None

    transformers.AttentionInterface.register("recorded", record)
    AttentionMaskInterface.register("recorded", eager_mask)
    config = transformers.AutoConfig.for_model(**copy.deepcopy(dict(fields)))
    config._attn_implementation = "recorded"
    torch.manual_seed(0)
    module = importlib.import_module(type(config).__module__.replace("configuration", "modeling"))
    if hasattr(module, "Phi4MultimodalFeatureEmbedding"):  # its towers for images and audio are large
        module.Phi4MultimodalFeatureEmbedding = TextAlone
    if type(config) in transformers.MODEL_MAPPING:
        model = transformers.AutoModel.from_config(config, attn_implementation="recorded")
    else:  # a class that is part of another
        usual_name = type(config).__name__.replace("Config", "Model")
        bare = getattr(module, TEXT_MODELS.get(config.model_type, usual_name))
        model = bare._from_config(config, attn_implementation="recorded")
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if RESIDUAL.search(name):
                parameter.zero_()
            elif parameter.dim() > 1:
                parameter.normal_(0, 0.3)
        model(input_ids=torch.full((1, tokens), 3), use_cache=False)
    return seen


class TextAlone(nn.Module):
    """Takes the place of a network that inserts images and audio: embeddings stay as they are."""

    def __init__(self, config: Any):
        super().__init__()

    def forward(self, input_ids: Tensor, inputs_embeds: Tensor, **_: Any) -> Tensor:
        return inputs_embeds


def half_split(x_TK: Tensor, rotated: int) -> Tensor:
    """Reorder channels: neighbours in the first ``rotated`` channels become the pairs (m, m + rotated/2)."""
    pairs, others = x_TK[..., :rotated], x_TK[..., rotated:]
    return torch.cat([pairs.unflatten(-1, (-1, 2)).mT.flatten(-2), others], dim=-1)


def trailing(x_TK: Tensor, rotated: int) -> Tensor:
    """Reorder channels: neighbours in the last ``rotated`` channels become pairs in front (DeepSeek-V4)."""
    return half_split(x_TK.roll(rotated, dims=-1), rotated)


def unchanged(x_TK: Tensor, rotated: int) -> Tensor:
    """Pairs are (m, m + rotated/2), as in Llama."""
    return x_TK


def swapped(x_TK: Tensor, rotated: int) -> Tensor:
    """Exchange the halves of the first ``rotated`` channels, which reverses the rotation (nanochat)."""
    pairs, others = x_TK[..., :rotated], x_TK[..., rotated:]
    return torch.cat([pairs.roll(rotated // 2, dims=-1), others], dim=-1)
