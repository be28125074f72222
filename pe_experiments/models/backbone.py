"""The interface of a model, which maps tokens and an encoding to logits.

Shapes: B batch, T tokens, P position ids (of the declared tokens, P >= T), D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding


class Backbone(nn.Module):
    """Embedding, encoding and head of a model; a subclass runs its layers in `layers_of`.

    Other models, including models of libraries, are subclasses named by ``model._target_``. Arguments after
    ``seed`` are options of the ``model`` section. Weights may be drawn from torch's global generator, which
    is seeded before the model is built.

    Args:
        vocab_size: number of tokens, marks (BOS, SEP, EOS, SLOT) included.
        shape: sizes, and whether the model is causal.
        make_encoding: builds an encoding from the shape; called once, or once per layer if the encoding is
            ``per_layer``.
        seed: seed of the layers' weights.

    Attributes:
        encodings: one encoding for all layers, or one per layer.
        embedding: the token embedding, without the columns that the encoding fills.
        head: the projection of hidden states to logits.
    """

    def __init__(self, vocab_size: int, shape: ModelShape, make_encoding: MakeEncoding, seed: int = 0):
        super().__init__()
        self.shape = shape
        encodings = [make_encoding(shape)]
        if encodings[0].per_layer:
            encodings += [make_encoding(shape) for _ in range(shape.num_layers - 1)]
        self.encodings = nn.ModuleList(encodings)
        self.embedding = nn.Embedding(vocab_size, shape.d_model - encodings[0].position_width)
        self.head = nn.Linear(shape.d_model, vocab_size, bias=False)

    def layers_of(self, x_BTD: Tensor, at: AttentionContext) -> Tensor:
        """Return hidden states [B, T, D] after the last layer and norm.

        Layer ``i`` takes ``encoding = self.encoding(i)`` and ``here = at.at_layer(i, x_BTD)`` with the hidden
        states it computes queries and keys from. ``encoding.weights(q_BHTK, k_BHSK, here)`` returns the
        masked and normalised attention weights [B, H, T, S]. For a kernel that masks and normalises by
        itself, take ``encoding.rotate(q, k, here)`` and add ``encoding.bias(q, k, here)`` to the scaled
        logits; encodings that override ``weights`` cannot be used with it. Values pass through
        ``encoding.values(v, here)`` and their weighted sum through ``encoding.outputs(o, here)``;
        ``encoding.read(weights, v, here)`` is the sum of an encoding that reads the weights.

        Args:
            x_BTD: token embeddings, after the encoding's ``embed``.
            at: position ids, lengths, and which keys a query may see (``at.visible_BTS``).
        """
        raise NotImplementedError(f"{type(self).__name__} defines no layers_of(x_BTD, at)")

    def selected_tokens(self, x_BTD: Tensor, at: AttentionContext, indices_n: Tensor) -> Tensor:
        """Return n rows of the flattened result of `layers_of`; a subclass need not compute the others."""
        return self.layers_of(x_BTD, at).flatten(0, 1).index_select(0, indices_n)

    def encoding(self, layer: int) -> PositionalEncoding:
        encoding = self.encodings[layer if self.encodings[0].per_layer else 0]
        return encoding.for_layer(layer)  # type: ignore[operator]

    def forward(self, tokens_BT: Tensor, *arguments: Tensor | None) -> Tensor:
        """Return logits [B, T, V]; for the arguments see `hidden`."""
        return self.head(self.hidden(tokens_BT, *arguments))

    def hidden(
        self,
        tokens_BT: Tensor,
        positions_BP: Tensor | None = None,
        lengths_B: Tensor | None = None,
        declared_B: Tensor | None = None,
        indices_n: Tensor | None = None,
    ) -> Tensor:
        """Return hidden states [B, T, D] after the last layer and norm, before the head.

        Args:
            tokens_BT: right-padded tokens.
            positions_BP: position ids (B may be 1) of the declared tokens; the first T belong to
                ``tokens_BT``. None means 0, 1, 2, ...
            lengths_B: tokens of each row without padding; None means no padding.
            declared_B: tokens of each row with the longest possible answer, at most P; None means
                ``lengths_B``.
            indices_n: indices into the B * T tokens of the flattened batch; the result is then [n, D].
        """
        tokens = tokens_BT.shape[1]
        declared_B = lengths_B if declared_B is None else declared_B
        if positions_BP is None:
            ids = tokens if declared_B is None else max(tokens, int(declared_B.max()))
            positions_BP = torch.arange(ids, device=tokens_BT.device)[None]
        x_BTD = self.embed(tokens_BT, positions_BP, declared_B)
        positions_BT = positions_BP[:, :tokens]
        visible = self._visibility(tokens, lengths_B, x_BTD.device)
        at = AttentionContext(positions_BT, positions_BT, visible, lengths_B, declared_B=declared_B)
        if indices_n is None:
            return self.layers_of(x_BTD, at)
        return self.selected_tokens(x_BTD, at, indices_n)

    def embed(self, tokens_BT: Tensor, positions_BP: Tensor, declared_B: Tensor | None = None) -> Tensor:
        """Return token embeddings after the encoding's `embed_sequence`, [B, T, D]."""
        encoding: PositionalEncoding = self.encodings[0]  # type: ignore[assignment]
        return encoding.embed_sequence(self.embedding(tokens_BT), positions_BP, declared_B)

    def _visibility(
        self, tokens: int, lengths_B: Tensor | None, device: torch.device
    ) -> Callable[[int, int], Tensor]:
        """Return a function that computes rows start .. stop - 1 of the mask [B, T, S], True if visible."""
        keys_S = torch.arange(tokens, device=device)

        def visible_rows(start: int, stop: int) -> Tensor:
            if self.shape.causal:  # no real token attends to the padding on its right
                return (keys_S <= keys_S[start:stop, None])[None]
            if lengths_B is None:
                return torch.ones(1, stop - start, tokens, dtype=torch.bool, device=device)
            return (keys_S < lengths_B[:, None])[:, None].expand(-1, stop - start, -1)

        return visible_rows
