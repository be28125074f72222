"""Encodings against published libraries; `test_released_models` compares RoPE and temperatures."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pe_experiments.checking import small_shape
from pe_experiments.checking.subject import draw_content, perturbed
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.alibi import Alibi
from pe_experiments.encodings.cope import Cope
from pe_experiments.encodings.deberta import Deberta
from pe_experiments.encodings.entmax import entmax
from pe_experiments.encodings.learned_relative import LearnedRelative
from pe_experiments.encodings.pope import Pope
from pe_experiments.encodings.t5 import distance_bucket
from pe_experiments.models.attention_scores import Inputs, attention_scores

SHAPE = ModelShape(64, 2, 2, False, 20, 64)  # two heads of 32; sequences of 30 tokens below


def assert_equal_logits(encoding: PositionalEncoding, given: Inputs, expected: Tensor) -> None:
    logits = attention_scores(encoding, given).detach()
    expected = expected.detach()
    visible = ~logits.isnan()
    largest = float(expected[visible].abs().max())
    torch.testing.assert_close(logits[visible] / largest, expected[visible] / largest, rtol=0, atol=1e-5)


def test_pope_equals_x_transformers() -> None:
    library = pytest.importorskip("x_transformers.x_transformers")
    encoding = perturbed(Pope(SHAPE))
    polar = library.PolarEmbedding(32, 2)
    polar.learned_bias.data = encoding.delta_HK.detach()[:, None]
    positions = torch.arange(200)
    given = draw_content(SHAPE, positions[None], seed=0)
    freqs, delta = (part.detach() for part in polar(positions))
    q = library.apply_polar_pos_emb(given.q_BHTK, freqs)
    k = library.apply_polar_pos_emb(given.k_BHTK, freqs + delta)
    assert_equal_logits(encoding, given, q @ k.mT / math.sqrt(32))


@pytest.mark.parametrize("alpha", [1.05, 1.3, 1.5, 1.75, 2.0])
def test_entmax_and_its_gradient_equal_the_authors_package(alpha: float) -> None:
    library = pytest.importorskip("entmax")
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4, 5, 90, dtype=torch.float64, generator=generator)
    weighting = torch.randn(logits.shape, dtype=torch.float64, generator=generator)
    results = []
    for function in (entmax, lambda z, alpha: library.entmax_bisect(z, alpha, n_iter=100)):
        z = logits.clone().requires_grad_()
        weights = function(z, alpha)
        results.append((weights.detach(), *torch.autograd.grad((weights * weighting).sum(), z)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    if alpha in (1.5, 2.0):
        exact = library.entmax15 if alpha == 1.5 else library.sparsemax
        torch.testing.assert_close(results[0][0], exact(logits, dim=-1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("max_position", [3, 40])
def test_cope_equals_x_transformers(max_position: int) -> None:
    library = pytest.importorskip("x_transformers.x_transformers")
    shape = ModelShape(64, 2, 2, True, 20, 64)
    encoding = perturbed(Cope(shape, max_position=max_position))
    module = library.CoPE(32, 2, max_position + 1)
    module.pos_emb.data = encoding.table_RK.detach()
    given = draw_content(shape, torch.arange(30)[None], seed=0)
    content = given.q_BHTK @ given.k_BHTK.mT / math.sqrt(32)
    masked = content.masked_fill(torch.ones(30, 30, dtype=torch.bool).triu(1), -torch.inf)
    assert_equal_logits(encoding, given, content + module(given.q_BHTK, masked))


@pytest.mark.parametrize("extent", [1, 7, 100])
def test_learned_relative_logits_equal_transformers(extent: int) -> None:
    inkling = pytest.importorskip("transformers.models.inkling.modeling_inkling")
    shape = ModelShape(64, 2, 2, True, 20, 64)
    encoding = perturbed(LearnedRelative(shape, d_rel=5, extent=extent))
    positions = torch.arange(30)
    given = draw_content(shape, positions[None], seed=0)
    content = given.q_BHTK @ given.k_BHTK.mT / math.sqrt(32)

    released = inkling.InklingRelativeLogits(5, extent)
    released.proj.data = encoding.profiles_RE.detach()
    mixed_BTHR = encoding.mix(given.x_BTD).unflatten(-1, (2, 5))
    assert_equal_logits(encoding, given, content + released(mixed_BTHR, positions, positions))


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 7, 8, 12, 16, 20])
def test_alibi_equals_transformers_bloom(num_heads: int) -> None:
    """BLOOM's tensor gives m * j, which is the same after the softmax of a causal row."""
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    expected = bloom.build_alibi_tensor(torch.ones(1, 9), num_heads, torch.float32).view(1, num_heads, 1, 9)
    shape = small_shape(d_model=2 * num_heads, num_heads=num_heads)
    empty = torch.zeros(1, num_heads, 9, 2)
    logits = attention_scores(Alibi(shape), Inputs(empty, empty, empty, torch.arange(9)[None]))
    logits = logits.nan_to_num(-torch.inf)
    mask = torch.full((9, 9), -torch.inf).triu(1)
    torch.testing.assert_close((logits + mask).softmax(-1), (expected + mask).softmax(-1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (32, 42), (16, 20), (8, 300)])
def test_t5_buckets_equal_transformers(causal: bool, buckets: int, farthest: int) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    steps = torch.arange(-500, 501)
    expected = t5.T5Attention._relative_position_bucket(
        steps, bidirectional=not causal, num_buckets=buckets, max_distance=farthest
    )
    assert torch.equal(distance_bucket(steps, buckets, farthest, causal), expected)


@pytest.mark.parametrize("max_distance", [5, 64])
def test_deberta_equals_transformers(max_distance: int) -> None:
    """Only its position bias is compared, at our queries and keys."""
    modeling = pytest.importorskip("transformers.models.deberta.modeling_deberta")
    from transformers import DebertaConfig

    sizes = {"hidden_size": 64, "num_attention_heads": 2, "max_relative_positions": max_distance}
    config = DebertaConfig(**sizes, pos_att_type=["c2p", "p2c"], relative_attention=True)
    attention = modeling.DisentangledSelfAttention(config).eval()
    encoding = perturbed(Deberta(SHAPE, max_distance=max_distance, key_index="released"))
    with torch.no_grad():
        attention.pos_proj.weight.copy_(encoding.key_map_LDD[0].T)
        attention.pos_q_proj.weight.copy_(encoding.query_map_LDD[0].T)
        attention.pos_q_proj.bias.zero_()
    given = draw_content(SHAPE, torch.arange(30)[None], seed=0)
    relative = torch.arange(30)[:, None] - torch.arange(30)
    scaled = given.q_BHTK / math.sqrt(3 * 32)
    content = scaled @ given.k_BHTK.mT
    bias = attention.disentangled_att_bias(scaled, given.k_BHTK, relative[None], encoding.positions_RD, 3)
    assert_equal_logits(encoding, given, content + bias)
