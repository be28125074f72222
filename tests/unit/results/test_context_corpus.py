"""Test the corpus whose names must be read from the context."""

from __future__ import annotations

import ast

from results.text.context.corpus import with_new_names

SOURCE = '''def total(values, start=0):
    """Add the values, as in total([1])."""
    for value in values:
        start += value  # of values
    return start


once = total([1], start=2)
'''


def structure(source: str) -> list[tuple[str, int]]:
    """Return the types and lines of all nodes."""
    return [(type(node).__name__, getattr(node, "lineno", 0)) for node in ast.walk(ast.parse(source))]


def test_repeated_names_become_other_words_and_nothing_else_changes() -> None:
    renamed = with_new_names(SOURCE, seed=1)
    assert structure(renamed) == structure(SOURCE)
    assert '"""Add the values, as in total([1])."""' in renamed
    assert "# of values" in renamed
    assert "once = " in renamed
    parsed = ast.parse(renamed)
    function, call = parsed.body[0], parsed.body[1].value  # type: ignore[attr-defined]
    assert function.name == call.func.id != "total"  # type: ignore[attr-defined]
    names = {node.id for node in ast.walk(parsed) if isinstance(node, ast.Name)}
    assert not names & {"values", "value", "start", "total"}
    assert with_new_names(SOURCE, seed=1) == renamed != with_new_names(SOURCE, seed=2)
