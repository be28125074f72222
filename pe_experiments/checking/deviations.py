"""What an implementation does otherwise than a reference: factors, heads, layers, positions, frequencies.

Each function measures one relation between the results of the two, and says it where it holds exactly. These
are the mistakes that need no list: any factor, any permutation of the heads, any shift of the positions.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from pe_experiments.checking.changes import EveryHook
from pe_experiments.checking.contract import relative_difference
from pe_experiments.checking.elsewhere import FAR_TOLERANCE, FARTHEST, TABLE_ENDS
from pe_experiments.checking.places import logits_of_one_query, numbered
from pe_experiments.checking.side_by_side import (
    DENSE,
    NEAR,
    SAME,
    Sizes,
    build_both,
    compares_weights,
    defined_far,
    draw_inputs,
    scores_of,
    shape_of,
    share_parameters,
)
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import acts_at_embedding
from pe_experiments.models.attention_scores import Inputs
from pe_experiments.models.backbone import MakeEncoding

LAYERS = 12
FEW = 200  # far ids
SIZES: tuple[Sizes, ...] = (
    (64, 4, 12),
    (144, 6, 1024),
    (96, 12, 12),
    (128, 16, 12),
    (256, 32, 12),
    (8, 1, 12),
)


@torch.no_grad()
def deviations(theirs: MakeEncoding, reference: MakeEncoding, forms: Sequence[bool]) -> list[str]:
    """What it does otherwise in the first model in which they differ; empty where nothing says all of it."""
    for causal, sizes in product(forms, SIZES):
        try:
            ours, other = build_both(reference, theirs, shape_of(sizes, causal, LAYERS))
            shared = share_parameters(ours, other)
        except Exception:  # it refuses these sizes, or its module does
            continue
        if shared is None:
            continue
        inputs = draw_inputs(ours.shape, DENSE, DENSE, 0, getattr(other, "key_heads", None))
        sentences = (
            _of_embeddings(other, ours, inputs)
            or _of_logits(other, ours, inputs)
            or (_of_far_ids(other, ours) if defined_far(reference, ours) else [])
        )
        if sentences:
            where = "" if sizes == SIZES[0] else f"with {sizes[1]} heads, "
            return [where + sentence for sentence in sentences]
    return []


def equal_to(result: Tensor, expected: Tensor, scale: float | None = None) -> bool:
    """Whether two tensors are equal up to rounding; minus infinity must stand at the same places."""
    if result.shape != expected.shape or not torch.equal(result.isinf(), expected.isinf()):
        return False
    difference = (result - expected).masked_fill(expected.isinf(), 0.0).abs().max()
    largest = expected.masked_fill(expected.isinf(), 0.0).abs().max() if scale is None else scale
    return bool(difference <= SAME * max(float(largest), 1e-12))


# Embeddings.


def _of_embeddings(theirs: PositionalEncoding, ours: PositionalEncoding, inputs: Inputs) -> list[str]:
    ids_1T, tokens = inputs.positions_BT, inputs.x_BTD
    width = ours.shape.d_model - ours.position_width
    if theirs.position_width != ours.position_width:
        columns = f"{theirs.position_width} columns hold the position, {ours.position_width} in ours"
        return [columns]
    x_BTD = tokens[..., :width]
    result = theirs.embed_sequence(x_BTD, ids_1T, None).double()
    expected = ours.embed_sequence(x_BTD, ids_1T, None).double()
    if result.shape != expected.shape or equal_to(result, expected):
        return []
    zeros = torch.zeros_like(x_BTD)
    near_1T = torch.arange(NEAR)[None]
    vectors_TD = ours.embed_sequence(torch.zeros(1, NEAR, width), near_1T, None)[0].double()
    their_vectors_TD = theirs.embed_sequence(zeros, ids_1T, None)[0].double()
    if not ours.position_width:
        factors = _factors(result, x_BTD.double(), expected - x_BTD.double())
        if factors is not None:
            return _of_factors(*factors, ours.shape)
    return _of_read_positions(their_vectors_TD, vectors_TD) or _of_columns(their_vectors_TD, vectors_TD)


def _factors(result: Tensor, tokens: Tensor, vectors: Tensor) -> tuple[float, float] | None:
    """The numbers a and b for which ``result`` is a tokens + b vectors; None where there are none."""
    columns = torch.stack([tokens.flatten(), vectors.flatten()], dim=1)
    solution = torch.linalg.lstsq(columns, result.flatten()[:, None]).solution
    if not equal_to((columns @ solution).flatten(), result.flatten()):
        return None
    return float(solution[0]), float(solution[1])


def _of_factors(of_tokens: float, of_vectors: float, shape: ModelShape) -> list[str]:
    if abs(of_vectors) < SAME:
        return ["no vector of positions is added"]
    if math.isclose(of_tokens, of_vectors, rel_tol=SAME):
        return [f"embeddings are {times(of_tokens, shape)}"]
    sentences = []
    if not math.isclose(of_tokens, 1, rel_tol=SAME):
        sentences.append(f"tokens are {times(of_tokens, shape)}")
    if not math.isclose(of_vectors, 1, rel_tol=SAME):
        sentences.append(f"vectors of positions are {times(of_vectors, shape)}")
    return sentences


def _of_read_positions(their_vectors_TD: Tensor, vectors_RD: Tensor) -> list[str]:
    """Which of our vectors each position has, if all are among ours."""
    if equal_to(their_vectors_TD, torch.zeros_like(their_vectors_TD), scale=1.0):
        return ["no vector of positions is added"]
    tokens = len(their_vectors_TD)
    distances_TR = (their_vectors_TD[:, None] - vectors_RD[None]).abs().amax(-1)
    nearest_T = distances_TR.argmin(dim=1)
    if not bool((distances_TR.amin(dim=1) <= SAME * vectors_RD.abs().max()).all()):
        zero_T = (their_vectors_TD == 0).all(-1)
        if zero_T.any() and not zero_T.all():
            return [f"there is no vector at {numbered('position', zero_T.nonzero().flatten().tolist())}"]
        return []
    shifts_T = nearest_T - torch.arange(tokens)
    if (nearest_T == nearest_T[0]).all():
        return [f"every token has the vector of position {int(nearest_T[0])}"]
    if (shifts_T == shifts_T[0]).all():
        return [f"ids are shifted by {int(shifts_T[0])}"]
    wrong = int((shifts_T != 0).nonzero()[0])
    return [f"position {wrong} has the vector of position {int(nearest_T[wrong])}"]


def _of_columns(their_vectors_TD: Tensor, vectors_RD: Tensor) -> list[str]:
    """Whether the columns are ours in another order or with other signs, or which of them are not."""
    ours_TD = vectors_RD[: len(their_vectors_TD)]
    if their_vectors_TD.shape != ours_TD.shape:
        return []
    tolerance = SAME * ours_TD.abs().max()
    columns = range(ours_TD.shape[1])
    differing = [c for c in columns if (their_vectors_TD[:, c] - ours_TD[:, c]).abs().max() > tolerance]
    matched = []
    for column in columns:
        signed = [their_vectors_TD[:, [column]] - sign * ours_TD for sign in (1, -1)]
        differences = torch.minimum(*(part.abs().amax(0) for part in signed))
        matched.append(int(differences.argmin()) if differences.min() <= tolerance else -1)
    if sorted(matched) == list(columns):
        return ["its columns are ours in another order or with other signs"]
    frequencies, expected = (_column_frequencies(vectors) for vectors in (their_vectors_TD, ours_TD))
    if frequencies is not None and expected is not None and frequencies.shape == expected.shape:
        ratios = frequencies / expected
        if torch.allclose(ratios, ratios[:1].expand_as(ratios), rtol=1e-3):
            return [f"frequencies are {float(ratios[0]):.5g} times ours"]
        shown, right = (", ".join(f"{f:.3g}" for f in part[:4].tolist()) for part in (frequencies, expected))
        return [f"frequencies are {shown}, ... instead of {right}, ..."]
    if 2 * len(differing) <= len(columns):
        return [f"there is a difference in {numbered('column', differing)} of {len(columns)} alone"]
    return []


def _column_frequencies(vectors_TD: Tensor) -> Tensor | None:
    """The frequencies of columns that are sinusoids, largest first; None where a column is none."""
    # sin(a + w) + sin(a - w) = 2 cos(w) sin(a)
    middle, around = vectors_TD[1:-1], vectors_TD[2:] + vectors_TD[:-2]
    twice_cosines = (around * middle).sum(0) / (middle * middle).sum(0).clamp(min=1e-12)
    if (around - twice_cosines * middle).abs().max() > SAME * vectors_TD.abs().max():
        return None
    return (twice_cosines / 2).clamp(-1, 1).acos().sort(descending=True).values[:8:2]


# Logits.


def _of_logits(theirs: PositionalEncoding, ours: PositionalEncoding, inputs: Inputs) -> list[str]:
    if compares_weights(theirs, ours):
        return []
    layers = range(LAYERS)
    results = [scores_of(theirs, inputs, False, layer) for layer in layers]
    expected = [scores_of(ours, inputs, False, layer) for layer in layers]
    differing = [layer for layer in layers if not equal_to(results[layer], expected[layer])]
    if not differing:
        return []
    layer = differing[0]
    content_HTS = _content(ours, inputs, expected[layer])
    sentences = (
        _of_logit_factor(results[layer], expected[layer], ours)
        or _of_heads(results[layer], expected[layer], content_HTS, ours.shape)
        or _of_shifted_distances(theirs, ours, inputs, layer)
        or _of_angles(theirs, ours, layer)
    )
    if len(differing) == LAYERS:
        return sentences
    where = f"in {numbered('layer', differing)} of {LAYERS}"
    return [f"{where}, {sentence}" for sentence in sentences or ["it differs; in the others it is equal"]]


def _content(ours: PositionalEncoding, inputs: Inputs, masked_HTS: Tensor) -> Tensor:
    """The logits of content alone, relative to that of the query's own key, masked as the given ones."""
    plain = PositionalEncoding(ours.shape)
    return scores_of(plain, inputs, False, 0).masked_fill(masked_HTS.isinf(), -torch.inf)


