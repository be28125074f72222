"""Measure how the results of an implementation relate to those of one of our encodings.

Each function of a `Pair` returns a change of our encoding and its description, or None. The change is
measured on single sequences; whether it explains all stages is up to the caller.
"""

import copy
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pe_experiments.checking.comparison import format_numbers
from pe_experiments.checking.known_mistakes import Change, at_every_hook, change_layers, change_method
from pe_experiments.checking.pair import DENSE, TOLERANCE, Pair, scores_of
from pe_experiments.checking.subject import embed, masked_difference, unmasked, vectors_at
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.sinusoidal import Sinusoidal
from pe_experiments.encodings.softmax import MASKED, is_masked
from pe_experiments.models.attention import makes_weights

STILL = 1e-12  # smaller angles of a step are rounding
ROUNDED = 2.0**-7  # factors nearer to 1 are rounding to half precision


class Relation(NamedTuple):
    """A change of our encoding that gives the results of an implementation.

    Args:
        change: the change.
        text: what the implementation does that our encoding does not.
        mistake: whether no encoding is meant so; False for other slopes, frequencies and masks.
        reasons: usual reasons for the numbers in the text. One that holds in all models makes it a mistake.
    """

    change: Change
    text: str
    mistake: bool = True
    reasons: tuple[str, ...] = ()


def _equal(values: Tensor, expected: Tensor, largest: float | None = None) -> bool:
    return masked_difference(values, expected, largest) <= TOLERANCE


def _ratio(values: Tensor, expected: Tensor, largest: float | None = None) -> float | None:
    """Return the factor by which all ``values`` are larger than ``expected``, or None if there is none."""
    if values.shape != expected.shape or not torch.equal(values.isinf(), expected.isinf()):
        return None
    values, expected = unmasked(values), unmasked(expected)
    square = float((expected * expected).sum())
    factor = float((values * expected).sum()) / square if square else 0.0
    if not _equal(values, factor * expected, largest):
        return None
    for exact in (0.0, 1.0):
        if abs(factor - exact) < TOLERANCE:
            return exact
    return factor


# Factors.


def factor(pair: Pair) -> Relation | None:
    """Measure a factor of all logits, of the bias, or of tokens and vectors at the embedding."""
    if pair.reference.acts_at_embedding:
        return None if pair.reference.position_width else _embedding_factors(pair)
    if pair.compares_weights:
        return None
    whole = _ratio(*pair.scores(pair.inputs_below(DENSE)))
    if whole not in (None, 0.0, 1.0):
        scaled = change_layers("scaled_logits", lambda part, original, q, k: whole * original(q, k))
        return _factor_relation(scaled.then(_scaled_bias(whole)), "logits are", whole, pair)
    parts = _position_parts(pair)
    added = _ratio(*parts) if parts is not None else None
    if added in (None, 1.0):
        return None
    return _factor_relation(_scaled_bias(added), "what positions add to the logits is", added, pair)


def _position_parts(pair: Pair) -> tuple[Tensor, Tensor, float] | None:
    """Return what positions add to both logits [H, T, S], and our largest logit; None if the masks differ."""
    inputs = pair.inputs_below(DENSE)
    result, expected = pair.scores(inputs)
    if not torch.equal(result.isinf(), expected.isinf()):
        return None
    content = scores_of(PositionalEncoding(pair.shape), inputs, False, 0)
    masked = expected.isinf() | content.isinf()
    added, added_by_ours = ((scores - content).masked_fill(masked, 0.0) for scores in (result, expected))
    return added, added_by_ours, float(unmasked(expected).abs().max())


def _scaled_bias(by: float | Tensor) -> Change:
    def bias(part, original, q, k, at):
        original_bias = original(q, k, at)
        return None if original_bias is None else original_bias * by

    return change_layers("bias", bias)


