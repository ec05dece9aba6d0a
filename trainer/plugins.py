"""Hooks and callbacks by name: a short one from an entry point, or ``package.module:factory``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from trainer.config import PluginSpec
from trainer.problems import ConfigError, closest

HOOKS_GROUP = "trainer.hooks"
CALLBACKS_GROUP = "trainer.callbacks"


def build_plugin(spec: PluginSpec, *, key: str, group: str, context: Mapping[str, Any]) -> Any:
    """Call the factory that ``spec`` names.

    Args:
        spec: Name and keyword arguments.
        key: Key of the list it stands in, for messages.
        group: Entry-point group of the short names.
        context: Values for parameters that the factory has and the configuration leaves open (run_id, device,
            ...).

    Raises:
        ConfigError: The name is unknown, or the factory does not accept the arguments.
    """
    where = f"{key}.{spec.name}"
    factory = find_factory(spec.name, key=key, group=group)
    try:
        return factory(**{**_accepted(factory, context), **spec.arguments})
    except (TypeError, ValueError, ImportError) as error:
        raise ConfigError([f"{where}: {' '.join(str(error).split())}"]) from error


def check_plugin(spec: PluginSpec, *, key: str, group: str, context: Mapping[str, Any]) -> None:
    """Check that :func:`build_plugin` could call the factory, and do not call it.

    Args:
        spec: Name and keyword arguments.
        key: Key of the list it stands in; likewise ``group`` and ``context``.
        group: Entry-point group of the short names.
        context: Values for parameters that the factory has.

    Raises:
        ConfigError: The name is unknown, or an argument is missing or not one of the factory's.
    """
    factory = find_factory(spec.name, key=key, group=group)
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # a factory written in C may have no signature
        return
    try:
        signature.bind(**{**_accepted(factory, context), **spec.arguments})
    except TypeError as error:
        raise ConfigError([f"{key}.{spec.name}: {error}"]) from error


def find_factory(name: str, *, key: str, group: str) -> Callable[..., Any]:
    """Return the callable that ``name`` stands for.

    Raises:
        ConfigError: There is no such short name, module or attribute.
    """
    if ":" in name:
        return _import_dotted(name, key)
    known = {point.name: point for point in entry_points(group=group)}
    if name not in known:
        hint = closest(name, known)
        raise ConfigError([f"{key}: unknown name {name!r}; {hint}, or package.module:factory"])
    try:
        return known[name].load()  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise ConfigError([f"{key}.{name}: cannot be loaded: {error}"]) from error


def _import_dotted(name: str, key: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError([f"{key}: cannot load {name!r}: {error}"]) from error
    if not callable(target):
        raise ConfigError(
            [f"{key}: {name!r} is {type(target).__name__}, must be a callable that makes the object"]
        )
    return target  # type: ignore[no-any-return]


def _accepted(factory: Callable[..., Any], context: Mapping[str, Any]) -> dict[str, Any]:
    """Those values of the context whose names are parameters of the factory."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a factory written in C may have no signature
        return {}
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {
        name: value
        for name, value in context.items()
        if name in parameters and parameters[name].kind in by_keyword
    }
