"""Rewrites records of coordinators into versions that Apache Kafka 2.7 reads.

Kafka 2.7 gives up on a whole partition of an internal topic when it finds a record it does not
know: values of ``__transaction_state`` in version 1 (KIP-890), or groups of the consumer protocol
(KIP-848) in ``__consumer_offsets``. The former lose the fields that 2.7 has no use for. The latter
are replaced by the deletion of an offset that was never committed. Offsets stay the same, and
batches without such records are not touched.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

from kbroker.adopt.batch_files import batches_of
from kbroker.adopt.holdings import Holdings
from kbroker.coordinator.records import offsets_topic, transaction_topic
from kbroker.coordinator.records.codec import UnknownRecordError
from kbroker.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.protocol.codec import DecodeError
from kbroker.record.batch import Record, RecordBatch
from kbroker.record.builder import BatchBuilder
from kbroker.storage.files import remove_if_present, replace_file, sync_directory
from kbroker.storage.formats import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    base_offset_of,
    parse_partition_dir,
    segment_name,
)
from kbroker.storage.owner import give_to_owner
from kbroker.storage.segments.segment import Segment

_NUMBER = struct.Struct(">h")
# Key types and value versions of 2.7.
_OFFSET_KEYS = {0: 0, 1: 3, 2: 3}
_TRANSACTION_KEYS = {0: 0}
_NOBODYS_OFFSET = offsets_topic.RECORDS.encode(
    offsets_topic.OffsetCommitKey(group="", topic="", partition=-1), None
)

KeyAndValue = tuple[bytes | None, bytes | None]
Say = Callable[[str], None]


def find(holdings: Holdings) -> dict[str, int]:
    """Segments with records to change, and how many. Raises Refusal, OSError."""
    records = {}
    for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        for key in sorted(holdings.places):
            path = holdings.path_of(*key) if key[0] == topic else None
            for name in sorted(os.listdir(path)) if path else ():
                if not name.endswith(LOG_SUFFIX):
                    continue
                assert path is not None
                file = os.path.join(path, name)
                count = sum(
                    _older(topic, record) is not None
                    for batch in batches_of(file, partial_tail=False)
                    if not batch.is_control
                    for record in batch
                )
                if count:
                    records[file] = count
    return records


def rewrite(files: dict[str, int], say: Say) -> None:
    """Rewrite these segments and their indexes. A crash leaves each segment either as it was or
    rewritten, possibly without indexes, which Kafka then rebuilds.

    Raises Refusal, OSError.
    """
    for file in files:
        directory = os.path.dirname(file)
        key = parse_partition_dir(os.path.basename(directory))
        base = base_offset_of(os.path.basename(file))
        assert key is not None and base is not None
        data = b"".join(
            _older_batch(key[0], batch) for batch in batches_of(file, partial_tail=False)
        )
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            # Positions in the unconverted file would point into the middle of batches.
            remove_if_present(os.path.join(directory, segment_name(base, suffix)))
        sync_directory(directory)
        replace_file(file, data)
        give_to_owner(file)
        Segment(directory, base, len(data), base).rebuild_indexes()
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            give_to_owner(os.path.join(directory, segment_name(base, suffix)))
        say(f"{file} is rewritten.")


def _older_batch(topic: str, batch: RecordBatch) -> bytes:
    if batch.is_control:
        return bytes(batch.data)
    rows = batch.records()
    changed = [_older(topic, record) for record in rows]
    if not any(changed):
        return bytes(batch.data)
    header = batch.header
    builder = BatchBuilder(
        base_offset=header.base_offset,
        leader_epoch=struct.unpack_from(">i", batch.data, 12)[0],
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=batch.is_transactional,
        append_time_ms=header.max_timestamp if batch.is_append_time else None,
    )
    for record, other in zip(rows, changed, strict=True):
        key, value = other or (record.key, record.value)
        builder.append(
            value,
            key,
            record.timestamp,
            record.headers,
            offset_delta=record.offset - header.base_offset,
        )
    return builder.build(last_offset_delta=header.last_offset_delta)


def _older(topic: str, record: Record) -> KeyAndValue | None:
    """The converted record; None if it needs no conversion."""
    if record.key is None or len(record.key) < _NUMBER.size:
        return None
    known = _OFFSET_KEYS if topic == OFFSETS_TOPIC else _TRANSACTION_KEYS
    (kind,) = _NUMBER.unpack_from(record.key)
    if kind not in known:
        return _NOBODYS_OFFSET if topic == OFFSETS_TOPIC else None
    if record.value is None or len(record.value) < _NUMBER.size:
        return None
    if _NUMBER.unpack_from(record.value)[0] <= known[kind]:
        return None
    types = offsets_topic.RECORDS if topic == OFFSETS_TOPIC else transaction_topic.RECORDS
    try:
        key, value = types.decode(record.key, record.value)
    except (DecodeError, UnknownRecordError):
        return None  # no coordinator can use it
    assert value is not None
    if isinstance(value, transaction_topic.TransactionLogValue):
        for name in ("previous_producer_id", "next_producer_id", "next_producer_epoch"):
            setattr(value, name, -1)
        value.client_transaction_version = 0
    elif isinstance(value, offsets_topic.OffsetCommitValue):
        value.topic_id = bytes(16)
    return types.encode(key, value, known[kind])
