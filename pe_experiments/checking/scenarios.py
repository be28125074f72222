"""Define scenarios with batches, caches, padding and packed rows, which must not change results.

A token must get the same result as if its document were processed alone.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from pe_experiments.checking.instances import draw_content, relative_difference
from pe_experiments.checking.pair import Pair
from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.encodings.base import acts_at_embedding
from pe_experiments.models.attention_scores import Inputs

ROWS, TOKENS = 3, 8
PADDING = -1


class Scenario(NamedTuple):
    """Rows of a batch: the position id of every token, and its document (`PADDING`: none), both [B, T]."""

    positions_BT: Tensor
    documents_BT: Tensor
    decoding: bool = False  # queries in parts, the last ones singly, with the keys of the whole row


def _scenarios() -> dict[str, Scenario]:
    here = torch.arange(TOKENS)
    same = torch.zeros(ROWS, TOKENS, dtype=torch.long)
    # Relative encodings do not see a common shift, so rows also differ in their steps.
    ids_of_rows = torch.tensor([[3], [2], [1]]) * here + torch.tensor([[0], [5], [17]])
    padded, second = torch.tensor([[0], [2], [5]]), torch.tensor([[5], [3], [6]])
    left = (here - padded).clamp(min=0), torch.where(here < padded, PADDING, same)
    packed = torch.where(here < second, here, here - second), (here >= second).long()
    return {
        "rows at the same offset": Scenario(here + 5 + same, same),
        "rows at ids of their own": Scenario(ids_of_rows, same),
        "decoding with cached keys": Scenario(ids_of_rows, same, decoding=True),
        "decoding after left padding": Scenario(*left, decoding=True),
        "left padding": Scenario(*left),
        "packed documents": Scenario(*packed),
    }


SCENARIOS = _scenarios()
OWN_IDS = SCENARIOS["rows at ids of their own"]


def outputs(encoding: PositionalEncoding, scenario: Scenario, inputs: Inputs) -> list[Tensor]:
    """Return embeddings [B, T, D] and weights [B, H, T, S] of two layers; 0 for queries of padding."""
    x_BTD = inputs.x_BTD[..., encoding.position_width :]
    ids_BT = scenario.positions_BT
    documents_BT = scenario.documents_BT
    tokens = ids_BT.shape[1]
    real_BT = documents_BT != PADDING
    visible_BTS = (documents_BT[:, :, None] == documents_BT[:, None]) & real_BT[:, None]
    if encoding.shape.causal:
        visible_BTS = visible_BTS.tril()
    parts = list(pairwise([0, *range(tokens - 3, tokens), tokens] if scenario.decoding else [0, tokens]))
    embedded = [encoding.embed_sequence(x_BTD[:, :stop], ids_BT, None)[:, start:] for start, stop in parts]
    results = [torch.cat(embedded, dim=1).masked_fill(~real_BT[..., None], 0.0)]
    for layer in range(2):
        at = AttentionContext(
            ids_BT, ids_BT, visible_BTS, None, inputs.x_BTD, layer, declared_B=torch.tensor([3 * TOKENS])
        )
        part = encoding.for_layer(layer)
        rows = [
            part.weights(inputs.q_BHTK[:, :, start:stop], inputs.k_BHTK, at.query_rows(start, stop))
            for start, stop in parts
        ]
        results.append(torch.cat(rows, dim=2).masked_fill(~real_BT[:, None, :, None], 0.0))
    return results


def difference_from_alone(encoding: PositionalEncoding, scenario: Scenario) -> float:
    """Return the difference of a scenario from processing every document alone."""
    inputs = draw_content(encoding.shape, scenario.positions_BT)
    together = outputs(encoding, scenario, inputs)
    alone = [torch.zeros_like(part) for part in together]
    for row, documents in enumerate(scenario.documents_BT):
        for document in documents[documents != PADDING].unique():
            (index,) = (documents == document).nonzero(as_tuple=True)
            ids = scenario.positions_BT[row, index][None]
            q, k = (x_BHTK[row : row + 1, :, index] for x_BHTK in (inputs.q_BHTK, inputs.k_BHTK))
            x = inputs.x_BTD[row : row + 1, index]
            embedded, *weights = outputs(encoding, Scenario(ids, torch.zeros_like(ids)), Inputs(q, k, x, ids))
            alone[0][row, index] = embedded[0].to(alone[0].dtype)
            for whole, part in zip(alone[1:], weights, strict=True):
                whole[row, :, index[:, None], index] = part[0].to(whole.dtype)
    return worst_difference(together, alone)


def worst_difference(results: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest `relative_difference` of pairs of tensors; NaN in both counts as equal."""
    differences = []
    for result, right in zip(results, expected, strict=True):
        undefined = result.isnan() & right.isnan()
        cleared = result.masked_fill(undefined, 0.0), right.masked_fill(undefined, 0.0)
        differences.append(relative_difference(*cleared))
    return max(differences)


def scenario_differences(pair: Pair) -> Iterator[tuple[str, float]]:
    """Yield for each scenario the relative difference of two encodings with shared parameters.

    If channels have another layout, vectors at the embedding are ignored.
    """
    first = 1 if pair.steps and acts_at_embedding(pair.reference) else 0
    for name, scenario in SCENARIOS.items():
        if scenario.decoding and not pair.shape.causal:
            continue
        inputs = pair.inputs_at(scenario.positions_BT, seed=5)
        results = outputs(pair.checked, scenario, pair.checked_inputs(inputs))
        expected = outputs(pair.reference, scenario, inputs)
        yield name, worst_difference(results[first:], expected[first:])
