"""The broker's configuration: read from a file, with a value for every setting.

Three layers, the strongest first: dynamic for this broker, dynamic for all brokers, static (file
and ``--override``). A ``BrokerConfig`` never changes; a change at run time makes a new one.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.config import listeners as _listeners
from kbroker.config.broker_keys import (
    ALIASES,
    BROKER_KEYS,
    BROKER_NAMES,
    LISTENER_PREFIX,
    PLUGIN_PREFIXES,
    find_key,
    listener_of,
)
from kbroker.config.checks import ALL_CORDONED, advice, check_limits
from kbroker.config.key import BUILT, LATER, Key, split_list
from kbroker.config.listener_config import ListenerConfig
from kbroker.config.listeners import Listener
from kbroker.config.protocol_version import ProtocolVersion, find_version
from kbroker.config.topic_keys import TOPIC_KEYS
from kbroker.properties import PropertiesError, parse_properties, read_properties

__all__ = [
    "BrokerConfig",
    "ConfigSource",
    "Listener",
    "PropertiesError",
    "check_name",
    "load",
    "load_properties",
    "parse_overrides",
    "parse_properties",
]


class ConfigSource:
    """The source of a value, numbered as in DescribeConfigs."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


SYSTEM_RUNTIME_DIR = "/run"

# The broker's behaviour instead, logged when such a config is set.
_INSTEAD = {
    "process.roles": "kbroker has no KRaft; the broker keeps its metadata in its own data "
    "directory",
    "controller.quorum.voters": "kbroker has no KRaft",
    "controller.quorum.bootstrap.servers": "kbroker has no KRaft",
    "controller.listener.names": "these listeners are not opened",
}
# Configs that must not be ignored. Until they are supported, a start with one of them is refused.
_REFUSED = {
    "client.quota.callback.class": "no value: kbroker loads no Java classes, and without this one "
    "clients would have other quotas. Remove this line; users and client ids have those that are "
    "set for them",
}