def _embedding_factors(pair: Pair) -> Relation | None:
    """Measure a and b if the embedding is a * tokens + b * vectors."""
    inputs = pair.inputs_below(DENSE)
    result, expected = (embedded.double() for embedded in pair.embeddings(inputs))
    tokens = inputs.x_BTD.double()
    if result.shape != tokens.shape:
        return None
    columns = torch.stack([tokens.flatten(), (expected - tokens).flatten()], dim=1)
    solution = torch.linalg.lstsq(columns, result.flatten()[:, None]).solution
    if not _equal((columns @ solution).flatten(), result.flatten()):
        return None
    of_tokens, of_vectors = solution.flatten().tolist()

    def embed_sequence(encoding, original, x, ids, declared):
        return of_tokens * x + of_vectors * (original(x, ids, declared) - x)

    change = change_method("embed_sequence", embed_sequence)
    if abs(of_vectors) < TOLERANCE:
        return Relation(change, "no vector of positions is added")
    if math.isclose(of_tokens, of_vectors, rel_tol=TOLERANCE):
        return _factor_relation(change, "tokens and vectors together are", of_tokens, pair)
    of_parts = {"tokens": of_tokens, "vectors of positions": of_vectors}
    factors = {what: by for what, by in of_parts.items() if not math.isclose(by, 1, rel_tol=TOLERANCE)}
    text = "; ".join(f"{what} are {by:.5g} times ours" for what, by in factors.items())
    reasons = [reason for by in factors.values() for reason in _reasons_of_factor(by, pair.shape)]
    return Relation(change, text, mistake=False, reasons=tuple(reasons))


def _factor_relation(change: Change, what: str, number: float, pair: Pair) -> Relation:
    if number == 0.0:
        return Relation(change, f"{what} 0: it has no effect")
    reasons = tuple(_reasons_of_factor(number, pair.shape, pair.reference))
    return Relation(change, f"{what} {number:.5g} times ours", mistake=False, reasons=reasons)


def _reasons_of_factor(
    number: float, shape: ModelShape, encoding: PositionalEncoding | None = None
) -> Iterator[str]:
    """Yield the usual reasons for a factor in a model of this shape."""
    channels, width = shape.head_dim, shape.d_model
    reasons = [
        (-1.0, "the sign is wrong"),
        *((log, "a logarithm to base 2?") for log in (math.log(2), 1 / math.log(2))),
        *((log, "a logarithm to base 10?") for log in (math.log(10), 1 / math.log(10))),
        (channels**0.5, "not divided by sqrt(head_dim)?"),
        (channels**-0.5, "divided by sqrt(head_dim) once more?"),
        (width**0.5, "multiplied by sqrt(d_model)?"),
        (width**-0.5, "divided by sqrt(d_model)?"),
        ((channels / width) ** 0.5, "divided by sqrt(d_model), not by sqrt(head_dim)?"),
        (3.0**0.5, "not divided by sqrt(3)?"),
        (3.0**-0.5, "divided by sqrt(3)?"),
    ]
    stretch = getattr(encoding, "factor", None)
    if stretch:
        scale = 0.1 * math.log(stretch) + 1
        reasons += [(scale**power, f"YaRN's scale to the power {2 + power}?") for power in (-2, -1, 1, 2)]
    yield from (reason for value, reason in reasons if math.isclose(number, value, rel_tol=1e-4))


# Heads, layers, masks.


def heads(pair: Pair) -> Relation | None:
    """Measure for each head which of our heads' biases it has, and by which factor."""
    if pair.compares_weights or pair.reference.acts_at_embedding:
        return None
    measured = _position_parts(pair)
    if measured is None:
        return None
    parts, our_parts, scale = measured
    all_heads = range(len(parts))
    sources, factors = [], []
    for head in all_heads:
        equal = (s for s in (head, *all_heads) if _equal(parts[head], our_parts[s], scale))
        source = next(equal, head)
        number = _ratio(parts[head], our_parts[source], scale)
        if number is None:
            return None
        sources.append(source)
        factors.append(number)
    factors_H11 = torch.tensor(factors)[:, None, None]

    def bias(part, original, q, k, at):
        original_bias = original(q, k, at)
        if original_bias is None:
            return None
        expanded = original_bias.expand(-1, part.shape.num_heads, -1, -1)
        return expanded[:, sources] * factors_H11.to(expanded.dtype)

    text, mistake = _describe_heads(sources, factors)
    return Relation(change_layers("bias", bias), text, mistake) if text else None


def _describe_heads(sources: list[int], factors: list[float]) -> tuple[str, bool]:
    """Describe heads with the biases of others or other factors; return also whether that is wrong."""
    in_order = [*range(len(sources))]
    differing = [head for head, number in enumerate(factors) if number != 1.0]
    texts = []
    if sources != in_order:
        permuted = "are permuted: they " if sorted(sources) == in_order else ""
        texts.append(f"heads {permuted}take the place of our heads {', '.join(map(str, sources))}")
    if differing and all(factors[head] == 0.0 for head in differing):
        texts.append(f"there are no positions in {format_numbers('head', differing)} of {len(factors)}")
    elif differing and all(abs(number - 1) < ROUNDED for number in factors):
        off = max(abs(number - 1) for number in factors)
        return f"slopes are rounded, by up to {100 * off:.2g} %: in half precision?", True
    elif differing:
        words = ", ".join(f"{number:.5g}" for number in factors)
        texts.append(f"what positions add to the logits is, head by head, {words} times ours")
    return "; ".join(texts), sources != in_order


