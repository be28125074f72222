"""Define batches with own ids, cached keys, padding and packed documents, which must not change results.

The result at a token must be the same as if its document were processed alone. Half precision may change it
by a few roundings of the inputs.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor

from pe_experiments.checking.pair import Pair
from pe_experiments.checking.subject import draw_content, relative_difference
from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.models.attention_scores import Inputs

ROWS, TOKENS = 3, 8
PADDING = -1
DTYPES = (torch.bfloat16, torch.float16)
MOST_ROUNDINGS = 4  # allowed difference, in units of the dtype's spacing at 1; shipped encodings stay below 1
# Within tables of 4,096 rows: large ids, and large distances, at which rounded frequencies show.
LARGE_IDS = (
    [*range(4_001, 4_013)],
    [4_000, 4_001, 4_003, 4_010, 4_020, 4_037, 4_050, 4_051, 4_064, 4_080, 4_093, 4_094],
    [0, 1, 9, 70, 300, 511, 900, 1_500, 2_200, 3_000, 3_800, 4_094],
)


class Scenario(NamedTuple):
    """The position id of every token of a batch, and the document to which it belongs.

    Args:
        positions_BT: position ids.
        documents_BT: numbers of documents, or `PADDING`.
        decoding: whether queries come in several calls, the last ones one by one, with all keys of the row.
        lengths: whether rows declare lengths of their own, below, at and above the training length.
    """

    positions_BT: Tensor
    documents_BT: Tensor
    decoding: bool = False
    lengths: bool = False

    def declared_B(self, train_length: int) -> Tensor:
        """Return the declared length of each row; of one row if all rows declare the same."""
        if not self.lengths:
            return torch.tensor([3 * TOKENS])
        return torch.tensor([TOKENS, train_length, 3 * train_length])


def separate_rows(positions_BT: Tensor, decoding: bool = False, lengths: bool = False) -> Scenario:
    return Scenario(positions_BT, torch.zeros_like(positions_BT), decoding, lengths)


def _scenarios() -> dict[str, Scenario]:
    indices_T = torch.arange(TOKENS)
    indices_BT = indices_T.repeat(ROWS, 1)
    # A common shift has no effect on relative encodings, so rows also differ in the steps between ids.
    own_ids_BT = torch.tensor([[3], [2], [1]]) * indices_T + torch.tensor([[0], [5], [17]])
    padding_B1 = torch.tensor([[0], [2], [5]])  # number of tokens
    padded = Scenario(
        (indices_T - padding_B1).clamp(min=0),
        torch.where(indices_T < padding_B1, PADDING, 0),
    )
    second_B1 = torch.tensor([[5], [3], [6]])  # first token of the second document
    packed = Scenario(
        torch.where(indices_T < second_B1, indices_T, indices_T - second_B1),
        (indices_T >= second_B1).long(),
    )
    return {
        "rows at the same offset": separate_rows(indices_BT + 5),
        "rows at ids of their own": separate_rows(own_ids_BT),
        "rows on both sides of the training length": separate_rows(indices_BT, lengths=True),
        "decoding with cached keys": separate_rows(own_ids_BT, decoding=True),
        "decoding after left padding": padded._replace(decoding=True),
        "left padding": padded,
        "packed documents": packed,
    }


SCENARIOS = _scenarios()
OWN_IDS = SCENARIOS["rows at ids of their own"]


def outputs(
    encoding: PositionalEncoding, scenario: Scenario, inputs: Inputs, declared_B: Tensor | None = None
) -> list[Tensor]:
    """Return embeddings [B, T, D], then attention weights [B, H, T, S] and what is read [B, H, T, K].

    The latter two are of the first two layers; the values have the numbers of the queries. Results at
    queries of padding are 0. ``declared_B`` are the declared lengths, by default the scenario's.
    """
    if declared_B is None:
        declared_B = scenario.declared_B(encoding.shape.train_length)
    x_BTD = inputs.x_BTD[..., encoding.position_width :]
    ids_BT = scenario.positions_BT
    documents_BT = scenario.documents_BT
    tokens = ids_BT.shape[1]
    is_padding_BT = documents_BT == PADDING
    visible_BTS = (documents_BT[:, :, None] == documents_BT[:, None]) & ~is_padding_BT[:, None]
    if encoding.shape.causal:
        visible_BTS = visible_BTS.tril()
    boundaries = [0, *range(tokens - 3, tokens), tokens] if scenario.decoding else [0, tokens]
    calls = list(pairwise(boundaries))
    reads_sequence = type(encoding).embed_sequence is not PositionalEncoding.embed_sequence
    if scenario.decoding and not reads_sequence and not encoding.reads_row:
        # A step with cached keys embeds its tokens without those before them.
        embedded = [encoding.embed(x_BTD[:, start:stop], ids_BT[:, start:stop]) for start, stop in calls]
    else:
        ids_BP, lengths_B = ids_BT, None
        if scenario.lengths:  # vectors may depend on the ids of all declared tokens
            ids_BP, lengths_B = torch.arange(int(declared_B.max())).expand(len(ids_BT), -1), declared_B
        embedded = [
            encoding.embed_sequence(x_BTD[:, :stop], ids_BP, lengths_B)[:, start:] for start, stop in calls
        ]
    results = [torch.cat(embedded, dim=1).masked_fill(is_padding_BT[..., None], 0.0)]
    for layer in range(min(2, encoding.shape.num_layers)):
        at = AttentionContext(ids_BT, ids_BT, visible_BTS, None, inputs.x_BTD, layer, declared_B=declared_B)
        layer_encoding = encoding.for_layer(layer)
        v_BHSK = layer_encoding.values(inputs.q_BHTK.detach(), at)
        weights, read = [], []
        for start, stop in calls:
            of_call = at.query_rows(start, stop)
            weights.append(layer_encoding.weights(inputs.q_BHTK[:, :, start:stop], inputs.k_BHTK, of_call))
            o_BHTK = layer_encoding.read(weights[-1], v_BHSK, of_call)
            read.append(layer_encoding.outputs(o_BHTK, of_call))
        for parts in (weights, read):
            results.append(torch.cat(parts, dim=2).masked_fill(is_padding_BT[:, None, :, None], 0.0))
    return results


def difference_from_alone(encoding: PositionalEncoding, scenario: Scenario) -> float:
    """Return the largest difference between a scenario and processing every document alone."""
    inputs = draw_content(encoding.shape, scenario.positions_BT)
    declared_B = scenario.declared_B(encoding.shape.train_length).expand(ROWS)
    together = outputs(encoding, scenario, inputs)
    alone = [torch.zeros_like(tensor) for tensor in together]
    for row, documents in enumerate(scenario.documents_BT):
        for document in documents[documents != PADDING].unique():
            (index,) = (documents == document).nonzero(as_tuple=True)
            ids = scenario.positions_BT[row, index][None]
            q, k = (x_BHTK[row : row + 1, :, index] for x_BHTK in (inputs.q_BHTK, inputs.k_BHTK))
            x = inputs.x_BTD[row : row + 1, index]
            one_document = separate_rows(ids, lengths=scenario.lengths)
            declared_1 = declared_B[row : row + 1]
            results = outputs(encoding, one_document, Inputs(q, k, x, ids), declared_1)
            embedded, weights, read = results[0], results[1::2], results[2::2]
            alone[0][row, index] = embedded[0].to(alone[0].dtype)
            for layer, (document_weights, document_read) in enumerate(zip(weights, read, strict=True)):
                batch_weights, batch_read = alone[2 * layer + 1], alone[2 * layer + 2]
                batch_weights[row, :, index[:, None], index] = document_weights[0].to(batch_weights.dtype)
                batch_read[row, :, index] = document_read[0].to(batch_read.dtype)
    return worst_difference(together, alone)


def worst_difference(results: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest `relative_difference` between corresponding tensors; NaN in both counts as equal."""
    differences = []
    for result, target in zip(results, expected, strict=True):
        both_nan = result.isnan() & target.isnan()
        difference = relative_difference(result.masked_fill(both_nan, 0.0), target.masked_fill(both_nan, 0.0))
        differences.append(difference)
    return max(differences)