class BrokerConfig:
    """Typed values of every setting, immutable.

    ``config["log.segment.bytes"]`` is the value under Kafka's name (KeyError for a name that does
    not exist). Properties hold what follows from several settings together.
    """

    __slots__ = ("_derived", "_layers", "_properties", "_sources", "_values")

    def __init__(
        self,
        static: Mapping[str, str] | None = None,
        *,
        dynamic_default: Mapping[str, str] | None = None,
        dynamic_broker: Mapping[str, str] | None = None,
    ) -> None:
        """Parse and check. Keys must be names in ``BROKER_NAMES``, ``load`` takes any.

        Raises ConfigError naming key, value and what is allowed.
        """
        self._layers: tuple[tuple[int, dict[str, str]], ...] = (
            (ConfigSource.STATIC_BROKER, dict(static or {})),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, dict(dynamic_default or {})),
            (ConfigSource.DYNAMIC_BROKER, dict(dynamic_broker or {})),
        )
        self._properties: dict[str, str] = {}
        self._sources: dict[str, int] = {}
        for source, layer in self._layers:
            for name in layer:
                # A layer of higher precedence replaces a config in all its units: a dynamic
                # log.retention.hours overrides log.retention.ms of the file.
                if source != ConfigSource.STATIC_BROKER:
                    for synonym in BROKER_NAMES[name].synonyms:
                        if synonym not in layer:
                            self._properties.pop(synonym, None)
                            self._sources.pop(synonym, None)
                self._properties[name] = layer[name]
                self._sources[name] = source
        self._values: dict[str, Any] = {
            name: key.default_value() for name, key in BROKER_KEYS.items()
        }
        for name, text in self._properties.items():
            self._values[name] = BROKER_NAMES[name].parse(text)
        if "node.id" in self._properties and "broker.id" not in self._properties:
            self._values["broker.id"] = self._values["node.id"]
        elif "node.id" not in self._properties:
            self._values["node.id"] = self._values["broker.id"]
        self._derived: dict[str, Any] = {}
        check_limits(self)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def is_set(self, name: str) -> bool:
        """Whether the setting is set in any layer, rather than at its default."""
        return name in self._properties

    def source(self, name: str) -> int:
        """The source of this config's value, one of ``ConfigSource``."""
        return self._sources.get(name, ConfigSource.DEFAULT)

    def layers(self) -> tuple[tuple[int, dict[str, str]], ...]:
        """(source, texts by name) of each layer, the weakest first. Must not be changed."""
        return self._layers

    def with_dynamic(self, default: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """A copy with these dynamic layers instead of the present ones. Raises ConfigError."""
        static = self._layers[0][1]
        return BrokerConfig(static, dynamic_default=default, dynamic_broker=broker)

    def of_listener(self, listener: str, mechanism: str = "") -> ListenerConfig:
        """The configs of a listener, or of one of its SASL mechanisms: its own where it has any."""
        return ListenerConfig(self, listener, mechanism)

    # -- what follows from several settings --------------------------------------------------

    @property
    def broker_id(self) -> int:
        """This broker's id; -1 if one has to be generated."""
        return int(self._values["broker.id"])

    @property
    def uses_zookeeper(self) -> bool:
        """Whether the metadata is in ZooKeeper, rather than in this broker's own store."""
        return bool(self._values["zookeeper.connect"])

    @property
    def has_topic_ids(self) -> bool:
        """Whether topics have ids that other brokers and later starts know. In ZooKeeper they
        have none before ``inter.broker.protocol.version`` 2.8.
        """
        return not self.uses_zookeeper

    @property
    def log_dirs(self) -> list[str]:
        """Absolute paths of the data directories, each once, in order."""
        text = self._values["log.dirs"]
        if text is None:  # an empty one, of a variable that is not set, names no directory
            text = self._values["log.dir"]
        return list(dict.fromkeys(os.path.abspath(path) for path in split_list(text) if path))

    @property
    def is_cordoned(self) -> bool:
        """Whether no data directory may get new partitions (KIP-1066)."""
        named = self._values["cordoned.log.dirs"]
        return ALL_CORDONED in named or set(self.log_dirs) <= set(named)

    @property
    def listeners(self) -> list[Listener]:
        """The listeners to bind; never empty."""
        if "listeners" not in self._derived:
            host_name_is_set = self.is_set("host.name")
            self._derived["listeners"] = _listeners.bound_listeners(self._values, host_name_is_set)
        return list(self._derived["listeners"])

    @property
    def advertised_listeners(self) -> list[Listener]:
        """The advertised listeners; empty means the address that each client connected to."""
        return _listeners.advertised_listeners(self._values, self.listeners)

    def names_other_controller(self, server: str) -> bool:
        """Whether that address of a KRaft controller cannot be one of this node."""
        return _listeners.names_other_controller(self._values, server)

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener for other brokers, of this broker and of all others."""
        return _listeners.inter_broker_listener(self._values)

    @property
    def control_listener(self) -> str:
        """The name of the listener between the controller and the brokers."""
        return _listeners.control_listener(self._values)

    def security_protocol(self, listener: str) -> str:
        """The security protocol of a listener of this name."""
        return _listeners.protocol_map(self._values).get(listener, listener)

    @property
    def protocol_version(self) -> ProtocolVersion:
        """The version of requests between brokers: ``inter.broker.protocol.version``; for a
        standalone broker the newest that it knows.
        """
        version = find_version(self._values["inter.broker.protocol.version"])
        assert version is not None or not self.uses_zookeeper, "checked"
        return max(ProtocolVersion) if version is None else version

    @property
    def log_flush_interval_ms(self) -> int:
        """Longest time between a write and its sync by default; LONG_MAX for never."""
        return int(self.topic_defaults["flush.ms"])

    @property
    def queued_max_request_bytes(self) -> int:
        """Bound of request bytes in memory: the setting, but never less than one request."""
        bound: int = self._values["queued.max.request.bytes"]
        if bound <= 0:
            bound = BROKER_KEYS["queued.max.request.bytes"].default
        return max(bound, int(self._values["socket.request.max.bytes"]))

    @property
    def max_connections_per_ip_overrides(self) -> dict[str, int]:
        """Connection limits by address or host name."""
        pairs = split_list(self._values["max.connections.per.ip.overrides"])
        split = (pair.rpartition(":") for pair in pairs)
        return {host.strip(): int(count) for host, _, count in split}

    @property
    def runtime_dir(self) -> str:
        """Directory for this broker's sockets; the same at each start, no other broker's."""
        configured: str | None = self._values["runtime.dir"]
        if configured:
            return os.path.abspath(configured)
        # A data directory belongs to one broker at a time, so its path identifies the broker.
        # BOUND: a Unix socket's path has 108 bytes, hence a number and not the path itself.
        mark = f"{zlib.crc32(os.fsencode(self.log_dirs[0])):08x}"
        base = os.environ.get("XDG_RUNTIME_DIR", "")
        if base and is_own_directory(base):
            return os.path.join(base, f"kbroker-{mark}")
        # Only root may write to /run.
        shared = SYSTEM_RUNTIME_DIR if is_own_directory(SYSTEM_RUNTIME_DIR) else "/tmp"
        return os.path.join(shared, f"kbroker-{os.getuid()}-{mark}")

    @property
    def topic_defaults(self) -> Mapping[str, Any]:
        """Value of each topic setting for a topic that does not set it. Must not be changed."""
        defaults: Mapping[str, Any] | None = self._derived.get("topic_defaults")
        if defaults is None:
            defaults = {name: self._topic_default(name) for name in TOPIC_KEYS}
            self._derived["topic_defaults"] = defaults
        return defaults

    def _topic_default(self, name: str) -> Any:
        key = TOPIC_KEYS[name]
        default = None
        for server_name, factor in key.server_keys:
            value = self._values[server_name]
            if value is not None and factor != 1:
                value *= factor
            if name == "retention.ms" and value is not None:
                value = max(-1, value)  # every negative time means "forever"
            if self.is_set(server_name):
                return value
            if default is None:
                default = value
        return key.default_value() if default is None else default


def is_own_directory(path: str) -> bool:
    """Whether only this user can create files there. With ``sudo -E`` it may be another's."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    is_mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return (
        is_mine and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.access(path, os.W_OK)
    )


