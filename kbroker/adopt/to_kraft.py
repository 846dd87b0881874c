"""Back to Apache Kafka 3.x in KRaft mode: ``bootstrap.checkpoint`` gives its controller everything.

A controller whose metadata log is empty begins it with the records of that file. An older metadata
log is therefore set aside as an archive, which Kafka ignores.
"""

from __future__ import annotations

import os
import shutil
import struct
import tarfile
import time
from collections.abc import Callable, Iterator

from kbroker.adopt import metadata_records as records
from kbroker.adopt.holdings import Holdings
from kbroker.adopt.metadata_log import DIRECTORY, SNAPSHOT_FOOTER, SNAPSHOT_HEADER
from kbroker.adopt.record_codec import encode_record
from kbroker.protocol.message import Message
from kbroker.record.builder import BatchBuilder
from kbroker.storage.files import replace_file, sync_directory
from kbroker.storage.formats import DELETE_DIR_SUFFIX, META_NAME
from kbroker.storage.owner import give_to_owner
from kbroker.uuids import new_uuid, parse_uuid, uuid_text

BOOTSTRAP = "bootstrap.checkpoint"
ARCHIVE = f"{DIRECTORY}.before-kbroker.tar"
METADATA_VERSION = "metadata.version"
# The level of Kafka 3.9; an adopted cluster with a lower one keeps that.
LATEST_LEVEL = 21
# The version of the quorum's protocol is not a record of the log's content.
QUORUM_VERSION = "kraft.version"
# From this level on partitions know their directories (KIP-858).
DIRECTORIES_LEVEL = 17
NO_LEADER = -1
_RECORDS_IN_BATCH = 1000
_CONTROL_KEY = struct.Struct(">hh")
# Header: version, time of the last record in the snapshot. Footer: version. Flexible.
_HEADER_BODY = struct.pack(">hqb", 0, 0, 0)
_FOOTER_BODY = struct.pack(">hb", 0, 0)

Say = Callable[[str], None]


def notes(holdings: Holdings) -> Iterator[str]:
    """Notes on what cannot be handed over to this Kafka.

    COMPAT: its controller ends itself at a feature's level that it has not, and 3.9 has levels of
    ``metadata.version`` alone (without unstable.feature.versions.enable).
    """
    for name, kept in holdings.features.items():
        if name == METADATA_VERSION and kept > LATEST_LEVEL:
            yield (
                f"Feature {name} is downgraded from {kept} to {LATEST_LEVEL}, the latest level of "
                "Kafka 3.9."
            )
        elif name not in (METADATA_VERSION, QUORUM_VERSION):
            yield (
                f"Feature {name}={kept} is not handed over: Kafka 3.9 has it only as a preview. "
                "Where that Kafka allows it, kafka-features upgrade sets it."
            )


def give_back(holdings: Holdings, say: Say) -> None:
    """Write what Kafka needs; may be done again after a crash. Raises OSError."""
    directory_ids = {path: _directory_id(holdings.fields[path]) for path in holdings.log_dirs}
    data = bootstrap(holdings, directory_ids)
    holdings.is_begun = True
    for path in holdings.log_dirs:
        set_metadata_log_aside(path, say)
    for path in holdings.log_dirs:
        _write(os.path.join(path, BOOTSTRAP), data)
        fields = {
            "version": "1",
            "cluster.id": holdings.cluster_id,
            "node.id": str(holdings.broker_id),
            "directory.id": uuid_text(directory_ids[path]),
        }
        text = "".join(f"{key}={value}\n" for key, value in fields.items())
        _write(os.path.join(path, META_NAME), text.encode())
    say(f"{BOOTSTRAP} and {META_NAME} are written in each data directory.")


def _write(path: str, data: bytes) -> None:
    replace_file(path, data)
    give_to_owner(path)


