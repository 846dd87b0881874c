"""Every setting of the broker, in one table.

``SECTIONS`` keeps the order of the manual, ``BROKER_KEYS`` finds a key by name, ``ALIASES`` gives
the name that an older or newer spelling stands for. ``BROKER_NAMES`` also finds those of a single
listener, such as ``listener.name.external.ssl.keystore.location``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from kbroker.config.key import Key
from kbroker.config.table import (
    coordinator,
    log,
    metadata,
    network,
    own,
    remote,
    replication,
    security,
    server,
)

SECTIONS: tuple[tuple[str, tuple[Key, ...]], ...] = (
    *server.SECTIONS,
    *network.SECTIONS,
    *log.SECTIONS,
    *own.SECTIONS,
    *replication.SECTIONS,
    *coordinator.SECTIONS,
    *security.SECTIONS,
    *metadata.SECTIONS,
    *remote.SECTIONS,
)

BROKER_KEYS: dict[str, Key] = {key.name: key for _, keys in SECTIONS for key in keys}

ALIASES: dict[str, str] = {alias: key.name for key in BROKER_KEYS.values() for alias in key.aliases}

# Kafka's prefix for a listener's own configs, before its name in lower case.
LISTENER_PREFIX = "listener.name."

# BOUND: names of listeners' configs that are remembered; clients can invent them.
_LISTENER_NAMES_MAX = 1000
_LISTENER_PART = re.compile(r"[a-z0-9_-]{1,200}", re.ASCII)
# What a listener can have of its own; of these, what one of its SASL mechanisms can have.
_LISTENER_FAMILIES = ("ssl.", "sasl.")
_LISTENER_OTHERS = (
    "connections.max.reauth.ms",
    "max.connection.creation.rate",
    "max.connections",
    "principal.builder.class",
)
_NOT_OF_A_LISTENER = (
    "sasl.mechanism.inter.broker.protocol",
    "sasl.mechanism.controller.protocol",
)
_MECHANISM_OTHERS = ("connections.max.reauth.ms",)

# Prefixes of configs of plug-ins and config providers; they are known but have no effect.
PLUGIN_PREFIXES = ("config.providers.", "rsm.config.", "rlmm.config.")


class _Names(Mapping[str, Key]):
    """Keys by name, including the names of listeners' configs, of which there is no list."""

    def __getitem__(self, name: str) -> Key:
        key = BROKER_KEYS.get(name) or listener_key(name)
        if key is None:
            raise KeyError(name)
        return key

    def __iter__(self) -> Iterator[str]:
        return iter(BROKER_KEYS)

    def __len__(self) -> int:
        return len(BROKER_KEYS)


BROKER_NAMES: Mapping[str, Key] = _Names()


@lru_cache(_LISTENER_NAMES_MAX)
def listener_key(name: str) -> Key | None:
    """The key of a listener's config, under that whole name; None if it is no such name.

    That is ``listener.name.<listener>.<config>``, or, for one of the listener's SASL mechanisms,
    ``listener.name.<listener>.<mechanism>.<config>``.
    """
    if not name.startswith(LISTENER_PREFIX):
        return None
    listener, _, rest = name[len(LISTENER_PREFIX) :].partition(".")
    base = rest if _may_override(rest) else ""
    if not base:
        mechanism, _, base = rest.partition(".")
        is_sasl = base.startswith("sasl.") or base in _MECHANISM_OTHERS
        if not _LISTENER_PART.fullmatch(mechanism) or not is_sasl or not _may_override(base):
            return None
    if not _LISTENER_PART.fullmatch(listener):
        return None
    key = copy.copy(BROKER_KEYS[base])
    key.name, key.synonyms, key.base = name, (name,), base
    return key


def _may_override(name: str) -> bool:
    """Whether a listener can have this config of the broker for itself."""
    if name not in BROKER_KEYS or name in _NOT_OF_A_LISTENER:
        return False
    return name.startswith(_LISTENER_FAMILIES) or name in _LISTENER_OTHERS


def listener_of(name: str) -> str:
    """The listener, in upper case, that a ``listener_key`` belongs to."""
    return name[len(LISTENER_PREFIX) :].partition(".")[0].upper()


def find_key(name: str) -> Key | None:
    """The key for a name, an alias, or a listener's config."""
    return BROKER_NAMES.get(ALIASES.get(name, name))
