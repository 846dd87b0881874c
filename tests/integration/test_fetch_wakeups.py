"""A reader and a writer in two processes: no append goes unnoticed by a fetch that waits for it."""

import mmap
import os
import select

import pytest
from doubles.fetch_log import FetchBench, OwnedLog

from kbroker._ext import fetch_engine, partition_table

pytestmark = pytest.mark.integration

APPENDS = 4000
NETWORK_BIT = 1 << 1


def write_log(log: OwnedLog, wakes: int) -> None:
    """Append without a pause, so that publishing meets every step of the reader's parking."""
    for number in range(APPENDS):
        log.append(1, 61)
        if number % 500 == 499:
            log.roll()
        if log.table.waiters(log.slot) & NETWORK_BIT:
            os.write(wakes, b"w")


def test_no_append_goes_unnoticed_by_a_waiting_fetch(tmp_path):
    region = mmap.mmap(-1, partition_table.region_size(8))
    bench = FetchBench(tmp_path)
    bench.table = partition_table.PartitionTable(region, 8)
    bench.engine = fetch_engine.FetchEngine(bench.table, 1, [str(tmp_path)])
    log = bench.log()
    wakes, wakes_out = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            write_log(log, wakes_out)
            status = 0
        finally:
            os._exit(status)
    os.close(wakes_out)

    at = parked = 0
    while at < APPENDS:
        response = bench.start({("t", 0): at}, max_wait_ms=60_000)
        while response is None:
            parked += 1
            readable, _, _ = select.select([wakes], [], [], 20)
            assert readable, f"nobody woke the fetch at {at}"
            told = os.read(wakes, 4096)
            assert told, f"the writer is gone and nobody woke the fetch at {at}"
            for _ in told:
                bench.engine.wake_slot(log.slot, bench.now_ms)
            response = bench.completed().get(bench.token)
        partition = bench.only(response)
        assert partition.error_code == 0
        records = bytes(partition.records)
        assert records, "a fetch was completed with nothing"
        for position in range(0, len(records), 61):
            assert int.from_bytes(records[position : position + 8], "big") == at
            at += 1

    assert os.waitpid(child, 0)[1] == 0
    os.close(wakes)
    assert parked > 0
