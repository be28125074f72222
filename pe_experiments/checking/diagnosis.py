"""Describe how an implementation differs from a reference: factors, heads, layers, positions, frequencies.

Each function measures one relation between both results and reports it if it holds exactly. This finds
mistakes that are not in a list: any factor, any permutation of heads, any shift of positions.
"""

import copy
import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from pe_experiments.checking.differences import (
    FAR_TOLERANCE,
    LAYERS,
    TABLE_ENDS,
    ids_around_table_ends,
    numbered,
    spread_ids,
)
from pe_experiments.checking.instances import masked_difference, relative_difference, unmasked, vectors_at
from pe_experiments.checking.known_mistakes.any_encoding import at_every_hook
from pe_experiments.checking.pair import (
    DENSE,
    NEAR,
    SAME,
    Pair,
    Sizes,
    defined_far,
    logits_of_one_query,
    make_pair,
    model_shape,
    scores_of,
)
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding, acts_at_embedding
from pe_experiments.models.attention_scores import Inputs

FAR_IDS = 200
SIZES: tuple[Sizes, ...] = (
    (64, 4, 12),
    (144, 6, 1024),
    (96, 12, 12),
    (128, 16, 12),
    (256, 32, 12),
    (8, 1, 12),
)


@torch.no_grad()
def diagnose(checked: MakeEncoding, reference: MakeEncoding, forms: Sequence[bool]) -> list[str]:
    """Return the differences in the first model in which both differ; empty if they explain only a part."""
    for causal, sizes in product(forms, SIZES):
        try:
            pair = make_pair(checked, reference, model_shape(sizes, causal, LAYERS))
        except Exception:  # the encoding or its module rejects these sizes
            continue
        if pair is None:
            continue
        inputs = pair.inputs_below(DENSE)
        findings = _in_embeddings(pair, inputs) or _in_logits(pair, inputs)
        if not findings and defined_far(reference, pair.reference):
            findings = _at_far_ids(pair)
        if findings:
            where = "" if sizes == SIZES[0] else f"with {sizes[1]} heads, "
            return [where + finding for finding in findings]
    return []


def _equal(values: Tensor, expected: Tensor, largest: float | None = None) -> bool:
    return masked_difference(values, expected, largest) <= SAME


def _ratio(values: Tensor, expected: Tensor, largest: float | None = None) -> float | None:
    """Return the number c for which ``values`` are c times ``expected``, or None."""
    if not torch.equal(values.isinf(), expected.isinf()):
        return None
    values, expected = unmasked(values), unmasked(expected)
    square = float((expected * expected).sum())
    factor = float((values * expected).sum()) / square if square else 0.0
    if not _equal(values, factor * expected, largest):
        return None
    nearest = float(round(factor))
    return nearest if nearest in (0.0, 1.0) and abs(factor - nearest) < SAME else factor


def _listed(numbers: Tensor) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers[:4].tolist()) + ", ..."


# Embeddings.


def _in_embeddings(pair: Pair, inputs: Inputs) -> list[str]:
    checked, reference = pair.checked, pair.reference
    if checked.position_width != reference.position_width:
        return [f"{checked.position_width} columns hold the position, {reference.position_width} in ours"]
    result, expected = (embedded.double() for embedded in pair.embeddings(inputs))
    if result.shape != expected.shape or _equal(result, expected):
        return []
    if not reference.position_width:
        tokens = inputs.x_BTD.double()
        factors = _factors(result, tokens, expected - tokens)
        if factors is not None:
            return _factors_in_words(*factors, reference.shape)
    checked_TD = vectors_at(checked, inputs.positions_BT[0]).double()
    vectors_TD = vectors_at(reference, torch.arange(NEAR)).double()
    return _positions_read(checked_TD, vectors_TD) or _columns(checked_TD, vectors_TD)