def _of_logit_factor(result: Tensor, expected: Tensor, ours: PositionalEncoding) -> list[str]:
    factor = _ratio(result, expected)
    return [] if factor is None else [f"logits are {times(factor, ours.shape, ours)}"]


def _of_heads(result: Tensor, expected: Tensor, content: Tensor, shape: ModelShape) -> list[str]:
    """What the part of the logits that positions add is, head by head."""
    masked = content.isinf()
    result_part, expected_part = ((part - content).masked_fill(masked, 0.0) for part in (result, expected))
    scale = float(expected.masked_fill(masked, 0.0).abs().max())
    heads = range(len(result))
    if equal_to(result_part, torch.zeros_like(result_part), scale):
        return ["it has no effect"]
    factor = _ratio(result_part, expected_part)
    if factor is not None:
        return [f"what positions add to the logits is {times(factor, shape)}"]
    sources = []
    for head in heads:
        same = [h for h in heads if equal_to(result_part[head], expected_part[h], scale)]
        sources.append(head if head in same else same[0] if same else -1)
    if sorted(sources) == list(heads):
        return [f"heads are permuted: they take the place of our heads {', '.join(map(str, sources))}"]
    factors = [_ratio(result_part[head], expected_part[head], scale) for head in heads]
    without = [head for head in heads if factors[head] == 0]
    differing = [head for head in heads if factors[head] is None]
    if without and len(without) + sum(factor == 1 for factor in factors) == len(factors):
        return [f"there are no positions in {numbered('head', without)} of {len(factors)}"]
    if not differing:
        words = ", ".join(f"{factor:.5g}" for factor in factors)
        return [f"what positions add to the logits is, head by head, {words} times ours"]
    if len(differing) < len(factors):
        return [f"there is a difference in {numbered('head', differing)} of {len(factors)} alone"]
    return []


