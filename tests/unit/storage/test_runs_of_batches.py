"""Batches that arrive together for one log: one write, and stored as if each had arrived alone."""

from __future__ import annotations

import random
import resource
import time
from pathlib import Path

import pytest
from support.running.grids import some_of
from support.storage.io_loop_bench import Bench
from support.storage.log_store import NOW_MS, batch, break_file

from kbroker._ext.shared.quota_table import Quota, QuotaTable, region_size

pytestmark = pytest.mark.unit

KAFKA_STORAGE_ERROR = 56
DAY_MS = 86_400_000


def write_calls() -> int:
    """The write calls of this process, from its start on."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["syscw"])


def segment_bytes(bench: Bench) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(bench.store.path().glob("*.log"))}


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    made.produce_together([batch()])
    assert made.results() == [(0, 0, 0)], "the first of a segment comes alone"
    return made


def test_batches_of_one_log_are_written_with_one_call(bench):
    before = write_calls()

    bench.produce_together([batch(2) for _ in range(10)])
    calls = write_calls() - before

    assert bench.results() == [(number, 0, 1 + 2 * number) for number in range(10)]
    assert calls <= 1
    assert bench.store.slot()["log_end"][0] == 21


def anything(draw: random.Random) -> bytes:
    """A batch that is usually accepted and sometimes rejected, of a producer or compressed."""
    kind = draw.randrange(8)
    if kind == 0:
        damaged = bytearray(batch(3))
        damaged[draw.randrange(17, len(damaged))] ^= 1
        return bytes(damaged)
    if kind == 1:
        return batch(1, timestamp=NOW_MS + 30 * DAY_MS + draw.choice([-10, 10 * 365 * DAY_MS]))
    if kind == 2:
        return batch(2, producer_id=9, producer_epoch=0, base_sequence=draw.choice([0, 2, 50]))
    if kind == 3:
        return batch(draw.randint(1, 50), codec=draw.choice([1, 3, 4]))
    if kind == 4:
        return batch(1, size=draw.choice([10, 3000, 20_000]))
    if kind == 5:
        return batch(2, key=None)
    return batch(draw.randint(1, 5), timestamp=NOW_MS - draw.randrange(1000))


@pytest.mark.parametrize("seed", some_of(range(30), range(10)))
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"segment.bytes": 4096},
        {"cleanup.policy": "compact"},
        {"max.message.bytes": 1000},
        {"message.timestamp.after.max.ms": DAY_MS},
        {"compression.type": "lz4"},
    ],
    ids=lambda config: next(iter(config), "defaults"),
)
def test_batches_together_get_the_same_results_as_one_by_one(tmp_path, seed, config):
    draw = random.Random(seed)
    names = {key.replace(".", "_"): value for key, value in config.items()}
    together, alone = Bench(tmp_path / "together", **names), Bench(tmp_path / "alone", **names)

    for _ in range(4):
        batches = [anything(draw) for _ in range(draw.randint(1, 40))]
        together.produce_together(batches)
        answers = []
        for number, data in enumerate(batches):
            alone.produce_together([data])
            answers += [(number, code, offset) for _, code, offset in alone.results()]
        assert sorted(together.results()) == answers  # errors do not wait for a commit
        together.used[0] = alone.used[0] = 0

    assert segment_bytes(together) == segment_bytes(alone)
    assert together.store.slot()["log_end"] == alone.store.slot()["log_end"]


def test_batches_for_which_the_disk_is_too_full_are_rejected_and_the_others_stay(bench):
    data = batch(5)
    log = next(iter(bench.store.path().glob("*.log")))
    limit = log.stat().st_size + 2 * len(data) + len(data) // 2
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, kept[1]))
    try:
        bench.produce_together([data] * 4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)

    assert sorted(bench.results()) == [
        (0, 0, 1),
        (1, 0, 6),
        (2, KAFKA_STORAGE_ERROR, -1),
        (3, KAFKA_STORAGE_ERROR, -1),
    ]
    assert bench.store.slot()["log_end"][0] == 11
    bench.produce_together([data])
    assert bench.results() == [(0, 0, 11)]


def test_batches_for_a_log_that_cannot_be_written_are_all_rejected(bench):
    break_file(bench.log)

    bench.produce_together([batch() for _ in range(3)])

    assert bench.results() == [(number, KAFKA_STORAGE_ERROR, -1) for number in range(3)]


@pytest.mark.parametrize("count", [1, 40])
def test_time_of_batches_counts_for_the_quota_of_their_client(bench, count):
    """In the cell that the network processes count in, too."""
    table = QuotaTable(bytearray(region_size(64)), 11, 1000)
    bench.loop.quotas = table
    quota, other = Quota(table, 7, 1e7, forgets=True), Quota(table, 8, 1e7, forgets=True)
    now = time.monotonic_ns() // 1_000_000
    began = time.monotonic_ns()

    bench.produce_together([batch(5) for _ in range(count)], quota=(7, 1e7))
    spent = time.monotonic_ns() - began

    assert len(bench.results()) == count
    assert 0 < quota.used(now) < spent
    assert other.used(now) == 0
    before = quota.used(now)
    bench.produce_together([batch(5)])
    assert quota.used(now) == before, "that of another client"
