"""Write a corpus in which names must be read from the context: sources with new names in every file.

python results/text/context/corpus.py FOLDER

Each name that occurs at least twice in a file of Python's standard library becomes a random word, another one
in every file. Where a name stands first it cannot be predicted, and afterwards only from its document.
"""

import hashlib
import io
import keyword
import random
import sys
import sysconfig
import tokenize
from collections import Counter
from pathlib import Path

CONSONANTS, VOWELS = "bcdfghjklmnpqrstvwxz", "aeiou"
FEWEST = 2  # occurrences of a name that is replaced
KEPT = {*keyword.kwlist, "self"}


def random_word(generator: random.Random, syllables: int) -> str:
    return "".join(generator.choice(CONSONANTS) + generator.choice(VOWELS) for _ in range(syllables))


def with_new_names(source: str, seed: int) -> str:
    """Return the source with a random word of two to four syllables for each repeated name."""
    generator = random.Random(seed)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    counts = Counter(token.string for token in tokens if token.type == tokenize.NAME)
    words = {
        name: random_word(generator, generator.randint(2, 4))
        for name, count in counts.items()
        if count >= FEWEST and name not in KEPT
    }
    lines = source.splitlines(keepends=True)
    for token in reversed(tokens):  # from the end, so that the columns before it stay true
        if token.type == tokenize.NAME and token.string in words:
            row, column = token.start
            line = lines[row - 1]
            lines[row - 1] = line[:column] + words[token.string] + line[column + len(token.string) :]
    return "".join(lines)


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).parts
        if {"site-packages", "test", "tests", "idle_test"} & {*parts}:
            continue
        seed = int(hashlib.sha256("/".join(parts).encode()).hexdigest()[:16], 16)
        try:
            renamed = with_new_names(path.read_text("utf-8"), seed)
        except (SyntaxError, tokenize.TokenError, UnicodeDecodeError):
            continue
        (folder / "-".join(parts)).write_text(renamed, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
