"""What a class uses of the file it stands in: the rest of a user's file belongs to no run of that class."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

# What mentions one of these may use anything of its file.
OPEN = {"globals", "vars", "eval", "exec", "__dict__", "__name__", "__subclasses__", "__init_subclass__"}
# Decorators that change only what they decorate; others may list it somewhere.
PLAIN = {
    "dataclass",
    "dataclasses",
    "cache",
    "lru_cache",
    "functools",
    "contextmanager",
    "contextlib",
    "torch",
}


def used_by(name: str, source: bytes, is_library: Callable[[str], bool]) -> str | bytes:
    """The statements of a file that a class uses, also through others, or that may act on import.

    All of them where the class is not defined at the top of the file, or may use anything. Importing a
    library is no such act.
    """
    statements = [one for statement in ast.parse(source).body for one in _apart(statement)]
    words = [_words(statement) for statement in statements]
    mentioned, used, more = set[str]().union(*words), set[str](), {name}
    acts = [_acts(one, mentioned, is_library) for one in statements]
    while more != used:
        used = more
        kept = [act or bool(_names(one) & used) for act, one in zip(acts, statements, strict=True)]
        more = used.union(*(said for said, keep in zip(words, kept, strict=True) if keep))
    if used & OPEN or not any(name in _names(one) for one in statements):
        return source
    return ast.unparse(ast.Module([one for one, keep in zip(statements, kept, strict=True) if keep], []))


def _apart(statement: ast.stmt) -> Iterator[ast.stmt]:
    """An import of several names as several imports."""
    if isinstance(statement, ast.Import):
        yield from (ast.Import([alias]) for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom):
        yield from (ast.ImportFrom(statement.module, [alias], statement.level) for alias in statement.names)
    else:
        yield statement


def _names(statement: ast.stmt) -> set[str]:
    """What a statement defines, if that is all it does."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names} - {"*"}
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return set(names) if len(names) == len(targets) else set()


def _acts(statement: ast.stmt, mentioned: set[str], is_library: Callable[[str], bool]) -> bool:
    """Whether a statement may do something on import that concerns also those who do not use its names."""
    if not (names := _names(statement)):
        script = isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"
        return not script and not (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        )
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return not {re.split(r"\W", ast.unparse(one))[0] for one in statement.decorator_list} <= PLAIN
    if names & mentioned:
        return False
    # Of what nobody ever names, only the doing can be meant.
    if isinstance(statement, ast.ImportFrom):
        return bool(statement.level) or not is_library(str(statement.module))
    if isinstance(statement, ast.Import):
        return not is_library(statement.names[0].name)
    return any(isinstance(node, ast.Call) for node in ast.walk(statement))


def _words(statement: ast.stmt) -> set[str]:
    """All words by which a statement may refer to a name."""
    found = set[str]()
    for node in ast.walk(statement):
        if not isinstance(node, ast.alias) and not isinstance(getattr(node, "ctx", None), ast.Store):
            found |= {str(getattr(node, key, "")) for key in ("id", "attr", "name", "value")}
    return found
