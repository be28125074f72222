"""Build a candidate and a reference for the same model with equal parameters, and compare their results.

The candidate is the implementation under test. Its channels may lie in another order than the reference's
(a *layout*), in which correct implementations of a rotation differ.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, islice, permutations, product
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pe_experiments.checking.subject import draw_content, draw_inputs, embed, masked_difference, trainable
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.softmax import is_masked
from pe_experiments.models.attention import makes_weights
from pe_experiments.models.attention_scores import Inputs, attention_scores

TOLERANCE = 1e-4  # tolerance relative to the largest value; reordered float32 operations stay below it
# Numbers of positions. Angles computed in float32 are exact below NEAR, and off by some 1e-5 below FAR.
DENSE, NEAR, FAR = 24, 64, 4096
Sizes = tuple[int, int, int]  # width, heads, training length
# The number of heads is a power of two in the first only.
SMALL: Sizes = (64, 4, 12)
LARGE: Sizes = (144, 6, 1024)  # long enough for wide buckets in T5 and a gradual ramp in YaRN
CHECKED_SIZES = (SMALL, LARGE)
MOST_ASSIGNMENTS = 24
MOST_EXTRA_ROWS = 8  # rows of a longer table before the first position (fairseq and RoBERTa have 2)
TensorPair = tuple[Tensor, Tensor]  # results of the candidate and of the reference

# Layouts of channels.
EXCHANGED = "the two channels of each pair exchanged (it rotates the other way)"
NEIGHBOURS = "pairs of neighbouring channels (m, m + 1) where ours are halves apart"
COSINES_FIRST = "the two channels of each pair exchanged (cosines before sines)"
HALVES = "pairs of channels halves apart where ours are neighbours"
LAST = "the last channels rotate where ours are the first"

# Permutations of the rotating channels, of pairs that are halves apart in ours or are neighbours.
OF_HALVES: dict[str, Callable[[Tensor], Tensor]] = {
    EXCHANGED: lambda order: order.roll(len(order) // 2),
    NEIGHBOURS: lambda order: order.view(2, -1).T.flatten(),
}
OF_NEIGHBOURS: dict[str, Callable[[Tensor], Tensor]] = {
    COSINES_FIRST: lambda order: order.view(-1, 2).flip(1).flatten(),
    HALVES: lambda order: order.view(-1, 2).T.flatten(),
}
PERMUTATIONS = {**OF_HALVES, **OF_NEIGHBOURS}
# A layout is a sequence of permutations of one of the two, and of `LAST`.
LAYOUTS = [
    layout
    for reordered in (OF_HALVES, OF_NEIGHBOURS)
    for number in (1, 2, 3)
    for layout in combinations((*reordered, LAST), number)
]
USUAL_LAYOUTS: tuple[tuple[str, ...], ...] = ((), (NEIGHBOURS,), (HALVES,))


def model_shape(sizes: Sizes, causal: bool, layers: int = 2) -> ModelShape:
    """Return the shape of a model with these sizes, trained on positions below `NEAR`."""
    width, heads, train_length = sizes
    return ModelShape(width, heads, layers, causal, train_length, NEAR)


class ParametersDiffer(Exception):
    """The trainable parameters of candidate and reference differ in number or shape."""


class Pairing(NamedTuple):
    """The values that a parameter of the candidate gets from one of the reference's.

    Args:
        parameter: the parameter of the candidate.
        values: its values.
        table: description of how the candidate reads a longer table, or an empty string.
    """

    parameter: nn.Parameter
    values: Tensor
    table: str = ""


@dataclass
class Pair:
    """Two encodings to compare.

    Args:
        candidate: the implementation under test; if it has the attribute ``key_heads``, a key serves a group
            of heads.
        reference: the encoding to compare with.
        layout: the layout of the candidate's channels, see `LAYOUTS`.
        pairings: the source of each parameter of the candidate.
    """

    candidate: PositionalEncoding
    reference: PositionalEncoding
    layout: Sequence[str] = ()
    pairings: Sequence[Pairing] = ()

    @cached_property
    def difference(self) -> float:
        """Difference of the results below position `NEAR`, relative to the largest value."""
        return self.difference_below(NEAR)

    @cached_property
    def differs(self) -> bool:
        """Whether that is above the tolerance, which the first of these results may decide."""
        return self.difference_below(NEAR, stop_above=TOLERANCE) > TOLERANCE

    @property
    def shape(self) -> ModelShape:
        return self.reference.shape

    @property
    def first_layers(self) -> range:
        return range(min(2, self.shape.num_layers))

    @cached_property
    def compares_weights(self) -> bool:
        """Return whether to compare attention weights, because one of the encodings computes them itself."""
        encodings = (self.candidate, self.reference)
        layer_encodings = [encoding.for_layer(layer) for encoding in encodings for layer in self.first_layers]
        return any(makes_weights(encoding) for encoding in layer_encodings)

    def channel_order(self, channels: int) -> list[int]:
        """Return the index of the reference's channel for each of the candidate's channels."""
        num_rotating = 2 * getattr(self.reference, "pairs", channels // 2)
        rotating = torch.arange(num_rotating)
        unrotated = torch.arange(num_rotating, channels)
        for name in self.layout:
            if name != LAST:
                rotating = PERMUTATIONS[name](rotating)
        parts = (unrotated, rotating) if LAST in self.layout else (rotating, unrotated)
        return torch.cat(parts).tolist()

    def inputs_at(self, ids_BT: Tensor, seed: int = 0) -> Inputs:
        return draw_content(self.shape, ids_BT, seed, getattr(self.candidate, "key_heads", None))

    def inputs_below(self, span: int, tokens: int = DENSE, seed: int = 0) -> Inputs:
        """Return random content at random positions below ``span``."""
        return draw_inputs(self.shape, tokens, span, seed, getattr(self.candidate, "key_heads", None))

    def candidate_inputs(self, inputs: Inputs) -> Inputs:
        """Return the inputs with queries and keys in the candidate's channel layout."""
        if not self.layout:
            return inputs
        order = self.channel_order(self.shape.head_dim)
        return replace(inputs, q_BHTK=inputs.q_BHTK[..., order], k_BHTK=inputs.k_BHTK[..., order])

    def embeddings(self, inputs: Inputs) -> TensorPair:
        """Return both embeddings [1, T, D]; in another channel layout only their positional parts."""
        candidate, reference = (embed(encoding, inputs) for encoding in (self.candidate, self.reference))
        return self.position_parts(candidate, reference, inputs) if self.layout else (candidate, reference)

    def position_parts(self, candidate_BTD: Tensor, reference_BTD: Tensor, inputs: Inputs) -> TensorPair:
        """Return what positions add to both embeddings, the reference's in the candidate's layout."""
        candidate = _position_part(candidate_BTD, inputs.x_BTD[..., self.candidate.position_width :])
        reference = _position_part(reference_BTD, inputs.x_BTD[..., self.reference.position_width :])
        return candidate, reference[..., self.channel_order(reference.shape[-1])]

    def scores(self, inputs: Inputs, layer: int = 0) -> TensorPair:
        """Return both logits [H, T, S], or both attention weights if one encoding computes them itself."""
        candidate = scores_of(self.candidate, self.candidate_inputs(inputs), self.compares_weights, layer)
        return candidate, scores_of(self.reference, inputs, self.compares_weights, layer)

    def results(self, inputs: Inputs, layers: Iterable[int] = (0,)) -> Iterator[TensorPair]:
        """Yield both embeddings, then both scores of each of these layers."""
        yield self.embeddings(inputs)
        for layer in layers:
            yield self.scores(inputs, layer)

    @torch.no_grad()
    def difference_below(self, span: int, stop_above: float = torch.inf) -> float:
        """Return the difference of the results below ``span``, relative to the largest value.

        The first difference above ``stop_above`` is returned, which need not be the largest.
        """
        layers = range(1)
        seeds_and_tokens = [(0, 24)]
        if span < FAR:  # far positions get a single draw, since a module may compute all pairs up to the last
            layers = self.first_layers
            seeds_and_tokens.append((1, 7))
        worst = 0.0
        for seed, tokens in seeds_and_tokens:
            for candidate, reference in self.results(self.inputs_below(span, tokens, seed), layers):
                worst = max(worst, masked_difference(candidate, reference))
                if worst > stop_above:
                    return worst
        return worst


