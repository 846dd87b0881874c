"""Node paths and JSON documents of the metadata store, as in Apache Kafka 2.7.

Topic ids are Kafka's too (version 3 of the topic document): 16 bytes in URL-safe base64 without
padding. Readers accept older versions of a document; writers write the one named here.
What any client may have written is checked (``json_values``): ValueError, or KeyError for a key
that is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kbroker import __version__
from kbroker.config.protocol_version import ProtocolVersion
from kbroker.config.table.rules import SECURITY_PROTOCOLS
from kbroker.hosts import address_text
from kbroker.metastore.json_values import (
    INT_MAX,
    LONG_MAX,
    as_brokers,
    as_integer,
    as_list,
    as_object,
    as_text,
    load_object,
)
from kbroker.uuids import parse_uuid, uuid_text

BROKERS = "/brokers"
BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
BROKER_SEQUENCE = "/brokers/seqid"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CLUSTER = "/cluster"
CLUSTER_ID = "/cluster/id"
CONFIG = "/config"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
GROUP_CONFIGS = "/config/groups"
CLIENT_METRICS_CONFIGS = "/config/client-metrics"
IP_CONFIGS = "/config/ips"  # Kafka 2.7 has none; see ``entities``
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE = "/config/changes/config_change_"  # with a number after it
ADMIN = "/admin"
DELETE_TOPICS = "/admin/delete_topics"
# Notifications of brokers to the controller, in sequential nodes that it deletes.
ISR_CHANGES = "/isr_change_notification"
LOG_DIR_EVENTS = "/log_dir_event_notification"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_ELECTION = "/admin/preferred_replica_election"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
CONSUMERS = "/consumers"
# Not Kafka's: topics that were deleted while some of their directories were offline.
GONE_TOPICS = "/kbroker-gone"
# Features of kbroker that are finalized. Kafka keeps its own in /feature.
KBROKER = "/kbroker"
FEATURES = "/kbroker/features"
# The log directories of each broker: their ids and last starts (``storage.dirs.incarnations``).
LOG_DIRS = "/kbroker/log_dirs"
# What the salts of users who do not exist follow from.
DISGUISE = "/kbroker/disguise"
KAFKAS_FEATURES = "/feature"
DEFAULT_ENTITY = "<default>"

# Created once per cluster, parents first; the same set as in Kafka, so that a Kafka can use it.
PERSISTENT_PATHS = (
    BROKERS,
    BROKER_IDS,
    BROKER_TOPICS,
    BROKER_SEQUENCE,
    CONSUMERS,
    CLUSTER,
    ADMIN,
    DELETE_TOPICS,
    CONFIG,
    TOPIC_CONFIGS,
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    CLIENT_METRICS_CONFIGS,
    "/config/clients",
    "/config/users",
    CONFIG_CHANGES,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    PRODUCER_ID_BLOCK,
)

PORT_MAX = 65_535

Assignment = dict[int, list[int]]


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def log_dirs(broker_id: int) -> str:
    return f"{LOG_DIRS}/{broker_id}"


def encode_log_dirs(starts: Mapping[str, int]) -> bytes:
    """starts: the number of the last start, by directory id."""
    return _dump({"version": 1, "starts": dict(starts)})


def decode_log_dirs(data: bytes) -> dict[str, int]:
    starts = as_object(load_object(data)["starts"])
    return {name: as_integer(start) for name, start in starts.items()}


def topic(name: str) -> str:
    return f"{BROKER_TOPICS}/{name}"


def topic_partitions(name: str) -> str:
    return f"{BROKER_TOPICS}/{name}/partitions"


def partition(name: str, number: int) -> str:
    return f"{BROKER_TOPICS}/{name}/partitions/{number}"


def partition_state(name: str, number: int) -> str:
    return f"{BROKER_TOPICS}/{name}/partitions/{number}/state"


def topic_config(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{name}"


def broker_config(entity: str) -> str:
    """``entity`` is a broker id or ``default``, as in the cluster image."""
    return f"{BROKER_CONFIGS}/{DEFAULT_ENTITY if entity == 'default' else entity}"


def group_config(group: str) -> str:
    """A node that Kafka does not have. Group ids may be any text, so they are URL-encoded."""
    from urllib.parse import quote  # costs every start some milliseconds

    return f"{GROUP_CONFIGS}/{quote(group, safe='').replace('.', '%2E')}"


def client_metrics_config(name: str) -> str:
    """A node that Kafka 2.7 does not have. Names have letters, digits, ``.``, ``_`` and ``-``."""
    return f"{CLIENT_METRICS_CONFIGS}/{name}"


def group_of_config(path: str) -> str:
    """The group id in a node name."""
    from urllib.parse import unquote

    return unquote(path.rpartition("/")[2])


def delete_topic(name: str) -> str:
    return f"{DELETE_TOPICS}/{name}"


def consumer_offset(group: str, topic: str, number: int) -> str:
    """The node of an offset of OffsetCommit 0 and of 0.8 consumers, in decimal digits."""
    return f"{CONSUMERS}/{group}/offsets/{topic}/{number}"


def is_consumer_offset(path: str) -> bool:
    """Whether it is a node of ``consumer_offset``."""
    parts = path.split("/")
    return len(parts) == 6 and path.startswith(f"{CONSUMERS}/") and parts[3] == "offsets"


def gone_topic(name: str) -> str:
    return f"{GONE_TOPICS}/{name}"


def encode_gone_topic(topic_ids: Iterable[bytes]) -> bytes:
    return _dump({"version": 1, "topic_ids": sorted(map(uuid_text, topic_ids))})


def decode_gone_topic(data: bytes) -> set[bytes]:
    """The ids of deleted topics with this name."""
    return {parse_uuid(as_text(text)) for text in as_list(load_object(data)["topic_ids"])}


def encode_broker(
    endpoints: list[list[Any]],
    rack: str | None,
    timestamp_ms: int,
    protocol: ProtocolVersion = ProtocolVersion.V2_7_IV2,
    *,
    is_suspect: bool = False,
    features: Mapping[str, int] = {},
    failover: int = 0,
) -> bytes:
    """Version 5, or 4 for a protocol before 2.7, with an extra field for kbrokers.

    is_suspect: some of its logs may have lost their newest records in a power failure. features:
    those that a Kafka 2.7 does not know, with the highest level that is supported. failover: 1 if
    it answers PeerStatus, as ``failover.fast`` says.
    ``endpoints`` as in the cluster image: listener, host, port, security protocol.
    """
    plain = next((e for e in endpoints if e[3] == "PLAINTEXT"), None)
    document = {
        "version": 5 if protocol >= ProtocolVersion.V2_7_IV0 else 4,
        "host": plain[1] if plain else None,
        "port": plain[2] if plain else -1,
        "jmx_port": -1,
        "timestamp": str(timestamp_ms),
        "endpoints": [f"{name}://{address_text(host, port)}" for name, host, port, _ in endpoints],
        "listener_security_protocol_map": {name: protocol for name, _, _, protocol in endpoints},
        "kbroker": {
            "version": __version__,
            "features": dict(features),
            "suspect": is_suspect,
            "failover": failover,
        },
    }
    if protocol >= ProtocolVersion.V2_7_IV0:
        document["features"] = {}
    if rack is not None:
        document["rack"] = rack
    return _dump(document)


def decode_broker(data: bytes) -> tuple[list[list[Any]], str | None]:
    """Endpoints as in the cluster image, and rack.

    Version 1 has only host and port; from version 4 on, listeners have names.
    """
    document = load_object(data)
    if "endpoints" not in document:
        return [_endpoint("PLAINTEXT", document["host"], document["port"], "PLAINTEXT")], None
    protocols = as_object(document.get("listener_security_protocol_map") or {})
    endpoints = []
    for text in as_list(document["endpoints"]):
        name, _, address = as_text(text).partition("://")
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        endpoints.append(_endpoint(name, host, port, protocols.get(name, name)))
    rack = document.get("rack")
    return endpoints, None if rack is None else as_text(rack)


def _endpoint(listener: str, host: Any, port: Any, protocol: Any) -> list[Any]:
    """Brokers reject all metadata with an endpoint that is impossible."""
    if protocol not in SECURITY_PROTOCOLS:
        raise ValueError(f"there is no security protocol {protocol!r}")
    return [listener, as_text(host), as_integer(port, 1, PORT_MAX), protocol]


def is_suspect_broker(data: bytes) -> bool:
    """Whether a kbroker says that logs of it may have lost records."""
    own = load_object(data).get("kbroker")
    return isinstance(own, dict) and own.get("suspect") is True


def answers_peer_status(data: bytes) -> bool:
    """Whether a kbroker answers questions about other brokers: no Kafka does."""
    own = load_object(data).get("kbroker")
    return isinstance(own, dict) and own.get("failover") == 1


def decode_broker_features(data: bytes) -> dict[str, int] | None:
    """The features that a kbroker supports; None for a Kafka."""
    features = load_object(data).get("kbroker")
    return None if features is None else _levels(as_object(features)["features"])


def encode_features(levels: Mapping[str, int]) -> bytes:
    """The finalized features. Their epoch is the version of the node."""
    return _dump({"version": 1, "features": dict(levels)})


def decode_features(data: bytes) -> dict[str, int]:
    return _levels(load_object(data)["features"])


def encode_disguise(secret: bytes) -> bytes:
    return _dump({"version": 1, "secret": secret.hex()})


def decode_disguise(data: bytes) -> bytes:
    secret = bytes.fromhex(as_text(load_object(data)["secret"]))
    if not secret:
        raise ValueError("the secret is empty")
    return secret


def encode_kafkas_features(levels: Mapping[str, int]) -> bytes:
    """As Kafka 2.7 writes its finalized features. It does not start with one that it lacks."""
    features = {
        name: {"min_version_level": 1, "max_version_level": level} for name, level in levels.items()
    }
    return _dump({"version": 1, "status": 1, "features": features})


def _levels(document: Any) -> dict[str, int]:
    return {name: as_integer(level) for name, level in as_object(document).items()}


def encode_topic(
    topic_id: bytes | None, assignment: Assignment, rest: Mapping[str, Any] = {}
) -> bytes:
    """The assignment of a topic. Version 3 has a topic id, version 2 has none.

    rest: the other fields of the old document (``rest_of_topic``).
    """
    document: dict[str, Any] = {"version": 2, "partitions": {}}
    if topic_id is not None:
        document["topic_id"] = uuid_text(topic_id)
    document |= {"adding_replicas": {}, "removing_replicas": {}} | dict(rest)
    if "topic_id" in document:
        document["version"] = 3
    document["partitions"] = {str(number): replicas for number, replicas in assignment.items()}
    return _dump(document)


def rest_of_topic(data: bytes) -> dict[str, Any]:
    """The other fields of a topic's document, including unknown ones."""
    document = load_object(data)
    return {key: value for key, value in document.items() if key not in ("version", "partitions")}


