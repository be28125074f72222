"""Known mistakes of any encoding: wrong ids at every hook, and no effect while decoding."""

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
    """Return a change of position ids, also of embeddings if ids of queries and keys change equally."""

    def embed_sequence(encoding, original, x, ids, declared):
        of_queries, of_keys = change_ids(ids, ids)
        return original(x, of_keys if torch.equal(of_queries, of_keys) else ids, declared)

    def attend(encoding, original, q, k, at):
        return original(q, k, with_ids(at, change_ids))

    def change(encoding: PositionalEncoding) -> None:
        if acts_at_embedding(encoding):
            replace_method(encoding, "embed_sequence", embed_sequence)
        for part in layer_encodings(encoding):
            for hook in attention_hooks(part):
                replace_method(part, hook, attend)

    return Change(change)


def no_effect_while_decoding(encoding: PositionalEncoding) -> None:
    def bias(part, original, q, k, at):
        return original(q, k, at) * (0 if q.shape[2] < k.shape[2] else 1)

    def rotate(part, original, q, k, at):
        return (q, k) if q.shape[2] < k.shape[2] else original(q, k, at)

    for part in layer_encodings(encoding):
        for hook, replacement in {"bias": bias, "rotate": rotate}.items():
            if hook in attention_hooks(part):
                replace_method(part, hook, replacement)


def layer_encodings(encoding: PositionalEncoding) -> list[PositionalEncoding]:
    """Return the distinct encodings of the layers."""
    parts = [encoding.for_layer(layer) for layer in range(encoding.shape.num_layers)]
    return list({id(part): part for part in parts}.values())


def attention_hooks(encoding: PositionalEncoding) -> list[str]:
    """Return the hooks of attention that the encoding overrides and that its callers call."""
    if makes_weights(encoding):
        return ["weights"]
    base = PositionalEncoding
    return [name for name in ("rotate", "bias") if getattr(type(encoding), name) is not getattr(base, name)]


MISTAKES: dict[str, Change] = {
    **{description: at_every_hook(change_ids) for description, change_ids in WRONG_IDS.items()},
    "it has no effect while decoding with cached keys": Change(no_effect_while_decoding),
}