def _ratio(result: Tensor, expected: Tensor, scale: float | None = None) -> float | None:
    """The number c for which ``result`` is c times ``expected``; None where there is none."""
    if not torch.equal(result.isinf(), expected.isinf()):
        return None
    result, expected = (part.masked_fill(part.isinf(), 0.0) for part in (result, expected))
    square = float((expected * expected).sum())
    factor = float((result * expected).sum()) / square if square else 0.0
    if not equal_to(result, factor * expected, scale):
        return None
    nearest = float(round(factor))
    return nearest if nearest in (0.0, 1.0) and abs(factor - nearest) < SAME else factor


def _of_shifted_distances(
    theirs: PositionalEncoding, ours: PositionalEncoding, inputs: Inputs, layer: int
) -> list[str]:
    """Whether distances are ours, shifted by a small number or by a size of the encoding."""
    result = scores_of(theirs, inputs, False, layer)
    sizes = [value for value in vars(ours).values() if isinstance(value, int) and not isinstance(value, bool)]
    sizes += [ours.shape.train_length, ours.shape.train_positions]
    sizes += [length for parameter in ours.parameters() for length in parameter.shape]
    near = {*range(1, DENSE), *(size + more for size in sizes for more in (-1, 0, 1))}
    for shift in sorted(near - {0}):
        for signed in (shift, -shift):
            shifted = copy.deepcopy(ours)
            EveryHook(lambda i, j, signed=signed: (i + signed, j))(shifted)  # type: ignore[misc]
            try:
                if equal_to(scores_of(shifted, inputs, False, layer), result):
                    return [f"distances are shifted by {signed}"]
            except Exception:  # of an encoding that refuses such distances
                continue
    return []


