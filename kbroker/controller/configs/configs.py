"""The stored configs of topics, brokers, groups and other entities, as a broker knows them.

Every broker has all of them, and changes them on request whether it is the controller or not. The
controller process has one ``Configs``, which the broker and the controller in it share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.metastore import entities, paths
from kbroker.metastore.store import StoreOperation

Layers = Mapping[str, dict[str, str]]


class ConfigsChanged(NamedTuple):
    """The complete configs of topics, brokers (by id, or ``default``), groups, the entities of
    ``metastore.entities`` by their names, and subscriptions of client metrics.
    """

    topics: Layers = {}
    brokers: Layers = {}
    groups: Layers = {}
    entities: Layers = {}
    client_metrics: Layers = {}


class Configs:
    """``versions``: the versions of the config nodes, by path. ``topics`` may also contain topics
    that do not exist.
    """

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, str]] = {}
        # "file": see the architecture page.
        self.brokers: dict[str, dict[str, str]] = {"default": {}}
        self.groups: dict[str, dict[str, str]] = {}  # of groups that have configs
        # Of users, client ids and addresses; those of a user are credentials, too.
        self.entities: dict[str, dict[str, str]] = {}
        self.client_metrics: dict[str, dict[str, str]] = {}  # subscriptions
        self.versions: dict[str, int] = {}

    def topic(self, name: str) -> dict[str, str]:
        return self.topics.get(name, {})

    def known(self, path: str) -> dict[str, str]:
        """The configs of the resource whose node this is."""
        kind, name = entity_of(path)
        return self.of_kind(kind).get(name, {})

    def of_kind(self, kind: str) -> dict[str, dict[str, str]]:
        """The configs of a kind of resource, as ``entity_of`` names it."""
        own = {
            "topics": self.topics,
            "brokers": self.brokers,
            "groups": self.groups,
            "client-metrics": self.client_metrics,
        }
        return own.get(kind, self.entities)

    def enter(self, changed: ConfigsChanged) -> None:
        """Apply changed configs. A group or other entity without configs is removed."""
        self.topics.update(changed.topics)
        self.brokers.update(changed.brokers)
        for kept, layers in (
            (self.groups, changed.groups),
            (self.entities, changed.entities),
            (self.client_metrics, changed.client_metrics),
        ):
            for name, config in layers.items():
                if config:
                    kept[name] = config
                else:
                    kept.pop(name, None)

    def forget_topic(self, name: str) -> None:
        """Remove the configs of a deleted topic."""
        self.topics.pop(name, None)
        self.versions.pop(paths.topic_config(name), None)

    def note_written(self, writes: Iterable[StoreOperation]) -> None:
        """Update the versions after this process's own writes."""
        for operation in writes:
            if operation.path not in self.versions and operation.kind != "create":
                continue
            if not operation.path.startswith(paths.CONFIG) or operation.sequential:
                continue
            if operation.kind == "delete":
                self.versions.pop(operation.path, None)
            elif operation.kind != "check":
                is_new = operation.kind == "create"
                self.versions[operation.path] = 0 if is_new else operation.version + 1

    def different(self, other: Configs, paths_now: Iterable[str]) -> ConfigsChanged:
        """The configs at ``paths_now`` that differ in ``other``; updates their versions."""
        topics, brokers, groups, others, subscriptions = {}, {}, {}, {}, {}
        for path in paths_now:
            if path in other.versions:
                self.versions[path] = other.versions[path]
            else:
                self.versions.pop(path, None)
            kind, name = entity_of(path)
            if kind == "topics" and self.topics.get(name) != other.topic(name):
                topics[name] = other.topic(name)
            elif kind == "brokers" and self.brokers.get(name, {}) != other.brokers.get(name, {}):
                brokers[name] = other.brokers.get(name, {})
            elif kind == "groups" and self.groups.get(name, {}) != other.groups.get(name, {}):
                groups[name] = other.groups.get(name, {})
            elif kind in entities.KINDS and self.known(path) != other.known(path):
                others[name] = other.known(path)
            elif kind == "client-metrics" and self.known(path) != other.known(path):
                subscriptions[name] = other.known(path)
        return ConfigsChanged(topics, brokers, groups, others, subscriptions)


def entity_of(path: str) -> tuple[str, str]:
    """Entity type and name of a config node; of a ``metastore.entities`` its name there."""
    _, _, kind, name = path.split("/", 3)
    if kind in entities.KINDS:
        return kind, f"{kind}/{name}"
    if path.startswith(paths.GROUP_CONFIGS):
        return kind, paths.group_of_config(path)
    if path.startswith(paths.BROKER_CONFIGS) and name == paths.DEFAULT_ENTITY:
        return kind, "default"
    return kind, name
