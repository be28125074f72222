"""Seed named random streams that are independent of each other and the same on every machine.

PyTorch's CPU generator keeps 32 bits of a seed. The streams of a run are therefore numbered within 32 bits
and scrambled by a bijection, so that no two share a seed. Hashes could collide.
"""

import hashlib

import torch

STREAMS = (
    "training", "training positions", "validation", "validation positions", "evaluation",
    "evaluation positions",
)  # fmt: skip
INDEX_BITS = 29
LENGTH_BITS = 17
BLOCK_BITS = INDEX_BITS - LENGTH_BITS


def named_seed(seed: int, name: str) -> int:
    """Return a 32-bit seed that depends on a run's seed and a name."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def stream(seed: int, name: str, index: int) -> torch.Generator:
    """Return the generator of element ``index`` (a batch number or `block_index`) of one of the `STREAMS`.

    The result depends only on the arguments; within one seed no two pairs (name, index) share a generator.
    """
    if not 0 <= index < 1 << INDEX_BITS:
        raise ValueError(f"stream index {index} is outside 0 .. {(1 << INDEX_BITS) - 1}")
    word = STREAMS.index(name) << INDEX_BITS | index
    return torch.Generator().manual_seed(_scramble(word ^ named_seed(seed, "streams")))


def block_index(length: int, block: int) -> int:
    """Return the stream index of block ``block`` of the evaluation examples of one input length."""
    if not 0 <= length < 1 << LENGTH_BITS:
        raise ValueError(f"evaluation length {length} must be below {1 << LENGTH_BITS}")
    if not 0 <= block < 1 << BLOCK_BITS:
        raise ValueError(f"evaluation block {block} must be below {1 << BLOCK_BITS}; ask for fewer examples")
    return length << BLOCK_BITS | block


def _scramble(word: int) -> int:
    """Return the 32-bit finaliser of MurmurHash3 (Appleby 2011), a bijection that mixes all bits."""
    word ^= word >> 16
    word = word * 0x85EBCA6B % (1 << 32)
    word ^= word >> 13
    word = word * 0xC2B2AE35 % (1 << 32)
    return word ^ word >> 16
