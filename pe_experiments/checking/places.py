"""Where two encodings with shared parameters differ, in words: layers, heads, positions and distances."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pe_experiments.checking.contract import relative_difference
from pe_experiments.checking.side_by_side import (
    DENSE,
    SAME,
    build_both,
    compares_weights,
    draw_inputs,
    embeddings_of,
    scores_of,
    shape_of,
    share_parameters,
)
from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.models.attention_scores import Inputs
from pe_experiments.models.backbone import MakeEncoding

LISTED = 8  # numbers in a sentence


@torch.no_grad()
def where_they_differ(
    theirs: MakeEncoding, reference: MakeEncoding, causal: bool, sizes: Iterable[tuple[int, int, int]],
    span: int = DENSE, noise: float = 0.3,
) -> str:  # fmt: skip
    """How their embeddings or logits differ, with equal parameters; ``noise`` 0: as each starts."""
    first_heads = 0
    for size in sizes:
        first_heads = first_heads or size[1]
        ours, other = build_both(reference, theirs, shape_of(size, causal), noise)
        if noise and share_parameters(ours, other) is None:
            continue
        if place := place_of_difference(other, ours, span):
            equal_before = (
                "" if size[1] == first_heads else f"equal with {first_heads} heads; with {size[1]}, "
            )
            return equal_before + place
    return ""


def place_of_difference(
    theirs: PositionalEncoding, ours: PositionalEncoding, span: int = DENSE, layers: Sequence[int] = (0,)
) -> str:
    """The first place of a difference below position ``span``; without gaps if it is `DENSE`."""
    inputs = draw_inputs(ours.shape, DENSE, span, 0, getattr(theirs, "key_heads", None))
    result, expected = embeddings_of(theirs, ours, inputs)
    if place := place_in_embeddings(result, expected, inputs.positions_BT[0]):
        return place
    weights = compares_weights(theirs, ours)
    places = {}
    for layer in layers:
        result, expected = (scores_of(encoding, inputs, weights, layer) for encoding in (theirs, ours))
        place = place_in_scores(result, expected, inputs, "attention weights" if weights else "logits")
        if place:
            places[layer] = place
    if not places:
        return ""
    first = next(iter(places))
    if len(places) == len(layers):
        return places[first]
    return f"in {numbered('layer', list(places))} of {len(layers)}, {places[first]}"


def place_in_embeddings(result: Tensor, expected: Tensor, ids_T: Tensor, tolerance: float = SAME) -> str:
    """The first position of a difference, and the column of the largest."""
    if result.shape != expected.shape:
        return f"embeddings have the shape {list(result.shape)} instead of {list(expected.shape)}"
    if relative_difference(result, expected) <= tolerance:
        return ""
    difference_TD = (result - expected).abs().nan_to_num(torch.inf).amax(dim=0)
    differs_T = (difference_TD > tolerance * expected.abs().max()).any(dim=-1)
    column = int(difference_TD.amax(0).argmax())
    return f"embeddings differ from position {int(ids_T[differs_T].min()):,} on, most in column {column}"


def place_in_scores(result: Tensor, expected: Tensor, inputs: Inputs, what: str) -> str:
    """The heads and the first distance of a difference, and the largest one."""
    if result.shape != expected.shape:
        return f"{what} have the shape {list(result.shape)} instead of {list(expected.shape)}"
    ids_T = inputs.positions_BT[0]
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


def distances_that_differ(
    result_HS: Tensor, expected_HS: Tensor, distances_S: Tensor, tolerance: float
) -> str:
    """The distances at which the logits of one query differ."""
    if relative_difference(result_HS, expected_HS) <= tolerance:
        return ""
    differs_S = ((result_HS - expected_HS).abs() > tolerance * expected_HS.abs().max()).any(0)
    distances = distances_S[differs_S].unique().tolist()
    if len(distances) <= LISTED:
        return f"logits differ at {numbered('distance', distances)} only"
    return f"logits differ at {len(distances):,} distances, the nearest {distances[0]:,}"


def logits_of_one_query(encoding: PositionalEncoding, ids_S: Tensor, query: int, seed: int = 0) -> Tensor:
    """Logits [H, S] of the query at an index, for all keys, relative to that of its own key."""
    shape, generator = encoding.shape, torch.Generator().manual_seed(seed)
    q_BHTK = torch.randn(1, shape.num_heads, 1, shape.head_dim, generator=generator)
    k_BHSK = torch.randn(1, 1, len(ids_S), shape.head_dim, generator=generator).repeat(
        1, shape.num_heads, 1, 1
    )
    x_BSD = torch.randn(1, len(ids_S), shape.d_model, generator=generator)
    ids_BS, visible_BTS = ids_S[None], torch.ones(1, 1, len(ids_S), dtype=torch.bool)
    at = AttentionContext(ids_BS[:, [query]], ids_BS, visible_BTS, None, x_BSD, first_query=query)
    part = encoding.for_layer(0)
    q_BHTK, k_BHSK = part.rotate(q_BHTK, k_BHSK, at)
    logits_HTS = ((q_BHTK * shape.head_dim**-0.5) @ k_BHSK.mT)[0]
    bias = part.bias(q_BHTK, k_BHSK, at)
    if bias is not None:
        logits_HTS = logits_HTS + bias.expand(1, shape.num_heads, 1, -1)[0]
    logits_HS = logits_HTS[:, 0].double()
    return logits_HS - logits_HS[:, [query]]


def numbered(word: str, numbers: Sequence[int]) -> str:
    """``layer 3``, or ``layers 3, 7 and 11``."""
    if len(numbers) == 1:
        return f"{word} {numbers[0]:,}"
    shown = [f"{number:,}" for number in numbers[:LISTED]]
    if len(numbers) > LISTED:
        return f"{word}s {', '.join(shown)} and {len(numbers) - LISTED} more"
    return f"{word}s {', '.join(shown[:-1])} and {shown[-1]}"
