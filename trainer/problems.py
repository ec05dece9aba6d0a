"""What is wrong with a configuration, one clear line for each problem."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

_SECRET = re.compile(r"token|key|header|password|passwd|secret|credential|auth", re.IGNORECASE)
_SECRET_URL = re.compile(r"://[^/\s]*@|://\S*\?")  # with user and password, or with a query
_VALUE_LENGTH = 80


class ConfigError(ValueError):
    """The user's configuration cannot be used.

    Args:
        problems: One line each, naming the key, the value and what is accepted.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[str]]]:
        # Sent to other ranks as it is: by its lines, not by the text made of them.
        return type(self), (self.problems,)


def describe_problems(error: ValidationError, schema: type[BaseModel]) -> list[str]:
    """Return one line per problem that validation against ``schema`` has found."""
    return [_describe(dict(problem), schema) for problem in error.errors(include_url=False)]


def show_value(key: str, value: object) -> str:
    """Return ``value`` for a message, shortened; hidden when it is, or holds, something that looks secret."""
    if _SECRET.search(key) or _holds_secret(value):
        return "(hidden)"
    text = repr(value)
    return text if len(text) <= _VALUE_LENGTH else text[: _VALUE_LENGTH - 3] + "..."


def yaml_problem(error: yaml.YAMLError) -> str:
    """Return where a file stops being YAML and why, without quoting it: the line may hold a secret."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + re.sub(r"'[^']{3,}'", "'...'", str(problem or type(error).__name__))


def closest(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean ...? known: ...`` for an unknown name."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{hint}known: {', '.join(names) or 'none'}"


def _describe(problem: dict[str, Any], schema: type[BaseModel]) -> str:
    location, message = problem["loc"], problem["msg"]
    key = ".".join(str(part) for part in location)
    if problem["type"] == "extra_forbidden":
        *parents, last = location
        section = _section(schema, parents)
        return f"{key}: unknown key; {closest(str(last), section.model_fields if section else ())}"
    message = message.removeprefix("Value error, ").removeprefix("Input ")
    value = problem["input"]
    if isinstance(value, BaseModel | dict) and problem["type"] == "value_error":
        # About several keys; the message names their values.
        return f"{key}: {message}" if key else message
    return f"{key}: {message}, got {show_value(key, value)}"


def _section(schema: type[BaseModel], parents: Iterable[object]) -> type[BaseModel] | None:
    section: Any = schema
    for part in parents:
        field = section.model_fields.get(part)
        section = field.annotation if field is not None else None
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return None
    return section  # type: ignore[no-any-return]


def _holds_secret(value: object) -> bool:
    if isinstance(value, str):
        return _SECRET_URL.search(value) is not None
    if isinstance(value, dict):
        return any(_SECRET.search(str(key)) or _holds_secret(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(_holds_secret(item) for item in value)
    return False