def layers(pair: Pair) -> Relation | None:
    """Measure which layers compute what ours computes in other layers, or nothing."""
    if pair.compares_weights or pair.reference.acts_at_embedding:
        return None
    inputs = pair.inputs_below(DENSE)
    scores = [pair.scores(inputs, layer) for layer in range(pair.shape.num_layers)]
    nothing = scores_of(PositionalEncoding(pair.shape), inputs, False, 0)
    layers_by_source: dict[int, list[int]] = {}  # -1: no effect
    for layer, (result, expected) in enumerate(scores):
        if _equal(result, expected):
            continue
        sources = [source for source, (_, other) in enumerate(scores) if _equal(result, other)]
        if not sources and not _equal(result, nothing):
            return None
        layers_by_source.setdefault(sources[0] if sources else -1, []).append(layer)
    source_of = {layer: source for source, several in layers_by_source.items() for layer in several}
    if not source_of:
        return None

    def for_layer(part, original, layer):
        source = source_of.get(layer, layer)
        return PositionalEncoding(part.shape) if source < 0 else original(source)

    texts = []
    for source, several in layers_by_source.items():
        what = "it has no effect" if source < 0 else f"it does what ours does in layer {source}"
        texts.append(f"in {format_numbers('layer', several)} of {len(scores)}, {what}")
    return Relation(change_method("for_layer", for_layer), "\n  ".join(texts))


def mask(pair: Pair) -> Relation | None:
    """Take over the keys that the implementation sees."""
    encodings = (pair.candidate, pair.reference)
    if any(makes_weights(encoding.for_layer(0)) for encoding in encodings):
        return None
    inputs = pair.inputs_below(DENSE)
    result, expected = pair.scores(inputs)
    texts = []
    seen_HTS, expected_HTS = ~result.isinf(), ~expected.isinf()
    distances_TS = (torch.arange(DENSE)[:, None] - torch.arange(DENSE)).abs()
    for verb, differs_HTS in (("sees", seen_HTS & ~expected_HTS), ("hides", expected_HTS & ~seen_HTS)):
        if differs_HTS.any():
            distances = distances_TS.expand_as(differs_HTS)[differs_HTS].unique().tolist()
            texts.append(f"it {verb} other keys than ours, at {format_numbers('distance', distances)}")
    if not texts:
        return None
    candidate = pair.candidate

    def bias(part, original, q, k, at):
        layer_candidate = candidate.for_layer(at.layer)
        theirs = layer_candidate.bias(*layer_candidate.rotate(q, k, at), at)
        ours = original(q, k, at)
        ours = torch.zeros(()) if ours is None else ours.masked_fill(is_masked(ours), 0.0)
        return ours if theirs is None else torch.where(is_masked(theirs), torch.tensor(MASKED), ours)

    return Relation(change_layers("bias", bias), " and ".join(texts), mistake=False)


# Position ids and distances.


def shifted_ids(pair: Pair) -> Relation | None:
    """Search a number below `DENSE` by which distances, or ids at the embedding, are shifted."""
    if pair.compares_weights:
        return None
    inputs = pair.inputs_below(DENSE)
    at_embedding = pair.reference.acts_at_embedding
    result, expected = pair.embeddings(inputs) if at_embedding else pair.scores(inputs)
    if result.shape != expected.shape or _equal(result, expected):
        return None
    for shift in (sign * distance for distance in range(1, DENSE) for sign in (1, -1)):
        change = at_every_hook(lambda i, j, by=shift: (i + by, j + by if at_embedding else j))  # type: ignore[misc]
        shifted = copy.deepcopy(pair.reference)
        change.apply(shifted)
        try:
            values = embed(shifted, inputs) if at_embedding else scores_of(shifted, inputs, False, 0)
        except Exception:  # the encoding rejects such ids
            continue
        if _equal(values, result):
            what = "ids" if at_embedding else "distances"
            return Relation(change, f"{what} are shifted by {shift}")
    return None


# Frequencies.


def frequencies(pair: Pair) -> Relation | None:
    """Measure the frequencies of a rotation or of sinusoidal vectors, pair by pair of channels."""
    if isinstance(pair.reference, Sinusoidal):
        return _sinusoid_frequencies(pair)
    if not isinstance(pair.reference, Rope) or pair.candidate.acts_at_embedding:
        return None
    angles_R, our_angles_R = (pair_angles(pair, encoding) for encoding in (pair.candidate, pair.reference))
    if angles_R is None or our_angles_R is None:
        return None
    if torch.allclose(angles_R, our_angles_R, rtol=TOLERANCE, atol=STILL):
        return None
    change = change_method("frequencies_BR", lambda part, original, at: angles_R[None])
    return Relation(change, _describe_frequencies(angles_R, our_angles_R), mistake=False)


