"""What kbroker hands over to Kafka, read from its metadata store and its log directories."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kbroker.adopt.directories import read_meta_fields
from kbroker.adopt.errors import Refusal
from kbroker.adopt.register import read_features, store_to_read
from kbroker.config.table import own
from kbroker.metastore import paths
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.store_files import FILE_NAME
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.dirs.log_dir import scan_partitions
from kbroker.storage.formats import (
    CLEAN_SHUTDOWN_NAME,
    QUARANTINE_MARKER,
    STRAY_DIR_SUFFIX,
    partition_dir_name,
)

_OWN_SETTINGS = frozenset(key.name for _, keys in own.SECTIONS for key in keys)
METADATA_TOPIC = "__cluster_metadata"


class HeldTopic:
    """A topic in the store. epochs: for each partition, the epoch of its next leader."""

    __slots__ = ("config", "epochs", "name", "topic_id")

    def __init__(
        self, name: str, topic_id: bytes, config: dict[str, str], epochs: dict[int, int]
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.config = config
        self.epochs = epochs


class Holdings:
    """Everything that is handed over to Kafka. Reads only. Raises Refusal, OSError."""

    def __init__(self, log_dirs: Sequence[str], store_place: str) -> None:
        self.log_dirs = list(log_dirs)
        self.store_path = os.path.join(store_place, FILE_NAME)
        self.notes: list[str] = []
        # Partitions that are in none of the directories.
        self.missing: list[str] = []
        # Whether anything has been written; from then on, no message may claim that nothing was
        # changed.
        self.is_begun = False
        self.fields = {path: read_meta_fields(path) for path in log_dirs}
        for path in log_dirs:
            if not os.path.exists(os.path.join(path, CLEAN_SHUTDOWN_NAME)):
                raise Refusal(
                    f"{path}/{CLEAN_SHUTDOWN_NAME} is missing: the broker was not stopped "
                    "cleanly; start kbroker and stop it with SIGTERM, so that it recovers its "
                    "logs"
                )
        self.places = self._places()
        with store_to_read(store_place) as store:
            if store.exists(paths.CLUSTER_ID) is None:
                raise Refusal(f"{self.store_path} is empty; start kbroker once")
            self.cluster_id = paths.decode_cluster_id(store.get(paths.CLUSTER_ID).data)
            self.features = read_features(store)
            last = paths.decode_producer_id_block(store.get(paths.PRODUCER_ID_BLOCK).data)
            self.next_producer_id = 0 if last is None else last + 1
            self.broker_id = self._broker_id()
            self.topics = self._topics(store)
            self.broker_configs = self._broker_configs(store)
            # Offsets of OffsetCommit 0, by their nodes.
            self.stored_offsets = {
                node.path: node.data
                for node in store.subtree(paths.CONSUMERS)
                if paths.is_consumer_offset(node.path)
            }
            self._note_group_configs(store)

    def path_of(self, topic: str, number: int) -> str | None:
        """The directory of a partition; None if it has none yet."""
        place = self.places.get((topic, number))
        return None if place is None else os.path.join(place, partition_dir_name(topic, number))

    def _broker_id(self) -> int:
        for path, fields in self.fields.items():
            text = fields.get("node.id", fields.get("broker.id", ""))
            if fields.get("cluster.id") != self.cluster_id or not text.isdigit():
                raise Refusal(
                    f"{path}/meta.properties does not name a broker of cluster {self.cluster_id}, "
                    f"to which {self.store_path} belongs; check --log-dirs"
                )
        return int(text)

    def _places(self) -> dict[TopicPartition, str]:
        """The log directory of every partition."""
        places: dict[TopicPartition, str] = {}
        for log_dir in self.log_dirs:
            for key in scan_partitions(log_dir):
                if key[0] == METADATA_TOPIC:
                    continue
                places[key] = log_dir
                path = os.path.join(log_dir, partition_dir_name(*key))
                if os.path.exists(os.path.join(path, QUARANTINE_MARKER)):
                    self.notes.append(
                        f"{path} is damaged ({QUARANTINE_MARKER} says how); Kafka would truncate "
                        "it."
                    )
        return places

    def strays(self) -> list[str]:
        """Directories that kbroker set aside."""
        return [
            os.path.join(log_dir, name)
            for log_dir in self.log_dirs
            for name in sorted(os.listdir(log_dir))
            if name.endswith(STRAY_DIR_SUFFIX)
        ]

    def _topics(self, store: NodeFile) -> list[HeldTopic]:
        going = set(store.children(paths.DELETE_TOPICS))
        topics = []
        for name in store.children(paths.BROKER_TOPICS):
            if name in going:
                self.notes.append(f"Topic {name} is being deleted and is not handed over to Kafka.")
                continue
            topic_id, assignment = paths.decode_topic(store.get(paths.topic(name)).data)
            assert topic_id is not None, name  # kbroker gives every topic one
            config = {}
            if store.exists(paths.topic_config(name)) is not None:
                config = paths.decode_config(store.get(paths.topic_config(name)).data)
            epochs = {}
            for number in sorted(assignment):
                node = store.get(paths.partition_state(name, number))
                epochs[number] = paths.decode_partition_state(node.data)[1] + 1
                if (name, number) not in self.places:
                    self.missing.append(partition_dir_name(name, number))
            topics.append(HeldTopic(name, topic_id, config, epochs))
        return topics

    def _broker_configs(self, store: NodeFile) -> dict[str, dict[str, str]]:
        configs = {}
        for entity in store.children(paths.BROKER_CONFIGS):
            config = paths.decode_config(store.get(f"{paths.BROKER_CONFIGS}/{entity}").data)
            kept = {key: text for key, text in config.items() if key not in _OWN_SETTINGS}
            for key in sorted(config.keys() - kept.keys()):
                self.notes.append(f"{key} is a setting of kbroker only and is not handed over.")
            if kept:
                configs["" if entity == paths.DEFAULT_ENTITY else entity] = kept
        return configs

    def _note_group_configs(self, store: NodeFile) -> None:
        """Note the settings of groups, which neither 2.7 nor 3.9 has."""
        for node in store.subtree(paths.GROUP_CONFIGS):
            config = paths.decode_config(node.data)
            if config:
                text = " ".join(f"{key}={value}" for key, value in sorted(config.items()))
                group = paths.group_of_config(node.path)
                self.notes.append(
                    f"Settings of group {group} are not handed over, because that Kafka has no "
                    f"group settings: {text}."
                )
