"""Content in typed form, or one sentence with the key, the value and what is allowed."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pe_experiments.errors import UserError, nearest, shown

Schema = TypeVar("Schema", bound=BaseModel)


def validated(schema: type[Schema], content: Any, *where: str) -> Schema:
    """Content in typed form.

    Args:
        schema: what it may say.
        content: as read.
        where: the keys that lead to it.

    Raises:
        UserError: it says something else.
    """
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        raise UserError(_sentence(error, schema, *where)) from error


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list in brackets, such as '[a,b]'",
    "dict_type": "one choice with its settings",
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "finite_number": "a finite number",
    "too_short": "at least one entry",
    "string_too_short": "at least one character",
    "string_pattern_mismatch": "letters, digits and _ . + = ( ) , - only, no dot first",
    "string_too_long": "at most {max_length} characters",
}


def _sentence(error: ValidationError, schema: type[BaseModel], *above: str) -> str:
    """The first complaint as one sentence with key, value and what is allowed."""
    first = error.errors()[0]
    where = [
        str(part)
        for part in first["loc"]
        if not (isinstance(part, str) and part.startswith(("list[", "constrained")))
    ]
    key = ".".join([*above, *where])
    kind, value = first["type"], first["input"]
    if kind == "value_error":
        return str(first["ctx"]["error"])
    if kind == "extra_forbidden":
        siblings = _known_keys(schema, where[:-1])
        return f"{key} is not a setting.{nearest(where[-1], siblings)}"
    if kind == "missing":
        return f"{key} is missing"
    if kind == "literal_error":
        options = first["ctx"]["expected"].replace("'", "")
        return f"{key}={shown(value)} is not one of the choices: {options}"
    expected = _EXPECTED.get(kind, first["msg"]).format(**first.get("ctx", {}))
    return f"{key}={shown(value)}: expected {expected}"


def _known_keys(schema: type[BaseModel], path: list[str]) -> list[str]:
    section: Any = schema
    for name in path:
        section = section.model_fields[name].annotation
    return list(section.model_fields)
