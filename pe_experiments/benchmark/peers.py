"""Other people's transformers at equal sizes: same width, layers, heads, vocabulary; no dropout.

Each is built as its documentation shows, with its own positional encoding. All are of the optional extra
``bench``; one that is not installed is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pe_experiments.encodings import ModelShape

Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Peer:
    """A causal language model: ``make(shape, vocabulary)`` returns the module and its forward pass.

    Attributes:
        name: of the library and the model.
        make: builds it.
        attention: ways to compute attention that can be chosen, its own default first.
    """

    name: str
    make: Callable[[ModelShape, int, str], tuple[nn.Module, Forward]]
    attention: tuple[str, ...] = ("default",)


class TorchDecoder(nn.Module):
    """`nn.TransformerEncoder` with a causal mask, a token and a position table, and a head."""

    def __init__(self, shape: ModelShape, vocabulary: int):
        super().__init__()
        width = shape.d_model
        layer = nn.TransformerEncoderLayer(
            width, shape.num_heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, shape.num_layers, enable_nested_tensor=False)
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(shape.train_length, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        length = tokens_BT.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens_BT.device)
        x_BTD = self.tokens(tokens_BT) + self.positions.weight[:length]
        return self.head(self.layers(x_BTD, mask=mask, is_causal=True))


def _torch(shape: ModelShape, vocabulary: int, attention: str) -> tuple[nn.Module, Forward]:
    model = TorchDecoder(shape, vocabulary)
    return model, model


def _x_transformers(shape: ModelShape, vocabulary: int, attention: str) -> tuple[nn.Module, Forward]:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=shape.d_model,
        depth=shape.num_layers,
        heads=shape.num_heads,
        attn_dim_head=shape.head_dim,
        attn_flash=attention == "sdpa",
    )
    model = TransformerWrapper(num_tokens=vocabulary, max_seq_len=shape.train_length, attn_layers=layers)
    return model, model


def _gpt2(shape: ModelShape, vocabulary: int, attention: str) -> tuple[nn.Module, Forward]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_positions": shape.train_length, "n_embd": shape.d_model, "n_layer": shape.num_layers}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return _hugging_face(
        GPT2Config, GPT2LMHeadModel, vocabulary, attention, **sizes, **dropout, n_head=shape.num_heads
    )


def _llama(shape: ModelShape, vocabulary: int, attention: str) -> tuple[nn.Module, Forward]:
    from transformers import LlamaConfig, LlamaForCausalLM

    return _hugging_face(
        LlamaConfig,
        LlamaForCausalLM,
        vocabulary,
        attention,
        hidden_size=shape.d_model,
        intermediate_size=8 * shape.d_model // 3,  # three matrices of the gated MLP weigh as much as our two
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        max_position_embeddings=shape.train_length,
    )


def _hugging_face(
    config: Any, model: Any, vocabulary: int, attention: str, **sizes: Any
) -> tuple[nn.Module, Forward]:
    marks = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    made = model(config(vocab_size=vocabulary, attn_implementation=attention, **marks, **sizes))
    return made, lambda tokens_BT: made(tokens_BT, use_cache=False).logits


PEERS = (
    Peer("nn.TransformerEncoder", _torch),
    Peer("x-transformers", _x_transformers, ("eager", "sdpa")),
    Peer("transformers GPT-2", _gpt2, ("sdpa", "eager")),
    Peer("transformers Llama", _llama, ("sdpa", "eager")),
)
