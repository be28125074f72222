"""Where two encodings differ that agree in small models: other sizes, all distances, far ids, table rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pe_experiments.checking.contract import build
from pe_experiments.checking.lifecycle import draw_content, reordered
from pe_experiments.checking.places import (
    distances_that_differ,
    logits_of_one_query,
    numbered,
    place_in_embeddings,
    place_of_difference,
)
from pe_experiments.checking.side_by_side import (
    DENSE,
    FAR,
    NEAR,
    SAME,
    Pairing,
    build_both,
    compares_weights,
    defined_far,
    difference_of,
    draw_inputs,
    layout_of,
    results_of,
    scores_of,
    share_parameters,
)
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.base import acts_at_embedding
from pe_experiments.models.attention import makes_weights
from pe_experiments.models.backbone import MakeEncoding

HEADS = (1, 2, 3, 5, 8, 12, 16, 32)
LAYERS = 12  # a multiple of 2, 3, 4 and 6
FARTHEST = 131_072
FAR_TOLERANCE = 0.1  # angles in float32 are off by 0.01 at the farthest ids, wrapped ones by 1
TABLE_ENDS = (1_000, 1_024, 2_048, 4_096, 5_000, 8_192, 10_000, 16_384, 20_000, 32_768, 65_536, 100_000)


def first_difference_elsewhere(
    theirs: MakeEncoding, reference: MakeEncoding, forms: Sequence[bool], steps: Sequence[str] = ()
) -> str:
    """The first place at which they differ, in words; empty where they agree."""
    for causal in forms:
        for look in (
            _in_upper_layers,
            _with_other_heads,
            _at_every_distance,
            _at_far_ids,
            _in_rows_of_tables,
        ):
            try:
                place = look(theirs, reference, causal, steps)
            except Exception:  # it refuses these sizes or positions, or its module does
                continue
            if place:
                return place if causal else f"in an encoder, {place}"
    return ""


def _pair(
    theirs: MakeEncoding, reference: MakeEncoding, shape: ModelShape, steps: Sequence[str]
) -> tuple[PositionalEncoding, PositionalEncoding, list[Pairing]] | None:
    """Ours and theirs with shared parameters; None where one of them is not built at these sizes."""
    try:
        ours, other = build_both(reference, theirs, shape)
    except Exception:  # it refuses these sizes, or its module does
        return None
    shared = share_parameters(ours, other, layout_of(steps, ours))
    return None if shared is None else (ours, other, shared.pairings)


def _in_upper_layers(
    theirs: MakeEncoding, reference: MakeEncoding, causal: bool, steps: Sequence[str]
) -> str:
    pair = _pair(theirs, reference, ModelShape(64, 4, LAYERS, causal, 12, NEAR), steps)
    if pair is None:
        return ""
    ours, other, _ = pair
    inputs = draw_inputs(ours.shape, DENSE, NEAR, 0, getattr(other, "key_heads", None))
    layout = layout_of(steps, ours)
    weights = compares_weights(other, ours)
    moved = reordered(inputs, layout and layout(ours.shape.head_dim))
    differing = []
    for layer in range(LAYERS):
        result, expected = scores_of(other, moved, weights, layer), scores_of(ours, inputs, weights, layer)
        if _differ(result, expected):
            differing.append(layer)
    if not differing:
        return ""
    return f"in {numbered('layer', differing)} of {LAYERS}, logits differ; in the others they are equal"


def _differ(result: Tensor, expected: Tensor, tolerance: float = SAME) -> bool:
    if not torch.equal(result.isinf(), expected.isinf()):
        return True
    finite = expected.isfinite()
    if not finite.any():
        return False
    return bool((result - expected)[finite].abs().max() > tolerance * expected[finite].abs().max())


def _with_other_heads(
    theirs: MakeEncoding, reference: MakeEncoding, causal: bool, steps: Sequence[str]
) -> str:
    for heads in HEADS:
        pair = _pair(theirs, reference, ModelShape(8 * heads, heads, 2, causal, 12, NEAR), steps)
        if pair is None:
            continue
        ours, other, _ = pair
        if difference_of(other, ours, layout=layout_of(steps, ours)) > SAME:
            place = "" if steps else place_of_difference(other, ours)
            return f"with {numbered('head', [heads])[5:]} heads, {place or 'logits or embeddings differ'}"
    return ""


def _at_every_distance(
    theirs: MakeEncoding, reference: MakeEncoding, causal: bool, steps: Sequence[str]
) -> str:
    if steps:
        return ""
    ids_S = torch.arange(FAR)
    short, long = ModelShape(64, 4, 2, causal, 12, NEAR), ModelShape(144, 6, 2, causal, 1024, NEAR)
    # The first key's query sees all others after it, the last one's all before it.
    for shape, query in [(short, FAR - 1), (long, FAR - 1)] + ([] if causal else [(long, 0)]):
        pair = _pair(theirs, reference, shape, steps)
        if pair is None or pair[0].invariant_to != "shift" or compares_weights(pair[1], pair[0]):
            continue
        try:
            expected, result = (logits_of_one_query(encoding, ids_S, query) for encoding in pair[:2])
        except Exception:  # a table that ends; that is said of far positions
            continue
        distances_S = (ids_S - ids_S[query]).abs()
        if place := distances_that_differ(result, expected, distances_S, 2 * SAME):
            return place
    return ""


def _at_far_ids(theirs: MakeEncoding, reference: MakeEncoding, causal: bool, steps: Sequence[str]) -> str:
    pair = _pair(theirs, reference, ModelShape(64, 4, 2, causal, 12, NEAR), steps)
    if pair is None or not defined_far(reference, pair[0]):
        return ""
    ours, other, _ = pair
    layout = layout_of(steps, ours)
    ends = torch.tensor(TABLE_ENDS)
    spread = torch.randperm(FARTHEST, generator=torch.Generator().manual_seed(0))[:DENSE]
    for ids in (torch.stack([ends - 1, ends, ends + 1]).flatten(), spread):
        inputs = draw_content(ours.shape, ids.sort().values[None], 0, getattr(other, "key_heads", None))
        try:
            results = list(results_of(other, ours, inputs, range(1), layout))
        except Exception:  # a table that ends says so
            return ""
        result, expected = results[0]
        ids_T = inputs.positions_BT[0]
        if layout is None and (place := place_in_embeddings(result, expected, ids_T, FAR_TOLERANCE)):
            return f"at ids up to {FARTHEST:,}, {place}"
        if any(_differ(*scores, FAR_TOLERANCE) for scores in results):
            return f"at ids from {TABLE_ENDS[0]:,} to {FARTHEST:,}, logits or embeddings differ"
    return ""


def _in_rows_of_tables(
    theirs: MakeEncoding, reference: MakeEncoding, causal: bool, steps: Sequence[str]
) -> str:
    shape = ModelShape(64, 4, 2, causal, 12, NEAR)
    pair = _pair(theirs, reference, shape, steps)
    if pair is None or steps:
        return ""
    ours, other, pairings = pair
    tables = [pairing for pairing in pairings if pairing.theirs.squeeze().ndim == 2]
    if not tables:
        return ""
    initial = dict(build(theirs, shape).named_parameters())
    initial_ours = dict(build(reference, shape).named_parameters())
    names = {id(parameter): name for name, parameter in other.named_parameters()}
    our_names = {id(parameter): name for name, parameter in ours.named_parameters()}
    _backward(ours)
    _backward(other)
    for pairing in tables:
        name = names[id(pairing.theirs)]
        starts = pairing.form(initial_ours[our_names[id(pairing.ours)]].detach())
        if zeros := _rows_only_zero_in(initial[name].detach(), starts):
            return f"{name} starts at 0 in {numbered('row', zeros)}, where ours does not"
        if pairing.theirs.grad is None or pairing.ours.grad is None:
            continue
        # Rows that ours does not have keep their values in any form.
        gradient = pairing.form(pairing.ours.grad) - pairing.form(torch.zeros_like(pairing.ours))
        if untrained := _rows_only_zero_in(pairing.theirs.grad, gradient):
            return f"no gradient reaches {numbered('row', untrained)} of {name}"
    return ""


def _rows_only_zero_in(values: Tensor, expected: Tensor) -> list[int]:
    """The rows of a table that are 0 and should not be, if others are not."""
    rows, expected_rows = (table.squeeze().abs().sum(-1) for table in (values, expected))
    if rows.shape != expected_rows.shape or not rows.any():
        return []
    return ((rows == 0) & (expected_rows > 0)).nonzero().flatten().tolist()


@torch.enable_grad()
def _backward(encoding: PositionalEncoding) -> None:
    """Leave the gradient of a weighted sum of embeddings and logits at all near positions."""
    inputs = draw_content(encoding.shape, torch.arange(NEAR)[None], 0)
    results = [
        encoding.embed_sequence(inputs.x_BTD[..., encoding.position_width :], inputs.positions_BT, None)
    ]
    if not acts_at_embedding(encoding) and not makes_weights(encoding.for_layer(0)):
        results.append(scores_of(encoding, inputs, False, 0))
    total = torch.zeros(())
    for result in results:
        finite = result[result.isfinite()]
        weights = torch.randn(finite.shape, generator=torch.Generator().manual_seed(0))
        total = total + (finite * weights).sum()
    if total.requires_grad:
        total.backward()
