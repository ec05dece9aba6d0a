"""``--set key=value``: single values of a configuration, replaced by their dotted key."""

from __future__ import annotations

from typing import Any

import yaml

from trainer.problems import ConfigError, show_value


def parse_override(text: str) -> tuple[str, Any]:
    """Split ``key=value``; the value is parsed as YAML.

    Raises:
        ConfigError: There is no ``=``, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError([f"--set {show_value(text, text)}: must be key=value, such as train.max_steps=100"])
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError([f"--set {key}: the value is not YAML"]) from None


def apply_override(tree: dict[str, Any], key: str, value: object) -> None:
    """Set the value at a dotted key, making the sections on the way.

    An item of a list is addressed by its index, or by the name of a hook or callback, which is added when it
    is not in the
    list: ``logging.hooks.otel.prometheus_port=9500``.

    Raises:
        ConfigError: The key leads through something that has no keys.
    """
    *parents, last = key.split(".")
    node: Any = tree
    for depth, part in enumerate(parents):
        following = parents[depth + 1] if depth + 1 < len(parents) else last
        node = _descend(node, part, following, ".".join(parents[: depth + 1]))
    if isinstance(node, dict):
        node[last] = value
    elif isinstance(node, list) and last.isdecimal() and int(last) < len(node):
        node[int(last)] = value
    else:
        raise ConfigError([f"{key}: cannot be set, {'.'.join(parents)} is {type(node).__name__}"])


def _descend(node: Any, part: str, following: str, key: str) -> Any:
    if isinstance(node, list):
        return _list_item(node, part, key)
    if not isinstance(node, dict):
        raise ConfigError([f"{key}: cannot be set, it lies in {show_value(key, node)}"])
    if node.get(part) is None:
        # The two lists of a config that are addressed by name may not be there yet.
        node[part] = [] if part in ("hooks", "callbacks") and not following.isdecimal() else {}
    return node[part]


def _list_item(items: list[Any], part: str, key: str) -> Any:
    """Return the keyword arguments of the item called ``part``, as a dict inside the list."""
    if part.isdecimal():
        if int(part) >= len(items):
            raise ConfigError([f"{key}: the list has {len(items)} items"])
        return _as_mapping(items, int(part))
    named = [i for i, item in enumerate(items) if item == part or (isinstance(item, dict) and part in item)]
    if not named:
        named = [len(items)]
        items.append(part)
    mapping = _as_mapping(items, named[0])
    mapping[part] = mapping.get(part) or {}
    return mapping[part]


def _as_mapping(items: list[Any], index: int) -> dict[str, Any]:
    """Turn the item ``name`` into ``{name: {}}``, so that it can be given arguments."""
    if not isinstance(items[index], dict):
        items[index] = {str(items[index]): {}}
    mapping: dict[str, Any] = items[index]
    return mapping