def _factors(result: Tensor, tokens: Tensor, vectors: Tensor) -> tuple[float, float] | None:
    """Return the numbers a and b for which ``result`` is a tokens + b vectors, or None."""
    columns = torch.stack([tokens.flatten(), vectors.flatten()], dim=1)
    solution = torch.linalg.lstsq(columns, result.flatten()[:, None]).solution
    if not _equal((columns @ solution).flatten(), result.flatten()):
        return None
    return float(solution[0]), float(solution[1])


def _factors_in_words(of_tokens: float, of_vectors: float, shape: ModelShape) -> list[str]:
    if abs(of_vectors) < SAME:
        return ["no vector of positions is added"]
    if math.isclose(of_tokens, of_vectors, rel_tol=SAME):
        return [f"embeddings are {factor_in_words(of_tokens, shape)}"]
    factors = {"tokens": of_tokens, "vectors of positions": of_vectors}
    return [
        f"{what} are {factor_in_words(factor, shape)}"
        for what, factor in factors.items()
        if not math.isclose(factor, 1, rel_tol=SAME)
    ]


def _positions_read(checked_TD: Tensor, vectors_RD: Tensor) -> list[str]:
    """Return which of our vectors each position has, if all vectors are ours."""
    if _equal(checked_TD, torch.zeros_like(checked_TD), largest=1.0):
        return ["no vector of positions is added"]
    distances_TR = (checked_TD[:, None] - vectors_RD[None]).abs().amax(-1)
    if not bool((distances_TR.amin(dim=1) <= SAME * vectors_RD.abs().max()).all()):
        zero_T = (checked_TD == 0).all(-1)
        if zero_T.any() and not zero_T.all():
            return [f"there is no vector at {numbered('position', zero_T.nonzero().flatten().tolist())}"]
        return []
    nearest_T = distances_TR.argmin(dim=1)
    shifts_T = nearest_T - torch.arange(len(checked_TD))
    if (nearest_T == nearest_T[0]).all():
        return [f"every token has the vector of position {int(nearest_T[0])}"]
    if (shifts_T == shifts_T[0]).all():
        return [f"ids are shifted by {int(shifts_T[0])}"]
    wrong = int((shifts_T != 0).nonzero()[0])
    return [f"position {wrong} has the vector of position {int(nearest_T[wrong])}"]


def _columns(checked_TD: Tensor, vectors_RD: Tensor) -> list[str]:
    """Return whether the columns are ours in another order or with other signs, or which of them are not."""
    reference_TD = vectors_RD[: len(checked_TD)]
    if checked_TD.shape != reference_TD.shape:
        return []
    tolerance = SAME * reference_TD.abs().max()
    columns = range(reference_TD.shape[1])
    signed_DD = [(checked_TD[:, :, None] - sign * reference_TD[:, None]).abs().amax(0) for sign in (1, -1)]
    nearest = torch.minimum(*signed_DD).min(dim=1)
    if (nearest.values <= tolerance).all() and sorted(nearest.indices.tolist()) == list(columns):
        return ["its columns are ours in another order or with other signs"]
    frequencies, expected = _column_frequencies(checked_TD), _column_frequencies(reference_TD)
    if frequencies is not None and expected is not None and frequencies.shape == expected.shape:
        ratios = frequencies / expected
        if torch.allclose(ratios, ratios[:1].expand_as(ratios), rtol=1e-3):
            return [f"frequencies are {float(ratios[0]):.5g} times ours"]
        return [f"frequencies are {_listed(frequencies)} instead of {_listed(expected)}"]
    differing = [c for c in columns if (checked_TD[:, c] - reference_TD[:, c]).abs().max() > tolerance]
    if 2 * len(differing) <= len(columns):
        return [f"there is a difference in {numbered('column', differing)} of {len(columns)} alone"]
    return []


