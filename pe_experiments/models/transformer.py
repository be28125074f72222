"""One pre-LN transformer, decoder or encoder, that never names a scheme or a task.

Shapes: B batch, T tokens, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.models.attention import Attention
from pe_experiments.models.initialisation import Initialisation, initialise_backbone

Activation = Literal["gelu", "relu"]
OutputHead = Literal["separate", "tied"]


class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, shape: ModelShape, index: int, activation: Activation, attention_implementation: str):
        super().__init__()
        self.index = index
        self.attention_norm = nn.LayerNorm(shape.d_model)
        self.attention = Attention(shape, attention_implementation)
        self.mlp_norm = nn.LayerNorm(shape.d_model)
        self.mlp_in = nn.Linear(shape.d_model, 4 * shape.d_model)
        self.mlp_out = nn.Linear(4 * shape.d_model, shape.d_model)
        self.activation = F.gelu if activation == "gelu" else F.relu

    def forward(self, x_BTD: Tensor, encoding: PositionalEncoding, at: AttentionContext) -> Tensor:
        read_BTD = self.attention_norm(x_BTD)
        x_BTD = x_BTD + self.attention(read_BTD, encoding, at.at_layer(self.index, read_BTD))
        return x_BTD + self.mlp_out(self.activation(self.mlp_in(self.mlp_norm(x_BTD))))


class Transformer(nn.Module):
    """Token embedding, an encoding, ``num_layers`` pre-LN layers, a final norm and a head. No dropout.

    Args:
        vocab_size: number of tokens, marks (BOS, SEP, EOS, SLOT) included.
        shape: sizes, and whether the model is causal.
        make_encoding: called with the shape, once, or once per layer if the scheme is ``per_layer``.
        activation: of the MLP, whose hidden layer is four times as wide as the model.
        initialisation: how the backbone's weights are drawn, see `initialise_backbone`.
        output_head: ``separate``, or ``tied`` to the token embedding (GPT-2).
        attention_implementation: ``auto``, ``eager``, ``sdpa`` or ``blocked``.
        seed: of the backbone's weights, which are the same under every encoding.

    Raises:
        ValueError: a tied head with an encoding that is concatenated.
    """

    def __init__(
        self,
        vocab_size: int,
        shape: ModelShape,
        make_encoding: Callable[[ModelShape], PositionalEncoding],
        *,
        activation: Activation = "gelu",
        initialisation: Initialisation = "gpt2",
        output_head: OutputHead = "separate",
        attention_implementation: str = "auto",
        seed: int = 0,
    ):
        super().__init__()
        self.shape = shape
        first = make_encoding(shape)
        copies = shape.num_layers - 1 if first.per_layer else 0
        self.encodings = nn.ModuleList([first, *(make_encoding(shape) for _ in range(copies))])
        if first.position_width and output_head == "tied":
            raise ValueError("output_head=tied needs token vectors as wide as the model; take pe.combine=add")
        self.embedding = nn.Embedding(vocab_size, shape.d_model - first.position_width)
        self.layers = nn.ModuleList(
            Layer(shape, index, activation, attention_implementation) for index in range(shape.num_layers)
        )
        self.norm = nn.LayerNorm(shape.d_model)
        self.head = nn.Linear(shape.d_model, vocab_size, bias=False)
        if output_head == "tied":
            self.head.weight = self.embedding.weight
        initialise_backbone(self, initialisation, shape.num_layers, seed)

    def forward(
        self,
        tokens_BT: Tensor,
        positions_BP: Tensor | None = None,
        lengths_B: Tensor | None = None,
        declared_B: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, T, V].

        Args:
            tokens_BT: right-padded tokens.
            positions_BP: position ids (B may be 1) of the declared tokens; the first T belong to
                ``tokens_BT``. None means 0, 1, 2, ...
            lengths_B: tokens of each row without padding; None means no padding.
            declared_B: tokens of each row if its answer were as long as it can be, at most P; None means
                ``lengths_B``.
        """
        return self.head(self.hidden(tokens_BT, positions_BP, lengths_B, declared_B))

    def hidden(
        self,
        tokens_BT: Tensor,
        positions_BP: Tensor | None = None,
        lengths_B: Tensor | None = None,
        declared_B: Tensor | None = None,
    ) -> Tensor:
        """Hidden states [B, T, D] after the final norm, for a head that reads scored tokens alone."""
        tokens = tokens_BT.shape[1]
        declared_B = lengths_B if declared_B is None else declared_B
        if positions_BP is None:
            ids = tokens if declared_B is None else max(tokens, int(declared_B.max()))
            positions_BP = torch.arange(ids, device=tokens_BT.device)[None]
        x_BTD = self.embed(tokens_BT, positions_BP, declared_B)
        here_BT = positions_BP[:, :tokens]
        visible = self._visibility(tokens, lengths_B, x_BTD.device)
        at = AttentionContext(here_BT, here_BT, visible, lengths_B, declared_B=declared_B)
        for index, layer in enumerate(self.layers):
            scheme = self.encodings[index if self.encodings[0].per_layer else 0]
            x_BTD = layer(x_BTD, scheme.for_layer(index), at)  # type: ignore[operator]
        return self.norm(x_BTD)

    def embed(self, tokens_BT: Tensor, positions_BP: Tensor, declared_B: Tensor | None = None) -> Tensor:
        """Token embeddings after the encoding's `embed_sequence`, [B, T, D]."""
        encoding: PositionalEncoding = self.encodings[0]  # type: ignore[assignment]
        return encoding.embed_sequence(self.embedding(tokens_BT), positions_BP, declared_B)

    def _visibility(
        self, tokens: int, lengths_B: Tensor | None, device: torch.device
    ) -> Callable[[int, int], Tensor]:
        keys_S = torch.arange(tokens, device=device)

        def rows(start: int, stop: int) -> Tensor:
            if self.shape.causal:  # padding is to the right, where no real token attends
                return (keys_S <= keys_S[start:stop, None])[None]
            if lengths_B is None:
                return torch.ones(1, stop - start, tokens, dtype=torch.bool, device=device)
            return (keys_S < lengths_B[:, None])[:, None].expand(-1, stop - start, -1)

        return rows
