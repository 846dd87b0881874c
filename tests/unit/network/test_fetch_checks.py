"""Batches that the owner of a log has not checked are checked before they are first sent."""

import struct
from pathlib import Path

import pytest
from support.storage.fetch_log import FetchBench

from kbroker.errors import ErrorCode
from kbroker.record.batch import iterate_batches
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.unit

BATCHES, PER_SEGMENT = 12, 4
NOW_MS = 1_700_000_000_000


@pytest.fixture
def bench(tmp_path):
    return FetchBench(tmp_path)


@pytest.fixture
def log(bench):
    """Three segments of four batches, none of them checked."""
    log = bench.log(index_interval=150)
    for number in range(BATCHES):
        if number and number % PER_SEGMENT == 0:
            log.roll()
        builder = BatchBuilder(0)
        builder.append(b"value-%d" % number + b"." * 100, b"k", NOW_MS, ())
        log.append_built(builder)
    unchecked(bench, log)
    return log


def unchecked(bench, log, *, gapless: bool = True, place: tuple[int, int] | None = None) -> None:
    base, position = place or (log.end[1], log.end[2])
    bench.table.set_checked_from(log.slot, base, position, gapless)


def read(bench, offset: int = 0, **limits) -> tuple[list[int], int]:
    """(base offsets, the final error) of a consumer that starts there."""
    found: list[int] = []
    end = bench.table.read(0)["log_end"][0]
    while offset < end:
        response = bench.only(bench.fetch({("t", 0): offset}, **limits))
        if response.error_code:
            return found, response.error_code
        before = offset
        for one in iterate_batches(bytes(response.records or b""), partial_tail=True):
            one.check()
            found.append(one.header.base_offset)
            offset = one.header.base_offset + 1
        assert offset > before
    return found, 0


def spoil(log, offset: int, at: int = 65) -> None:
    """Flip a bit of the batch with that offset."""
    batch = next(one for one in log.batches if one.base_offset == offset)
    path = log.path(batch.segment)
    data = bytearray(path.read_bytes())
    data[batch.position + at] ^= 4
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("limit", [1, 300, 1 << 20])
@pytest.mark.parametrize("offset", range(BATCHES))
def test_batch_with_a_wrong_checksum_is_never_sent(bench, log, offset, limit):
    spoil(log, offset)

    found, error = read(bench, partition_max_bytes=limit)

    assert (found, error) == (list(range(offset)), ErrorCode.CORRUPT_MESSAGE)
    (damage, *_) = bench.engine.take_damages()
    assert damage[0] == log.slot and damage[2] == offset // PER_SEGMENT * PER_SEGMENT
    assert "checksum" in damage[4]
    behind = [*range(offset + 1, BATCHES)]
    assert read(bench, offset + 1, partition_max_bytes=limit) == (behind, 0)


@pytest.mark.parametrize("bit", range(3))
@pytest.mark.parametrize("offset", range(BATCHES))
def test_batch_that_says_another_offset_is_never_sent(bench, log, offset, bit):
    """No checksum covers it; adjacent batches contradict it, and may be rejected, too."""
    batch = next(one for one in log.batches if one.base_offset == offset)
    data = bytearray(log.path(batch.segment).read_bytes())
    data[batch.position + 7] ^= 1 << bit
    log.path(batch.segment).write_bytes(bytes(data))

    found, error = read(bench)

    assert found == list(range(len(found))) and len(found) <= offset
    assert error == ErrorCode.CORRUPT_MESSAGE


def test_what_was_checked_is_not_checked_again(bench, log):
    size = sum(log.sizes.values())

    for _ in range(3):
        assert read(bench, partition_max_bytes=200) == (list(range(BATCHES)), 0)

    assert bench.engine.log_counts("t", 0)["checked_bytes"] == size


def test_checks_of_sealed_segments_outlive_a_roll(bench, log):
    """The previously active one is checked again: it might have been truncated before the roll."""
    read(bench)
    checked = bench.engine.log_counts("t", 0)["checked_bytes"]
    log.roll()
    unchecked(bench, log, place=(8, log.sizes[8]))

    assert read(bench) == (list(range(BATCHES)), 0)

    again = bench.engine.log_counts("t", 0)["checked_bytes"] - checked
    assert again == log.sizes[8]


def test_what_the_owner_has_checked_is_not_checked_again(bench, log):
    spoil(log, 9)  # as nothing is that the owner has checked
    unchecked(bench, log, place=(4, log.batches[6].position))

    response = bench.only(bench.fetch({("t", 0): 9}))

    assert response.error_code == 0
    assert bench.engine.log_counts("t", 0)["checked_bytes"] == 0
    assert bench.only(bench.fetch({("t", 0): 4})).error_code == 0
    assert bench.engine.log_counts("t", 0)["checked_bytes"] == log.batches[6].position