def steps(holdings: Holdings, metadata_log_dir: str | None = None) -> Iterator[str]:
    """The user's next steps. metadata_log_dir: of the earlier Kafka, if it had one."""
    directories = ",".join(holdings.log_dirs)
    yield "Start Kafka with these settings (without kafka-storage format, which is done):"
    yield "  process.roles=broker,controller"
    yield f"  node.id={holdings.broker_id}"
    # A quorum whose voters are in its log (KIP-853) has none after a move, and could not elect a
    # leader.
    yield f"  controller.quorum.voters={holdings.broker_id}@HOST:PORT (of its CONTROLLER listener)"
    yield f"  log.dirs={directories}"
    if metadata_log_dir is not None and metadata_log_dir not in holdings.log_dirs:
        yield (
            f"and without metadata.log.dir={metadata_log_dir}: Kafka would use an older metadata "
            "log there instead of what is written here"
        )


def bootstrap(holdings: Holdings, directory_ids: dict[str, bytes]) -> bytes:
    """The file: a snapshot with a record for everything in the store."""
    rows = list(_records(holdings, directory_ids))
    parts = [_control(0, SNAPSHOT_HEADER, _HEADER_BODY)]
    offset = 1
    for at in range(0, len(rows), _RECORDS_IN_BATCH):
        builder = BatchBuilder(base_offset=offset, leader_epoch=0)
        for record, version in rows[at : at + _RECORDS_IN_BATCH]:
            builder.append(encode_record(record, version), None, 0)
        parts.append(builder.build())
        offset += builder.record_count
    parts.append(_control(offset, SNAPSHOT_FOOTER, _FOOTER_BODY))
    return b"".join(parts)


def _records(holdings: Holdings, directory_ids: dict[str, bytes]) -> Iterator[tuple[Message, int]]:
    level = min(holdings.features.get(METADATA_VERSION, LATEST_LEVEL), LATEST_LEVEL)
    yield records.FeatureLevelRecord(name=METADATA_VERSION, feature_level=level), 0
    for topic in holdings.topics:
        yield records.TopicRecord(name=topic.name, topic_id=topic.topic_id), 0
        for number, epoch in topic.epochs.items():
            place = holdings.places.get((topic.name, number))
            partition = records.PartitionRecord(
                partition_id=number,
                topic_id=topic.topic_id,
                replicas=[holdings.broker_id],
                isr=[holdings.broker_id],
                leader=NO_LEADER,  # elected once the broker has registered
                leader_epoch=epoch,
                partition_epoch=0,
            )
            if level >= DIRECTORIES_LEVEL:
                partition.directories = [directory_ids[place] if place else bytes(16)]
            yield partition, int(level >= DIRECTORIES_LEVEL)
        yield from _configs(records.TOPIC_RESOURCE, topic.name, topic.config)
    for entity, config in holdings.broker_configs.items():
        yield from _configs(records.BROKER_RESOURCE, entity, config)
    if holdings.next_producer_id:
        yield (
            records.ProducerIdsRecord(
                broker_id=holdings.broker_id,
                broker_epoch=-1,
                next_producer_id=holdings.next_producer_id,
            ),
            0,
        )


def _configs(kind: int, name: str, config: dict[str, str]) -> Iterator[tuple[Message, int]]:
    for key, value in sorted(config.items()):
        record = records.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
        yield record, 0


def _control(offset: int, kind: int, body: bytes) -> bytes:
    builder = BatchBuilder(base_offset=offset, leader_epoch=0, control=True)
    builder.append(body, _CONTROL_KEY.pack(0, kind), time.time_ns() // 1_000_000)
    return builder.build()


def _directory_id(fields: dict[str, str]) -> bytes:
    try:
        return parse_uuid(fields["directory.id"])
    except (KeyError, ValueError):
        return new_uuid()


def set_metadata_log_aside(log_dir: str, say: Say) -> None:
    """Put an older metadata log into an archive, and remove it. Raises OSError."""
    path = os.path.join(log_dir, DIRECTORY)
    if not os.path.isdir(path):
        return
    archive = os.path.join(log_dir, ARCHIVE)
    made = archive + ".tmp"
    with tarfile.open(made, "w") as tar:
        tar.add(path, DIRECTORY)
    fd = os.open(made, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    give_to_owner(made)
    os.rename(made, archive)
    # Half removed under its own name, it would replace the archive when this is repeated. Brokers
    # remove directories with this name.
    doomed = f"{path}.{os.urandom(16).hex()}{DELETE_DIR_SUFFIX}"
    os.rename(path, doomed)
    sync_directory(log_dir)
    shutil.rmtree(doomed)
    say(f"Kafka's former metadata log is in {archive}.")
