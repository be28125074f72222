"""Test that exported encodings compute what the originals compute."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from pe_experiments.analysis.attention_export import register_with_transformers, score_mod
from pe_experiments.checking.subject import build, draw_inputs, perturbed, reference_of
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.models.attention_scores import attention_scores

SHAPE = ModelShape(32, 4, 2, True, 12, 64)
TOKENS = 20


def perturbed_encoding(choice: str, shape: ModelShape = SHAPE) -> PositionalEncoding:
    return perturbed(build(reference_of(choice).build, shape))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("choice", ["alibi", "t5", "kerple_log", "sandwich", "hard_alibi"])
@torch.no_grad()
def test_a_score_mod_gives_the_same_weights(choice: str) -> None:
    encoding = perturbed_encoding(choice)
    inputs = draw_inputs(SHAPE, TOKENS, TOKENS, seed=0)
    modify = score_mod(encoding, 64)

    def causal(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(j <= i, modify(score, b, h, i, j), -math.inf)

    one_hot = torch.eye(TOKENS).expand(1, 4, -1, -1)
    weights = flex_attention(inputs.q_BHTK, inputs.k_BHTK, one_hot, score_mod=causal)
    torch.testing.assert_close(weights, attention_weights(encoding, inputs), rtol=0, atol=1e-6)


def attention_weights(encoding: PositionalEncoding, inputs: Any) -> Tensor:
    scores = attention_scores(encoding, inputs)
    return scores.masked_fill(scores.isnan(), -math.inf).softmax(-1)


def gpt2(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=32, n_head=4, n_layer=2, n_positions=64, vocab_size=9)
    model = transformers.GPT2Model(config).eval()
    model.wpe.weight.data.zero_()
    model.set_attn_implementation(name)
    return model


@pytest.mark.parametrize(
    "choice", ["rope", "alibi", "t5", "stick_breaking", "transformer_xl", "cope", "rope_values", "rope_ssmax"]
)
@torch.no_grad()
def test_in_transformers_caching_and_padding_change_nothing(choice: str) -> None:
    transformers = pytest.importorskip("transformers")
    register_with_transformers("exported", [perturbed_encoding(choice), perturbed_encoding(choice)])
    model = gpt2("exported")
    tokens = torch.randint(9, (2, 11), generator=torch.Generator().manual_seed(0))
    at_once = model(tokens).last_hidden_state
    assert (at_once - gpt2("eager")(tokens).last_hidden_state).abs().max() > 1e-3

    first = model(tokens[:, :6], use_cache=True)
    last = model(tokens[:, 6:], past_key_values=first.past_key_values).last_hidden_state
    torch.testing.assert_close(last, at_once[:, 6:], rtol=0, atol=1e-5)
    static = transformers.StaticCache(config=model.config, max_cache_len=32)
    for part in (tokens[:, :6], tokens[:, 6:]):
        last = model(part, past_key_values=static, use_cache=True).last_hidden_state
    torch.testing.assert_close(last, at_once[:, 6:], rtol=0, atol=1e-5)

    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), tokens], dim=1)
    is_token = torch.arange(14).expand(2, -1) >= 3
    left = model(padded, attention_mask=is_token.long()).last_hidden_state[:, 3:]
    torch.testing.assert_close(left, at_once, rtol=0, atol=1e-5)
    padded, is_token = padded.roll(-3, dims=1), is_token.roll(-3, dims=1)
    right = model(padded, attention_mask=is_token.long()).last_hidden_state[:, :11]
    torch.testing.assert_close(right, at_once, rtol=0, atol=1e-5)


@torch.no_grad()
def test_in_transformers_heads_may_share_keys() -> None:
    transformers = pytest.importorskip("transformers")
    encoding = perturbed_encoding("rope")
    inputs = draw_inputs(SHAPE, TOKENS, TOKENS, seed=0)
    register_with_transformers("exported rope", [encoding])
    layer = torch.nn.Module()
    layer.layer_idx = 0  # type: ignore[assignment]
    attend = transformers.AttentionInterface()["exported rope"]
    k_BHTK = inputs.k_BHTK[:, ::2]
    v_BHTK = torch.eye(TOKENS).expand(1, 2, -1, -1)
    _, weights = attend(layer, inputs.q_BHTK, k_BHTK, v_BHTK, None)
    repeated = type(inputs)(
        inputs.q_BHTK, k_BHTK.repeat_interleave(2, 1), inputs.x_BTD, torch.arange(TOKENS)[None]
    )
    torch.testing.assert_close(weights, attention_weights(encoding, repeated), rtol=0, atol=1e-6)
