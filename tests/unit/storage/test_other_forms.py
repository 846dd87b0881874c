"""Appending in another form than sent: message sets, and other codecs."""

import pytest
from support.storage.log_store import NOW_MS, append, append_error, batch
from support.storage.message_sets import CODECS, OldMessage, message_bytes, set_bytes, wrapper_bytes

from kbroker.record.batch import RecordBatch
from kbroker.storage.topic_settings import CODECS as TYPES

pytestmark = pytest.mark.unit

CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, INVALID_RECORD = 2, 10, 32, 87
MESSAGES = [OldMessage(n, NOW_MS + n, b"k%d" % n, b"v" * 30) for n in range(5)]


def stored(store):
    """Every batch of the log's first segment."""
    data = store.path("0" * 20 + ".log").read_bytes()
    found = []
    while data:
        found.append(RecordBatch(data))
        found[-1].check()
        data = data[found[-1].header.size :]
    return found


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("magic", [0, 1])
def test_message_set_is_stored_as_one_batch_with_its_codec(store, magic, codec):
    log = store.open()
    append(log, batch(2))
    data = (
        set_bytes(magic, MESSAGES)
        if codec == "none"
        else wrapper_bytes(magic, CODECS[codec], MESSAGES)
    )

    code, base, append_time, log_start, bad = log.appender.append_set(data, NOW_MS)

    assert (code, base, append_time, log_start, bad) == (0, 2, -1, 0, -1)
    assert append(log, batch()) == 7
    [_, made, _] = stored(store)
    assert (made.header.attributes, made.header.base_offset) == (CODECS[codec], 2)
    times = [m.timestamp if magic else -1 for m in MESSAGES]
    assert [(r.offset, r.timestamp, r.key, r.value) for r in made.records()] == [
        (2 + m.offset, time, m.key, m.value) for m, time in zip(MESSAGES, times, strict=True)
    ]


def test_message_set_gets_log_append_time(store):
    log = store.open(**{"message.timestamp.type": "LogAppendTime"})
    outcome = log.appender.append_set(set_bytes(1, MESSAGES), NOW_MS + 99)
    assert outcome[:3] == (0, 0, NOW_MS + 99)
    assert {r.timestamp for r in stored(store)[0].records()} == {NOW_MS + 99}


def test_message_set_obeys_the_rules_of_the_topic(store):
    log = store.open(
        **{
            "cleanup.policy": ("compact",),
            "message.timestamp.before.max.ms": 1000,
            "max.message.bytes": 400,
        }
    )

    def outcome(messages, magic=1):
        code, *_, bad = log.appender.append_set(set_bytes(magic, messages), NOW_MS)
        assert (log.appender.error_text is None) == (code == 0)
        return code, bad

    keyless = MESSAGES[0]._replace(key=None)
    assert outcome([MESSAGES[0], keyless]) == (INVALID_RECORD, 1)
    late = MESSAGES[0]._replace(timestamp=NOW_MS - 1001)
    assert outcome([MESSAGES[0], late]) == (INVALID_TIMESTAMP, 1)
    assert outcome([late], magic=0) == (0, -1)  # format 0 has no time
    assert outcome([MESSAGES[0]._replace(value=b"v" * 400)]) == (MESSAGE_TOO_LARGE, -1)
    assert outcome(MESSAGES + MESSAGES[:2]) == (0, -1)  # larger than the batch that it makes
    assert outcome(MESSAGES * 4) == (MESSAGE_TOO_LARGE, -1)
    damaged = message_bytes(0, MESSAGES[0])[:-1] + b"x"
    assert log.appender.append_set(damaged, NOW_MS)[0] == CORRUPT_MESSAGE
    assert log.log_end_offset == 8


@pytest.mark.parametrize("wanted", sorted(TYPES))
def test_batches_are_packed_again_with_the_codec_of_the_topic(store, wanted):
    log = store.open(**{"compression.type": wanted})
    sent = [batch([b"v%d" % codec] * 30, codec=codec) for codec in range(5)]

    for data in sent:
        append(log, data)
    assert log.appender.append_set(wrapper_bytes(0, 1, MESSAGES), NOW_MS)[:2] == (0, 150)

    found = stored(store)
    assert {made.header.attributes for made in found} == {TYPES[wanted]}
    # Batches with this codec are stored unchanged, except for base offset and leader epoch.
    assert bytes(found[TYPES[wanted]].data)[16:] == sent[TYPES[wanted]][16:]
    records = [record for made in found for record in made.records()]
    assert [record.offset for record in records] == list(range(155))
    assert [record.value for record in records[:150]] == [
        b"v%d" % codec for codec in range(5) for _ in range(30)
    ]


def test_batch_packed_again_keeps_producer_and_times(store):
    log = store.open(**{"compression.type": "gzip"})
    data = batch(3, codec=3, producer_id=7, producer_epoch=2, base_sequence=0, timestamp=NOW_MS)
    append(log, data)
    assert append(log, data) == 0  # a duplicate
    [made] = stored(store)
    header = made.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 0)
    assert (header.first_timestamp, header.max_timestamp) == (NOW_MS, NOW_MS)


def test_batch_that_grows_beyond_the_limit_is_rejected(store):
    data = batch([b"x" * 2000], codec=1)
    log = store.open(**{"compression.type": "uncompressed", "max.message.bytes": 1000})
    assert len(data) < 1000
    assert append_error(log, data)[0] == MESSAGE_TOO_LARGE
    assert log.log_end_offset == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data[:-1], CORRUPT_MESSAGE),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), CORRUPT_MESSAGE),
        (lambda data: data + b"x", INVALID_RECORD),
    ],
)
def test_damaged_batch_is_rejected_before_it_is_packed_again(store, change, expected):
    log = store.open(**{"compression.type": "lz4"})
    assert append_error(log, change(batch(3)))[0] == expected
    assert log.log_end_offset == 0


def test_levels_change_what_is_stored(store):
    values = [b"%d squared is %d" % (n, n * n) for n in range(3000)]
    sizes = {}
    for wanted, levels in (("gzip", (1, 9)), ("zstd", (-50, 19)), ("lz4", (9, 12))):
        for level in levels:
            name = f"{wanted}{level}"
            log = store.open(
                name,
                0,
                len(sizes),
                **{"compression.type": wanted, f"compression.{wanted}.level": level},
            )
            append(log, batch(values))
            sizes[name] = log.appender.position
    assert sizes["gzip1"] > sizes["gzip9"]
    assert sizes["zstd-50"] > sizes["zstd19"]
    assert sizes["lz49"] > sizes["lz412"]  # 9 stands for the fast mode
