"""Log directories of Kafka 0.7."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.storage.messages_of_07 import compressed, message, records_of

from kbroker.legacy import old_logs
from kbroker.legacy.old_logs import Bad, ImportLimits, OldLog, OldLogError, partitions_in

pytestmark = pytest.mark.unit

ONE = message(b"one")


def segment(home: Path, base: int, data: bytes, name: str = "orders-0") -> Path:
    (home / name).mkdir(exist_ok=True)
    path = home / name / f"{base:020}.kafka"
    path.write_bytes(data)
    return path


def read(
    home: Path, limits: ImportLimits = ImportLimits(), start: int = 0
) -> tuple[list[object], list[Bad]]:
    (partition,) = partitions_in(str(home), 3)
    values: list[object] = []
    bad: list[Bad] = []
    for step in OldLog(partition, limits).steps(start, 0):
        bad += step.bad
        if step.region is not None:
            values += records_of(step.region.batches)
            assert step.region.offset == len(values)
    return values, bad


def test_partitions_and_segments_are_found_by_their_names(tmp_path):
    segment(tmp_path, 0, ONE * 2)
    segment(tmp_path, 2 * len(ONE), ONE)
    segment(tmp_path, 0, b"", "with-dashes-12")
    (tmp_path / "unused-0").mkdir()
    for other in ("orders", "orders-x", "orders-1234567890"):
        (tmp_path / other).mkdir()
    (tmp_path / "orders-7").write_bytes(b"")
    (tmp_path / "orders-0" / "00000000000000000000.log").write_bytes(b"x")
    (tmp_path / "orders-0" / "99999999999999999999.kafka").write_bytes(b"x")

    first, unused, second = partitions_in(str(tmp_path), 3)

    assert (first.name, first.size, first.start, first.end) == ("orders/3-0", 36, 0, 36)
    assert [each.base for each in first.segments] == [0, 24]
    assert (unused.segments, unused.start, unused.end) == ([], 0, 0)
    assert (second.topic, second.partition, second.size) == ("with-dashes", 12, 0)
    assert [first.size_before(at) for at in (0, 10, 24, 30, 99)] == [0, 10, 24, 30, 36]


def test_segments_with_names_of_11_digits_are_read(tmp_path):
    """As documents show them (VER-02); they counted as an empty partition."""
    segment(tmp_path, 0, ONE * 2).rename(tmp_path / "orders-0" / "00000000000.kafka")
    after = f"{2 * len(ONE):011}.kafka"
    segment(tmp_path, 1, ONE).rename(tmp_path / "orders-0" / after)

    assert read(tmp_path) == ([b"one"] * 3, [])


def test_log_is_read_over_its_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(old_logs, "_CHUNK_BYTES", 20)
    large = message(bytes(100))
    segment(tmp_path, 0, ONE + compressed(1, ONE, ONE))
    segment(tmp_path, len(ONE + compressed(1, ONE, ONE)), large + ONE)

    assert read(tmp_path) == ([b"one"] * 3 + [bytes(100), b"one"], [])
    assert read(tmp_path, start=len(ONE)) == ([b"one"] * 2 + [bytes(100), b"one"], [])


def test_what_cannot_be_read_is_named_and_the_rest_is_read(tmp_path, monkeypatch):
    first = segment(tmp_path, 0, ONE + b"\xff\xff\xff\xff" + ONE)
    second = segment(tmp_path, 100, ONE + ONE[:-1])
    segment(tmp_path, 200, message(bytes(50)) + ONE)
    monkeypatch.setattr(old_logs, "_CHUNK_BYTES", 40)

    values, bad = read(tmp_path, ImportLimits(message_bytes=40))

    assert values == [b"one"] * 3
    assert bad == [
        Bad(12, 16, 1, f"its length is impossible, so the last 16 bytes of {first} cannot be read"),
        Bad(28, 72, 0, "72 bytes are missing"),
        Bad(112, 11, 1, f"{second} ends within the message"),
        Bad(123, 77, 0, "77 bytes are missing"),
        Bad(200, 59, 1, "it has 59 bytes, more than --message-max-bytes"),
    ]


def test_segment_ends_where_the_next_one_begins(tmp_path):
    segment(tmp_path, 0, ONE * 3)
    segment(tmp_path, len(ONE), message(b"two"))

    assert read(tmp_path) == ([b"one", b"two"], [])


def test_file_that_shrinks_or_is_no_file_is_an_error(tmp_path):
    path = segment(tmp_path, 0, ONE * 3)
    (partition,) = partitions_in(str(tmp_path), 0)
    path.write_bytes(ONE)
    with pytest.raises(OldLogError, match="has become shorter"):
        list(OldLog(partition, ImportLimits()).steps(0, 0))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OldLogError, match="not a regular file"):
        list(OldLog(partition, ImportLimits()).steps(0, 0))
