"""Several encodings in one model: composed in every layer, alternating by layer, or in different heads."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding


class Mixture(PositionalEncoding):
    """Base class of several encodings in one model.

    ``parts`` has the instances of each encoding: one, or one per layer if it is ``per_layer``.
    """

    parts: nn.ModuleList

    @property
    def acts_at_embedding(self) -> bool:
        return any(part.acts_at_embedding for part in self._instances())

    @property
    def acts_on_values(self) -> bool:
        return any(part.acts_on_values for part in self._instances())

    def _instances(self) -> Iterator[PositionalEncoding]:
        for instances in self.parts:
            yield from instances  # type: ignore[misc]

    def _add_parts(self, encodings: Sequence[MakeEncoding], refusal: str) -> list[PositionalEncoding]:
        """Build the encodings for every layer, and return their parts at all layers.

        Those that compute or read attention weights are refused.
        """
        layers = self.shape.num_layers
        self.parts = nn.ModuleList(_built(self.shape, make, layers) for make in encodings)
        parts = [part for layer in range(layers) for part in self._at_layer(layer)]
        for part in parts:
            if part.overrides("weights") or part.reads_weights:
                what = "reads the attention weights" if part.reads_weights else "computes its own weights"
                raise ValueError(f"encodings: {type(part).__name__} {what} and {refusal}")
        self._describe(parts)
        return parts

    def _describe(self, parts: Sequence[PositionalEncoding]) -> None:
        """Set what follows from the parts; `PositionalEncoding` itself reads no ids."""
        invariances = ("ids" if type(part) is PositionalEncoding else part.invariant_to for part in parts)
        self.invariant_to = min(invariances, key=(None, "nothing", "shift", "ids").index)
        self.looks_ahead = any(part.looks_ahead for part in parts)
        self.reads_row = any(part.reads_row for part in parts)

    def _at_layer(self, layer: int) -> list[PositionalEncoding]:
        return [instances[layer % len(instances)].for_layer(layer) for instances in self.parts]  # type: ignore


class Composition(Mixture):
    """Several encodings in every layer: embeddings and rotations apply in the order given, biases are added.

    Values pass in the order given, and their weighted sum in the reverse order. The logit scale is unchanged,
    and every encoding keeps its own parameters (one set per layer if it is ``per_layer``). The composition is
    shift-invariant if all parts are, and causal only if any part is.

    Source: see the parts. Parameters: those of the parts. Beyond training: as the parts.

    Args:
        encodings: two or more functions that build an encoding from a shape; in YAML each is a ``_target_``
            with its arguments and ``_partial_: true``. Only the first may be concatenated. Encodings that
            compute their own attention weights, or read them, cannot be composed.
    """

    inherits_length = False  # its parts say whether they do

    def __init__(self, shape: ModelShape, *, encodings: Sequence[MakeEncoding]):
        super().__init__(shape)
        if len(encodings) < 2:
            raise ValueError(f"encodings: a composition needs at least two, got {len(encodings)}")
        parts = self._add_parts(encodings, "cannot be composed")
        for part in parts[1 : len(encodings)]:
            if part.position_width:
                raise ValueError(f"encodings: {type(part).__name__} is concatenated and must be the first")
        self.position_width = parts[0].position_width

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        for part in self._at_layer(0):
            x_BTD = part.embed(x_BTD, positions_BT)
        return x_BTD

    def embed_sequence(self, x_BTD: Tensor, positions_BP: Tensor, declared_B: Tensor | None) -> Tensor:
        for part in self._at_layer(0):
            x_BTD = part.embed_sequence(x_BTD, positions_BP, declared_B)
        return x_BTD

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        for part in self._at_layer(at.layer):
            q_BHTK, k_BHSK = part.rotate(q_BHTK, k_BHSK, at)
        return q_BHTK, k_BHSK

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor | None:
        total: Tensor | None = None
        for part in self._at_layer(at.layer):
            bias = part.bias(q_BHTK, k_BHSK, at)
            if bias is not None:
                total = bias if total is None else total + bias
        return total

    def values(self, v_BHSK: Tensor, at: AttentionContext) -> Tensor:
        for part in self._at_layer(at.layer):
            v_BHSK = part.values(v_BHSK, at)
        return v_BHSK

    def outputs(self, o_BHTK: Tensor, at: AttentionContext) -> Tensor:
        for part in reversed(self._at_layer(at.layer)):
            o_BHTK = part.outputs(o_BHTK, at)
        return o_BHTK


class ByLayer(Mixture):
    """Encodings that alternate by layer: layer l uses encoding l mod n, where n is their number.

    Recent long-context models alternate local layers (RoPE in a sliding window) with global layers (full
    attention, no encoding).

    Source: Yang et al. 2025, arXiv:2501.18795 (RNoPE). Parameters: those of the parts. Beyond training: as
    the parts.

    Args:
        encodings: one or more, as in `Composition`, at most as many as layers. They may not act at the
            embedding.
        order: for each layer the number of its encoding, from 0; repeated for all layers and at most as many
            as layers. None means that they alternate.
    """

    inherits_length = False  # its parts say whether they do

    def __init__(
        self, shape: ModelShape, *, encodings: Sequence[MakeEncoding], order: Sequence[int] | None = None
    ):
        super().__init__(shape)
        layers = shape.num_layers
        period = range(len(encodings)) if order is None else order
        if not 0 < len(period) <= layers:
            raise ValueError(f"encodings: {len(period)} encodings cannot alternate in {layers} layers")
        if not set(period) <= set(range(len(encodings))):
            raise ValueError(f"order={list(period)} must contain numbers of the {len(encodings)} encodings")
        self.order = list(period)
        numbers = [self.order[layer % len(self.order)] for layer in range(layers)]
        self.parts = nn.ModuleList(
            _built(shape, make, numbers.count(number)) if number in numbers else nn.ModuleList()
            for number, make in enumerate(encodings)
        )
        parts = [self.for_layer(layer) for layer in range(layers)]
        for part in parts:
            if part.acts_at_embedding:
                raise ValueError(f"encodings: {type(part).__name__} acts at the embedding, not in a layer")
        self._describe(parts)

    def for_layer(self, layer: int) -> PositionalEncoding:
        number = self.order[layer % len(self.order)]
        instances = self.parts[number]
        earlier = sum(self.order[other % len(self.order)] == number for other in range(layer))
        return instances[earlier % len(instances)].for_layer(layer)  # type: ignore[index, arg-type]


class ByHead(Mixture):
    """Different encodings in different heads: the first heads use the first encoding, and so on.

    Each head is as it would be in a model whose heads all use its encoding. Of eight heads, half of them with
    ALiBi, the first four have the first four of ALiBi's slopes for eight heads.

    Source: see the parts. Parameters: those of the parts, for all heads. Beyond training: as the parts.

    Args:
        encodings: two or more, as in `Composition`. They may not act at the embedding or compute or read
            attention weights, and give queries of the same width.
        heads: number of heads of each encoding; None means equal shares.
    """

    inherits_length = False  # its parts say whether they do

    def __init__(
        self, shape: ModelShape, *, encodings: Sequence[MakeEncoding], heads: Sequence[int] | None = None
    ):
        super().__init__(shape)
        count = len(encodings)
        if heads is None and (count < 2 or shape.num_heads % count):
            raise ValueError(f"encodings: {shape.num_heads} heads have no equal shares for {count} encodings")
        self.heads = [shape.num_heads // count] * count if heads is None else list(heads)
        if len(self.heads) != count or sum(self.heads) != shape.num_heads or min(self.heads) < 1:
            raise ValueError(f"heads={self.heads} must be {count} numbers with the sum {shape.num_heads}")
        for part in self._add_parts(encodings, "cannot be limited to some heads"):
            if part.acts_at_embedding:
                raise ValueError(f"encodings: {type(part).__name__} acts at the embedding, not in heads")

    def rotate(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> tuple[Tensor, Tensor]:
        rotated = [part.rotate(q_BHTK, k_BHSK, at) for part in self._at_layer(at.layer)]
        if len({q.shape[-1] for q, _ in rotated}) > 1:
            raise ValueError("encodings: queries of different widths cannot be mixed by head")
        queries, keys = zip(*rotated, strict=True)
        return self._join_heads(queries), self._join_heads(keys)

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor | None:
        biases = [part.bias(q_BHTK, k_BHSK, at) for part in self._at_layer(at.layer)]
        given = [bias for bias in biases if bias is not None]
        if not given:
            return None
        shape = torch.broadcast_shapes(
            *(bias.shape for bias in given), (1, q_BHTK.shape[1], q_BHTK.shape[2], k_BHSK.shape[2])
        )
        zero = given[0].new_zeros(())
        return self._join_heads([(zero if bias is None else bias).expand(shape) for bias in biases])

    def values(self, v_BHSK: Tensor, at: AttentionContext) -> Tensor:
        results = [part.values(v_BHSK, at) for part in self._at_layer(at.layer)]
        return v_BHSK if all(result is v_BHSK for result in results) else self._join_heads(results)

    def outputs(self, o_BHTK: Tensor, at: AttentionContext) -> Tensor:
        results = [part.outputs(o_BHTK, at) for part in self._at_layer(at.layer)]
        return o_BHTK if all(result is o_BHTK for result in results) else self._join_heads(results)

    def _join_heads(self, results: Sequence[Tensor]) -> Tensor:
        """Return the heads of each part from its result for all heads, [B, H, T, K]."""
        heads = [result.split(self.heads, dim=1)[number] for number, result in enumerate(results)]
        return torch.cat(heads, dim=1)


def _built(shape: ModelShape, make: MakeEncoding, layers: int) -> nn.ModuleList:
    """Return one instance of the encoding, or ``layers`` instances if it is ``per_layer``."""
    first = make(shape)
    if not isinstance(first, PositionalEncoding):
        raise ValueError(f"encodings: {type(first).__name__} is not a PositionalEncoding")
    copies = layers - 1 if first.per_layer else 0
    return nn.ModuleList([first, *(make(shape) for _ in range(copies))])