def _of_angles(theirs: PositionalEncoding, ours: PositionalEncoding, layer: int) -> list[str]:
    """How fast pairs of channels rotate, in any layout: from the eigenvalues of one step."""
    their_step, our_step = angles_of_a_step(theirs, layer), angles_of_a_step(ours, layer)
    if their_step is None or our_step is None:
        return []
    angles, growth = their_step
    expected, expected_growth = our_step
    if abs(growth / expected_growth - 1) > 1e-3:
        return [f"rotated queries are {growth / expected_growth:.5g} times as long as ours"]
    if angles.shape != expected.shape or torch.allclose(angles, expected, atol=1e-3):
        return []
    turning, expected_turning = int((angles > 1e-6).sum()), int((expected > 1e-6).sum())
    if turning != expected_turning:
        return [f"{turning} of {len(angles)} pairs of channels rotate, {expected_turning} in ours"]
    ratio = angles[:turning] / expected[:turning]
    if torch.allclose(ratio, ratio[:1].expand_as(ratio), rtol=1e-3):
        return [f"angles are {float(ratio[0]):.5g} times ours"]
    steps = angles[:turning].diff()
    ratios = angles[1:turning] / angles[: turning - 1]
    shown = ", ".join(f"{angle:.3g}" for angle in angles[:4].tolist())
    right = ", ".join(f"{angle:.3g}" for angle in expected[:4].tolist())
    how = ""
    if turning > 3 and torch.allclose(ratios, ratios[:1].expand_as(ratios), rtol=5e-3):
        how = f": geometric, as of base {float(ratios.mean()) ** -len(angles):.4g}"
    elif turning > 3 and torch.allclose(steps, steps[:1].expand_as(steps), atol=1e-4):
        how = ": linear instead of geometric"
    return [f"frequencies are {shown}, ... instead of {right}, ...{how}"]