def reassigned_of_topic(rest: Mapping[str, Any]) -> tuple[Assignment, Assignment]:
    """The replicas that are added and removed, of partitions that are being reassigned."""

    def lists(key: str) -> Assignment:
        rows = as_object(rest.get(key) or {})
        return {as_integer(n): as_brokers(replicas) for n, replicas in rows.items() if replicas}

    return lists("adding_replicas"), lists("removing_replicas")


def decode_topic(data: bytes) -> tuple[bytes | None, Assignment]:
    """The topic id (None before Kafka 2.8), and the replicas by partition."""
    document = load_object(data)
    text = document.get("topic_id")
    rows = as_object(document["partitions"])
    assignment = {as_integer(number): as_brokers(replicas) for number, replicas in rows.items()}
    return (None if text is None else parse_uuid(as_text(text))), assignment


def encode_partition_state(
    leader: int, leader_epoch: int, isr: list[int], controller_epoch: int
) -> bytes:
    return _dump(
        {
            "version": 1,
            "leader": leader,
            "leader_epoch": leader_epoch,
            "controller_epoch": controller_epoch,
            "isr": isr,
        }
    )


def is_partition_state(
    data: bytes, leader: int, leader_epoch: int, isr: list[int], controller_epoch: int
) -> bool:
    """Whether the document says this, whatever its order and its other keys."""
    document = load_object(data)
    wanted = {
        "leader": leader,
        "leader_epoch": leader_epoch,
        "controller_epoch": controller_epoch,
        "isr": isr,
    }
    return all(document.get(key) == value for key, value in wanted.items())


