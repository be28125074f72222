"""Pair an implementation and a reference in the same model with equal parameters and inputs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pe_experiments.checking.channel_layouts import channel_order
from pe_experiments.checking.instances import (
    build,
    draw_content,
    draw_inputs,
    embed,
    masked_difference,
    perturbed,
    trainable,
)
from pe_experiments.checking.parameter_sharing import Pairing, assignments
from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.encodings.softmax import is_masked
from pe_experiments.models.attention import makes_weights
from pe_experiments.models.attention_scores import Inputs, attention_scores

SAME = 1e-4  # of the largest value; exceeded by mistakes but not by reordered float32 operations
DENSE, NEAR, FAR = 24, 64, 4096  # positions; angles taken in float32 are right near, and off by some 1e-5 far
Sizes = tuple[int, int, int]  # width, heads, training length
TensorPair = tuple[Tensor, Tensor]  # theirs and ours


def model_shape(sizes: Sizes, causal: bool, layers: int = 2) -> ModelShape:
    width, heads, train_length = sizes
    return ModelShape(width, heads, layers, causal, train_length, NEAR)


@dataclass
class Pair:
    """Two encodings to compare.

    Args:
        checked: the implementation; with the attribute ``key_heads``, keys serve groups of heads.
        ours: the reference.
        steps: the layout of the channels of ``checked``, see `channel_layouts`.
        pairings: the source of each parameter of ``checked``.
        difference: difference below position `NEAR`, relative to the largest value.
    """

    checked: PositionalEncoding
    reference: PositionalEncoding
    steps: Sequence[str] = ()
    pairings: Sequence[Pairing] = ()
    difference: float = torch.inf

    @property
    def shape(self) -> ModelShape:
        return self.reference.shape

    @cached_property
    def compares_weights(self) -> bool:
        """Return whether to compare attention weights, because one encoding computes them itself."""
        layers = [
            encoding.for_layer(layer) for encoding in (self.checked, self.reference) for layer in range(2)
        ]
        return any(makes_weights(part) for part in layers)

    @property
    def table(self) -> str:
        """Return a description of how a longer table is read, or an empty string."""
        return next((pairing.table for pairing in self.pairings if pairing.table), "")

    def channel_order(self, channels: int) -> list[int]:
        return channel_order(self.steps, channels, getattr(self.reference, "pairs", None))

    def inputs_at(self, ids_BT: Tensor, seed: int = 0) -> Inputs:
        return draw_content(self.shape, ids_BT, seed, getattr(self.checked, "key_heads", None))

    def inputs_below(self, span: int, tokens: int = DENSE, seed: int = 0) -> Inputs:
        return draw_inputs(self.shape, tokens, span, seed, getattr(self.checked, "key_heads", None))

    def checked_inputs(self, inputs: Inputs) -> Inputs:
        """Return the same queries and keys in the channel layout of ``checked``."""
        if not self.steps:
            return inputs
        order = self.channel_order(self.shape.head_dim)
        return replace(inputs, q_BHTK=inputs.q_BHTK[..., order], k_BHTK=inputs.k_BHTK[..., order])

    def embeddings(self, inputs: Inputs) -> TensorPair:
        """Return both embeddings [1, T, D]; for another layout only their positional part."""
        embedded = []
        for encoding in (self.checked, self.reference):
            hidden = embed(encoding, inputs)
            tokens = inputs.x_BTD[..., encoding.position_width :]
            embedded.append(_position_part(hidden, tokens) if self.steps else hidden)
        checked, reference = embedded
        return (
            (checked, reference[..., self.channel_order(reference.shape[-1])])
            if self.steps
            else (checked, reference)
        )

    def scores(self, inputs: Inputs, layer: int = 0) -> TensorPair:
        """Return both attention weights [H, T, S], or logits; see `scores_of`."""
        checked = scores_of(self.checked, self.checked_inputs(inputs), self.compares_weights, layer)
        return checked, scores_of(self.reference, inputs, self.compares_weights, layer)

    def results(self, inputs: Inputs, layers: Iterable[int] = (0,)) -> Iterator[TensorPair]:
        """Yield embeddings, then the scores of some layers."""
        yield self.embeddings(inputs)
        for layer in layers:
            yield self.scores(inputs, layer)

    @torch.no_grad()
    def difference_below(self, span: int, enough: float = torch.inf) -> float:
        """Return the difference of the results below ``span``, relative to the largest value.

        The comparison ends at the first difference above ``enough``, which need not be the largest.
        """
        # One draw is enough for far positions, since a module may compute all pairs up to the last one.
        draws, layers = (((0, 24), (1, 7)), (0, 1)) if span < FAR else (((0, 24),), (0,))
        worst = 0.0
        for seed, tokens in draws:
            for checked, reference in self.results(self.inputs_below(span, tokens, seed), layers):
                worst = max(worst, masked_difference(checked, reference))
                if worst > enough:
                    return worst
        return worst


def make_pair(
    checked: MakeEncoding,
    reference: MakeEncoding,
    shape: ModelShape,
    steps: Sequence[str] = (),
    enough: float = torch.inf,
) -> Pair | None:
    """Return both with parameters shared so that they differ least, or None if sharing is impossible."""
    return share_parameters(perturbed(build(reference, shape)), build(checked, shape), steps, enough)


def share_parameters(
    reference: PositionalEncoding,
    checked: PositionalEncoding,
    steps: Sequence[str] = (),
    enough: float = torch.inf,
) -> Pair | None:
    """Copy the parameters of ``reference`` to ``checked``."""
    best: Pair | None = None
    for pairings in assignments(reference, checked):
        pair = Pair(checked, reference, steps, pairings)
        pair.difference = pair.difference_below(NEAR, enough)
        if best is None or pair.difference < best.difference:
            best = pair
        if pair.difference <= SAME:
            return pair
    if best is not None:
        for pairing in best.pairings:
            pairing.copy()
    return best


def defined_far(make: MakeEncoding, reference: PositionalEncoding) -> bool:
    """Return whether untrained positions are defined, so that the seed has no effect on them."""
    if reference.invariant_to in ("shift", "ids") or not trainable(reference):
        return True
    pair = share_parameters(reference, build(make, reference.shape, seed=1))
    return pair is None or pair.difference_below(FAR) <= SAME


def _position_part(embedded_BTD: Tensor, x_BTD: Tensor) -> Tensor:
    """Return the positional part: the columns before or after the tokens, or the added vectors."""
    width = x_BTD.shape[-1]
    if embedded_BTD.shape[-1] == width:
        return embedded_BTD - x_BTD
    before = torch.equal(embedded_BTD[..., -width:], x_BTD)
    return embedded_BTD[..., :-width] if before else embedded_BTD[..., width:]


def scores_of(encoding: PositionalEncoding, inputs: Inputs, weights: bool, layer: int) -> Tensor:
    """Return weights [H, T, S], or logits relative to the query's own key; minus infinity if masked."""
    scores = attention_scores(encoding, inputs, layer, weights=weights)[0].double()
    scores = scores.masked_fill(scores.isnan() | is_masked(scores), -torch.inf)
    own_key = scores.diagonal(dim1=-2, dim2=-1)[..., None]
    return scores if weights else scores - own_key.where(own_key.isfinite(), 0.0)


