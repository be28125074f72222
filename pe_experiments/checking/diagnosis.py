"""Describe how a candidate differs from a reference: factors, heads, layers, positions, frequencies.

Each function tests one relation between both results and reports it if it holds within the tolerance. This
finds mistakes that are not listed as known: any factor, any permutation of heads, any shift of positions.
"""

import copy
import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from pe_experiments.checking.differences import (
    FAR_TOLERANCE,
    LAYERS,
    TABLE_ENDS,
    format_numbers,
    ids_around_table_ends,
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
    TensorPair,
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
STILL = 1e-12  # smaller angles of a step are rounding
SIZES: tuple[Sizes, ...] = (
    (64, 4, 12),
    (144, 6, 1024),
    (96, 12, 12),
    (128, 16, 12),
    (256, 32, 12),
    (8, 1, 12),
)


class Finding(NamedTuple):
    """A relation between a candidate and a reference that holds exactly.

    Args:
        text: description of how they differ.
        mistake: whether no encoding is meant so; False for other factors and frequencies, and for heads.
        reason: a usual reason for a factor, which may be a coincidence.
    """

    text: str
    mistake: bool = True
    reason: str = ""


@torch.no_grad()
def diagnose(candidate: MakeEncoding, reference: MakeEncoding, forms: Sequence[bool]) -> list[Finding]:
    """Return how both differ, in the first model where a relation is found; else nothing."""
    for causal in forms:
        for index, sizes in enumerate(SIZES):
            findings = _diagnose_model(candidate, reference, model_shape(sizes, causal, LAYERS))
            if not findings:
                continue
            where = "" if index == 0 else f"with {sizes[1]} heads, "
            if index == 0 and any(finding.reason for finding in findings):
                others = _diagnose_model(candidate, reference, model_shape(SIZES[1], causal, LAYERS))
                findings = _confirmed(findings, others)
            return [finding._replace(text=where + finding.text) for finding in findings]
    return []


def _diagnose_model(candidate: MakeEncoding, reference: MakeEncoding, shape: ModelShape) -> list[Finding]:
    """Return how both differ in a model of this shape; nothing if it cannot be built or no relation holds."""
    try:
        pair = make_pair(candidate, reference, shape)
    except Exception:  # the encoding or its module rejects these sizes
        return []
    if pair is None:
        return []
    inputs = pair.inputs_below(DENSE)
    findings = _diagnose_embeddings(pair, inputs) or _diagnose_logits(pair, inputs)
    if not findings and defined_far(reference, pair.reference):
        findings = _diagnose_far_ids(pair)
    return findings


def _confirmed(findings: list[Finding], others: list[Finding]) -> list[Finding]:
    """Return the findings without reasons that are not among those of another model, ``others``."""
    reasons = {finding.reason for finding in others}
    return [
        finding if not others or finding.reason in reasons else finding._replace(mistake=False, reason="")
        for finding in findings
    ]


def _equal(values: Tensor, expected: Tensor, largest: float | None = None) -> bool:
    return masked_difference(values, expected, largest) <= SAME


def _ratio(values: Tensor, expected: Tensor, largest: float | None = None) -> float | None:
    """Return the factor by which all ``values`` are larger than ``expected``, or None if there is none."""
    if not torch.equal(values.isinf(), expected.isinf()):
        return None
    values, expected = unmasked(values), unmasked(expected)
    square = float((expected * expected).sum())
    factor = float((values * expected).sum()) / square if square else 0.0
    if not _equal(values, factor * expected, largest):
        return None
    for exact in (0.0, 1.0):
        if abs(factor - exact) < SAME:
            return exact
    return factor


def _format_first(numbers: Tensor) -> str:
    """Return the first four numbers as text."""
    return ", ".join(f"{number:.3g}" for number in numbers[:4].tolist()) + ", ..."


# Embeddings.


def _diagnose_embeddings(pair: Pair, inputs: Inputs) -> list[Finding]:
    """Return how embeddings differ; empty if they are equal or no relation holds."""
    candidate, reference = pair.candidate, pair.reference
    if candidate.position_width != reference.position_width:
        columns = f"{candidate.position_width} columns hold the position, {reference.position_width} in ours"
        return [Finding(columns, mistake=False)]
    result, expected = (embedded.double() for embedded in pair.embeddings(inputs))
    if result.shape != expected.shape or _equal(result, expected):
        return []
    if not reference.position_width:
        tokens = inputs.x_BTD.double()
        factors = _fit_factors(result, tokens, expected - tokens)
        if factors is not None:
            return _describe_factors(*factors, reference.shape)
    candidate_TD = vectors_at(candidate, inputs.positions_BT[0]).double()
    vectors_TD = vectors_at(reference, torch.arange(NEAR)).double()
    return _compare_positions(candidate_TD, vectors_TD) or _compare_columns(candidate_TD, vectors_TD)


def _fit_factors(result: Tensor, tokens: Tensor, vectors: Tensor) -> tuple[float, float] | None:
    """Return the factors a and b for which ``result`` is a * tokens + b * vectors, or None."""
    columns = torch.stack([tokens.flatten(), vectors.flatten()], dim=1)
    solution = torch.linalg.lstsq(columns, result.flatten()[:, None]).solution
    if not _equal((columns @ solution).flatten(), result.flatten()):
        return None
    return float(solution[0]), float(solution[1])


def _describe_factors(token_factor: float, vector_factor: float, shape: ModelShape) -> list[Finding]:
    """Describe an embedding that scales tokens and vectors of positions by these factors."""
    if abs(vector_factor) < SAME:
        return [Finding("no vector of positions is added")]
    if math.isclose(token_factor, vector_factor, rel_tol=SAME):
        return [_describe_factor("embeddings are", token_factor, shape)]
    factors = {"tokens are": token_factor, "vectors of positions are": vector_factor}
    return [
        _describe_factor(what, factor, shape)
        for what, factor in factors.items()
        if not math.isclose(factor, 1, rel_tol=SAME)
    ]


def _compare_positions(candidate_TD: Tensor, vectors_RD: Tensor) -> list[Finding]:
    """Describe which of the reference's vectors each position has, if all vectors are among these."""
    if _equal(candidate_TD, torch.zeros_like(candidate_TD), largest=1.0):
        return [Finding("no vector of positions is added")]
    distances_TR = (candidate_TD[:, None] - vectors_RD[None]).abs().amax(-1)
    if not bool((distances_TR.amin(dim=1) <= SAME * vectors_RD.abs().max()).all()):
        zero_T = (candidate_TD == 0).all(-1)
        if zero_T.any() and not zero_T.all():
            positions = format_numbers("position", zero_T.nonzero().flatten().tolist())
            return [Finding(f"there is no vector at {positions}")]
        return []
    nearest_T = distances_TR.argmin(dim=1)
    shifts_T = nearest_T - torch.arange(len(candidate_TD))
    if (nearest_T == nearest_T[0]).all():
        return [Finding(f"every token has the vector of position {int(nearest_T[0])}")]
    if (shifts_T == shifts_T[0]).all():
        return [Finding(f"ids are shifted by {int(shifts_T[0])}")]
    wrong_position = int((shifts_T != 0).nonzero()[0])
    vector = int(nearest_T[wrong_position])
    return [Finding(f"position {wrong_position} has the vector of position {vector}")]


def _compare_columns(candidate_TD: Tensor, vectors_RD: Tensor) -> list[Finding]:
    """Describe how columns differ: in order or sign, in frequency, or only some of them."""
    reference_TD = vectors_RD[: len(candidate_TD)]
    if candidate_TD.shape != reference_TD.shape:
        return []
    tolerance = SAME * reference_TD.abs().max()
    columns = range(reference_TD.shape[1])
    plus_DD = (candidate_TD[:, :, None] - reference_TD[:, None]).abs().amax(0)
    minus_DD = (candidate_TD[:, :, None] + reference_TD[:, None]).abs().amax(0)
    nearest = torch.minimum(plus_DD, minus_DD).min(dim=1)
    if (nearest.values <= tolerance).all() and sorted(nearest.indices.tolist()) == list(columns):
        return [Finding("its columns are ours in another order or with other signs", mistake=False)]
    frequencies, expected = _column_frequencies(candidate_TD), _column_frequencies(reference_TD)
    if frequencies is not None and expected is not None and frequencies.shape == expected.shape:
        ratios = frequencies / expected
        if torch.allclose(ratios, torch.ones_like(ratios), rtol=1e-3):
            return [
                Finding("its columns have our frequencies with other phases or amplitudes", mistake=False)
            ]
        if torch.allclose(ratios, ratios[:1].expand_as(ratios), rtol=1e-3):
            return [Finding(f"frequencies are {float(ratios[0]):.5g} times ours", mistake=False)]
        text = f"frequencies are {_format_first(frequencies)} instead of {_format_first(expected)}"
        return [Finding(text, mistake=False)]
    differing = [c for c in columns if (candidate_TD[:, c] - reference_TD[:, c]).abs().max() > tolerance]
    if 2 * len(differing) <= len(columns):
        text = f"there is a difference in {format_numbers('column', differing)} of {len(columns)} alone"
        return [Finding(text)]
    return []


def _column_frequencies(vectors_TD: Tensor) -> Tensor | None:
    """Return the frequencies of sinusoidal columns, largest first; None if a column is not sinusoidal."""
    # sin(a + w) + sin(a - w) = 2 cos(w) sin(a)
    middle = vectors_TD[1:-1]
    neighbours = vectors_TD[2:] + vectors_TD[:-2]
    twice_cosines = (neighbours * middle).sum(0) / (middle * middle).sum(0).clamp(min=1e-12)
    if (neighbours - twice_cosines * middle).abs().max() > SAME * vectors_TD.abs().max():
        return None
    return (twice_cosines / 2).clamp(-1, 1).acos().sort(descending=True).values[:8:2]


# Logits.


def _diagnose_logits(pair: Pair, inputs: Inputs) -> list[Finding]:
    """Return how logits differ in the first layer that differs; empty if they are equal in all layers."""
    if pair.compares_weights:
        return []
    scores = [pair.scores(inputs, layer) for layer in range(pair.shape.num_layers)]
    differing = [layer for layer, both in enumerate(scores) if not _equal(*both)]
    if not differing:
        return []
    layer = differing[0]
    result, expected = scores[layer]
    content = scores_of(PositionalEncoding(pair.shape), inputs, False, 0)  # without positions
    content = content.masked_fill(expected.isinf(), -torch.inf)
    factor = _ratio(result, expected)
    exchanged = _compare_layers(scores, differing)
    if exchanged:
        return exchanged
    if factor is not None:
        findings = [_describe_factor("logits are", factor, pair.shape, pair.reference)]
    else:
        findings = (
            _compare_heads(result, expected, content, pair.shape)
            or _compare_shifted_distances(pair, inputs, layer, result)
            or _compare_angles(pair, layer)
        )
    if len(differing) == len(scores):
        return findings
    where = f"in {format_numbers('layer', differing)} of {len(scores)}"
    findings = findings or [Finding("it differs; in the others it is equal")]
    return [finding._replace(text=f"{where}, {finding.text}", mistake=True) for finding in findings]


def _compare_layers(scores: Sequence[TensorPair], differing: Sequence[int]) -> list[Finding]:
    """Describe layers that compute what other layers of the reference do, if that explains all differences.

    Args:
        scores: scores of the candidate and of the reference in each layer.
        differing: the layers in which they differ.
    """
    layers_by_source: dict[int, list[int]] = {}
    for layer in differing:
        sources = [
            source for source, (_, expected) in enumerate(scores) if _equal(scores[layer][0], expected)
        ]
        if not sources:
            return []
        layers_by_source.setdefault(sources[0], []).append(layer)
    return [
        Finding(
            f"in {format_numbers('layer', layers)} of {len(scores)}, it does what ours does in layer {source}"
        )
        for source, layers in layers_by_source.items()
    ]


def _compare_heads(result: Tensor, expected: Tensor, content: Tensor, shape: ModelShape) -> list[Finding]:
    """Describe how the part of the logits that positions add differs between heads.

    Args:
        result: logits [H, T, S] of the candidate.
        expected: logits of the reference.
        content: logits without positions.
        shape: shape of the model.
    """
    masked = content.isinf()
    result_part = (result - content).masked_fill(masked, 0.0)
    expected_part = (expected - content).masked_fill(masked, 0.0)
    scale = float(unmasked(expected).abs().max())
    heads = range(len(result))
    if not torch.equal(result.isinf(), expected.isinf()):
        return [_compare_masks(~result.isinf(), ~expected.isinf())]
    if _equal(result_part, torch.zeros_like(result_part), scale):
        return [Finding("it has no effect")]
    factor = _ratio(result_part, expected_part)
    if factor is not None:
        return [_describe_factor("what positions add to the logits is", factor, shape)]
    sources = []  # the reference's head that each head equals, the same one if possible; -1 if it equals none
    for head in heads:
        part = result_part[head]
        equal = (source for source in (head, *heads) if _equal(part, expected_part[source], scale))
        sources.append(next(equal, -1))
    if sorted(sources) == list(heads):
        text = f"heads are permuted: they take the place of our heads {', '.join(map(str, sources))}"
        return [Finding(text)]
    factors = [_ratio(result_part[head], expected_part[head], scale) for head in heads]
    without = [head for head in heads if factors[head] == 0]
    differing = [head for head in heads if factors[head] is None]
    if without and len(without) + factors.count(1) == len(factors):
        text = f"there are no positions in {format_numbers('head', without)} of {len(factors)}"
        return [Finding(text, mistake=False)]
    if not differing:
        words = ", ".join(f"{factor:.5g}" for factor in factors)
        text = f"what positions add to the logits is, head by head, {words} times ours"
        return [Finding(text, mistake=False)]
    if 2 * len(differing) <= len(factors):
        text = f"there is a difference in {format_numbers('head', differing)} of {len(factors)} alone"
        return [Finding(text, mistake=False)]
    return []


def _compare_masks(seen_HTS: Tensor, expected_HTS: Tensor) -> Finding:
    """Describe which keys are seen that the reference hides, or hidden that it sees, at ids 0, 1, 2, ..."""
    texts = []
    distances_TS = (torch.arange(seen_HTS.shape[1])[:, None] - torch.arange(seen_HTS.shape[2])).abs()
    for verb, differs_HTS in (("sees", seen_HTS & ~expected_HTS), ("hides", expected_HTS & ~seen_HTS)):
        if differs_HTS.any():
            distances = distances_TS.expand_as(differs_HTS)[differs_HTS].unique().tolist()
            texts.append(f"it {verb} other keys than ours, at {format_numbers('distance', distances)}")
    return Finding(" and ".join(texts))


def _compare_shifted_distances(pair: Pair, inputs: Inputs, layer: int, result: Tensor) -> list[Finding]:
    """Report distances that are shifted by a small number or by a size of the encoding."""
    reference = pair.reference
    shape = pair.shape
    sizes = [
        value for value in vars(reference).values() if isinstance(value, int) and not isinstance(value, bool)
    ]
    sizes += [shape.train_length, shape.train_positions]
    sizes += [length for parameter in reference.parameters() for length in parameter.shape]
    shifts = {*range(1, DENSE), *(size + offset for size in sizes for offset in (-1, 0, 1))} - {0}
    for shift, sign in product(sorted(shifts), (1, -1)):
        shifted = copy.deepcopy(reference)
        at_every_hook(lambda i, j, by=sign * shift: (i + by, j)).apply(shifted)  # type: ignore[misc]
        try:
            if _equal(scores_of(shifted, inputs, False, layer), result):
                return [Finding(f"distances are shifted by {sign * shift}")]
        except Exception:  # the encoding rejects such distances
            continue
    return []


def _compare_angles(pair: Pair, layer: int) -> list[Finding]:
    """Describe how the angles of a step between positions differ, in any layout of channels."""
    candidate_step, reference_step = step_angles(pair.candidate, layer), step_angles(pair.reference, layer)
    if candidate_step is None or reference_step is None:
        return []
    angles, growth = candidate_step
    expected, expected_growth = reference_step
    findings = []
    if abs(growth / expected_growth - 1) > 1e-3:
        times = growth / expected_growth
        text = f"rotated queries and keys are on average {times:.5g} times as long as ours"
        findings = [Finding(text, mistake=False)]
    if angles.shape != expected.shape or torch.allclose(angles, expected, rtol=1e-3, atol=0.0):
        return findings
    rotating = int((angles > STILL).sum())
    expected_rotating = int((expected > STILL).sum())
    if rotating != expected_rotating:
        pairs = f"{rotating} of {len(angles)} pairs of channels rotate, {expected_rotating} in ours"
        return [*findings, Finding(pairs, mistake=False)]
    factors = angles[:rotating] / expected[:rotating]
    if torch.allclose(factors, factors[:1].expand_as(factors), rtol=1e-3):
        text = f"angles are {float(factors[0]):.5g} times ours"
        return [*findings, Finding(text, mistake=False)]
    text = f"frequencies are {_format_first(angles)} instead of {_format_first(expected)}"
    return [*findings, Finding(text + _describe_progression(angles[:rotating]), mistake=False)]


def _describe_progression(angles: Tensor) -> str:
    """Return whether the angles of the pairs that rotate are geometric, and with which base, or linear."""
    base = geometric_base(angles)
    if base is not None:
        return f": geometric, as of base {base:.4g}"
    differences = angles.diff()
    if len(angles) > 3 and torch.allclose(differences, differences[:1].expand_as(differences), atol=1e-4):
        return ": linear instead of geometric"
    return ""


def geometric_base(angles: Tensor) -> float | None:
    """Return b if the angles, largest first, are a constant times b^(-m/R) for m = 0 .. R - 1, else None."""
    if len(angles) <= 3 or angles[-1] < STILL:
        return None
    logs = angles.log()
    step = float(logs[-1] - logs[0]) / (len(angles) - 1)
    if not torch.allclose(logs - logs[0], step * torch.arange(len(angles)).double(), rtol=0.0, atol=5e-3):
        return None
    return math.exp(-step * len(angles))


def step_angles(encoding: PositionalEncoding, layer: int = 0) -> tuple[Tensor, float] | None:
    """Measure the rotation from position 0 to position 1 by its eigenvalues.

    Returns:
        The angles of the pairs of channels, largest first, and the mean length of rotated unit vectors: the
        root of the product of q's and k's, whose scales may cancel. None if ``rotate`` changes the width of a
        head or is not invertible.
    """
    head_dim = encoding.shape.head_dim
    units = torch.eye(head_dim)[None, None].expand(1, encoding.shape.num_heads, -1, -1)
    visible = torch.ones(1, 1, 1, dtype=torch.bool)
    rotated = []
    for position in (0, 1):
        ids = torch.full((1, head_dim), position)
        at = AttentionContext(ids, ids, visible, layer=layer)
        q_and_k = encoding.for_layer(layer).rotate(units, units, at)
        rotated.append([x[0, 0].double() for x in q_and_k])
    (at_zero, _), (at_one, keys_at_one) = rotated
    if at_zero.shape != (head_dim, head_dim) or torch.linalg.matrix_rank(at_zero) < head_dim:
        return None
    eigenvalues = torch.linalg.eigvals(torch.linalg.solve(at_zero, at_one))
    angles = eigenvalues.angle().abs().sort(descending=True).values[::2]
    lengths = (at_one.norm(dim=-1) * keys_at_one.norm(dim=-1)).sqrt()
    return angles, float(lengths.mean())


# Far positions.


def _diagnose_far_ids(pair: Pair) -> list[Finding]:
    """Report ids that wrap or are clipped, or distances that are clipped, at a usual size of a table."""
    if pair.compares_weights:
        return []
    ids_S = torch.cat([torch.tensor([0]), ids_around_table_ends(), spread_ids(FAR_IDS)]).unique()

    def values_at(encoding: PositionalEncoding, ids_S: Tensor) -> Tensor:
        if acts_at_embedding(encoding):
            return vectors_at(encoding, ids_S).double()
        return logits_of_one_query(encoding, ids_S, len(ids_S) - 1)

    def equals_reference_at(ids_S: Tensor) -> bool:
        try:
            expected = values_at(pair.reference, ids_S)
        except ValueError:  # the reference rejects such positions
            return False
        return relative_difference(result, expected) <= FAR_TOLERANCE

    try:
        result = values_at(pair.candidate, ids_S)
    except Exception:  # the end of a table is reported elsewhere
        return []
    if equals_reference_at(ids_S):
        return []
    for size in (size + offset for offset in (0, 1, -1) for size in TABLE_ENDS):
        changes = {
            f"ids wrap at {size:,}": ids_S % size,
            f"ids beyond {size - 1:,} are taken as {size - 1:,}": ids_S.clamp(max=size - 1),
            f"distances beyond {size:,} are taken as {size:,}": ids_S.clamp(min=int(ids_S[-1]) - size),
        }
        for finding, changed_S in changes.items():
            if equals_reference_at(changed_S):
                return [Finding(finding)]
    return []


def _describe_factor(
    what: str, factor: float, shape: ModelShape, encoding: PositionalEncoding | None = None
) -> Finding:
    """Describe a factor, and a usual reason for it, if there is one; it is a mistake then."""
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
            return Finding(f"{what} {factor:.5g} times ours", reason=reason)
    return Finding(f"{what} {factor:.5g} times ours", mistake=False)