@pytest.mark.parametrize("kept", range(PER_SEGMENT))
@pytest.mark.parametrize("gapless", [True, False])
def test_sealed_log_that_is_shorter_than_its_index_says_is_damaged(bench, log, kept, gapless):
    """If the index has no entry for the missing part, a compacted log may have a gap there."""
    path = log.path(4)
    unchecked(bench, log, gapless=gapless)
    entries = path.with_suffix(".index").read_bytes()
    indexed = struct.unpack(">i", entries[-4:])[0]
    size = log.batches[4 + kept].position
    path.write_bytes(path.read_bytes()[:size])

    found, error = read(bench)

    if gapless or indexed >= size:
        assert (found, error) == (list(range(4 + kept)), ErrorCode.CORRUPT_MESSAGE)
        assert bench.engine.take_damages()[0][2] == 4
    else:
        assert (found, error) == ([*range(4 + kept), *range(8, 12)], 0)


def test_missing_segment_is_damage(bench, log):
    log.path(4).unlink()
    log.publish(segments_changed=True)

    assert read(bench) == ([0, 1, 2, 3], ErrorCode.CORRUPT_MESSAGE)


def test_gaps_of_compaction_are_no_damage(bench):
    log = bench.log(index_interval=150)
    for number in range(6):
        if number == 3:
            log.roll()
        builder = BatchBuilder(0)
        builder.append(b"v" * 100, b"k", NOW_MS, ())
        builder.base_offset = log.end[0] + 5
        data = builder.build()
        log.append_bytes(data, 1)
    unchecked(bench, log, gapless=False)

    found, error = [], 0
    offset = 0
    while offset < log.end[0]:
        response = bench.only(bench.fetch({("t", 0): offset}))
        assert response.error_code == 0
        for one in iterate_batches(bytes(response.records)):
            found.append(one.header.base_offset)
            offset = one.header.base_offset + 1
    assert found == [one.base_offset for one in log.batches] and error == 0


def test_large_log_is_checked_a_little_at_a_time(bench):
    """A turn of the loop is not blocked by a whole segment."""
    log = bench.log()
    for _ in range(40):
        builder = BatchBuilder(0)
        builder.append(b"v" * 100_000, b"k", NOW_MS, ())
        log.append_built(builder)
    unchecked(bench, log)

    response = bench.only(bench.fetch({("t", 0): 0}, partition_max_bytes=50 << 20))

    assert 900_000 < len(response.records) <= 1 << 20
    assert read(bench, partition_max_bytes=50 << 20) == (list(range(40)), 0)


def test_batch_larger_than_what_is_checked_at_a_time_is_sent_whole(bench):
    log = bench.log()
    for _ in range(2):
        builder = BatchBuilder(0)
        builder.append(b"v" * 3_000_000, b"k", NOW_MS, ())
        log.append_built(builder)
    unchecked(bench, log)

    assert read(bench) == ([0, 1], 0)
    log_path: Path = log.path(0)
    assert bench.engine.log_counts("t", 0)["checked_bytes"] == log_path.stat().st_size


@pytest.mark.parametrize("limit", [1, 1 << 20])
@pytest.mark.parametrize(("into", "of"), [(0, 4), (0, 8), (4, 0), (4, 8), (8, 4)])
def test_segment_with_the_batches_of_another_sends_nothing(bench, log, into, of, limit):
    log.path(into).write_bytes(log.path(of).read_bytes())

    found, error = read(bench, partition_max_bytes=limit)

    assert (found, error) == (list(range(into)), ErrorCode.CORRUPT_MESSAGE)


def test_zeros_behind_the_last_batch_of_a_sealed_segment_are_not_sent(bench, log):
    with log.path(4).open("ab") as file:
        file.write(bytes(5000))

    assert read(bench) == (list(range(BATCHES)), 0)
    assert not bench.engine.take_damages()


def test_directory_in_the_place_of_a_segment_is_an_error_of_the_partition(bench, log):
    log.path(4).unlink()
    log.path(4).mkdir()

    assert read(bench)[1] in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE)


@pytest.mark.parametrize("limit", [1, 1 << 20])
def test_segment_under_the_name_of_the_one_before_it_sends_nothing(bench, log, limit):
    """Its offsets are in the range of its name; the first ones are missing."""
    log.path(8).rename(log.path(4))
    log.publish(segments_changed=True)
    unchecked(bench, log)

    found, error = read(bench, partition_max_bytes=limit)

    assert found == [0, 1, 2, 3] and error in (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
