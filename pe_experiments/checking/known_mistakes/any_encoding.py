"""Define known mistakes that any encoding can have: wrong position ids, and no effect while decoding."""

import torch

from pe_experiments.checking.known_mistakes.mistake import (
    WRONG_IDS,
    Change,
    ChangeIds,
    replace_method,
    with_ids,
)
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.base import acts_at_embedding
from pe_experiments.models.attention import makes_weights


def at_every_hook(change_ids: ChangeIds) -> Change:
    """Return a change of the position ids that all hooks read.

    Embeddings read changed ids only if the ids of queries and keys change equally.
    """

    def embed_sequence(encoding, original, x, ids, declared):
        query_ids, key_ids = change_ids(ids, ids)
        if torch.equal(query_ids, key_ids):
            ids = key_ids
        return original(x, ids, declared)

    def attention_hook(encoding, original, q, k, at):
        return original(q, k, with_ids(at, change_ids))

    def change_hooks(encoding: PositionalEncoding) -> None:
        if acts_at_embedding(encoding):
            replace_method(encoding, "embed_sequence", embed_sequence)
        for part in layer_encodings(encoding):
            for hook in attention_hooks(part):
                replace_method(part, hook, attention_hook)

    return Change(change_hooks)


def no_effect_while_decoding(encoding: PositionalEncoding) -> None:
    """Remove the effect of the encoding on calls with fewer queries than keys."""

    def bias(part, original, q, k, at):
        return original(q, k, at) * (0 if q.shape[2] < k.shape[2] else 1)

    def rotate(part, original, q, k, at):
        return (q, k) if q.shape[2] < k.shape[2] else original(q, k, at)

    for part in layer_encodings(encoding):
        for hook, replacement in {"bias": bias, "rotate": rotate}.items():
            if hook in attention_hooks(part):
                replace_method(part, hook, replacement)


def layer_encodings(encoding: PositionalEncoding) -> list[PositionalEncoding]:
    """Return the encodings of all layers, without duplicates."""
    parts = [encoding.for_layer(layer) for layer in range(encoding.shape.num_layers)]
    return list({id(part): part for part in parts}.values())


def attention_hooks(encoding: PositionalEncoding) -> list[str]:
    """Return the names of the overridden hooks that attention calls."""
    if makes_weights(encoding):
        return ["weights"]
    base = PositionalEncoding
    return [name for name in ("rotate", "bias") if getattr(type(encoding), name) is not getattr(base, name)]


MISTAKES: dict[str, Change] = {
    **{description: at_every_hook(change_ids) for description, change_ids in WRONG_IDS.items()},
    "it has no effect while decoding with cached keys": Change(no_effect_while_decoding),
}
