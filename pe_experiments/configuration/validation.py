"""Content as plain values and in typed form, or one sentence with key, value and what is allowed."""

from __future__ import annotations

import difflib
import re
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from pe_experiments.terminal.errors import UserError, allowed, nearest, shown

_SHOWN = r"[^\x00-\x1f\x7f-\x9f]*"
PRINTABLE = rf"^{_SHOWN}[^\x00-\x1f\x7f-\x9f\s]{_SHOWN}$"  # no control characters, and something to see
Schema = TypeVar("Schema", bound=BaseModel)


def resolved(config: DictConfig | dict[str, Any]) -> dict[str, Any]:
    """A configuration as plain values, each ``${key}`` replaced by the value of that key.

    Nothing else is looked up, such as environment variables, and nothing is looked up twice: what is saved
    holds no interpolation.

    Raises:
        UserError: another interpolation, or of a key that is not there.
    """
    plain: Any = config if isinstance(config, dict) else OmegaConf.to_container(config)
    text = str(plain)
    if "${" not in text:
        return plain
    text = re.sub(r"(?<!\\)\$\{[\w.]+\}", "", text)
    if "${" in text:
        strange = shown(text[text.index("${") :].partition("}")[0] + "}")
        raise UserError(f"{strange} is not looked up; allowed: other keys alone, as in ${{task.vocab_size}}")
    try:
        plain = OmegaConf.to_container(OmegaConf.create(plain), resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"the configuration cannot be read: {str(error).splitlines()[0]}") from error
    return plain


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
        raise UserError(complaint(error, schema, *where)) from error


_PART = "a part with a _target_ and _partial_: true, or a list of such where several are taken"
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list in brackets, such as '[a,b]'",
    "dict_type": "names with values in braces, such as '{{a:1}}'",
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "finite_number": "a finite number",
    "too_short": "at least one entry",
    "string_too_short": "at least one character",
    PRINTABLE: "text that is not blank, without control characters",
    "string_pattern_mismatch": "letters, digits and _ . + = ( ) , - only, first a letter, a digit, _ or (",
    "string_too_long": "at most {max_length} characters",
    "literal_error": "{expected}",
    "callable_type": _PART,
    "is_instance_of": _PART,
}


def complaint(error: ValidationError, schema: type[BaseModel], *above: str) -> str:
    """The first complaint as one sentence with key, value and what is allowed."""
    errors = error.errors()
    first, value = errors[0], errors[0]["input"]
    # Of a union, pydantic's path also says which of its types was tried.
    where = [str(part) for part in first["loc"] if not str(part).startswith(("list[", "constrained"))]
    key = ".".join([*above, *where])
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    if first["type"] == "extra_forbidden":
        return f"{key} is not a setting.{_meant(schema, where)}"
    if first["type"] == "missing":
        return f"{key} is missing"
    expected = dict.fromkeys(_expected(one) for one in errors if one["input"] is value)
    return f"{key}={shown(value)}: expected {allowed(expected)}"


def _expected(error: Any) -> str:
    context = error.get("ctx", {})
    words = _EXPECTED.get(context.get("pattern")) or _EXPECTED.get(error["type"], error["msg"])
    return words.format(**context).replace("'", "" if error["type"] == "literal_error" else "'")


def _meant(schema: type[BaseModel], where: list[str]) -> str:
    """The settings beside it that resemble it, or those of other sections that are called so."""
    kinds: dict[str, Any] = {name: field.annotation for name, field in schema.model_fields.items()}
    sections = {name: kind.model_fields for name, kind in kinds.items() if hasattr(kind, "model_fields")}
    known, last = sections[where[0]] if len(where) > 1 else kinds, where[-1]
    elsewhere = difflib.get_close_matches(last, {key for keys in sections.values() for key in keys}, 1, 0.8)
    if elsewhere and (last in elsewhere or not difflib.get_close_matches(last, known, 1, 0.8)):
        meant = [f"{name}.{elsewhere[0]}" for name, keys in sections.items() if elsewhere[0] in keys]
        return f" Did you mean {allowed(meant)}?"
    return nearest(last, known)
