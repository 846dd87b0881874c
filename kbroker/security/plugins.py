"""Classes that settings name by a dotted path: authorizers and policies. Python's, never Java's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kbroker.errors import ConfigError

ALLOWED = "a Python class that can be imported, as package.module.Class"


def load(setting: str, name: str, methods: tuple[str, ...]) -> Any:
    """The class that a setting names. ConfigError if it cannot be imported or lacks a method."""
    module_name, _, class_name = name.rpartition(".")
    if not module_name or not all(map(str.isidentifier, name.split("."))):
        raise ConfigError(setting, name, ALLOWED)
    try:
        loaded = getattr(import_module(module_name), class_name)
    except ModuleNotFoundError as error:
        text = f"{ALLOWED}: there is no module {error.name} (Java classes are never loaded)"
        raise ConfigError(setting, name, text) from error
    except Exception as error:  # whatever the module does when it is imported
        raise ConfigError(setting, name, f"{ALLOWED}: {error!r}") from error
    for method in methods:
        if not callable(getattr(loaded, method, None)):
            raise ConfigError(setting, name, f"a class with a method {method}")
    return loaded
