"""mypy: settings that code asks for by a literal name exist, and the types of numbers are known.

``config["log.segment.bites"]`` is an error, and ``config["log.segment.bytes"]`` an int. Names that
are made at run time are looked up there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mypy.nodes import StrExpr
from mypy.plugin import MethodContext, Plugin, ReportConfigContext
from mypy.types import AnyType, Type, TypeOfAny

sys.path.append(str(Path(__file__).resolve().parent.parent))  # its head is mypy's

from kbroker.config.broker_keys import BROKER_KEYS
from kbroker.config.key import BOOLEAN, DOUBLE, INT, LONG, SHORT, Key

BROKER = "kbroker.config.loader.BrokerConfig"
LISTENER = "kbroker.config.listener_config.ListenerConfig"
ASKED = {f"{cls}.__getitem__" for cls in (BROKER, LISTENER)} | {f"{BROKER}.is_set"}
_TYPES = {BOOLEAN: "bool", INT: "int", LONG: "int", SHORT: "int", DOUBLE: "float"}


class Settings(Plugin):
    """Looks at each setting that is asked for by its name."""

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        return checked if fullname in ASKED else None

    def report_config_data(self, ctx: ReportConfigContext) -> Any:
        """What has mypy check modules again: other names, other types."""
        return sorted((name, key.type, key.default is None) for name, key in BROKER_KEYS.items())


def checked(context: MethodContext) -> Type:
    """The type of a setting's value."""
    place = context.args[0][0]
    if not isinstance(place, StrExpr):
        return context.default_return_type
    key = BROKER_KEYS.get(place.value)
    if key is None:
        context.api.fail(f"there is no setting {place.value}", place)
        return AnyType(TypeOfAny.from_error)
    is_asked_for = not isinstance(context.default_return_type, AnyType)  # is_set
    return context.default_return_type if is_asked_for else typed(key, context)


def typed(key: Key, context: MethodContext) -> Type:
    """The type of its values; any if it may be unset, or is text."""
    name = _TYPES.get(key.type)
    if name is None or key.default is None:
        return context.default_return_type
    return context.api.named_generic_type(f"builtins.{name}", [])


def plugin(version: str) -> type[Plugin]:
    """What mypy calls."""
    return Settings