def assignments(source: PositionalEncoding, target: PositionalEncoding) -> Iterator[list[Pairing]]:
    """Yield the ways to copy the trainable parameters of ``source`` to ``target``, each after copying them.

    Parameters are paired by name if names and shapes agree, else in every order.
    """
    candidate, reference = trainable(target), trainable(source)
    candidate_shapes = {name: parameter.shape for name, parameter in candidate.items()}
    reference_shapes = {name: parameter.shape for name, parameter in reference.items()}
    orders: Iterable[tuple[nn.Parameter, ...]] = ()
    if candidate_shapes == reference_shapes:
        orders = [tuple(reference[name] for name in candidate)]
    elif len(candidate) == len(reference):
        orders = permutations(reference.values())
    all_pairings = (
        pairings for order in orders for pairings in product(*map(_pairings, candidate.values(), order))
    )
    for pairings in islice(all_pairings, MOST_ASSIGNMENTS):
        _copy_values(pairings)
        yield list(pairings)


@torch.no_grad()
def _copy_values(pairings: Iterable[Pairing]) -> None:
    for pairing in pairings:
        pairing.parameter.copy_(pairing.values)


def _pairings(candidate: nn.Parameter, reference: nn.Parameter) -> list[Pairing]:
    """Return the ways in which values fit: unchanged, transposed, or as rows of a longer table."""
    table, values = candidate.detach().squeeze(), reference.detach().squeeze()
    pairings = []
    if table.shape == values.shape:
        pairings.append(Pairing(candidate, values.reshape(candidate.shape)))
    if values.ndim == 2 and table.shape == values.T.shape:
        pairings.append(Pairing(candidate, values.T.reshape(candidate.shape)))
    if table.ndim == values.ndim == 2 and table.shape[1] == values.shape[1]:
        rows, our_rows = len(table), len(values)
        for first_row in range(min(rows - our_rows, MOST_EXTRA_ROWS) + 1 if rows > our_rows else 0):
            filled = table.clone()
            filled[first_row : first_row + our_rows] = values
            description = f"its table has {rows} rows instead of {our_rows}"
            if first_row:
                description += f", equal with ids shifted by {first_row}"
            elif rows == 2 * our_rows - 1:
                # A decoder's table of distances may have rows for later keys, which are never read.
                description = ""
            pairings.append(Pairing(candidate, filled.reshape(candidate.shape), description))
    return pairings