def scenario_results(pair: Pair) -> Iterator[tuple[str, Scenario, list[Tensor], list[Tensor]]]:
    """Yield the name of each scenario, the scenario, and the outputs of the candidate and the reference."""
    compares_layouts = bool(pair.layout) and pair.reference.acts_at_embedding
    for name, scenario in SCENARIOS.items():
        if scenario.decoding and not pair.shape.causal:
            continue
        if compares_layouts and (scenario.documents_BT == PADDING).any():
            continue  # embeddings of padding are 0, which is no vector of a position
        inputs = pair.inputs_at(scenario.positions_BT, seed=5)
        results = outputs(pair.candidate, scenario, pair.candidate_inputs(inputs))
        expected = outputs(pair.reference, scenario, inputs)
        if pair.layout:  # values are in the layout of queries and keys
            order = pair.channel_order(pair.shape.head_dim)
            expected[2::2] = [read_BHTK[..., order] for read_BHTK in expected[2::2]]
        if compares_layouts:
            results[0], expected[0] = pair.position_parts(results[0], expected[0], inputs)
        yield name, scenario, results, expected


# Inputs in half precision.


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Return the inputs with queries, keys and hidden states of this dtype."""
    tensors = {"q_BHTK": inputs.q_BHTK, "k_BHTK": inputs.k_BHTK, "x_BTD": inputs.x_BTD}
    return replace(inputs, **{name: tensor.to(dtype) for name, tensor in tensors.items()})


@torch.no_grad()
def half_precision_loss(encoding: PositionalEncoding, reference: PositionalEncoding) -> tuple[bool, str]:
    """Return whether rounding explains what ``encoding`` loses on inputs in half precision, and the loss.

    The loss in each dtype is the largest difference of embeddings or weights, relative to the largest value,
    from ``reference`` on the same numbers in float32.
    """
    worst = dict.fromkeys(DTYPES, 0.0)
    for dtype, ids in product(DTYPES, LARGE_IDS):
        ids_BT = torch.tensor([ids])
        scenario = separate_rows(ids_BT)
        content = draw_content(encoding.shape, ids_BT, key_heads=getattr(encoding, "key_heads", None))
        half = cast(content, dtype)
        exact = outputs(reference, scenario, cast(half, torch.float32))
        with torch.autocast("cpu", dtype=dtype):
            results = [result.float() for result in outputs(encoding, scenario, half)]
        worst[dtype] = max(worst[dtype], worst_difference(results, exact))
    holds = all(loss <= MOST_ROUNDINGS * torch.finfo(dtype).eps for dtype, loss in worst.items())
    measured = " and ".join(
        f"{loss:.1e} in {str(dtype).removeprefix('torch.')}" for dtype, loss in worst.items()
    )
    return holds, f"at ids up to 4,094 they differ by {measured}"
