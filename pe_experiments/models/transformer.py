"""A pre-norm transformer, decoder or encoder, independent of encoding and task.

Shapes: B batch, T tokens, N tokens without padding, D d_model, F hidden width of the MLP.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.models.attention import Attention, MakeSoftmax, makes_weights
from pe_experiments.models.attention_parts import (
    AttentionPart,
    Gate,
    NormOfQueries,
    OutputGate,
    QkNorm,
    Sinks,
    TokenShift,
)
from pe_experiments.models.backbone import Backbone
from pe_experiments.models.cpu import Linear, SelectedTokens, Unpacked, packing_of
from pe_experiments.models.initialisation import Initialisation, initialise_backbone
from pe_experiments.terminal.errors import NotApplicable, one_of

Activation = Literal["gelu", "relu", "swiglu"]
Norm = Literal["layer", "rms"]
OutputHead = Literal["separate", "tied"]
ImplementationName = Literal["auto", "eager", "sdpa", "blocked"]


def swiglu(x_BTF: Tensor) -> Tensor:
    """Return half of the columns, gated by the SiLU of the other half (Shazeer 2020, arXiv:2002.05202)."""
    value, gate = x_BTF.chunk(2, dim=-1)
    return value * F.silu(gate)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu, "swiglu": swiglu}


class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(
        self,
        index: int,
        attention: Attention,
        make_norm: Callable[[int], nn.Module],
        activation: Activation,
        biases: bool,
        dropout: nn.Module,
    ):
        super().__init__()
        d_model = attention.shape.d_model
        self.index = index
        self.attention_norm = make_norm(d_model)
        self.attention = attention
        self.mlp_norm = make_norm(d_model)
        gated = activation == "swiglu"
        width = 8 * round(d_model / 3) if gated else 4 * d_model  # equally many parameters
        self.mlp_in = Linear(d_model, 2 * width if gated else width, bias=biases)
        self.mlp_out = Linear(width, d_model, bias=biases)
        self.activation = ACTIVATIONS[activation]
        self.dropout = dropout

    def forward(
        self, x_ND: Tensor, encoding: PositionalEncoding, at: AttentionContext, packing: Unpacked
    ) -> Tensor:
        """Return hidden states after this layer, [N, D] or, unpacked, [B, T, D]."""
        normed_ND = self.attention.hidden(self.attention_norm(x_ND), packing)
        here = at.at_layer(self.index, partial(packing.pad, normed_ND))
        x_ND = packing.residual_rows(x_ND) + self.dropout(self.attention(normed_ND, encoding, here, packing))
        return x_ND + self.dropout(self.mlp_out(self.activation(self.mlp_in(self.mlp_norm(x_ND)))))


class Transformer(Backbone):
    """Token embedding, an encoding, ``num_layers`` pre-norm layers, a final norm and a head.

    Args:
        vocab_size, shape, make_encoding: see `Backbone`.
        seed: seed of the backbone's weights, which are the same with every encoding.
        activation: activation of the MLP: ``relu``, ``gelu``, or ``swiglu`` with a gate.
        norm: ``layer``, or ``rms`` (Zhang and Sennrich 2019, arXiv:1910.07467).
        biases: whether projections and layer norms have biases; False as in Llama.
        dropout: dropout rate, applied to the embeddings and to the outputs of attention and MLP in training.
        initialisation: how the backbone's weights are drawn, see `initialise_backbone`.
        output_head: ``separate``, or ``tied`` to the token embedding (GPT-2).
        qk_norm: whether queries and keys are normalised ``before`` (or True) or ``after`` they rotate, see
            `QkNorm`.
        sinks: whether heads can attend to nothing, see `Sinks`.
        output_gate: ``none``, or what `Gate` multiplies: each ``head`` or each ``channel``.
        token_shift: whether attention also reads a convolution of the last four tokens, see `TokenShift`.
        attention: what takes the place of softmax in every layer (`encodings.softmax.Softmax`); in YAML the
            name of a class, or its ``_target_`` with arguments. None means softmax.
        attention_implementation: ``auto``, ``eager``, ``sdpa`` or ``blocked``, with the same result.

    Raises:
        ValueError: an unknown choice, or one that does not fit the encoding or another choice.
    """

    def __init__(
        self,
        vocab_size: int,
        shape: ModelShape,
        make_encoding: MakeEncoding,
        seed: int = 0,
        *,
        activation: Activation = "gelu",
        norm: Norm = "layer",
        biases: bool = True,
        dropout: float = 0.0,
        initialisation: Initialisation = "gpt2",
        output_head: OutputHead = "separate",
        qk_norm: NormOfQueries = False,
        sinks: bool = False,
        output_gate: OutputGate = "none",
        token_shift: bool = False,
        attention: MakeSoftmax | None = None,
        attention_implementation: ImplementationName = "auto",
    ):
        super().__init__(vocab_size, shape, make_encoding, seed)
        one_of(Activation, "activation", activation)
        one_of(Norm, "norm", norm)
        one_of(OutputHead, "output_head", output_head)
        one_of(OutputGate, "output_gate", output_gate)
        if qk_norm not in (False, True, "before", "after"):
            raise ValueError(f"qk_norm={qk_norm} must be false, true, before or after")
        one_of(ImplementationName, "attention_implementation", attention_implementation)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} must be at least 0 and below 1")
        if sinks and attention:
            raise NotApplicable("model.sinks=true needs the softmax; take it without model.attention")
        options = {"sinks=true": sinks, "attention": attention, "qk_norm=after": qk_norm == "after"}
        need_softmax = [option for option, is_on in options.items() if is_on]
        limited_layers = shape.num_layers if need_softmax or attention_implementation == "sdpa" else 0
        for encoding in map(self.encoding, range(limited_layers)):
            if need_softmax and makes_weights(encoding):
                raise NotApplicable(
                    f"model.{need_softmax[0]} needs the softmax; {type(encoding).__name__} computes its own "
                    "weights"
                )
            if attention_implementation == "sdpa" and encoding.reads_weights:
                raise NotApplicable(
                    f"model.attention_implementation=sdpa computes no attention weights, which "
                    f"{type(encoding).__name__} reads; take auto, eager or blocked"
                )

        make_norm = partial(nn.RMSNorm, eps=1e-5) if norm == "rms" else partial(nn.LayerNorm, bias=biases)
        make_dropout = partial(nn.Dropout, dropout) if dropout else nn.Identity
        self.layers = nn.ModuleList()
        for index in range(shape.num_layers):
            parts: list[AttentionPart] = []
            if token_shift:
                parts.append(TokenShift(shape))
            if qk_norm:
                parts.append(QkNorm(shape, after_rotation=qk_norm == "after"))
            if sinks:
                parts.append(Sinks(shape))
            if output_gate != "none":
                parts.append(Gate(shape, shape.num_heads if output_gate == "head" else shape.d_model))
            softmax = attention(shape) if attention else None
            layer_attention = Attention(shape, attention_implementation, biases, parts, softmax)
            self.layers.append(Layer(index, layer_attention, make_norm, activation, biases, make_dropout()))
        self.norm = make_norm(shape.d_model)
        self.dropout = make_dropout()
        if output_head == "tied":
            if self.embedding.embedding_dim < shape.d_model:
                raise ValueError(
                    "output_head=tied needs token vectors as wide as the model; use pe.combine=add"
                )
            self.head.weight = self.embedding.weight
        initialise_backbone(self, initialisation, shape.num_layers, seed)

    def layers_of(self, x_BTD: Tensor, at: AttentionContext) -> Tensor:
        packing = packing_of(x_BTD, at.lengths_B)
        return packing.pad(self._run_layers(x_BTD, at, packing, packing))

    def selected_tokens(self, x_BTD: Tensor, at: AttentionContext, indices_n: Tensor) -> Tensor:
        packing = packing_of(x_BTD, at.lengths_B)
        return self._run_layers(x_BTD, at, packing, SelectedTokens(packing, indices_n))

    def _run_layers(self, x_BTD: Tensor, at: AttentionContext, packing: Unpacked, last: Unpacked) -> Tensor:
        """Return normed hidden states after all layers; the last layer uses the packing ``last``."""
        x_ND = packing.pack(self.dropout(x_BTD))
        for index, layer in enumerate(self.layers):
            layer_packing = last if layer is self.layers[-1] else packing
            x_ND = layer(x_ND, self.encoding(index), at, layer_packing)
        return self.norm(x_ND)