def _column_frequencies(vectors_TD: Tensor) -> Tensor | None:
    """Return the frequencies of sinusoidal columns, largest first; None if a column is not sinusoidal."""
    # sin(a + w) + sin(a - w) = 2 cos(w) sin(a)
    middle = vectors_TD[1:-1]
    around = vectors_TD[2:] + vectors_TD[:-2]
    twice_cosines = (around * middle).sum(0) / (middle * middle).sum(0).clamp(min=1e-12)
    if (around - twice_cosines * middle).abs().max() > SAME * vectors_TD.abs().max():
        return None
    return (twice_cosines / 2).clamp(-1, 1).acos().sort(descending=True).values[:8:2]


# Logits.


def _in_logits(pair: Pair, inputs: Inputs) -> list[str]:
    if pair.compares_weights:
        return []
    scores = [pair.scores(inputs, layer) for layer in range(LAYERS)]
    differing = [layer for layer in range(LAYERS) if not _equal(*scores[layer])]
    if not differing:
        return []
    layer = differing[0]
    result, expected = scores[layer]
    # The logits of content alone, masked as ours.
    content = scores_of(PositionalEncoding(pair.shape), inputs, False, 0)
    content = content.masked_fill(expected.isinf(), -torch.inf)
    factor = _ratio(result, expected)
    if factor is not None:
        findings = [f"logits are {factor_in_words(factor, pair.shape, pair.reference)}"]
    else:
        findings = (
            _heads(result, expected, content, pair.shape)
            or _shifted_distances(pair, inputs, layer, result)
            or _angles(pair, layer)
        )
    if len(differing) == LAYERS:
        return findings
    where = f"in {numbered('layer', differing)} of {LAYERS}"
    return [f"{where}, {finding}" for finding in findings or ["it differs; in the others it is equal"]]


def _heads(result: Tensor, expected: Tensor, content: Tensor, shape: ModelShape) -> list[str]:
    """Return a description of the positional part of the logits by head."""
    masked = content.isinf()
    result_part, expected_part = (
        (logits - content).masked_fill(masked, 0.0) for logits in (result, expected)
    )
    scale = float(unmasked(expected).abs().max())
    heads = range(len(result))
    if _equal(result_part, torch.zeros_like(result_part), scale):
        return ["it has no effect"]
    factor = _ratio(result_part, expected_part)
    if factor is not None:
        return [f"what positions add to the logits is {factor_in_words(factor, shape)}"]
    sources = []
    for head in heads:
        same = [
            head_there for head_there in heads if _equal(result_part[head], expected_part[head_there], scale)
        ]
        sources.append(head if head in same else same[0] if same else -1)
    if sorted(sources) == list(heads):
        return [f"heads are permuted: they take the place of our heads {', '.join(map(str, sources))}"]
    factors = [_ratio(result_part[head], expected_part[head], scale) for head in heads]
    without = [head for head in heads if factors[head] == 0]
    differing = [head for head in heads if factors[head] is None]
    if without and len(without) + factors.count(1) == len(factors):
        return [f"there are no positions in {numbered('head', without)} of {len(factors)}"]
    if not differing:
        words = ", ".join(f"{factor:.5g}" for factor in factors)
        return [f"what positions add to the logits is, head by head, {words} times ours"]
    if len(differing) < len(factors):
        return [f"there is a difference in {numbered('head', differing)} of {len(factors)} alone"]
    return []


def _shifted_distances(pair: Pair, inputs: Inputs, layer: int, result: Tensor) -> list[str]:
    """Return whether distances are ours, shifted by a small number or by a size of the encoding."""
    reference = pair.reference
    shape = pair.shape
    sizes = [
        value for value in vars(reference).values() if isinstance(value, int) and not isinstance(value, bool)
    ]
    sizes += [shape.train_length, shape.train_positions]
    sizes += [length for parameter in reference.parameters() for length in parameter.shape]
    shifts = {*range(1, DENSE), *(size + more for size in sizes for more in (-1, 0, 1))} - {0}
    for shift, sign in product(sorted(shifts), (1, -1)):
        shifted = copy.deepcopy(reference)
        at_every_hook(lambda i, j, by=sign * shift: (i + by, j)).apply(shifted)  # type: ignore[misc]
        try:
            if _equal(scores_of(shifted, inputs, False, layer), result):
                return [f"distances are shifted by {sign * shift}"]
        except Exception:  # of an encoding that refuses such distances
            continue
    return []


