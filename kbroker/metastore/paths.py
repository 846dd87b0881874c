"""Node paths and JSON documents of the metadata store, as in Apache Kafka 2.7.

Topic ids are Kafka's too (version 3 of the topic document): 16 bytes in URL-safe base64 without
padding. Readers accept older versions of a document; writers write the one named here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kbroker import __version__
from kbroker.config.protocol_version import ProtocolVersion
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
    "/config/clients",
    "/config/users",
    CONFIG_CHANGES,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    PRODUCER_ID_BLOCK,
)

Assignment = dict[int, list[int]]


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


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
    return {parse_uuid(text) for text in json.loads(data)["topic_ids"]}


def encode_broker(
    endpoints: list[list[Any]],
    rack: str | None,
    timestamp_ms: int,
    protocol: ProtocolVersion = ProtocolVersion.V2_7_IV2,
    *,
    is_suspect: bool = False,
    features: Mapping[str, int] = {},
) -> bytes:
    """Version 5, or 4 for a protocol before 2.7, with an extra field for kbrokers.

    is_suspect: some of its logs may have lost their newest records in a power failure. features:
    those that a Kafka 2.7 does not know, with the highest level that is supported.
    ``endpoints`` as in the cluster image: listener, host, port, security protocol.
    """
    plain = next((e for e in endpoints if e[3] == "PLAINTEXT"), None)
    document = {
        "version": 5 if protocol >= ProtocolVersion.V2_7_IV0 else 4,
        "host": plain[1] if plain else None,
        "port": plain[2] if plain else -1,
        "jmx_port": -1,
        "timestamp": str(timestamp_ms),
        "endpoints": [f"{name}://{_url_host(host)}:{port}" for name, host, port, _ in endpoints],
        "listener_security_protocol_map": {name: protocol for name, _, _, protocol in endpoints},
        "kbroker": {
            "version": __version__,
            "features": dict(features),
            "suspect": is_suspect,
        },
    }
    if protocol >= ProtocolVersion.V2_7_IV0:
        document["features"] = {}
    if rack is not None:
        document["rack"] = rack
    return _dump(document)


def decode_broker(data: bytes) -> tuple[list[list[Any]], str | None]:
    """Endpoints as in the cluster image, and rack. ValueError, KeyError or TypeError.

    Version 1 has only host and port; from version 4 on, listeners have names.
    """
    document = json.loads(data)
    if "endpoints" not in document:
        return [["PLAINTEXT", document["host"], document["port"], "PLAINTEXT"]], None
    protocols = document.get("listener_security_protocol_map", {})
    endpoints: list[list[Any]] = []
    for text in document["endpoints"]:
        name, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        endpoints.append([name, host, int(port), protocols.get(name, name)])
    rack = document.get("rack")
    return endpoints, None if rack is None else str(rack)


def is_suspect_broker(data: bytes) -> bool:
    """Whether a kbroker says that logs of it may have lost records. ValueError."""
    own = json.loads(data).get("kbroker")
    return isinstance(own, dict) and own.get("suspect") is True


def decode_broker_features(data: bytes) -> dict[str, int] | None:
    """The features that a kbroker supports; None for a Kafka. ValueError, KeyError or TypeError."""
    found = json.loads(data).get("kbroker")
    return None if found is None else _levels(found["features"])


def encode_features(levels: Mapping[str, int]) -> bytes:
    """The finalized features. Their epoch is the version of the node."""
    return _dump({"version": 1, "features": dict(levels)})


def decode_features(data: bytes) -> dict[str, int]:
    """Raises ValueError, KeyError or TypeError."""
    return _levels(json.loads(data)["features"])


def encode_kafkas_features(levels: Mapping[str, int]) -> bytes:
    """As Kafka 2.7 writes its finalized features. It does not start with one that it lacks."""
    features = {
        name: {"min_version_level": 1, "max_version_level": level} for name, level in levels.items()
    }
    return _dump({"version": 1, "status": 1, "features": features})


def _levels(document: Any) -> dict[str, int]:
    return {str(name): int(level) for name, level in document.items()}


def _url_host(host: str) -> str:
    """IPv6 addresses are put in brackets."""
    return f"[{host}]" if ":" in host else host


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
    document: dict[str, Any] = json.loads(data)
    return {key: value for key, value in document.items() if key not in ("version", "partitions")}


def reassigned_of_topic(rest: Mapping[str, Any]) -> tuple[Assignment, Assignment]:
    """The replicas that are added and removed, of partitions that are being reassigned."""

    def lists(key: str) -> Assignment:
        rows = rest.get(key) or {}
        return {int(number): list(replicas) for number, replicas in rows.items() if replicas}

    return lists("adding_replicas"), lists("removing_replicas")


def decode_topic(data: bytes) -> tuple[bytes | None, Assignment]:
    """The topic id (None before Kafka 2.8), and the replicas by partition."""
    document = json.loads(data)
    text = document.get("topic_id")
    assignment = {int(number): replicas for number, replicas in document["partitions"].items()}
    return (None if text is None else parse_uuid(text)), assignment


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
    document = json.loads(data)
    wanted = {
        "leader": leader,
        "leader_epoch": leader_epoch,
        "controller_epoch": controller_epoch,
        "isr": isr,
    }
    return all(document.get(key) == value for key, value in wanted.items())


def decode_partition_state(data: bytes) -> tuple[int, int, list[int]]:
    """Leader, leader epoch, in-sync replicas."""
    document = json.loads(data)
    return document["leader"], document["leader_epoch"], document["isr"]


def isr_change() -> str:
    """The path of a sequential node, to which the store appends a number."""
    return f"{ISR_CHANGES}/isr_change_"


def encode_isr_change(keys: Iterable[tuple[str, int]]) -> bytes:
    """The partitions whose state their leaders have written."""
    partitions = [{"topic": topic, "partition": number} for topic, number in keys]
    return _dump({"version": 1, "partitions": partitions})


def decode_isr_change(data: bytes) -> list[tuple[str, int]]:
    partitions = json.loads(data)["partitions"]
    return [(str(one["topic"]), int(one["partition"])) for one in partitions]


def log_dir_event() -> str:
    """The path of a sequential node, to which the store appends a number."""
    return f"{LOG_DIR_EVENTS}/log_dir_event_"


def encode_log_dir_event(broker_id: int) -> bytes:
    """A log directory of the broker has failed: Kafka's only event."""
    return _dump({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(data: bytes) -> int:
    """The broker."""
    return int(json.loads(data)["broker"])


def encode_config(config: dict[str, str]) -> bytes:
    return _dump({"version": 1, "config": config})


def decode_config(data: bytes) -> dict[str, str]:
    return dict(json.loads(data)["config"]) if data else {}


def encode_config_change(path: str) -> bytes:
    """The notification that the config node ``path`` has changed."""
    return _dump({"version": 2, "entity_path": path.removeprefix(CONFIG + "/")})


def decode_config_change(data: bytes) -> str:
    """The path of the changed config node. Raises ValueError, KeyError or TypeError.

    Version 1 has entity type and name instead of a path.
    """
    document = json.loads(data)
    if document["version"] == 1:
        return f"{CONFIG}/{document['entity_type']}/{document['entity_name']}"
    return f"{CONFIG}/{document['entity_path']}"


def sequence_of(name: str) -> int:
    """The sequence number of a sequential node."""
    return int(name[-10:])


def encode_reassignment(partitions: Mapping[tuple[str, int], list[int]]) -> bytes:
    """What tools of older Kafkas want reassigned: the replicas of partitions."""
    rows = [
        {"topic": topic, "partition": number, "replicas": replicas}
        for (topic, number), replicas in partitions.items()
    ]
    return _dump({"version": 1, "partitions": rows})


def decode_reassignment(data: bytes) -> dict[tuple[str, int], list[int]]:
    """Raises ValueError, KeyError or TypeError."""
    return {
        (str(row["topic"]), int(row["partition"])): [int(b) for b in row["replicas"]]
        for row in json.loads(data)["partitions"]
    }


def decode_preferred_election(data: bytes) -> list[tuple[str, int]]:
    """The partitions for which a tool wants an election. ValueError, KeyError or TypeError."""
    return [(str(row["topic"]), int(row["partition"])) for row in json.loads(data)["partitions"]]


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return _dump({"version": 1, "brokerid": broker_id, "timestamp": str(timestamp_ms)})


def decode_controller(data: bytes) -> int:
    """The broker that is the controller."""
    return int(json.loads(data)["brokerid"])


def encode_cluster_id(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return str(json.loads(data)["id"])


def encode_producer_id_block(broker_id: int, first: int, last: int) -> bytes:
    """``last`` is inclusive; Kafka writes both ends as strings."""
    return _dump(
        {"version": 1, "broker": broker_id, "block_start": str(first), "block_end": str(last)}
    )


def decode_producer_id_block(data: bytes) -> int | None:
    """The last producer id allocated to any broker; None before the first block."""
    return int(json.loads(data)["block_end"]) if data else None


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
