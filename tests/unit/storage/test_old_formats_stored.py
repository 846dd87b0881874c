"""Logs with messages of formats 0 and 1, from an older broker: opened, indexed, searched."""

from __future__ import annotations

import logging
import struct

import pytest
from support.storage.log_store import NOW_MS, LogStore, append, batch
from support.storage.message_sets import CODECS, OldMessage, set_bytes, wrapper_bytes

from kbroker.storage.dirs.partition_metadata import write_partition_metadata
from kbroker.storage.log.log_lookup import list_offsets

pytestmark = pytest.mark.unit

NONE = {"offset": -1, "timestamp": -1}


def messages(magic, count, first=0):
    return [
        OldMessage(first + n, NOW_MS + 10 * (first + n) if magic else -1, b"k", b"v" * 50)
        for n in range(count)
    ]


def adopt(tmp_path, data, index=b""):
    """A store that finds this log of an earlier broker after a clean shutdown."""
    store = LogStore(tmp_path)
    store.stop(clean=True)
    path = store.path()
    path.mkdir()
    write_partition_metadata(str(path), bytes(range(16)))
    (path / f"{0:020}.log").write_bytes(data)
    (path / f"{0:020}.index").write_bytes(index)
    (path / f"{0:020}.timeindex").write_bytes(b"")
    return store


def by_time(log, timestamp):
    found = list_offsets(log, timestamp)
    return {"offset": found["offset"], "timestamp": found["timestamp"]}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("clean", [True, False])
def test_message_of_format_1_is_found_by_time(tmp_path, codec, clean):
    number = CODECS[codec]
    sets = [messages(1, 5), messages(1, 5, 5)]
    data = b"".join(wrapper_bytes(1, number, s) if number else set_bytes(1, s) for s in sets)
    store = adopt(tmp_path, data)
    store.start(clean=clean)

    log = store.open()

    assert log.log_end_offset == 10
    for offset in range(10):
        expected = {"offset": offset, "timestamp": NOW_MS + 10 * offset}
        assert by_time(log, NOW_MS + 10 * offset - 9) == expected
    assert by_time(log, NOW_MS + 1000) == NONE
    assert by_time(log, -3) == {"offset": 9, "timestamp": NOW_MS + 90}
    store.stop(clean=False)


def test_message_of_format_0_has_no_time(tmp_path):
    store = adopt(tmp_path, set_bytes(0, messages(0, 5)))
    store.start(clean=True)

    log = store.open()

    assert by_time(log, 1) == NONE
    assert log.log_end_offset == 5
    store.stop(clean=False)


@pytest.mark.parametrize("magic", [0, 1])
def test_new_batches_follow_old_messages(tmp_path, magic):
    store = adopt(tmp_path, set_bytes(magic, messages(magic, 5)))
    store.start(clean=True)
    log = store.open()

    assert append(log, batch(2)) == 5
    log = store.restart(clean=False)

    assert log.log_end_offset == 7
    store.stop(clean=False)


def test_index_entry_for_all_of_one_append_is_trusted(tmp_path, caplog):
    """Kafka stores the position of the first message and the offset of the last."""
    data = set_bytes(1, messages(1, 8))
    size = len(data) // 8
    index = struct.pack(">ii", 3, 2 * size) + struct.pack(">ii", 7, 4 * size)
    store = adopt(tmp_path, data, index)
    store.start(clean=True)

    with caplog.at_level(logging.WARNING):
        log = store.open()
        assert log.log_end_offset == 8
        assert by_time(log, NOW_MS + 51)["offset"] == 6

    assert not caplog.records
    assert log.recovery_point == 8
    store.stop(clean=False)
