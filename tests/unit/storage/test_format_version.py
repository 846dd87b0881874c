"""Topics whose message.format.version is older than batches hold messages of format 0 or 1."""

from __future__ import annotations

import pytest
from support.storage.log_store import NOW_MS, append, append_error, batch, end_transaction, sent
from support.storage.message_sets import CODECS, LOG_APPEND_TIME, OldMessage, messages_in, set_bytes

from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import ZSTD
from kbroker.storage.log.log_lookup import list_offsets
from kbroker.storage.topic_settings import magic_of

pytestmark = pytest.mark.unit

RECORD_LIST_TOO_LARGE, UNSUPPORTED_FOR_MESSAGE_FORMAT, UNSUPPORTED_COMPRESSION_TYPE = 18, 43, 76
VERSIONS = {0: "0.9.0", 1: "0.10.2"}
KEY = "message.format.version"


def rows(magic, count, first=0):
    return [
        OldMessage(first + n, NOW_MS + n if magic else -1, b"k%d" % n, b"v%d" % n)
        for n in range(count)
    ]


def built(count=3, codec=0, headers=()):
    builder = BatchBuilder(codec)
    for n in range(count):
        builder.append(b"v%d" % n, b"k%d" % n, NOW_MS + n, headers)
    return builder.build()


def stored(store, base=0):
    return store.path(f"{base:020}.log").read_bytes()


@pytest.mark.parametrize(
    ("version", "magic"),
    [
        *(("0.8.2", 0), ("0.9.0", 0), ("0.9.0.1", 0), ("0.10.0-IV0", 1), ("0.10.2-IV0", 1)),
        *(("0.11.0", 2), ("0.11.0-IV2", 2), ("1.0", 2), ("2.7-IV2", 2), ("3.0-IV1", 2), ("4.0", 2)),
    ],
)
def test_version_of_kafka_has_its_message_format(version, magic):
    assert magic_of(version) == magic


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_batch_is_stored_as_messages_with_its_codec_and_offsets(store, magic, codec):
    log = store.open(**{KEY: VERSIONS[magic]})
    number = CODECS[codec]

    assert append(log, built(codec=number)) == 0
    first = stored(store)
    assert append(log, built(codec=number)) == 3

    found = messages_in(first)
    assert [m._replace(attributes=0) for m in found] == rows(magic, 3)
    assert {entry[16] for entry in (first, stored(store)[len(first) :])} == {magic}
    assert first[17] & 7 == number
    if number == 0:
        assert first == set_bytes(magic, rows(magic, 3))
    again = [m.offset for m in messages_in(stored(store)[len(first) :])]
    assert again == [3, 4, 5]
    log = store.restart(clean=False, **{KEY: VERSIONS[magic]})
    assert log.log_end_offset == 6


@pytest.mark.parametrize("magic", [0, 1])
def test_message_set_of_a_client_is_stored_in_the_format_of_the_topic(store, magic):
    log = store.open(**{KEY: VERSIONS[magic]})

    code, base, *_ = log.appender.append_set(set_bytes(1 - magic, rows(1 - magic, 2)), NOW_MS)

    assert (code, base) == (0, 0)
    # Format 0 has no timestamp, neither to keep nor to set.
    expected = [m._replace(timestamp=-1) for m in rows(0, 2)]
    assert stored(store) == set_bytes(magic, expected)


def test_log_append_time_is_in_the_messages_of_format_1(store):
    log = store.open(**{KEY: "0.10.0", "message.timestamp.type": "LogAppendTime"})

    code, base, append_time, *_ = log.appender.append_batch(built(), NOW_MS + 77)

    assert (code, base, append_time) == (0, 0, NOW_MS + 77)
    found = messages_in(stored(store))
    assert {(m.timestamp, m.attributes & LOG_APPEND_TIME) for m in found} == {
        (NOW_MS + 77, LOG_APPEND_TIME)
    }


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (built(headers=(("h", b"1"),)), UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (built(headers=(("h", b"1"),), codec=1), UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (sent(7, 0), UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (built(codec=ZSTD), UNSUPPORTED_COMPRESSION_TYPE),
    ],
)
def test_what_the_format_lacks_is_rejected(store, data, code):
    log = store.open(**{KEY: "0.10.2"})

    assert append_error(log, data) == (code, -1)

    assert stored(store) == b""
    assert append(log, built()) == 0


def test_messages_fill_segments_as_they_are_stored(store):
    size = len(set_bytes(1, rows(1, 3)))
    config = {KEY: "0.10.2", "segment.bytes": size}
    log = store.open(**config)
    append(log, built())
    append(log, built())

    assert [segment.base_offset for segment in log.segments] == [0, 3]
    assert append_error(log, built(4)) == (RECORD_LIST_TOO_LARGE, -1)


def test_format_changes_while_the_log_is_open(store):
    log = store.open()
    assert append(log, built()) == 0
    append(log, sent(7, 0))
    store.manager.update_config(0, store.topic_config(**{KEY: "0.9.0"}))
    # The open transaction has to end.
    assert end_transaction(log, 7, commit=True) == 4
    assert append(log, built()) == 5
    store.manager.update_config(0, store.topic_config())
    assert append(log, batch()) == 8

    log = store.restart(clean=False)

    assert (log.log_end_offset, log.last_stable_offset) == (9, 9)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_topics_of_coordinators_stay_in_format_2(store, topic):
    log = store.open(topic, **{KEY: "0.9.0"})

    append(log, built())

    assert store.path(f"{0:020}.log", topic).read_bytes()[16] == 2


def test_records_are_found_by_time(store):
    log = store.open(**{KEY: "0.10.2"})
    for _ in range(3):
        append(log, built(codec=1))

    found = list_offsets(log, NOW_MS + 2)

    assert (found["offset"], found["timestamp"]) == (2, NOW_MS + 2)
