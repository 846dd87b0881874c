"""The segments of a log while they change, and their readers."""

import pytest
from support.storage.log_store import NOW_MS, LogStore, append, batch, small, stored_values

from kbroker.storage.log.log_segments import LogSegments
from kbroker.storage.segments.active_segment import ActiveSegment

pytestmark = pytest.mark.unit


@pytest.fixture
def looked_at(monkeypatch):
    """The segments of ``log`` are read whenever an appender is attached."""

    def look(log):
        attach = ActiveSegment.attach

        def looked(files, *args, **more):
            assert log.segments.active
            attach(files, *args, **more)

        monkeypatch.setattr(ActiveSegment, "attach", looked)

    return look


def test_segment_that_is_begun_is_empty_whoever_looks_meanwhile(store, looked_at):
    """It got the size of the previous one, and records were written after a hole of zeros: they
    could not be read, and recovery truncated them.
    """
    log = store.open()
    append(log, batch([b"a"]))
    looked_at(log)

    log.roll(NOW_MS)
    append(log, batch([b"b"]))

    assert store.slot()["log_end"] == (2, 1, len(batch([b"b"])))
    assert stored_values(store.restart(clean=False)) == [(0, b"a"), (1, b"b")]


def test_segment_that_is_cut_ends_at_the_cut_whoever_looks_meanwhile(store, looked_at):
    log = store.open()
    for value in (b"a", b"b", b"c"):
        append(log, batch([value]))
    looked_at(log)

    assert log.truncate_to(1, NOW_MS) == 1
    append(log, batch([b"d"]))

    assert stored_values(store.restart(clean=False)) == [(0, b"a"), (1, b"d")]


def test_move_reads_the_segments_in_the_loop_only(tmp_path, monkeypatch):
    """Its thread may run in the middle of any change of them."""
    store = LogStore(tmp_path, dirs=2)
    log = store.open(**small())
    for _ in range(3):
        append(log, batch())
    moves = store.manager.moves
    target = next(path for path in store.dirs if path != log.log_dir)
    assert moves.request(log.key, log.slot, target) == 0
    jobs = 0
    while (job := moves.get(0).next_job(1 << 20)) is not None:
        with monkeypatch.context() as in_thread:
            in_thread.setattr(LogSegments, "_measured", lambda _segments: pytest.fail("looked"))
            job()
        jobs += 1

    assert jobs >= 3  # made, copied, prepared
    store.clock.advance(10)
    assert moves.turn(store.clock.monotonic_ms()) == [0]
    assert [offset for offset, _ in stored_values(log)] == [0, 1, 2]
    store.stop(clean=False)


def test_timestamp_far_below_that_of_the_segment_begins_no_segment(store):
    """Their difference overflowed to ages: a client could begin segments at will."""
    log = store.open(**{"message.timestamp.after.max.ms": 2**63 - 1})
    append(log, batch([b"a"], timestamp=2**62))

    append(log, batch([b"b"], timestamp=-(2**62) - 2**61))

    assert [segment.base_offset for segment in log.segments] == [0]
    assert stored_values(store.restart(clean=True)) == [(0, b"a"), (1, b"b")]