def _angles(pair: Pair, layer: int) -> list[str]:
    """Return how fast pairs of channels rotate, in any layout: from the eigenvalues of one step."""
    checked_step, reference_step = step_angles(pair.checked, layer), step_angles(pair.reference, layer)
    if checked_step is None or reference_step is None:
        return []
    angles, growth = checked_step
    expected, expected_growth = reference_step
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
    kind = ""
    if turning > 3 and torch.allclose(ratios, ratios[:1].expand_as(ratios), rtol=5e-3):
        kind = ": geometric"
        if base := getattr(pair.reference, "base", None):  # the same power of it leads from pair to pair
            power = math.log(float(ratios.mean())) / math.log(float(expected[1] / expected[0]))
            kind = f": geometric, as of base {base**power:.4g}"
    elif turning > 3 and torch.allclose(steps, steps[:1].expand_as(steps), atol=1e-4):
        kind = ": linear instead of geometric"
    return [f"frequencies are {_listed(angles)} instead of {_listed(expected)}{kind}"]


def step_angles(encoding: PositionalEncoding, layer: int = 0) -> tuple[Tensor, float] | None:
    """Return angles of a step from position 0 to 1, largest first, and the norm of a rotated unit vector."""
    head_dim = encoding.shape.head_dim
    units = torch.eye(head_dim)[None, None].expand(1, encoding.shape.num_heads, -1, -1)
    visible = torch.ones(1, 1, 1, dtype=torch.bool)
    rotated = []
    for position in (0, 1):
        ids = torch.full((1, head_dim), position)
        at = AttentionContext(ids, ids, visible, layer=layer)
        rotated.append(encoding.for_layer(layer).rotate(units, units, at)[0][0, 0].double())
    start, step = rotated
    if start.shape != (head_dim, head_dim) or torch.linalg.matrix_rank(start) < head_dim:
        return None
    eigenvalues = torch.linalg.eigvals(torch.linalg.solve(start, step))
    return eigenvalues.angle().abs().sort(descending=True).values[::2], float(step.norm(dim=-1).mean())


# Far positions.


def _at_far_ids(pair: Pair) -> list[str]:
    """Return whether ids wrap or end, or distances are clipped, at a usual size of a table."""
    if pair.compares_weights:
        return []
    ids_S = torch.cat([torch.tensor([0]), ids_around_table_ends(), spread_ids(FAR_IDS)]).unique()

    def read(encoding: PositionalEncoding, ids_S: Tensor) -> Tensor:
        if acts_at_embedding(encoding):
            return vectors_at(encoding, ids_S).double()
        return logits_of_one_query(encoding, ids_S, len(ids_S) - 1)

    def same(ids_S: Tensor) -> bool:
        return relative_difference(result, read(pair.reference, ids_S)) <= FAR_TOLERANCE

    try:
        result = read(pair.checked, ids_S)
    except Exception:  # a table that ends says so
        return []
    if same(ids_S):
        return []
    for size in (size + more for more in (0, 1, -1) for size in TABLE_ENDS):
        changes = {
            f"ids wrap at {size:,}": ids_S % size,
            f"ids beyond {size - 1:,} are taken as {size - 1:,}": ids_S.clamp(max=size - 1),
            f"distances beyond {size:,} are taken as {size:,}": ids_S.clamp(min=int(ids_S[-1]) - size),
        }
        for finding, changed_S in changes.items():
            if same(changed_S):
                return [finding]
    return []


def factor_in_words(factor: float, shape: ModelShape, encoding: PositionalEncoding | None = None) -> str:
    """Return ``1.4427 times ours`` with the usual reason for such a factor."""
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
