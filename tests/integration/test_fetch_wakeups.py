"""A reader and a writer in two processes: a waiting fetch misses no append."""

import mmap
import os
import random
import select
import signal

import pytest
from support.storage.fetch_log import FetchBench, OwnedLog, Place

from kbroker._ext.fetch import fetch_engine
from kbroker._ext.shared import partition_table

pytestmark = pytest.mark.integration

APPENDS = 12_000
PAUSE_STEPS = 600
NETWORK_BIT = 1 << 1


def publish_one_by_one(log: OwnedLog, ends: list[Place], reads: int, wakes: int) -> None:
    """Advance the high watermark as soon as the reader has got the last record.

    Each step is the last one until it is read, so a single lost wake-up stops the test; the pause
    varies, so that publishing meets every step of the reader's parking.
    """
    pauses = random.Random(4)
    for end in ends:
        for _ in range(pauses.randrange(PAUSE_STEPS)):
            pass
        log.high_watermark = end
        log.publish()
        if log.table.waiters(log.slot) & NETWORK_BIT:
            os.write(wakes, b"w")
        os.read(reads, 1)


def read_one_by_one(
    bench: FetchBench, slot: int, bodies: list[bytes], wakes: int, reads: int
) -> int:
    """Read record after record, each with a fetch that may wait; returns the number of waits."""
    parked = 0
    woken = select.poll()
    woken.register(wakes, select.POLLIN)
    for at, body in enumerate(bodies):
        reply = bench.engine.handle_bytes(body, 4, 1, at, bench.now_ms)
        while reply is None:
            parked += 1
            assert woken.poll(60_000), f"nobody woke the fetch at {at}"
            told = os.read(wakes, 4096)
            assert told, f"the writer is gone and nobody woke the fetch at {at}"
            for _ in told:
                bench.engine.wake_slot(slot, bench.now_ms)
            reply = dict(bench.engine.take_completed()).get(at)
            parked -= reply is None
        assert reply[-61:-53] == at.to_bytes(8, "big")
        os.write(reads, b"r")
    return parked


def test_no_append_goes_unnoticed_by_a_waiting_fetch(tmp_path):
    region = mmap.mmap(-1, partition_table.region_size(8))
    bench = FetchBench(tmp_path)
    bench.table = partition_table.PartitionTable(region, 8)
    bench.engine = fetch_engine.FetchEngine(bench.table, 1, [str(tmp_path)])
    log = bench.log()
    log.high_watermark = log.end
    ends = []
    for number in range(APPENDS):
        log.append(1, 61)
        ends.append(log.end)
        if number % 500 == 499:
            log.roll()
    wakes, wakes_out = os.pipe()
    reads, reads_out = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            publish_one_by_one(log, ends, reads, wakes_out)
            status = 0
        finally:
            os._exit(status)
    os.close(wakes_out)
    # Version 4 ends with the records. Requests are prepared: the time from one reply to the next
    # wait must be short, so that many appends fall between the steps of parking.
    bodies = [bench.request({("t", 0): at}, 4, max_wait_ms=60_000) for at in range(APPENDS)]
    try:
        parked = read_one_by_one(bench, log.slot, bodies, wakes, reads_out)
        assert os.waitpid(child, 0)[1] == 0
        child = 0
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for descriptor in (wakes, reads, reads_out):
            os.close(descriptor)
    assert parked > 0
