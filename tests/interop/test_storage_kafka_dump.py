"""Apache Kafka's own dump tool reads the log's files, and reports no errors."""

import re

import pytest
from support.drivers.java import java_missing
from support.drivers.kafka_tools import run_tool
from support.running.grids import some_of
from support.storage.compaction import compact, stored_batches
from support.storage.log_files import legacy_message, make_partition, run
from support.storage.log_store import NOW_MS, LogStore, append, batch, end_transaction, sent
from support.storage.message_sets import CODECS, OldMessage, set_bytes, wrapper_bytes
from support.storage.old_logs import adopted, stored_entries, stored_messages

from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import GZIP, compress
from perf.kafka_distribution import kafka_libraries

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

COMPLAINTS = ("mismatch", "corrupt", "exception", "not found", "out of order")


@pytest.fixture(scope="module")
def libraries():
    return kafka_libraries()


def dump(libraries, directory) -> str:
    suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    files = [str(path) for path in sorted(directory.iterdir()) if path.suffix in suffixes]
    main = "kafka.tools.DumpLogSegments"
    return run_tool(libraries, main, "--deep-iteration", "--files", ",".join(files))


@pytest.mark.parametrize("clean", some_of([True, False], [False]))
def test_dump_tool_reads_every_file(tmp_path, libraries, clean):
    store = LogStore(tmp_path)
    log = store.open(**{"segment.bytes": 30_000, "index.interval.bytes": 500})
    sequence = batches = 0
    for i in range(200):
        records = 1 + i % 7
        data = batch(
            records, timestamp=NOW_MS + i * 10 - i % 3 * 7, codec=i % 5, size=50,
            producer_id=77, producer_epoch=1, base_sequence=sequence,
        )  # fmt: skip
        append(log, data)
        sequence += records
        batches += 1
    if clean:
        store.stop(clean=True)

    text = dump(libraries, store.path())

    assert text.count("isvalid: true") == batches
    assert f"lastOffset: {sequence - 1}" in text
    assert "producerId: 77 producerEpoch: 1" in text
    assert not [word for word in COMPLAINTS if word in text.lower()]
    store.stop(clean=False)


@pytest.mark.parametrize("clean", some_of([True, False], [False]))
def test_dump_tool_reads_transactions(tmp_path, libraries, clean):
    store = LogStore(tmp_path)
    log = store.open(**{"segment.bytes": 700})
    append(log, sent(5, 0, 2, epoch=3))
    for number in range(8):
        append(log, sent(6, number, epoch=1))
        end_transaction(log, 6, commit=number % 2 == 0, epoch=1, coordinator_epoch=4)
    end_transaction(log, 5, commit=False, epoch=3, coordinator_epoch=9)
    append(log, sent(7, 0))
    log = store.restart(clean=clean, **{"segment.bytes": 700})
    if clean:
        store.stop(clean=True)

    text = dump(libraries, store.path())

    assert len(log.segments) > 1
    assert text.count("endTxnMarker: COMMIT") == 4
    assert text.count("endTxnMarker: ABORT") == 5
    assert "coordinatorEpoch: 9" in text
    for number in (1, 3, 5, 7):
        first = 2 + 2 * number
        assert (
            f"version: 0 producerId: 6 firstOffset: {first} lastOffset: {first + 1} "
            f"lastStableOffset: 0"
        ) in text
    assert "version: 0 producerId: 5 firstOffset: 0 lastOffset: 18 lastStableOffset: 19" in text
    if clean:
        assert "producerId: 7 producerEpoch: 0 coordinatorEpoch: -1 currentTxnFirstOffset: 19" in (
            text.replace("OptionalLong[19]", "19").replace("Optional[19]", "19")
        )
    assert not [word for word in COMPLAINTS if word in text.lower()]
    store.stop(clean=False)


def rows(text: str) -> list[str]:
    """The rows in a dump of the files' content; absent values are written in one way."""
    text = re.sub(r"OptionalLong\[(\d+)\]", r"\1", text.replace("OptionalLong.empty", "none"))
    noise = ("Dumping ", "Log starting offset: ")
    # After the checksum of an old message it prints an unbalanced brace.
    lines = [line.rstrip(" }") for line in text.splitlines() if not line.startswith(noise)]
    return [line for line in lines if not line.endswith("is empty.")]


