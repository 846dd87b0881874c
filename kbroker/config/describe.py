"""Configs for DescribeConfigs, of topics, brokers and groups: value, source, synonyms, type."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from kbroker.config.broker_keys import BROKER_KEYS, BROKER_NAMES
from kbroker.config.client_metrics_config import CLIENT_METRICS_KEYS
from kbroker.config.group_config import GROUP_KEYS
from kbroker.config.key import LOW, PASSWORD, READ_ONLY, UNKNOWN, Key
from kbroker.config.loader import BrokerConfig, ConfigSource
from kbroker.config.topic_config import TopicConfig
from kbroker.config.topic_keys import TOPIC_KEYS


class Synonym(NamedTuple):
    """A setting that determines, or would determine, the value; the first of a list does."""

    name: str
    value: str | None
    source: int


class ConfigEntry:
    """A config of a resource, with the fields of the response.

    value: as Kafka prints it; None if unset or secret. is_default: for version 0, which knows no
    source. type: ``key.BOOLEAN`` and so on.
    """

    __slots__ = (
        "documentation",
        "is_default",
        "name",
        "read_only",
        "sensitive",
        "source",
        "synonyms",
        "type",
        "value",
    )

    def __init__(
        self, key: Key, value: str | None, source: int, synonyms: list[Synonym], *, read_only: bool
    ) -> None:
        self.name = key.name
        self.value = None if key.sensitive else value
        self.read_only = read_only
        self.is_default = source == ConfigSource.DEFAULT
        self.source = source
        self.sensitive = key.sensitive
        self.synonyms = synonyms
        self.type = key.type
        self.documentation = key.doc

    def __repr__(self) -> str:
        return f"ConfigEntry({self.name}={self.value}, source {self.source})"


def describe_topic(
    config: TopicConfig, broker: BrokerConfig, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """All configs of a topic, or those named; unknown names are left out.

    ``names`` empty or None means all, as on the wire.
    """
    own_texts = config.overrides
    entries = []
    for name, key in TOPIC_KEYS.items():
        if names and name not in names:
            continue
        synonyms = []
        if config.is_set(name):
            synonyms.append(Synonym(name, own_texts[name], ConfigSource.DYNAMIC_TOPIC))
        if key.server_keys:
            synonyms += _topic_synonyms(key.server_keys[0][0], broker)
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        entry = ConfigEntry(key, key.format(config[name]), source, synonyms, read_only=False)
        # Version 0 marks every non-default config as one of the topic's own.
        entry.is_default = not config.is_set(name)
        entries.append(entry)
    return entries


def describe_group(
    overrides: Mapping[str, str], broker: BrokerConfig, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """All configs of a group, or those named, as stored; broker-wide bounds are not applied."""
    entries = []
    for name, key in GROUP_KEYS.items():
        if names and name not in names:
            continue
        server_name = key.server_keys[0][0]
        synonyms = _broker_synonyms(server_name, broker)
        value = key.format(broker[server_name])
        if name in overrides:
            value = key.format(key.parse(overrides[name]))
            synonyms.insert(0, Synonym(name, value, ConfigSource.GROUP))
        source = synonyms[0].source
        entry = ConfigEntry(key, value, source, synonyms, read_only=False)
        entry.is_default = name not in overrides
        entries.append(entry)
    return entries


def describe_client_metrics(
    own: Mapping[str, str], names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """All configs of a subscription, or those named; none if there is no such subscription."""
    entries = []
    for name, key in CLIENT_METRICS_KEYS.items() if own else ():
        if names and name not in names:
            continue
        default = key.format(key.default_value())
        synonyms = [Synonym(name, default, ConfigSource.DEFAULT)]
        value = default
        if name in own:
            value = key.format(key.parse(own[name]))
            synonyms.insert(0, Synonym(name, value, ConfigSource.CLIENT_METRICS))
        entry = ConfigEntry(key, value, synonyms[0].source, synonyms, read_only=False)
        entries.append(entry)
    return entries


def describe_broker(
    config: BrokerConfig, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """All configs of this broker, or those named; unknown names are left out."""
    entries = []
    own = {name for _, layer in config.layers() for name in layer if name not in BROKER_KEYS}
    for name in (*BROKER_KEYS, *sorted(own)):
        if names and name not in names:
            continue
        key = BROKER_NAMES[name]
        synonyms = _broker_synonyms(name, config)
        # COMPAT: the list begins with the config itself, not with one of higher precedence.
        while synonyms and synonyms[0].name != name:
            del synonyms[0]
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
        value = key.format(config[name])
        entries.append(ConfigEntry(key, value, source, synonyms, read_only=_is_read_only(key)))
    return entries


def describe_broker_defaults(
    config: BrokerConfig, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """The dynamic settings for all brokers: the result of describing the broker ""."""
    entries = []
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER
    for name, text in dict(config.layers())[source].items():
        if names and name not in names:
            continue
        key = BROKER_NAMES[name]
        synonyms = [Synonym(name, None if key.sensitive else text, source)]
        entries.append(ConfigEntry(key, text, source, synonyms, read_only=_is_read_only(key)))
    return entries


def describe_unknown(
    layers: Sequence[tuple[int, Mapping[str, str]]], names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """Settings of brokers that nobody here knows, in stored layers (by their source, the strongest
    first). COMPAT: their values may be secrets.
    """
    secret = Key("", PASSWORD, None, LOW, doc="")
    entries = []
    known = {name for _, layer in layers for name in layer if name not in BROKER_NAMES}
    for name in sorted(known):
        if names and name not in names:
            continue
        synonyms = [Synonym(name, None, source) for source, layer in layers if name in layer]
        entry = ConfigEntry(secret, None, synonyms[0].source, synonyms, read_only=True)
        entry.name, entry.type = name, UNKNOWN
        entries.append(entry)
    return entries


def _is_read_only(key: Key) -> bool:
    return key.dynamic == READ_ONLY


def _topic_synonyms(server_name: str, broker: BrokerConfig) -> list[Synonym]:
    """Every place of the broker that could give a topic's setting its value.

    COMPAT: Kafka looks for the first setting of a family only (log.retention.ms). Where it is not
    set, what another one gives (log.retention.hours) shows as a default: the file that comes with a
    broker would be an override of every topic else.
    """
    synonyms = _broker_synonyms(server_name, broker)
    return synonyms if any(s.name == server_name for s in synonyms) else []


def _broker_synonyms(name: str, config: BrokerConfig) -> list[Synonym]:
    """Every place that could give a broker setting its value, the strongest first."""
    key = BROKER_NAMES[name]
    names = key.synonyms if key.base == name else (name, *BROKER_KEYS[key.base].synonyms)
    synonyms = []
    for source, layer in reversed(config.layers()):
        for synonym in names:
            if synonym in layer:
                text = None if BROKER_NAMES[synonym].sensitive else layer[synonym]
                synonyms.append(Synonym(synonym, text, source))
    for synonym in names:
        if synonym not in BROKER_KEYS:
            continue  # a listener's own config has no default
        key = BROKER_KEYS[synonym]
        default = key.default_value()
        if default is not None:
            text = None if key.sensitive else key.format(default)
            synonyms.append(Synonym(synonym, text, ConfigSource.DEFAULT))
    return synonyms