def share_parameters(
    reference: PositionalEncoding, candidate: PositionalEncoding, layout: Sequence[str] = ()
) -> Pair:
    """Copy the reference's parameters to the candidate so that the two differ least.

    Raises:
        ParametersDiffer: they cannot be copied.
    """
    best: Pair | None = None
    for pairings in assignments(reference, candidate):
        pair = Pair(candidate, reference, layout, pairings)
        if not (pairings and pair.differs):  # without parameters there is one way
            return pair
        if best is None or pair.difference < best.difference:
            best = pair
    if best is None:
        raise ParametersDiffer
    _copy_values(best.pairings)
    return best


def _position_part(embedded_BTD: Tensor, x_BTD: Tensor) -> Tensor:
    """Return the part that the encoding adds to the tokens ``x_BTD``: vectors, or columns beside them."""
    token_width = x_BTD.shape[-1]
    if embedded_BTD.shape[-1] == token_width:
        return embedded_BTD - x_BTD
    positions_first = torch.equal(embedded_BTD[..., -token_width:], x_BTD)
    return embedded_BTD[..., :-token_width] if positions_first else embedded_BTD[..., token_width:]


def scores_of(encoding: PositionalEncoding, inputs: Inputs, weights: bool, layer: int) -> Tensor:
    """Return attention weights [H, T, S], or logits minus the logit at the query's own position.

    Masked scores are minus infinity.
    """
    scores = attention_scores(encoding, inputs, layer, weights=weights)[0].double()
    scores = scores.masked_fill(scores.isnan() | is_masked(scores), -torch.inf)
    if weights:
        return scores
    own_logits = scores.diagonal(dim1=-2, dim2=-1)[..., None]
    return scores - own_logits.where(own_logits.isfinite(), 0.0)


def logits_of_one_query(encoding: PositionalEncoding, ids_S: Tensor, query: int) -> Tensor:
    """Return the logits [H, S] of the query at index ``query``, minus the logit of its own key.

    Masked logits are minus infinity.
    """
    inputs = draw_content(encoding.shape, ids_S[None], key_heads=1)
    at = inputs.context(encoding.shape.causal).query_rows(query, query + 1)
    layer_encoding = encoding.for_layer(0)
    q_BHTK, k_BHSK = layer_encoding.rotate(inputs.q_BHTK[:, :, [query]], inputs.k_BHTK, at)
    logits_BHTS = layer_encoding.scaled_logits(q_BHTK, k_BHSK)
    bias = layer_encoding.bias(q_BHTK, k_BHSK, at)
    if bias is not None:
        logits_BHTS = logits_BHTS + bias
    logits_HS = logits_BHTS[0, :, 0].double()
    logits_HS = logits_HS.masked_fill(is_masked(logits_HS), -torch.inf)
    return logits_HS - logits_HS[:, [query]]
