"""Every setting of the broker, in one table.

``SECTIONS`` keeps the order of the manual, ``BROKER_KEYS`` finds a key by name, ``ALIASES`` gives
the name that an older or newer spelling stands for.
"""

from __future__ import annotations

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

# Kafka's prefix for a listener's own configs, before its name.
LISTENER_PREFIX = "listener.name."

# Prefixes of configs of plug-ins and config providers; they are known but have no effect.
PLUGIN_PREFIXES = ("config.providers.", "rsm.config.", "rlmm.config.")


def find_key(name: str) -> Key | None:
    """The key for a name, an alias, or a listener's override (``listener.name.x.key``)."""
    key = BROKER_KEYS.get(name)
    if key is None and name in ALIASES:
        key = BROKER_KEYS[ALIASES[name]]
    if key is None and name.startswith(LISTENER_PREFIX):
        # listener.name.<listener>.[<sasl mechanism>.]<key>
        rest = name[len(LISTENER_PREFIX) :].partition(".")[2]
        key = BROKER_KEYS.get(rest) or BROKER_KEYS.get(rest.partition(".")[2])
    return key