def pair_angles(pair: Pair, encoding: PositionalEncoding) -> Tensor | None:
    """Return the angle of a step for each of our pairs of channels; None if a pair mixes with others."""
    assert isinstance(pair.reference, Rope)
    pairs, head_dim = pair.reference.pairs, pair.shape.head_dim
    order = pair.channel_order(head_dim) if encoding is pair.candidate else [*range(head_dim)]
    units_CK = torch.eye(head_dim)[:pairs][:, order]
    units = units_CK[None, None].expand(1, pair.shape.num_heads, -1, -1)
    ids = torch.ones(1, pairs, dtype=torch.long)
    at = AttentionContext(ids, ids, torch.ones(1, 1, 1, dtype=torch.bool))
    rotated = encoding.for_layer(0).rotate(units, units, at)[0][0, 0].double()
    if rotated.shape != (pairs, head_dim):
        return None
    rotated = rotated[:, torch.tensor(order).argsort()]
    cos, sin = rotated[:, :pairs].diagonal(), rotated[:, pairs : 2 * pairs].diagonal()
    lengths = (cos.square() + sin.square()).sqrt()
    mixed = not torch.allclose(rotated.norm(dim=-1), lengths, rtol=TOLERANCE)
    return None if mixed else torch.atan2(sin, cos)


def _sinusoid_frequencies(pair: Pair) -> Relation | None:
    """Measure the frequencies of vectors whose columns are sines and cosines in turn."""
    assert isinstance(pair.reference, Sinusoidal)
    is_scaled = type(pair.reference) is not Sinusoidal
    if is_scaled or pair.reference.width % 2 or pair.layout or pair.candidate.position_width:
        return None

    def angles(encoding: PositionalEncoding) -> Tensor:
        vector_D = vectors_at(encoding, torch.tensor([1]))[0].double()
        return torch.atan2(vector_D[0::2], vector_D[1::2])

    angles_R, our_angles_R = angles(pair.candidate), angles(pair.reference)
    if len(angles_R) != len(our_angles_R) or torch.allclose(angles_R, our_angles_R, rtol=TOLERANCE):
        return None

    def vectors(encoding, original, positions):
        turned = positions.double()[..., None] * angles_R
        return torch.stack([turned.sin(), turned.cos()], -1).flatten(-2).float()

    text = _describe_frequencies(angles_R, our_angles_R)
    return Relation(change_method("vectors", vectors), text, mistake=False)


def _describe_frequencies(angles_R: Tensor, our_angles_R: Tensor) -> str:
    """Describe how frequencies differ: by a factor, in their progression, or from which pair on."""
    differs_R = ~torch.isclose(angles_R, our_angles_R, rtol=TOLERANCE, atol=STILL)
    both = (angles_R.abs() > STILL) & (our_angles_R.abs() > STILL)
    ratios = angles_R[both] / our_angles_R[both]
    if bool(both.all()) and torch.allclose(ratios, ratios[:1].expand_as(ratios), rtol=1e-3):
        return f"frequencies are {float(ratios[0]):.5g} times ours"
    first = int(differs_R.nonzero()[0])
    text = (
        f"frequencies differ in {int(differs_R.sum())} of {len(angles_R)} pairs, first in pair {first}: "
        f"{float(angles_R[first]):.6g} instead of {float(our_angles_R[first]):.6g}"
    )
    base = geometric_base(angles_R)
    if base is not None:
        return f"{text}; they are geometric, as of base {base:.4g}"
    steps = angles_R.diff()
    if len(angles_R) > 3 and torch.allclose(steps, steps[:1].expand_as(steps), atol=1e-4):
        return f"{text}; they are linear instead of geometric"
    return text


def geometric_base(angles: Tensor) -> float | None:
    """Return b if the angles, largest first, are a constant times b^(-m/R) for m = 0 .. R - 1, else None."""
    if len(angles) <= 3 or float(angles.min()) < STILL:
        return None
    logs = angles.log()
    step = float(logs[-1] - logs[0]) / (len(angles) - 1)
    if not torch.allclose(logs - logs[0], step * torch.arange(len(angles)).double(), rtol=0.0, atol=5e-3):
        return None
    return math.exp(-step * len(angles))
