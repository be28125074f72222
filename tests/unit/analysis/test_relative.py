"""Test facts about encodings of distances and contents that need no training."""

from functools import partial
from typing import Any

import pytest
import torch

from pe_experiments.checking import small_shape
from pe_experiments.checking.subject import draw_inputs, reference_of
from pe_experiments.encodings import AttentionContext
from pe_experiments.encodings.alibi import Alibi
from pe_experiments.encodings.dape import Dape
from pe_experiments.encodings.layer_pattern import LayerPattern
from pe_experiments.encodings.learned import Learned
from pe_experiments.encodings.mixtures import ByHead, ByLayer, Composition
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.rope_extension import RopeNtk
from pe_experiments.encodings.rope_released import RopeLongRope
from pe_experiments.encodings.shaw import Shaw
from pe_experiments.encodings.sinusoidal import Sinusoidal
from pe_experiments.encodings.softmax import is_masked
from pe_experiments.encodings.stick_breaking import StickBreaking
from pe_experiments.encodings.t5 import T5Bias, distance_bucket
from pe_experiments.encodings.tensors import clamped
from pe_experiments.encodings.windows import SlidingWindow
from pe_experiments.models.attention_scores import Inputs, attention_scores

SHAW_VALUES = partial(Shaw, values=True)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (Rope, {"base": 1.0}, "base=1.0"),
        (RopeNtk, {"rotary_fraction": 0.25}, "at least 4 rotated channels"),
        (Sinusoidal, {"combine": "concat", "width": 32}, "width=32"),
        (RopeLongRope, {"short_factor": [1.0] * 3}, "short_factor has 3 numbers, but 4 pairs"),
        (Composition, {"encodings": [Rope, StickBreaking]}, "StickBreaking computes its own weights"),
        (Composition, {"encodings": [Rope, SHAW_VALUES]}, "reads the attention weights and cannot be com"),
        (ByHead, {"encodings": [Rope, SHAW_VALUES]}, "reads the attention weights and cannot be limited"),
        (ByLayer, {"encodings": [Rope, Rope, Rope]}, "3 encodings cannot alternate in 2 layers"),
        (LayerPattern, {"pattern": "S", "short": Learned, "long": Rope}, "Learned acts at the embedding"),
        (Dape, {"bias": partial(SlidingWindow, window=4)}, "masks keys; DAPE needs"),
        (Dape, {"bias": Rope}, "DAPE needs an encoding that only"),
    ],
)
def test_impossible_arguments_are_named(make: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(small_shape(), **arguments)


@pytest.mark.parametrize("train_length", [2, 3, 12, 22, 42, 200])
@pytest.mark.parametrize("causal", [True, False])
def test_t5_meets_no_untrained_bucket_beyond_training(train_length: int, causal: bool) -> None:
    encoding = T5Bias(small_shape(causal, train_length=train_length))

    def used_buckets(length: int) -> set[int]:
        last = 1 if causal else length
        steps = torch.arange(1 - length, last)
        return set(distance_bucket(steps, encoding.num_buckets, encoding.max_distance, causal).tolist())

    assert used_buckets(8 * train_length) == used_buckets(train_length)
    assert max(used_buckets(8 * train_length)) < encoding.num_buckets


def test_a_clamped_parameter_still_has_a_gradient() -> None:
    parameter = torch.nn.Parameter(torch.tensor([-1.0, 0.5]))
    value = clamped(parameter, 0.01)
    assert value.tolist() == pytest.approx([0.01, 0.5])
    value.sum().backward()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [1.0, 1.0]


def test_a_composition_adds_every_bias_and_keeps_the_embedding() -> None:
    shape = small_shape()
    inputs = draw_inputs(shape, 12, 60, 0)
    empty = Inputs(inputs.q_BHTK * 0, inputs.k_BHTK * 0, inputs.x_BTD, inputs.positions_BT)
    both = Composition(shape, encodings=[Alibi, SlidingWindow, Alibi])
    expected = 2 * attention_scores(Alibi(shape), empty) + attention_scores(SlidingWindow(shape), inputs)
    torch.testing.assert_close(attention_scores(both, inputs), expected, equal_nan=True, rtol=0, atol=1e-4)

    concatenated = reference_of("sinusoidal", combine="concat").build
    encoding = Composition(shape, encodings=[concatenated, Alibi])
    assert encoding.position_width == 16
    x_BTD = inputs.x_BTD[..., 16:]
    alone = concatenated(shape).embed(x_BTD, inputs.positions_BT)
    assert torch.equal(encoding.embed(x_BTD, inputs.positions_BT), alone)


def test_only_masking_encodings_mask_however_far_the_key() -> None:
    """The logit of a far key may be below -1e6, so no threshold can tell it from a mask."""
    shape = small_shape()
    positions = torch.tensor([[0, 1 << 24]])
    at = AttentionContext(positions, positions, torch.ones(1, 2, 2, dtype=torch.bool).tril())
    q = torch.zeros(1, shape.num_heads, 2, shape.head_dim)
    far = Alibi(shape).bias(q, q, at)[0, 0]
    assert float(far[1, 0]) < -4e6
    assert not is_masked(far).any()
    window = SlidingWindow(shape).bias(q, q, at)[0, 0] + 1e4  # whatever the content adds
    assert is_masked(window).tolist() == [[False, True], [True, False]]
