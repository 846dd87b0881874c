"""Damaged records of ``__consumer_offsets``: the bulk replay must agree with the plain codec.

Whatever bytes a record has, the fast way takes it with the same meaning as the general codec, or
leaves it to the loader. It never fails, and never loses what lies behind.
"""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.coordinators.coordinator_host import Entry
from support.coordinators.offsets_host import OffsetsHost, make_machine, write_segment
from support.running.seeds import seeded

from kbroker._ext.coordinator import offset_records
from kbroker._ext.coordinator.offset_store import OffsetStore
from kbroker.coordinator.loader import Loader
from kbroker.coordinator.records.codec import UnknownRecordError
from kbroker.coordinator.records.offsets_topic import (
    RECORDS,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kbroker.protocol.codec import DecodeError
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.property

COMMITS = (OffsetCommitKey, LegacyOffsetCommitKey)


def commit(group: str = "g", *, version: int = 3, topic_id: bytes = bytes(16)) -> tuple[Any, Any]:
    key = OffsetCommitKey(group=group, topic="topic", partition=7)
    value = OffsetCommitValue(
        offset=5,
        leader_epoch=2 if version >= 3 else -1,
        metadata="meta",
        commit_timestamp=9,
        topic_id=topic_id,
    )
    return RECORDS.encode(key, value, version)


def content(store: OffsetStore) -> dict[Any, Any]:
    return {
        (group, topic, partition): (held, store.timestamps(group, topic, partition))
        for group in store.group_ids()
        for topic, partition, held in store.of_group(group)
    }


def decoded_into(store: OffsetStore, key: bytes, value: bytes | None) -> bool:
    """The result of the general codec for a record; False if the store ignores it."""
    host = OffsetsHost()
    host.machine.offsets.store = store
    try:
        decoded = RECORDS.decode(key, value)
    except (DecodeError, UnknownRecordError):
        return False
    if not isinstance(decoded[0], COMMITS):
        return False
    host.machine.offsets.replay(0, -1, *decoded)
    return True


def assert_same_meaning(key: bytes, value: bytes | None) -> None:
    fast, plain = OffsetStore(), OffsetStore()
    taken = offset_records.replay_record(fast, 0, -1, key, value)

    assert taken == decoded_into(plain, key, value), (key, value)
    assert content(fast) == content(plain), (key, value)


@pytest.mark.parametrize("version", range(5))
def test_every_cut_and_extension_of_a_record_means_the_same(version: int) -> None:
    key, value = commit(version=version, topic_id=b"i" * 16 if version == 4 else bytes(16))
    assert value is not None
    for end in range(len(key) + 1):
        assert_same_meaning(key[:end], value)
    for end in range(len(value) + 1):
        assert_same_meaning(key, value[:end])
    assert_same_meaning(key + b"\0", value)
    assert_same_meaning(key, value + b"\0")
    assert_same_meaning(key, None)


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("version", range(5))
def test_every_changed_byte_means_the_same(part: str, version: int) -> None:
    key, value = commit("größe", version=version, topic_id=b"i" * 16 if version == 4 else bytes(16))
    assert value is not None
    whole = bytearray(key if part == "key" else value)
    for at in range(len(whole)):
        for byte in (0, 1, 2, 0x7F, 0x80, 0xFF, whole[at] ^ 1, whole[at] ^ 0x40):
            changed = bytearray(whole)
            changed[at] = byte
            if part == "key":
                assert_same_meaning(bytes(changed), value)
            else:
                assert_same_meaning(key, bytes(changed))


def test_random_bytes_mean_the_same() -> None:
    random = seeded()
    key, value = commit(version=4)
    assert value is not None
    for _ in range(3000):
        head = random.choice([b"\0\1", b"\0\0", b"\0\4", b"\0\3", b""])
        assert_same_meaning(key, head + random.randbytes(random.randrange(60)))
        assert_same_meaning(
            random.choice([b"\0\1", b"\0\0", b"\0\2"]) + random.randbytes(20), value
        )


def test_chunk_of_any_bytes_is_left_where_it_stops_making_sense() -> None:
    random = seeded()
    batches = []
    for number in range(6):
        builder = BatchBuilder(base_offset=number * 3)
        for i in range(3):
            key, value = commit(f"g{number}-{i}")
            builder.append(value, key, 1)
        batches.append(builder.build())
    whole = b"".join(batches)
    for _ in range(2000):
        data = bytearray(whole)
        at = random.randrange(len(data))
        data[at] = random.randrange(256)
        damaged = at // len(batches[0])
        if bytes(data) == whole or at % len(batches[0]) in (*range(8), 12, 13, 14, 15):
            continue  # base offset and leader epoch lie outside the checksum

        store = OffsetStore()
        position, taken, next_offset = offset_records.replay_chunk(store, bytes(data), 0)

        assert position == damaged * len(batches[0])
        assert (taken, len(store)) == (damaged * 3, damaged * 3)
        assert next_offset == (damaged * 3 if damaged else -1)
    for cut in range(len(whole)):
        position, taken, _ = offset_records.replay_chunk(OffsetStore(), whole[:cut], 0)
        assert (position, taken) == (
            cut // len(batches[0]) * len(batches[0]),
            cut // len(batches[0]) * 3,
        )


def test_damaged_record_costs_one_line_and_nothing_behind_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = [Entry(-1, -1, *commit(f"g{number}")) for number in range(9)]
    log[4] = log[4]._replace(value=b"\0\3\0")
    log[5] = log[5]._replace(key=b"\0\1\0\1\xff\0\1t\0\0\0\0")
    log[6] = log[6]._replace(key=b"\0\x63")
    machine = make_machine(OffsetsHost())

    with caplog.at_level(logging.WARNING):
        for _ in Loader(machine, write_segment(Random(1), log, tmp_path), 1 << 20).load():
            pass

    assert sorted(machine.offsets.group_ids()) == ["g0", "g1", "g2", "g3", "g7", "g8"]
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in lines] == ["ERROR", "ERROR", "WARNING"]
    for offset, (_, text) in zip((4, 5, 6), lines, strict=True):
        assert "__consumer_offsets-0" in text and f"at offset {offset}" in text
