"""Which settings of topics, brokers and groups can be kept here; the others are reported."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.adopt.metadata_image import MetadataImage
from kbroker.adopt.metadata_records import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from kbroker.batch_summary import MAGIC as BATCH_MAGIC
from kbroker.config import dynamic
from kbroker.config.group_config import GROUP_KEYS, validate_group
from kbroker.config.loader import BrokerConfig
from kbroker.config.topic_config import TopicConfig
from kbroker.config.topic_keys import TOPIC_KEYS
from kbroker.errors import ConfigError
from kbroker.storage.topic_settings import magic_of

DEFAULT_ENTITY = "default"
FORMAT_VERSION = "message.format.version"
# Kinds of entities that are reported and not kept, by Kafka's numbers (ConfigResource.Type).
_OTHERS = {16: "Client metrics"}


def kept_topic_settings(metadata: MetadataImage, name: str) -> tuple[dict[str, str], list[str]]:
    """A topic's settings, and notes on those that have no effect or are not allowed here.

    A name that kbroker does not know stays in the store: it means nothing, and is there when the
    topic moves on.
    """
    return check_topic_settings(name, metadata.configs.get((TOPIC_RESOURCE, name), {}))


def check_topic_settings(
    name: str, settings: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Like ``kept_topic_settings``."""
    kept: dict[str, str] = {}
    notes = []
    broker = BrokerConfig()
    for key, text in sorted(settings.items()):
        try:
            TopicConfig({key: text}, broker)
        except ConfigError as error:
            notes.append(f"Topic {name}: {key}={text} is not kept: {error}.")
            continue
        kept[key] = text
        if key not in TOPIC_KEYS:
            notes.append(f"Topic {name}: {key}={text} is kept, but has no effect in kbroker.")
    return kept, notes


def leave_out_older_format(name: str, settings: dict[str, str]) -> list[str]:
    """Take a ``message.format.version`` of a topic in KRaft out of its settings; returns the notes.

    COMPAT: Kafka ignores it from inter.broker.protocol.version 3.0 on (KIP-724). Here it counts,
    and idempotent producers would be refused.
    """
    version = settings.get(FORMAT_VERSION)
    if version is None or magic_of(version) == BATCH_MAGIC:
        return []
    del settings[FORMAT_VERSION]
    return [f"Topic {name}: {FORMAT_VERSION}={version} is not kept: Kafka ignored it."]


def kept_broker_settings(
    metadata: MetadataImage, broker_id: int
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The dynamic settings of all brokers (``default``) and of this one (its id), and notes."""
    configs = {
        name or DEFAULT_ENTITY: config
        for (kind, name), config in metadata.configs.items()
        if kind == BROKER_RESOURCE and name in ("", str(broker_id))
    }
    kept: dict[str, dict[str, str]] = {}
    notes = []
    for entity, settings in sorted(configs.items()):
        whose = "All brokers" if entity == DEFAULT_ENTITY else f"Broker {entity}"
        layer: dict[str, str] = {}
        for key, text in sorted(settings.items()):
            op = dynamic.AlterOp(key, dynamic.SET, text)
            try:
                layer = dynamic.alter_broker(
                    layer, [op], BrokerConfig(), per_broker=entity != DEFAULT_ENTITY
                )
            except ConfigError as error:
                notes.append(f"{whose}: {key} is not kept: {error}.")
        if layer:
            kept[entity] = layer
    others = {
        name
        for (kind, name), config in metadata.configs.items()
        if kind == BROKER_RESOURCE and config and name not in ("", str(broker_id))
    }
    if others:
        notes.append(f"Settings of other brokers ({', '.join(sorted(others))}) are not kept.")
    return kept, notes


def kept_group_settings(
    metadata: MetadataImage,
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The settings of groups, and notes on those that do not exist or are not allowed here."""
    kept: dict[str, dict[str, str]] = {}
    notes = []
    for (kind, group), settings in sorted(metadata.configs.items()):
        if kind != GROUP_RESOURCE:
            continue
        known = {key: text for key, text in sorted(settings.items()) if key in GROUP_KEYS}
        unknown = {key: text for key, text in sorted(settings.items()) if key not in GROUP_KEYS}
        try:
            validate_group(known, BrokerConfig())  # one may be allowed with the other only
        except ConfigError as error:
            notes.append(f"Group {group}: its settings are not kept: {error}.")
            known = {}
        if known:
            kept[group] = known
        if unknown:
            text = " ".join(f"{key}={value}" for key, value in unknown.items())
            notes.append(f"Group {group}: settings that kbroker does not have: {text}.")
    return kept, notes


def other_settings(metadata: MetadataImage) -> list[str]:
    """Notes on settings of entities other than topics, brokers and groups."""
    return [
        f"{_OTHERS.get(kind, f'Entity of kind {kind}')} {name}: its settings are not kept:"
        f" {' '.join(f'{key}={text}' for key, text in sorted(config.items()))}."
        for (kind, name), config in sorted(metadata.configs.items())
        if kind not in (TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE) and config
    ]