def angles_of_a_step(encoding: PositionalEncoding, layer: int) -> tuple[Tensor, float] | None:
    """Angles of one step from position 0 to 1, largest first, and the length of a rotated unit vector."""
    shape, part = encoding.shape, encoding.for_layer(layer)
    units = torch.eye(shape.head_dim)[None, None].expand(1, shape.num_heads, -1, -1)
    visible = torch.ones(1, 1, 1, dtype=torch.bool)
    rotated = []
    for position in (0, 1):
        ids = torch.full((1, shape.head_dim), position)
        at = AttentionContext(ids, ids, visible, layer=layer)
        rotated.append(part.rotate(units, units, at)[0][0, 0].double())
    if rotated[0].shape != (shape.head_dim, shape.head_dim) or torch.linalg.matrix_rank(rotated[0]) < len(
        units[0, 0]
    ):
        return None
    eigenvalues = torch.linalg.eigvals(torch.linalg.solve(rotated[0], rotated[1]))
    angles = eigenvalues.angle().abs().sort(descending=True).values[::2]
    return angles, float(rotated[1].norm(dim=-1).mean())


# Far positions.


def _of_far_ids(theirs: PositionalEncoding, ours: PositionalEncoding) -> list[str]:
    """Whether ids wrap or end, or distances are clipped, at a usual size of a table."""
    if compares_weights(theirs, ours):
        return []
    ends = torch.tensor([end + more for end in TABLE_ENDS for more in (-1, 0, 1)])
    spread = torch.randperm(FARTHEST, generator=torch.Generator().manual_seed(0))[:FEW]
    ids_S = torch.cat([torch.tensor([0]), ends, spread]).unique()
    try:
        result = _at_ids(theirs, ids_S)
    except Exception:  # a table that ends says so
        return []
    if _close(result, _at_ids(ours, ids_S)):
        return []
    for size in (size + more for more in (0, 1, -1) for size in TABLE_ENDS):
        changes = {
            f"ids wrap at {size:,}": ids_S % size,
            f"ids beyond {size - 1:,} are taken as {size - 1:,}": ids_S.clamp(max=size - 1),
            f"distances beyond {size:,} are taken as {size:,}": ids_S.clamp(min=int(ids_S[-1]) - size),
        }
        for sentence, changed_S in changes.items():
            if _close(result, _at_ids(ours, changed_S)):
                return [sentence]
    return []


def _at_ids(encoding: PositionalEncoding, ids_S: Tensor) -> Tensor:
    """Embeddings of zeros at these ids, or the logits of the last one for all."""
    if acts_at_embedding(encoding):
        width = encoding.shape.d_model - encoding.position_width
        return encoding.embed_sequence(torch.zeros(1, len(ids_S), width), ids_S[None], None).double()
    return logits_of_one_query(encoding, ids_S, len(ids_S) - 1)


def _close(result: Tensor, expected: Tensor) -> bool:
    """Whether far values agree, to the precision of angles in float32."""
    return relative_difference(result, expected) <= FAR_TOLERANCE


def times(factor: float, shape: ModelShape, encoding: PositionalEncoding | None = None) -> str:
    """``1.4427 times ours``, with the usual reason for such a factor."""
    reasons = {
        1 / math.log(2): "a logarithm to base 2?",
        math.log(2): "a logarithm to base 2?",
        math.log(10): "a logarithm to base 10?",
        1 / math.log(10): "a logarithm to base 10?",
        -1.0: "the sign is wrong",
        shape.head_dim**0.5: "not divided by sqrt(head_dim)?",
        shape.head_dim**-0.5: "divided by sqrt(head_dim) twice?",
        shape.d_model**0.5: "multiplied by sqrt(d_model)?",
        shape.d_model**-0.5: "divided by sqrt(d_model)?",
        (shape.head_dim / shape.d_model) ** 0.5: "divided by sqrt(d_model), not by sqrt(head_dim)?",
        3.0**0.5: "not divided by sqrt(3)?",
        3.0**-0.5: "divided by sqrt(3)?",
    }
    stretch = getattr(encoding, "factor", None)
    if stretch:
        scale = 0.1 * math.log(stretch) + 1
        reasons |= {scale**power: f"YaRN's scale to the power {2 + power}?" for power in (-2, -1, 1, 2)}
    for number, reason in reasons.items():
        if math.isclose(factor, number, rel_tol=1e-4):
            return f"{factor:.5g} times ours: {reason}"
    return f"{factor:.5g} times ours"
