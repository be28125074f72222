"""Build transformers of other libraries with the same width, layers, heads and vocabulary, without dropout.

Each model is built as its documentation shows, with its own positional encoding. The libraries are optional
(the extra ``bench``).
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from pe_experiments.encodings import ModelShape


class TorchDecoder(nn.Module):
    """`nn.TransformerEncoder` with a causal mask, token and position embeddings, and an output head."""

    def __init__(self, shape: ModelShape, vocabulary: int, attention: str):
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


def _x_transformers(shape: ModelShape, vocabulary: int, attention: str) -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    sizes = {"dim": shape.d_model, "depth": shape.num_layers, "heads": shape.num_heads}
    layers = Decoder(**sizes, attn_dim_head=shape.head_dim, attn_flash=attention == "sdpa")
    return TransformerWrapper(num_tokens=vocabulary, max_seq_len=shape.train_length, attn_layers=layers)


class _HuggingFace(nn.Module):
    """A causal language model of `transformers` whose call returns logits."""

    def __init__(self, kind: str, vocabulary: int, attention: str, **sizes: Any):
        from transformers import AutoConfig, AutoModelForCausalLM

        super().__init__()
        special_tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
        config = AutoConfig.for_model(kind, vocab_size=vocabulary, **special_tokens, **sizes)
        self.model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.model(tokens_BT, use_cache=False).logits


def _gpt2(shape: ModelShape, vocabulary: int, attention: str) -> nn.Module:
    sizes = {"n_embd": shape.d_model, "n_layer": shape.num_layers, "n_head": shape.num_heads}
    sizes |= {"n_positions": shape.train_length, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    return _HuggingFace("gpt2", vocabulary, attention, **sizes)


def _llama(shape: ModelShape, vocabulary: int, attention: str) -> nn.Module:
    sizes = {
        "hidden_size": shape.d_model,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "max_position_embeddings": shape.train_length,
        "intermediate_size": 8 * shape.d_model // 3,  # its three MLP matrices have as many weights as our two
    }
    return _HuggingFace("llama", vocabulary, attention, **sizes)


# By name: a function of shape, vocabulary size and attention implementation that builds a model from tokens
# to logits, and the attention implementations, the default first.
Peers = Mapping[str, tuple[Callable[[ModelShape, int, str], nn.Module], tuple[str, ...]]]
PEERS: Peers = {
    "nn.TransformerEncoder": (TorchDecoder, ("default",)),
    "x-transformers": (_x_transformers, ("eager", "sdpa")),
    "transformers GPT-2": (_gpt2, ("sdpa", "eager")),
    "transformers Llama": (_llama, ("sdpa", "eager")),
}
PACKAGES = ("x-transformers", "transformers")