def logits_of_one_query(encoding: PositionalEncoding, ids_S: Tensor, query: int) -> Tensor:
    """Return logits [H, S] of the query at an index for all keys, relative to its own key."""
    shape = encoding.shape
    generator = torch.Generator().manual_seed(0)
    q_BHTK = torch.randn(1, shape.num_heads, 1, shape.head_dim, generator=generator)
    k_B1SK = torch.randn(1, 1, len(ids_S), shape.head_dim, generator=generator)
    k_BHSK = k_B1SK.repeat(1, shape.num_heads, 1, 1)
    x_BSD = torch.randn(1, len(ids_S), shape.d_model, generator=generator)
    ids_BS = ids_S[None]
    visible_BTS = torch.ones(1, 1, len(ids_S), dtype=torch.bool)
    at = AttentionContext(ids_BS[:, [query]], ids_BS, visible_BTS, None, x_BSD, first_query=query)
    part = encoding.for_layer(0)
    q_BHTK, k_BHSK = part.rotate(q_BHTK, k_BHSK, at)
    logits_BHTS = (q_BHTK * shape.head_dim**-0.5) @ k_BHSK.mT
    bias = part.bias(q_BHTK, k_BHSK, at)
    if bias is not None:
        logits_BHTS = logits_BHTS + bias
    logits_HS = logits_BHTS[0, :, 0].double()
    return logits_HS - logits_HS[:, [query]]
