"""Byte pair encoding of a text (Sennrich et al. 2016, arXiv:1508.07909), with the library ``tokenizers``."""

import codecs
import hashlib
import os
from collections.abc import Iterator

import numpy as np
import torch

from pe_experiments.tasks.saved_datasets import text_library

BYTES = 256  # every byte is a token
MOST_TOKENS = 1 << 16
PIECE = 1 << 18  # bytes that are encoded at a time; no token continues into the next piece


class BytePairs:
    """A tokenizer trained on a text, which encodes every text in UTF-8 without loss.

    Words are separated as in GPT-2, so that no token contains parts of two words. Each token except the 256
    bytes occurs at least twice in the words of the training text.

    Args:
        content: the bytes of the training text.
        vocab_size: number of tokens, at least 256.

    Attributes:
        sizes_V: bytes of each token.
        digest: identifies the tokens.

    Raises:
        ValueError: `tokenizers` is not installed, the text is not UTF-8, or it has too few different words.
    """

    def __init__(self, content: np.ndarray, vocab_size: int):
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one thread, like the rest of a run
        library = text_library("tokenizers", "tokenizer=bpe")
        levels = library.pre_tokenizers.ByteLevel
        self._tokenizer = library.Tokenizer(library.models.BPE())
        self._tokenizer.pre_tokenizer = levels(add_prefix_space=False)
        self._tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            initial_alphabet=sorted(levels.alphabet()),
            show_progress=False,
        )
        self._tokenizer.train_from_iterator(_texts(content), trainer)
        ids = self._tokenizer.get_vocab()
        if len(ids) < vocab_size:
            raise ValueError(
                f"vocab_size={vocab_size} is larger than the training text allows, which gives {len(ids)} "
                f"tokens; allowed: {BYTES} to {len(ids)}"
            )
        tokens = sorted(ids, key=ids.__getitem__)  # a character stands for a byte
        self.sizes_V = torch.tensor([len(token) for token in tokens])
        self.digest = hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:16]

    def text(self, token: int) -> str:
        """Return the characters of a token, with escapes for those that cannot be printed."""
        text = self._tokenizer.decode([token])
        return text if text.isprintable() else repr(text)[1:-1]

    def encode(self, content: np.ndarray) -> np.ndarray:
        """Return the tokens of bytes, uint16."""
        encodings = (self._tokenizer.encode(text, add_special_tokens=False) for text in _texts(content))
        return np.concatenate([np.array(encoding.ids, np.uint16) for encoding in encodings])


def _texts(content: np.ndarray) -> Iterator[str]:
    """Yield bytes in UTF-8 as pieces of text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(content), PIECE):
            yield decoder.decode(content[start : start + PIECE].tobytes(), start + PIECE >= len(content))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"tokenizer=bpe: the text is not in UTF-8 ({error.reason}: {error.object[error.start]:#x}); "
            f"allowed: tokenizer=null, which reads any bytes"
        ) from error
