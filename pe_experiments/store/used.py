"""The part of a file that a class uses: the rest of a user's file belongs to no run of that class."""

import ast
import re

# What mentions one of these may use anything of its file.
OPEN = {"globals", "vars", "eval", "exec", "__dict__", "__name__", "__subclasses__", "__init_subclass__"}
# Decorators that change only what they decorate; others may list it somewhere.
PLAIN = {"dataclass", "dataclasses", "cache", "lru_cache", "functools", "contextmanager", "torch"}


def used_by(name: str, source: bytes) -> str | bytes:
    """The statements of a file that a class uses, also through others, or that may act on import.

    All of them where the class is not defined at the top of the file, or may use anything.
    """
    statements = [one for statement in ast.parse(source).body for one in _apart(statement)]
    parts = [(one, _names(one), _words(one)) for one in statements]
    mentioned = {word for _, _, words in parts for word in words}
    used, more = set[str](), {name}
    while more != used:
        used = more
        kept = [(one, words) for one, names, words in parts if names & used or not names & mentioned]
        more = used.union(*(words for _, words in kept))
    known = any(name in names for _, names, _ in parts)
    return ast.unparse(ast.Module([one for one, _ in kept], [])) if known and not used & OPEN else source


def _apart(statement: ast.stmt) -> list[ast.stmt]:
    """An import of several names as several imports; nothing of what cannot matter on import."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        fields = dict(ast.iter_fields(statement))
        return [type(statement)(**fields | {"names": [alias]}) for alias in statement.names]
    words = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    script = isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"
    return [] if words or script else [statement]


def _names(statement: ast.stmt) -> set[str]:
    """The names a statement defines, if that is all it does."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        plain = {re.split(r"\W", ast.unparse(one))[0] for one in statement.decorator_list} <= PLAIN
        return {statement.name} if plain else set()
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return names if len(names) == len(targets) else set()


def _words(statement: ast.stmt) -> set[str]:
    """All words by which a statement may refer to a name."""
    nodes = [node for node in ast.walk(statement) if not isinstance(node, ast.alias)]
    return {str(getattr(node, key, "")) for node in nodes for key in ("id", "attr", "name", "value")}
