"""Profiles: settings of a client for each of several clusters, in files of the user's own.

``~/.config/kbroker/profiles/NAME.properties``, which only its owner may read, and
``~/.config/kbroker/profile`` with the name of the one in use.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping

from kbroker.cli.arguments import Usage, nearest
from kbroker.properties import PropertiesError, read_properties

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SUFFIX = ".properties"
_SECRET = re.compile(r"password|secret|jaas|keystore\.key|token", re.IGNORECASE)
_HIDDEN = "(hidden)"
_PRIVATE_FILE, _PRIVATE_DIRECTORY = 0o600, 0o700


def home() -> str:
    """Where a user's own settings are."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(config, "kbroker")


def path_of(name: str) -> str:
    """Raises Usage for what is no name."""
    if not _NAME.fullmatch(name):
        raise Usage(f"profile {name!r}: a name has letters, digits, dots, - and _")
    return os.path.join(home(), "profiles", name + _SUFFIX)


def names() -> list[str]:
    """Of all that there are."""
    try:
        files = os.listdir(os.path.join(home(), "profiles"))
    except OSError:
        return []
    profiles = (file.removesuffix(_SUFFIX) for file in files if file.endswith(_SUFFIX))
    return sorted(name for name in profiles if _NAME.fullmatch(name))


def current() -> str | None:
    """The one in use."""
    try:
        with open(_pointer(), encoding="utf-8") as file:
            return file.readline(200).strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def use(name: str | None) -> None:
    """None: none any more. Raises Usage."""
    if name is None:
        _remove(_pointer())
        return
    check(name)
    _write(_pointer(), f"{name}\n")


def check(name: str) -> None:
    """Raises Usage if there is no such profile."""
    if os.path.exists(path_of(name)):
        return
    known = names()
    meant = nearest(name, known)
    instead = f"did you mean {meant}?" if meant else f"there are {', '.join(known) or 'none'}"
    raise Usage(f"no profile {name!r}: {instead}; kbroker profile create {name} makes one")


def read(name: str) -> dict[str, str]:
    """Its settings. Raises Usage, also if others may read what may be a password."""
    path = path_of(name)
    check(name)
    try:
        if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
            raise Usage(f"profile {name}: others may read it: chmod 600 {path}")
        return dict(read_properties(path))
    except OSError as error:
        raise Usage(f"profile {name}: {path}: {error.strerror}") from error
    except (PropertiesError, UnicodeDecodeError) as error:
        raise Usage(f"profile {name}: {path}: {error}") from error


def write(name: str, settings: Mapping[str, str]) -> None:
    """Replaces the file. Raises Usage."""
    lines = [f"{key}={_escaped(value)}\n" for key, value in settings.items()]
    _write(path_of(name), "".join(lines))


def delete(name: str) -> None:
    """Raises Usage."""
    check(name)
    _remove(path_of(name))
    if current() == name:
        use(None)


def shown_value(name: str, value: str) -> str:
    """Without passwords."""
    return _HIDDEN if _SECRET.search(name) else value


def _escaped(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return "\\" + escaped if escaped.startswith(" ") else escaped


def _pointer() -> str:
    return os.path.join(home(), "profile")


def _write(path: str, text: str) -> None:
    """All or nothing, and readable by nobody else at any time."""
    temporary = f"{path}.new"
    try:
        os.makedirs(os.path.dirname(path), _PRIVATE_DIRECTORY, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(os.open(temporary, flags, _PRIVATE_FILE), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), _PRIVATE_FILE)
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        raise Usage(f"{path}: {error.strerror}") from error


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Usage(f"{path}: {error.strerror}") from error