def test_kbroker_log_shows_what_the_dump_tool_shows(tmp_path, libraries):
    directory = make_partition(tmp_path)
    suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    files = [path for path in sorted(directory.iterdir()) if path.suffix in suffixes]

    code, text = run("dump", "--deep-iteration", *files)

    assert code == 0
    assert rows(text) == rows(dump(libraries, directory))


@pytest.mark.parametrize("magic", some_of([0, 1], [1]))
def test_kbroker_log_shows_old_messages_as_the_dump_tool_does(tmp_path, libraries, magic):
    inner = b"".join(legacy_message(magic, at if magic else 1 + at, b"v") for at in range(3))
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(
        legacy_message(magic, 0, b"plain")
        + legacy_message(magic, 3, compress(GZIP, inner), codec=GZIP)
    )

    code, text = run("dump", "--deep-iteration", path)

    assert code == 0
    assert rows(text) == rows(dump(libraries, tmp_path))


def test_dump_tool_reads_a_compacted_log(tmp_path, libraries):
    config = {"segment.bytes": 2000, "cleanup.policy": ("compact",), "index.interval.bytes": 150}
    store = LogStore(tmp_path)
    log = store.open(**config)
    end = 0
    for i in range(120):
        key = b"k%d" % (i % 9)
        header = {"producer_id": 8, "producer_epoch": 0, "base_sequence": i * 2}
        append(log, batch([b"%d" % i, b"x" * 30], key=key, codec=i % 5, **header))
        if i % 4 == 0:
            append(log, sent(5, i // 4, key=b"t%d" % (i % 3)))
            end_transaction(log, 5, commit=i % 8 == 0)
        if i % 7 == 0:
            append(log, tombstone(b"k%d" % (i % 5)))
        if i % 40 == 39:
            end = compact(log, first_dirty=end, now_ms=NOW_MS + i, segment_bytes=6000).end
    stored = stored_batches(log)
    store.stop(clean=True)

    text = dump(libraries, store.path())

    assert text.count("isvalid: true") == len(stored)
    assert text.count("deleteHorizonMs: OptionalLong[") >= 1
    assert not [word for word in COMPLAINTS if word in text.lower()]


def test_dump_tool_reads_a_compacted_log_of_every_format(tmp_path, libraries):
    store = LogStore(tmp_path)
    data, offset = b"", 0
    for magic in (0, 1):
        for codec in CODECS.values():
            for at in (offset, offset + 3):
                rows = [OldMessage(n, -1, b"%d" % (n % 4), b"v" * 9) for n in range(at, at + 3)]
                if magic:
                    rows = [row._replace(timestamp=NOW_MS + row.offset) for row in rows]
                data += wrapper_bytes(magic, codec, rows) if codec else set_bytes(magic, rows)
            offset += 6
            # A key of their own each: they stay.
            rows = [OldMessage(offset, NOW_MS if magic else -1, b"k%d" % offset, b"v")]
            rows += [rows[0]._replace(offset=offset + 1, key=b"0")]
            data += wrapper_bytes(magic, codec, rows) if codec else set_bytes(magic, rows)
            offset += 2
    adopted(store, {0: data, offset: b""})
    log = store.open(**{"cleanup.policy": ("compact",), "index.interval.bytes": 150})
    append(log, batch(2, key=b"0"))
    log.roll(NOW_MS)
    log.publish()
    compact(log, now_ms=NOW_MS)
    kept = stored_messages(log)
    entries = stored_entries(log)
    store.stop(clean=True)

    text = dump(libraries, store.path())

    assert len([row for row in kept if row.key.startswith(b"k")]) == 8
    assert {(entry.magic, entry.codec) for entry in entries} == {
        (2, 0), *((magic, codec) for magic in (0, 1) for codec in CODECS.values())
    }  # fmt: skip
    shown = [int(found) for found in re.findall(r"^\| offset: (\d+)", text, re.MULTILINE)]
    assert shown == [row.offset for row in kept]
    assert "isvalid: false" not in text
    assert not [word for word in COMPLAINTS if word in text.lower()]


def tombstone(key: bytes) -> bytes:
    builder = BatchBuilder()
    builder.append(None, key, NOW_MS)
    return builder.build()
