"""Collect known mistakes in encodings: typical ones and ones reported for public code.

To add a mistake, write an entry in the file of its kind of encoding (embeddings, rotations, biases, content).
A test introduces every mistake into a correct encoding and requires that the checker reports it by name.
"""

from pe_experiments.checking.known_mistakes import any_encoding, biases, content, embeddings, rotations
from pe_experiments.checking.known_mistakes.mistake import Mistake

KINDS = (embeddings, rotations, biases, content)
MISTAKES = {
    mistake.name: mistake
    for kind in KINDS
    for encoding, changes in kind.MISTAKES.items()
    for mistake in (Mistake(encoding, *entry) for entry in changes.items())
}


def mistakes_of(encoding: str) -> list[Mistake]:
    """Return the mistakes listed for an encoding."""
    return [mistake for mistake in MISTAKES.values() if mistake.encoding == encoding]


def common_mistakes(encoding: str) -> list[Mistake]:
    """Return the mistakes that any encoding can have, except those listed for this one."""
    mistakes = (Mistake(encoding, *entry) for entry in any_encoding.MISTAKES.items())
    return [mistake for mistake in mistakes if mistake.name not in MISTAKES]
