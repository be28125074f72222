"""Optional parts of attention against their formulas in float64 and against libraries."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.alibi import Alibi
from pe_experiments.encodings.mixtures import ByLayer
from pe_experiments.encodings.pope import Pope
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.stick_breaking import StickBreaking
from pe_experiments.models import Transformer
from pe_experiments.models.attention import Attention
from pe_experiments.models.cpu import UNPACKED
from pe_experiments.terminal.errors import NotApplicable

HEADS, WIDTH, TOKENS = 2, 4, 7
SHAPE = ModelShape(HEADS * WIDTH, HEADS, 2, True, 20, 20)
OPTIONS: dict[str, dict[str, Any]] = {
    "token_shift": {"token_shift": True},
    "qk_norm": {"qk_norm": True},
    "sinks": {"sinks": True},
    "head": {"output_gate": "head"},
    "channel": {"output_gate": "channel"},
}
COMBINED = ["token_shift", "qk_norm", "sinks", "channel"]
ALL: dict[str, Any] = {key: value for name in COMBINED for key, value in OPTIONS[name].items()}


def randomised(module: torch.nn.Module, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return module


def attention(implementation: str = "eager", **options: Any) -> Attention:
    model = Transformer(9, SHAPE, PositionalEncoding, attention_implementation=implementation, **options)
    return randomised(model.layers[0].attention.double())


def context(x_BTD: Tensor) -> AttentionContext:
    ids = torch.arange(TOKENS)[None]
    visible = torch.ones(1, TOKENS, TOKENS, dtype=torch.bool).tril()
    return AttentionContext(ids, ids, visible, None, x_BTD)


def result(module: Attention, encoding: PositionalEncoding, x_BTD: Tensor) -> Tensor:
    shifted = module.hidden(x_BTD, UNPACKED)
    return module(shifted, encoding, context(shifted))


def reference(module: Attention, names: list[str], x_TD: Tensor, slopes_H: Tensor) -> Tensor:
    """Return attention with ALiBi as its formulas say, a part after the other."""
    values = dict(module.named_parameters())

    def weight(name: str, key: str) -> Tensor:
        return values[f"parts.{names.index(name)}.{key}"]

    if "token_shift" in names:
        taps_DW = weight("token_shift", "convolution.weight")[:, 0]
        earlier_TDW = torch.nn.functional.pad(x_TD, (0, 0, 3, 0)).unfold(0, 4, 1)
        x_TD = x_TD + (earlier_TDW * taps_DW).sum(-1)
    qkv_TE = x_TD @ values["qkv.weight"].T + values["qkv.bias"]
    q_HTK, k_HTK, v_HTK = qkv_TE.unflatten(-1, (3, HEADS, WIDTH)).permute(1, 2, 0, 3)
    if "qk_norm" in names:
        q_HTK, k_HTK = (
            x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight("qk_norm", f"{name}_norm.weight")
            for name, x in (("q", q_HTK), ("k", k_HTK))
        )
    t = torch.arange(TOKENS)
    distances_TS = t[:, None] - t
    logits_HTS = q_HTK @ k_HTK.mT / math.sqrt(WIDTH) - slopes_H[:, None, None] * distances_TS
    exponentials_HTS = logits_HTS.exp() * (distances_TS >= 0)
    total_HT1 = exponentials_HTS.sum(-1, keepdim=True)
    if "sinks" in names:
        total_HT1 = total_HT1 + weight("sinks", "sink_H").exp()[:, None, None]
    y_THK = (exponentials_HTS / total_HT1 @ v_HTK).transpose(0, 1)
    if "head" in names:
        y_THK = y_THK * (x_TD @ weight("head", "gate.weight").T).sigmoid()[..., None]
    if "channel" in names:
        y_THK = y_THK * (x_TD @ weight("channel", "gate.weight").T).sigmoid().view_as(y_THK)
    return y_THK.flatten(-2) @ values["output.weight"].T + values["output.bias"]


@pytest.mark.parametrize("names", [[], *([name] for name in OPTIONS), COMBINED])
@pytest.mark.parametrize("implementation", ["eager", "sdpa", "blocked"])
@torch.no_grad()
def test_attention_equals_its_formulas(names: list[str], implementation: str) -> None:
    options = {key: value for name in names for key, value in OPTIONS[name].items()}
    module = attention(implementation, **options)
    generator = torch.Generator().manual_seed(5)
    x_BTD = torch.randn(1, TOKENS, HEADS * WIDTH, generator=generator, dtype=torch.float64)
    encoding = Alibi(SHAPE)
    expected = reference(module, names, x_BTD[0], torch.tensor([2**-4, 2**-8]).double())
    tolerance = 1e-6 if implementation == "sdpa" else 1e-7  # biases are in float32
    computed = result(module, encoding, x_BTD)[0]
    torch.testing.assert_close(computed, expected, rtol=0, atol=tolerance * expected.abs().max().item())


def model(encoding: Any = Rope, causal: bool = True, **options: Any) -> Transformer:
    shape = ModelShape(16, 2, 2, causal, 20, 20)
    return Transformer(9, shape, encoding, initialisation="pytorch", **options)


@pytest.mark.parametrize("name", [*OPTIONS, "all"])
def test_padding_later_tokens_and_the_choice_of_tokens_change_nothing(name: str) -> None:
    """Packed in training, padded in evaluation, and with only the answer's tokens in the last layer."""
    network = randomised(model(**(ALL if name == "all" else OPTIONS[name])).double())
    tokens = torch.randint(9, (3, 12), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([4, 12, 5])
    packed = network.hidden(tokens, lengths_B=lengths)
    with torch.no_grad():
        padded = network.hidden(tokens, lengths_B=lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = network.hidden(tokens[row : row + 1, :length])[0]
        torch.testing.assert_close(packed[row, :length], alone)
        torch.testing.assert_close(padded[row, :length], alone.detach())
    chosen = torch.tensor([1, 13, 22])
    selected = network.hidden(tokens, lengths_B=lengths, indices_n=chosen)
    torch.testing.assert_close(selected, packed.flatten(0, 1)[chosen])
    selected.sum().backward()
    unused = [key for key, parameter in network.named_parameters() if parameter.grad is None]
    assert not [key for key in unused if not key.startswith(("head", "encodings"))]


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "blocked"])
def test_queries_and_keys_may_be_normalised_after_the_rotation(implementation: str) -> None:
    generator = torch.Generator().manual_seed(5)
    x_BTD = torch.randn(1, TOKENS, HEADS * WIDTH, generator=generator, dtype=torch.float64)
    module = attention(implementation, qk_norm="after")
    rope = Rope(SHAPE, base=5.0)
    q, k, v = module.qkv(x_BTD).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
    q, k = rope.rotate(q, k, context(x_BTD))
    norm = module.parts[0]
    q, k = norm.q_norm(q), norm.k_norm(k)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = module.output(y.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(result(module, rope, x_BTD), expected, rtol=0, atol=1e-6)
    before = attention(implementation, qk_norm="before")
    before.load_state_dict(module.state_dict())  # the same keys
    assert not torch.allclose(result(before, rope, x_BTD), expected, atol=1e-3)


def mixed(shape: ModelShape) -> ByLayer:
    return ByLayer(shape, encodings=[Rope, StickBreaking])


@pytest.mark.parametrize(
    ("encoding", "options", "refusal"),
    [
        (StickBreaking, {"qk_norm": "after"}, r"model.qk_norm=after needs the softmax; StickBreaking"),
        (StickBreaking, {"sinks": True}, r"sinks=true needs the softmax; StickBreaking"),
        (mixed, {"sinks": True}, r"sinks=true needs the softmax; StickBreaking"),
        (Alibi, {"causal": False, "token_shift": True}, "token_shift reads earlier tokens only; take model="),
        (Pope, {"qk_norm": "after"}, "qk_norm=after: the encoding makes queries of 16 channels from 8"),
    ],
)
def test_parts_refuse_what_they_cannot_change(encoding: Any, options: dict[str, Any], refusal: str) -> None:
    with pytest.raises(NotApplicable, match=refusal):
        model(encoding, **options)(torch.zeros(1, 3, dtype=torch.long))
