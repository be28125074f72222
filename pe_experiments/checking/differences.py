"""Describe where an implementation differs from a reference: layers, heads, distances, rows of tables."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from pe_experiments.checking.instances import build, masked_difference, relative_difference
from pe_experiments.checking.pair import (
    DENSE,
    FAR,
    NEAR,
    SAME,
    Pair,
    Sizes,
    defined_far,
    logits_of_one_query,
    make_pair,
    model_shape,
)
from pe_experiments.encodings import ModelShape
from pe_experiments.encodings.base import MakeEncoding, acts_at_embedding

SMALL: Sizes = (64, 4, 12)  # width, heads (a power of two and not), training length
LARGE: Sizes = (144, 6, 1024)  # heads 24 wide; T5's buckets are wide and YaRN's ramp is gradual
SIZES = (SMALL, LARGE)
HEADS = (1, 2, 3, 5, 8, 12, 16, 32)
LAYERS = 12  # a multiple of 2, 3, 4 and 6
FARTHEST = 131_072
FAR_TOLERANCE = 0.1  # angles in float32 are off by 0.01 at the farthest ids, wrapped ones by 1
TABLE_ENDS = (1_000, 1_024, 2_048, 4_096, 5_000, 8_192, 10_000, 16_384, 20_000, 32_768, 65_536, 100_000)
LISTED = 8  # most numbers in a message

MakePair = Callable[[ModelShape], Pair | None]


def ids_around_table_ends() -> Tensor:
    ends = torch.tensor(TABLE_ENDS)
    return torch.cat([ends - 1, ends, ends + 1]).unique()


def spread_ids(number: int) -> Tensor:
    """Return random ids up to the farthest."""
    ids = torch.randperm(FARTHEST, generator=torch.Generator().manual_seed(0))[:number]
    return ids.sort().values


def numbered(word: str, numbers: Sequence[int]) -> str:
    """Return ``layer 3``, or ``layers 3, 7 and 11``."""
    if len(numbers) == 1:
        return f"{word} {numbers[0]:,}"
    shown = [f"{number:,}" for number in numbers[:LISTED]]
    if len(numbers) > LISTED:
        return f"{word}s {', '.join(shown)} and {len(numbers) - LISTED} more"
    return f"{word}s {', '.join(shown[:-1])} and {shown[-1]}"


# In two tensors.


def place_in_embeddings(result: Tensor, expected: Tensor, ids_T: Tensor, tolerance: float = SAME) -> str:
    """Return the first position of a difference, and the column of the largest."""
    if result.shape != expected.shape:
        return f"embeddings have the shape {list(result.shape)} instead of {list(expected.shape)}"
    if relative_difference(result, expected) <= tolerance:
        return ""
    difference_TD = (result - expected).abs().nan_to_num(torch.inf).amax(dim=0)
    differs_T = (difference_TD > tolerance * expected.abs().max()).any(dim=-1)
    column = int(difference_TD.amax(0).argmax())
    return f"embeddings differ from position {int(ids_T[differs_T].min()):,} on, most in column {column}"


def place_in_scores(result: Tensor, expected: Tensor, ids_T: Tensor, what: str) -> str:
    """Return the heads and the first distance of a difference, and the largest one."""
    if result.shape != expected.shape:
        return f"{what} have the shape {list(result.shape)} instead of {list(expected.shape)}"
    difference_HTS = (result - expected).abs().nan_to_num(0.0, torch.inf)  # nan: masked in both
    differs_HTS = difference_HTS > SAME * expected[expected.isfinite()].abs().max()
    if not differs_HTS.any():
        return ""
    heads = differs_HTS.flatten(1).any(dim=1).nonzero().flatten().tolist()
    queries, keys = (ids_T[indices] for indices in differs_HTS.any(0).nonzero(as_tuple=True))
    largest = torch.unravel_index(difference_HTS.argmax(), difference_HTS.shape)
    head, query, key = (int(index) for index in largest)
    return (
        f"{what} differ in {len(heads)} of {len(result)} heads ({', '.join(map(str, heads))}), from distance "
        f"{int((queries - keys).abs().min())} on; most in head {head} for the query at position "
        f"{ids_T[query]} and the key at {ids_T[key]}: "
        f"{result[head, query, key]:.6g} instead of {expected[head, query, key]:.6g}"
    )


# In models of the usual sizes.


def place_in_pair(pair: Pair, span: int = DENSE) -> str:
    """Return the first place of a difference below position ``span``; without gaps if it is `DENSE`."""
    inputs = pair.inputs_below(span)
    ids_T = inputs.positions_BT[0]
    what = "attention weights" if pair.compares_weights else "logits"
    return place_in_embeddings(*pair.embeddings(inputs), ids_T) or place_in_scores(
        *pair.scores(inputs), ids_T, what
    )


@torch.no_grad()
def where_they_differ(checked: MakeEncoding, reference: MakeEncoding, causal: bool, span: int = DENSE) -> str:
    """Return how their embeddings or logits differ with equal parameters."""
    for size in SIZES:
        pair = make_pair(checked, reference, model_shape(size, causal))
        place = place_in_pair(pair, span) if pair else ""
        if place:
            return place if size == SMALL else f"equal with {SMALL[1]} heads; with {size[1]}, {place}"
    return ""


@torch.no_grad()
def untrained_pairs(checked: MakeEncoding, reference: MakeEncoding, causal: bool) -> list[Pair]:
    """Return both encodings with initial parameters."""
    shapes = [model_shape(size, causal) for size in SIZES]
    return [Pair(build(checked, shape), build(reference, shape)) for shape in shapes]


# Where models of the usual sizes agree.


def difference_in_other_models(
    checked: MakeEncoding, reference: MakeEncoding, forms: Sequence[bool], steps: Sequence[str] = ()
) -> str:
    """Return the first difference in other models, at other positions or in tables, or an empty string."""
    pair_of = partial(make_pair, checked, reference, steps=steps)
    looks: tuple[Callable[[MakePair, bool], str], ...] = (
        _in_other_models,
        _at_every_distance,
        partial(_at_far_ids, reference),
        _in_table_rows,
    )
    for causal in forms:
        for look in looks:
            try:
                place = look(pair_of, causal)
            except Exception:  # the encoding or its module rejects these sizes or positions
                continue
            if place:
                return place if causal else f"in an encoder, {place}"
    return ""


def _in_other_models(pair_of: MakePair, causal: bool) -> str:
    """Return a difference with twelve layers and other numbers of heads, or an empty string."""
    for size in (SMALL, *((8 * heads, heads, 12) for heads in HEADS)):
        try:
            pair = pair_of(model_shape(size, causal, LAYERS))
        except Exception:  # the encoding rejects these sizes
            continue
        if pair is None:
            continue
        where = "" if size == SMALL else f"with {size[1]} heads, "
        if pair.difference > SAME:
            place = "" if pair.steps else place_in_pair(pair)
            return f"{where}{place or 'logits or embeddings differ'}"
        inputs = pair.inputs_below(NEAR)
        layers = [layer for layer in range(LAYERS) if masked_difference(*pair.scores(inputs, layer)) > SAME]
        if layers:
            named = numbered("layer", layers)
            return f"{where}in {named} of {LAYERS}, logits differ; in the others they are equal"
    return ""


def _at_every_distance(pair_of: MakePair, causal: bool) -> str:
    ids_S = torch.arange(FAR)
    # The first key's query sees all others after it, the last one's all before it.
    for size, query in [(SMALL, FAR - 1), (LARGE, FAR - 1)] + ([] if causal else [(LARGE, 0)]):
        pair = pair_of(model_shape(size, causal))
        if pair is None or pair.steps or pair.reference.invariant_to != "shift" or pair.compares_weights:
            continue
        try:
            result, expected = (logits_of_one_query(e, ids_S, query) for e in (pair.checked, pair.reference))
        except Exception:  # the end of a table is reported for far positions
            continue
        if relative_difference(result, expected) <= 2 * SAME:
            continue
        differs_S = ((result - expected).abs() > 2 * SAME * expected.abs().max()).any(0)
        distances = (ids_S - ids_S[query]).abs()[differs_S].unique().tolist()
        if len(distances) <= LISTED:
            return f"logits differ at {numbered('distance', distances)} only"
        return f"logits differ at {len(distances):,} distances, the nearest {distances[0]:,}"
    return ""


def _at_far_ids(reference: MakeEncoding, pair_of: MakePair, causal: bool) -> str:
    pair = pair_of(model_shape(SMALL, causal))
    if pair is None or not defined_far(reference, pair.reference):
        return ""
    for ids_T in (ids_around_table_ends(), spread_ids(DENSE)):
        embeddings, scores = pair.results(pair.inputs_at(ids_T[None]))  # a table that ends raises
        place = "" if pair.steps else place_in_embeddings(*embeddings, ids_T, FAR_TOLERANCE)
        if place:
            return f"at ids up to {FARTHEST:,}, {place}"
        if max(masked_difference(*embeddings), masked_difference(*scores)) > FAR_TOLERANCE:
            return f"at ids from {TABLE_ENDS[0]:,} to {FARTHEST:,}, logits or embeddings differ"
    return ""


def _in_table_rows(pair_of: MakePair, causal: bool) -> str:
    """Return rows of a table without a gradient if ours have one (padding_idx of nn.Embedding)."""
    pair = pair_of(model_shape(SMALL, causal))
    tables = [pairing for pairing in pair.pairings if pairing.checked.squeeze().ndim == 2] if pair else []
    if pair is None or pair.steps or not tables:
        return ""
    _backward(pair)
    names = {id(parameter): name for name, parameter in pair.checked.named_parameters()}
    for pairing in tables:
        if pairing.checked.grad is None or pairing.reference.grad is None:
            continue
        # Further rows keep their values in any form.
        expected = pairing.form(pairing.reference.grad) - pairing.form(torch.zeros_like(pairing.reference))
        trained, expected_trained = (
            rows.squeeze().abs().sum(-1) > 0 for rows in (pairing.checked.grad, expected)
        )
        if trained.shape == expected_trained.shape and trained.any():
            untrained = (expected_trained & ~trained).nonzero().flatten().tolist()
            if untrained:
                return f"no gradient reaches {numbered('row', untrained)} of {names[id(pairing.checked)]}"
    return ""


@torch.enable_grad()
def _backward(pair: Pair) -> None:
    """Leave the gradients of a weighted sum of embeddings and logits at all near positions in both."""
    inputs = pair.inputs_at(torch.arange(NEAR)[None])
    results = [pair.embeddings(inputs)]
    if not acts_at_embedding(pair.reference) and not pair.compares_weights:
        results.append(pair.scores(inputs))
    for outputs in zip(*results, strict=True):  # of theirs, then of ours
        total = torch.zeros(())
        for values in outputs:
            finite = values[values.isfinite()]
            weights = torch.randn(finite.shape, generator=torch.Generator().manual_seed(0))
            total = total + (finite * weights).sum()
        if total.requires_grad:
            total.backward()