def decode_partition_state(data: bytes) -> tuple[int, int, list[int]]:
    """Leader, leader epoch, in-sync replicas."""
    document = load_object(data)
    leader = as_integer(document["leader"], -1)
    return leader, as_integer(document["leader_epoch"]), as_brokers(document["isr"])


def isr_change() -> str:
    """The path of a sequential node, to which the store appends a number."""
    return f"{ISR_CHANGES}/isr_change_"


def encode_isr_change(keys: Iterable[tuple[str, int]]) -> bytes:
    """The partitions whose state their leaders have written."""
    partitions = [{"topic": topic, "partition": number} for topic, number in keys]
    return _dump({"version": 1, "partitions": partitions})


def decode_isr_change(data: bytes) -> list[tuple[str, int]]:
    return _keys(data)


def _keys(data: bytes) -> list[tuple[str, int]]:
    rows = map(as_object, as_list(load_object(data)["partitions"]))
    return [(as_text(row["topic"]), as_integer(row["partition"])) for row in rows]


def log_dir_event() -> str:
    """The path of a sequential node, to which the store appends a number."""
    return f"{LOG_DIR_EVENTS}/log_dir_event_"


def encode_log_dir_event(broker_id: int) -> bytes:
    """A log directory of the broker has failed: Kafka's only event."""
    return _dump({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(data: bytes) -> int:
    """The broker."""
    return as_integer(load_object(data)["broker"])


def encode_config(config: dict[str, str]) -> bytes:
    return _dump({"version": 1, "config": config})


def decode_config(data: bytes) -> dict[str, str]:
    config = as_object(load_object(data)["config"]) if data else {}
    return {name: as_text(value) for name, value in config.items()}


def encode_config_change(path: str) -> bytes:
    """The notification that the config node ``path`` has changed."""
    return _dump({"version": 2, "entity_path": path.removeprefix(CONFIG + "/")})


def decode_config_change(data: bytes) -> str:
    """The path of the changed config node.

    Version 1 has entity type and name instead of a path.
    """
    document = load_object(data)
    if document["version"] == 1:
        return f"{CONFIG}/{as_text(document['entity_type'])}/{as_text(document['entity_name'])}"
    return f"{CONFIG}/{as_text(document['entity_path'])}"


def sequence_of(path: str, prefix: str) -> int | None:
    """The number after the prefix of a sequential node; None for any other node."""
    digits = path.removeprefix(prefix)
    is_number = len(digits) == 10 and digits.isascii() and digits.isdigit()
    return int(digits) if is_number else None


def encode_reassignment(partitions: Mapping[tuple[str, int], list[int]]) -> bytes:
    """What tools of older Kafkas want reassigned: the replicas of partitions."""
    rows = [
        {"topic": topic, "partition": number, "replicas": replicas}
        for (topic, number), replicas in partitions.items()
    ]
    return _dump({"version": 1, "partitions": rows})


def decode_reassignment(data: bytes) -> dict[tuple[str, int], list[int]]:
    return {
        (as_text(row["topic"]), as_integer(row["partition"])): [
            as_integer(broker, -INT_MAX) for broker in as_list(row["replicas"])
        ]
        for row in map(as_object, as_list(load_object(data)["partitions"]))
    }


def decode_preferred_election(data: bytes) -> list[tuple[str, int]]:
    """The partitions for which a tool wants an election."""
    return _keys(data)


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return _dump({"version": 1, "brokerid": broker_id, "timestamp": str(timestamp_ms)})


def decode_controller(data: bytes) -> int:
    """The broker that is the controller."""
    return as_integer(load_object(data)["brokerid"])


def encode_cluster_id(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return as_text(load_object(data)["id"])


def encode_producer_id_block(broker_id: int, first: int, last: int) -> bytes:
    """``last`` is inclusive; Kafka writes both ends as strings."""
    return _dump(
        {"version": 1, "broker": broker_id, "block_start": str(first), "block_end": str(last)}
    )


def decode_producer_id_block(data: bytes) -> int | None:
    """The last producer id allocated to any broker; None before the first block."""
    return as_integer(load_object(data)["block_end"], -1, LONG_MAX) if data else None


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
