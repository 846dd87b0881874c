"""Settings of clients: a table of rows, and values read from what a user gives.

Names are Java's. A value may be given as in a properties file or as Python's own: ``"5"`` or ``5``,
``"true"`` or ``True``, ``"a:1,b:2"`` or ``["a:1", "b:2"]``, a class, an object of it or its dotted
path.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.client.connections import security
from kbroker.client.errors import SettingRefused

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1


class ClientSetting(NamedTuple):
    """A row. kind: how its value is read. default: as it is after that.

    no_effect: why it changes nothing, None if it does what its text says.
    """

    name: str
    kind: Callable[[str, Any], Any]
    default: Any
    text: str
    low: int | None = None
    high: int | None = None
    one_of: tuple[str, ...] = ()
    no_effect: str | None = None


def whole(name: str, value: Any) -> int:
    """A whole number."""
    if not isinstance(value, bool):
        try:
            return int(value) if not isinstance(value, float) or value.is_integer() else int("")
        except (TypeError, ValueError):
            pass
    raise SettingRefused(name, f"{value!r} is not a whole number")


def flag(name: str, value: Any) -> bool:
    """True or false."""
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise SettingRefused(name, f"{value!r} is neither true nor false")
    return text == "true"


def text(name: str, value: Any) -> str:
    """Text."""
    return str(value)


def listed(name: str, value: Any) -> tuple[Any, ...]:
    """A list, or text with commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, Iterable) else (value,)


def plugged(name: str, value: Any) -> Any:
    """A callable or an object; a class or its dotted path, which is called without arguments."""
    if isinstance(value, str):
        module, _, attribute = value.strip().rpartition(".")
        try:
            value = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise SettingRefused(name, f"cannot load {value}: {error}") from error
    return value() if isinstance(value, type) else value


def plugged_list(name: str, value: Any) -> tuple[Any, ...]:
    """Several of them."""
    return tuple(plugged(name, one) for one in listed(name, value))


class ClientSettings:
    """The settings of one client. ``settings["linger.ms"]``; ``given`` has the names that were set.

    rows: all that there are, besides those of security. Raises SettingRefused for one that is not
    known, with the nearest that is, and for a value that is not allowed.
    """

    def __init__(
        self,
        rows: Mapping[str, ClientSetting],
        config: Mapping[str, Any] | None,
        keywords: Mapping[str, Any],
    ) -> None:
        values: dict[str, Any] = {}
        for given in (config or {}, keywords):
            for key, value in given.items():
                name = _name_of(key, rows)
                if name in values and given is keywords:
                    raise SettingRefused(name, "it is given twice")
                values[name] = value
        self.given = frozenset(name for name, value in values.items() if value is not None)
        self.security = security.Security.from_options(
            {name: values[name] for name in self.given if name not in rows}
        )
        self._values = {
            name: _read(row, values[name]) if values.get(name) is not None else row.default
            for name, row in rows.items()
        }

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value

    def without_effect(self, rows: Mapping[str, ClientSetting]) -> list[str]:
        """Those that were set and change nothing."""
        return sorted(name for name in self.given if name in rows and rows[name].no_effect)


def _name_of(key: str, rows: Mapping[str, ClientSetting]) -> str:
    """The setting that is meant: ``linger_ms`` is ``linger.ms``."""
    name = key if key in rows else key.replace("_", ".")
    if name in rows or security.is_setting(name):
        return name
    near = difflib.get_close_matches(name, [*rows, *security.SETTINGS], n=1)
    hint = f"did you mean {near[0]}?" if near else "see the list of settings in docs"
    raise SettingRefused(key, f"unknown client setting; {hint}")


def _read(row: ClientSetting, value: Any) -> Any:
    read = row.kind(row.name, value)
    if row.one_of and str(read).lower() not in row.one_of:
        raise SettingRefused(row.name, f"{read!r} is not one of {', '.join(row.one_of)}")
    if row.one_of:
        return str(read).lower()
    low = row.low if row.low is not None else read
    high = row.high if row.high is not None else read
    if isinstance(read, int) and not isinstance(read, bool) and not low <= read <= high:
        bounds = f"at least {low}" if row.high in (None, INT_MAX, LONG_MAX) else f"{low} to {high}"
        raise SettingRefused(row.name, f"{read} is not allowed: {bounds}")
    return read
