"""Data directories of Apache Kafka, in KRaft and in ZooKeeper mode, created by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from kbroker._ext.log.producer_state import ProducerState
from kbroker.adopt import metadata_records as records
from kbroker.adopt.record_codec import encode_record
from kbroker.record.builder import BatchBuilder
from kbroker.storage.dirs.partition_metadata import write_partition_metadata
from kbroker.storage.segments.producer_snapshots import write_snapshot
from kbroker.uuids import uuid_text

TOPIC_ID = bytes(range(16))
DIRECTORY_ID = bytes(range(100, 116))
CLUSTER_ID = "MN6TlMJpeadb3D_8LPoANA"
SNAPSHOT_HEADER, SNAPSHOT_FOOTER, LEADER_CHANGE = 3, 4, 2
PARTITION = records.PartitionRecord(
    partition_id=0, topic_id=TOPIC_ID, replicas=[1], isr=[1], leader=1, leader_epoch=4,
    partition_epoch=0, directories=[DIRECTORY_ID],
)  # fmt: skip
# A topic as written by KRaft's controller.
ORDERS = [
    records.TopicRecord(name="orders", topic_id=TOPIC_ID),
    PARTITION,
    records.ConfigRecord(
        resource_type=records.TOPIC_RESOURCE,
        resource_name="orders",
        name="retention.ms",
        value="-1",
    ),
]


def encoded(record: object) -> bytes:
    version = 1 if isinstance(record, records.PartitionRecord) else 0
    if getattr(record, "eligible_leader_replicas", None) is not None:
        version = 2
    return encode_record(record, version)  # type: ignore[arg-type]


def metadata_batch(base_offset: int, values: Iterable[bytes]) -> bytes:
    builder = BatchBuilder(base_offset=base_offset, leader_epoch=1)
    for value in values:
        builder.append(value, None, 0)
    return builder.build()


def control_batch(base_offset: int, kind: int) -> bytes:
    builder = BatchBuilder(base_offset=base_offset, leader_epoch=1, control=True)
    builder.append(b"\0\0\0", struct.pack(">hh", 0, kind), 0)
    return builder.build()


def snapshot(rows: list[object]) -> bytes:
    return (
        control_batch(0, SNAPSHOT_HEADER)
        + metadata_batch(1, map(encoded, rows))
        + control_batch(1 + len(rows), SNAPSHOT_FOOTER)
    )


def write_meta(directory: Path, version: int = 1, **changes: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if version == 1:
        fields = {"node.id": "1", "directory.id": uuid_text(DIRECTORY_ID)}
    else:
        fields = {"broker.id": "1"}
    fields |= {"version": str(version), "cluster.id": CLUSTER_ID}
    fields |= {name.replace("_", "."): value for name, value in changes.items()}
    text = "".join(f"{name}={value}\n" for name, value in fields.items())
    (directory / "meta.properties").write_text(f"#\n#Sat Nov 21\n{text}")
    (directory / ".lock").touch()
    (directory / ".kafka_cleanshutdown").touch()


def write_log(
    directory: Path, name: str, topic_id: bytes | None, records_count: int = 5, producer: int = -1
) -> Path:
    """A partition with one segment, each record in its own batch, and its lines in the
    checkpoints.
    """
    path = directory / name
    path.mkdir()
    batches = []
    for offset in range(records_count):
        builder = BatchBuilder(base_offset=offset, leader_epoch=3)
        builder.append(b"value %d" % offset, b"key", 1000 + offset)
        batches.append(builder.build())
    (path / f"{0:020}.log").write_bytes(b"".join(batches))
    (path / f"{0:020}.index").touch()
    (path / f"{0:020}.timeindex").touch()
    (path / "leader-epoch-checkpoint").write_text("0\n1\n3 0\n")
    if topic_id is not None:
        write_partition_metadata(str(path), topic_id)
    if producer >= 0:
        state = ProducerState(records_count)
        state.append_batch(producer, 0, 0, 0, records_count - 1, 1000)
        write_snapshot(str(path), state)
    topic, _, number = name.rpartition("-")
    checkpoint = directory / "recovery-point-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
    lines.append(f"{topic} {number} {records_count}")
    checkpoint.write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    return path


def write_metadata(directory: Path, rows: Iterable[object] = ORDERS) -> Path:
    path = directory / "__cluster_metadata-0"
    path.mkdir()
    body = metadata_batch(1, map(encoded, rows))
    (path / f"{0:020}.log").write_bytes(control_batch(0, LEADER_CHANGE) + body)
    return path


def kraft_dir(directory: Path, rows: Iterable[object] = ORDERS) -> Path:
    """A directory with a topic of one partition and five records, and its metadata."""
    write_meta(directory)
    write_log(directory, "orders-0", TOPIC_ID)
    write_metadata(directory, rows)
    return directory


def zookeeper_dir(directory: Path) -> Path:
    """The same without topic id and metadata, with a producer."""
    write_meta(directory, 0)
    write_log(directory, "orders-0", None, producer=2345)
    return directory


def drop_records(directory: Path, first: int, following: int) -> None:
    """Drop some of the five records of ``orders-0``, as a compaction would."""
    log = directory / "orders-0" / f"{0:020}.log"
    data = log.read_bytes()
    size = len(data) // 5
    log.write_bytes(data[: first * size] + data[following * size :])


def all_files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