def load(
    path: str | None, overrides: Mapping[str, str] | None = None
) -> tuple[BrokerConfig, list[str]]:
    """Read a file (None: no file) and apply the overrides; the configuration and its warnings.

    Raises OSError, PropertiesError, or ConfigError naming key, value and what is allowed.
    """
    pairs = [] if path is None else read_properties(path)
    return load_properties(pairs, overrides)


def load_properties(
    pairs: Iterable[tuple[str, str]], overrides: Mapping[str, str] | None = None
) -> tuple[BrokerConfig, list[str]]:
    """Like ``load``, from pairs that have already been read."""
    warnings: list[str] = []
    static: dict[str, str] = {}
    for name, text in pairs:
        known = _known_name(name, text, warnings)
        if known is not None:
            if static.get(known, text) != text:
                warnings.append(f"{known} is set more than once; the last value is used")
            static[known] = text
    for name, text in (overrides or {}).items():
        known = _known_name(name, text, warnings)
        if known is not None:
            for synonym in BROKER_NAMES[known].synonyms:
                if synonym not in (overrides or {}):
                    static.pop(synonym, None)
            for older in [older for older, first in _FIRST.items() if first == known]:
                if older not in (overrides or {}):
                    static.pop(older, None)  # the command line comes before the file
            static[known] = text
    config = BrokerConfig(static)
    for name in static:
        _warn_without_effect(config, name, warnings)
    _warn_of_better_known(static, warnings)
    warnings += advice(config)
    return config, warnings


def parse_overrides(items: Iterable[str]) -> dict[str, str]:
    """The ``key=value`` arguments of ``--override``. Raises PropertiesError for any other form."""
    overrides = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise PropertiesError(f"{item!r} is not of the form key=value")
        overrides[name.strip()] = text
    return overrides


def _known_name(name: str, text: str, warnings: list[str]) -> str | None:
    """The name to store a pair under; None, with a warning, if it has no meaning here."""
    if find_key(name) is not None:
        return ALIASES.get(name, name)
    if name.lower() in BROKER_NAMES and name.startswith(LISTENER_PREFIX):
        warnings.append(f"{name} is ignored: listener and mechanism are written in lower case")
    elif name.startswith(PLUGIN_PREFIXES):
        warnings.append(f"{name} has no effect: plug-ins are never loaded")
    else:
        warnings.append(f"unknown setting {name!r} is ignored{_hint(name)}")
    return None


def check_name(name: str) -> None:
    """Raises ValueError for a setting that a start would ignore as unknown."""
    if find_key(name) is None and not name.startswith(PLUGIN_PREFIXES):
        raise ValueError(f"unknown setting {name!r}{_hint(name)}")


def _hint(name: str) -> str:
    import difflib  # only for a mistake; it would cost every start some milliseconds

    near = difflib.get_close_matches(name, [*BROKER_KEYS, *ALIASES], n=1)
    return f"; did you mean {near[0]}?" if near else ""


# COMPAT: what counts where both are set, whatever their order: a file of Kafka's with an older
# setting left in must mean the same here.
_FIRST = {
    "log.dir": "log.dirs",
    "port": "listeners",
    "host.name": "listeners",
    "advertised.port": "advertised.listeners",
    "advertised.host.name": "advertised.listeners",
}


def _warn_of_better_known(static: Mapping[str, str], warnings: list[str]) -> None:
    for name, first in _FIRST.items():
        if name in static and first in static:
            warnings.append(
                f"{name}={static[name]} is ignored: {first}={static[first]} is set, too, and "
                f"counts before it; remove one of them"
            )


# Kafka's listeners may have limits of their own.
_BROKER_WIDE = ("max.connection.creation.rate", "max.connections")


def _warn_without_effect(config: BrokerConfig, name: str, warnings: list[str]) -> None:
    key = BROKER_NAMES[name]
    if key.base != name and all(each.name != listener_of(name) for each in config.listeners):
        warnings.append(f"{name} has no effect: the broker has no listener {listener_of(name)}")
        return
    if key.base != name and key.base in _BROKER_WIDE:
        warnings.append(f"{name} has no effect yet: only {key.base} of the broker is obeyed")
        return
    remark = without_effect(key, config[name])
    if remark is not None:
        warnings.append(remark)


def without_effect(key: Key, value: Any) -> str | None:
    """The warning for a setting that has no effect; None if it has one, or is at its default."""
    if key.status == BUILT or value == key.default_value():
        return None
    shown = "(hidden)" if key.sensitive else key.format(value)
    if key.name in _INSTEAD:
        reason = _INSTEAD[key.name]
    elif key.status == LATER:
        reason = "the feature is not supported"
    else:
        reason = key.doc
    yet = " yet" if key.status == LATER else ""
    return f"{key.name}={shown} has no effect{yet}: {reason}"
