"""Which log the cleaner takes next, and the cost of finding it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._ext.shared.partition_table import ONLINE, PartitionTable, region_size
from kbroker.clock import ManualClock
from kbroker.ipc.calls import (
    CLEANABLE_SEGMENTS,
    CallOperation,
    CleanableLog,
    CleanableSegments,
    SealedSegment,
)
from kbroker.ipc.rpc import Pending, run
from kbroker.storage.cleaning.cleaner_checkpoints import CleanerCheckpoints
from kbroker.storage.cleaning.cleaner_policy import NO_LIMIT, CompactionRules
from kbroker.workers.cleaner.cleaner_choice import Chosen, LogChooser
from kbroker.workers.cleaner.cleaner_views import LogViews

pytestmark = pytest.mark.unit

# In a sealed segment of these logs: ten offsets.
OFFSETS = 10
LOOKS_PER_MS = 100
RULES = CompactionRules(dirty_ratio_min=0.5, lag_ms_min=0, lag_ms_max=NO_LIMIT)


class Bench:
    """Compacted logs whose segments are numbers, their owner, and a clock that advances when
    read.
    """

    def __init__(self, directory: Path, count: int) -> None:
        self.directory = str(directory)
        self.clock = ManualClock()
        self._table = PartitionTable(bytearray(region_size(count)), count)
        self.sizes: dict[int, list[int]] = {}
        self.reads = Counter[int]()
        self.busy: set[tuple[str, int]] = set()
        self.slept_ms = 0
        self.entries = [
            SimpleNamespace(key=("t", slot), slot=slot, slot_incarnation=1, rules=RULES)
            for slot in range(count)
        ]
        for slot in range(count):
            self._table.reset(slot, state=ONLINE, slot_incarnation=1)
            self.has(slot, [])
        self.checkpoints = CleanerCheckpoints([self.directory])
        self.chooser = LogChooser(
            self,  # type: ignore[arg-type]
            LogViews(self, lambda _slot: None),  # type: ignore[arg-type]
            self.checkpoints,
            self.clock,
            compacted_logs=lambda: self.entries,  # type: ignore[arg-type, return-value]
            is_left_alone=lambda key: key in self.busy,
            sleep=self.sleep,
        )

    def has(self, slot: int, sizes: list[int]) -> None:
        """Sealed segments of these sizes, and an empty active one."""
        self.sizes[slot] = sizes
        end = (OFFSETS * len(sizes), OFFSETS * len(sizes), 0)
        self._table.set_swapping(slot, True)  # which changes the version of its segments
        self._table.set_swapping(slot, False)
        self._table.publish(slot, log_start_offset=0, log_end=end)

    def read(self, slot: int) -> dict[str, Any] | None:
        """Read as by the partition table."""
        self.reads[slot] += 1
        if self.reads.total() % LOOKS_PER_MS == 0:
            self.clock.advance(1)
        return self._table.read(slot)

    def call(
        self, _to: object, operation: CallOperation[Any, Any], request: CleanableSegments
    ) -> Pending[list[CleanableLog]]:
        assert operation is CLEANABLE_SEGMENTS
        response: Pending[list[CleanableLog]] = Pending()
        response.resolve(
            [
                CleanableLog(
                    slot,
                    log_dir=self.directory,
                    path=self.directory,
                    cuts=0,
                    active=OFFSETS * len(self.sizes[slot]),
                    segments=[
                        SealedSegment(OFFSETS * at, OFFSETS * (at + 1), size, -1)
                        for at, size in enumerate(self.sizes[slot])
                    ],
                )
                for slot in request.slots
            ]
        )
        return response

    def sleep(self, delay_ms: int) -> Pending:
        self.slept_ms += delay_ms
        self.clock.advance(delay_ms)
        done = Pending()
        done.resolve()
        return done

    def choose(self) -> Chosen | None:
        found = run(self.chooser.choose())
        assert found.done
        if found.error is not None:
            raise found.error
        chosen: Chosen | None = found.value
        return chosen

    def choose_slot(self) -> int | None:
        chosen = self.choose()
        return None if chosen is None else chosen.entry.slot

    def compact(self, chosen: Chosen) -> None:
        self.checkpoints.put_later(self.directory, chosen.entry.key, chosen.section.end)


def test_round_of_many_logs_looks_at_each_a_few_times(tmp_path):
    """It looked at all of them for each: a round of 5,000 took minutes."""
    count, took_ms = 500, 2
    bench = Bench(tmp_path, count)
    for slot in range(count):
        bench.has(slot, [100])

    taken = []
    while (chosen := bench.choose()) is not None:
        taken.append(chosen.entry.slot)
        bench.compact(chosen)
        bench.clock.advance(took_ms)

    assert sorted(taken) == list(range(count))
    assert bench.reads.total() < 25 * count


def test_dirtiest_log_comes_first(tmp_path):
    bench = Bench(tmp_path, 4)
    for slot, clean in enumerate((60, 10, 30, 120)):
        bench.has(slot, [clean, 100])
        bench.checkpoints.put_later(str(tmp_path), ("t", slot), OFFSETS)

    taken = []
    while (chosen := bench.choose()) is not None:
        taken.append(chosen.entry.slot)
        bench.compact(chosen)

    assert taken == [1, 2, 0]  # the last is not dirty enough
    assert bench.chooser.dirtiest == pytest.approx(100 / 220)


def order_that_holds(bench: Bench, look_ms: int = 1000) -> None:
    """Let a look at all logs take a while, and take one log of the resulting order."""
    bench.clock.advance(1)
    response = bench.call

    def call(*args: Any, **kwargs: Any) -> Pending:
        bench.clock.advance(look_ms)
        return response(*args, **kwargs)

    bench.call = call  # type: ignore[method-assign]
    chosen = bench.choose()
    assert chosen is not None
    bench.compact(chosen)
    bench.call = response  # type: ignore[method-assign]


def test_log_that_changed_since_the_look_takes_its_new_place(tmp_path):
    bench = Bench(tmp_path, 4)
    for slot in range(4):
        bench.has(slot, [100, 100])
        bench.checkpoints.put_later(str(tmp_path), ("t", slot), OFFSETS if slot in (1, 2) else 0)
    bench.entries[2].rules = bench.entries[1].rules = RULES._replace(dirty_ratio_min=0.1)
    order_that_holds(bench)  # takes 0; then 3 would be first
    reads = bench.reads.copy()

    bench.has(3, [100, 50])
    bench.checkpoints.put_later(str(tmp_path), ("t", 3), OFFSETS)  # a third of it is dirty
    bench.entries[3].rules = RULES._replace(dirty_ratio_min=0.1)
    bench.busy.add(("t", 1))

    assert bench.choose_slot() == 2
    assert (bench.reads - reads)[0] == 0  # not all were looked at again


@pytest.mark.parametrize("change", ["offline", "clean", "in another pass"])
def test_log_of_the_order_that_is_not_due_any_more_is_passed_over(tmp_path, change):
    bench = Bench(tmp_path, 3)
    for slot in range(3):
        bench.has(slot, [100])
    order_that_holds(bench)
    if change == "offline":
        bench._table.set_state(1, 0)
    elif change == "clean":
        bench.checkpoints.put_later(str(tmp_path), ("t", 1), OFFSETS)
    else:
        bench.busy.add(("t", 1))

    assert bench.choose_slot() == 2


def test_order_ends_with_a_change_of_the_logs(tmp_path):
    """Otherwise a topic that is not compacted any more would be."""
    bench = Bench(tmp_path, 3)
    for slot in range(3):
        bench.has(slot, [100])
    order_that_holds(bench)

    bench.entries = bench.entries[2:]

    assert bench.choose_slot() == 2


def test_order_that_is_old_is_not_followed(tmp_path):
    bench = Bench(tmp_path, 3)
    for slot in range(3):
        bench.has(slot, [100 if slot < 2 else 0])
    order_that_holds(bench)
    bench.has(1, [200, 100])
    bench.has(2, [200, 100])
    bench.checkpoints.put_later(str(tmp_path), ("t", 1), OFFSETS)
    bench.entries[1].rules = RULES._replace(dirty_ratio_min=0.1)

    bench.clock.advance(10_000)

    assert bench.choose_slot() == 2


@pytest.mark.parametrize(("look_ms", "rest_ms"), [(0, 0), (500, 5000), (3000, 10_000)])
def test_looks_at_all_logs_take_a_tenth_of_the_time(tmp_path, look_ms, rest_ms):
    """Even if each finds a single log that is due; but such a log waits ten seconds."""
    bench = Bench(tmp_path, 3)
    bench.has(0, [100])
    order_that_holds(bench, look_ms)

    run(bench.chooser.rest())

    assert bench.slept_ms == rest_ms


def test_order_with_logs_left_needs_no_rest(tmp_path):
    bench = Bench(tmp_path, 2)
    bench.has(0, [100])
    bench.has(1, [100])
    order_that_holds(bench)

    run(bench.chooser.rest())

    assert bench.slept_ms == 0


def test_lines_of_all_logs_that_are_due_are_written_at_once(tmp_path):
    """Each needs one before it is compacted, and writing one writes the whole file."""
    bench = Bench(tmp_path, 20)
    for slot in range(20):
        bench.has(slot, [100])

    bench.choose()

    lines = Path(tmp_path, "cleaner-offset-checkpoint").read_text().splitlines()[2:]
    assert sorted(lines) == sorted(f"t {slot} 0" for slot in range(20))
