"""A damaged time index decides neither what is deleted nor what is found."""

import os

import pytest
from support.storage.log_store import NOW_MS, LogStore, append, batch

from kbroker.storage.log.log_lookup import list_offsets

pytestmark = pytest.mark.unit

RECORDS = 40
LAST_MS = NOW_MS + RECORDS - 1


@pytest.mark.parametrize("left", [None, 0, 12, 48])
def test_records_in_time_are_found_without_the_end_of_the_time_index(tmp_path, left):
    """A copy may also have any modification time for the log file, which would count without it."""
    store = LogStore(tmp_path)
    log = store.open(**{"index.interval.bytes": 500})
    for number in range(RECORDS):
        append(log, batch(1, timestamp=NOW_MS + number, size=50))
    log.roll(NOW_MS)
    append(log, batch(1, timestamp=NOW_MS + 10 * RECORDS))
    store.stop(clean=True)
    index = store.path(f"{0:020}.timeindex")
    assert index.stat().st_size > 60
    if left is None:
        index.unlink()
    else:
        os.truncate(index, left)
    os.utime(index.with_suffix(".log"), (0, 0))

    store.start(clean=True)
    log = store.open()

    assert list_offsets(log, LAST_MS - 6)["offset"] == RECORDS - 7
    assert log.segments[0].largest_timestamp() == LAST_MS
    store.stop(clean=False)


def test_segment_whose_records_have_no_time_keeps_that_of_its_file(tmp_path):
    store = LogStore(tmp_path)
    log = store.open()
    append(log, batch(1, timestamp=-1))
    log.roll(NOW_MS)
    segment = log.segments[0]
    os.utime(segment.path(".log"), (1000, 1000))

    assert segment.largest_timestamp() == 1_000_000
    store.stop(clean=False)
