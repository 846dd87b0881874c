"""Random histories of a follower's session: each response has what is new, and nothing else.

Wake-ups are delivered only to whoever has asked for them, so one that the session fails to ask for
shows as news that are missing.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from support.replication.follower_fetches import NETWORK_BIT, Follower, reports
from support.storage.fetch_log import FetchBench, OwnedLog

from kbroker._ext.shared.lane_layout import LEFT, PROGRESS
from kbroker._ext.shared.partition_table import FOLLOWER, LEADER

pytestmark = pytest.mark.property

PARTITIONS, STEPS = 6, 400


class Model:
    """The logs, and the follower's requests and responses, by partition."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench = FetchBench(path, io_workers=1)
        self.logs = self.bench.topic("t", PARTITIONS)
        self.leads = [True] * PARTITIONS
        self.follower = Follower(self.bench)
        self.wanted: dict[int, int] = {}
        self.told: dict[int, tuple[int, int]] = {}
        self.owner: dict[int, int] = {}  # slot -> offset, as reported to the owner
        self.reports_seen = 0

    def wake(self, log: OwnedLog) -> None:
        if self.bench.table.waiters(log.slot) & NETWORK_BIT:
            self.bench.engine.wake_slot(log.slot, self.bench.now_ms)

    def change(self) -> None:
        """A random change of a log."""
        index = self.random.randrange(PARTITIONS)
        log = self.logs[index]
        kind = self.random.choice(
            ("append", "append", "append", "watermark", "start", "roll", "role")
        )
        if kind == "append":
            log.append(self.random.randint(1, 3), self.random.randint(61, 300))
            if self.random.random() < 0.5:
                log.hold_back(max(self.watermark(log), log.log_start))
        elif kind == "watermark":
            log.release()
        elif kind == "start" and log.batches:
            log.start_at(max(self.random.choice(log.batches).base_offset, log.log_start))
            if log.high_watermark and log.high_watermark[0] < log.log_start:
                log.release()
        elif kind == "roll":
            log.roll()
        elif kind == "role":
            self.leads[index] = not self.leads[index]
            log.leader_epoch += 1
            role = LEADER if self.leads[index] else FOLLOWER
            self.bench.table.set_role(log.slot, role, log.leader_epoch, 0)
        self.wake(log)

    def watermark(self, log: OwnedLog) -> int:
        slot = self.bench.table.read(log.slot)
        assert slot is not None
        return min(slot["high_watermark"][0], log.batches[-1].base_offset)

    def fetch(self) -> None:
        """One request, in which some partitions move, are added or removed; its response is
        checked.
        """
        named: dict[int, int] = {}
        for index, log in enumerate(self.logs):
            offset = self.wanted.get(index)
            if offset is None and self.random.random() < 0.3:
                named[index] = log.log_start
            elif offset is not None and self.random.random() < 0.5:
                named[index] = self.random.choice((log.end[0], log.log_start, log.end[0]))
        gone = [i for i in self.wanted if i not in named and self.random.random() < 0.1]
        if len(gone) == len(self.wanted) and not named:
            gone = []
        response = self.follower.fetch(
            {("t", index): offset for index, offset in named.items()},
            forget=[("t", index) for index in gone],
        )
        for index, offset in named.items():
            if index not in self.wanted:
                self.told.pop(index, None)
            self.wanted[index] = offset
        for index in gone:
            del self.wanted[index]
            self.told.pop(index, None)
        self.check(response)

    def wait(self) -> None:
        """A request that waits until a change completes it, or for its timeout."""
        response = self.follower.start({}, max_wait_ms=500)
        for _ in range(6):
            if response is None:
                self.change()
                response = next(iter(self.bench.completed().values()), None)
        if response is None:
            self.bench.engine.expire_at(self.bench.now_ms + 500)
            (response,) = self.bench.completed().values()
        self.check(response)

    def check(self, response: Any) -> None:
        rows = {key[1]: row for key, row in self.bench.partitions(response).items()}
        self.take_reports()
        expected = {}
        for index, offset in self.wanted.items():
            log, slot = self.logs[index], self.bench.table.read(self.logs[index].slot)
            assert slot is not None
            if not self.leads[index]:
                expected[index] = ("error", 6)
                self.told[index] = (-1, -1)
                continue
            if not slot["log_start_offset"] <= offset <= slot["log_end"][0]:
                expected[index] = ("error", 1)
                self.told[index] = (-1, -1)
                continue
            assert self.owner[log.slot] == offset
            now = slot["high_watermark"][0], slot["log_start_offset"]
            data = log.expected(offset, log.end, 1 << 20, first=True)
            if data or self.told.get(index) != now:
                expected[index] = ("data", data, *now)
            self.told[index] = now
        found = {
            index: ("error", row.error_code)
            if row.error_code
            else ("data", bytes(row.records), row.high_watermark, row.log_start_offset)
            for index, row in rows.items()
        }
        assert found == expected

    def take_reports(self) -> None:
        new = reports(self.bench)[self.reports_seen :]
        self.reports_seen += len(new)
        for report in new:
            if report.flags & PROGRESS:
                self.owner[report.slot] = report.offset
            if report.flags & LEFT:
                self.owner.pop(report.slot, None)


@pytest.mark.parametrize("seed", range(12))
def test_responses_of_a_session_have_what_is_new_and_nothing_else(
    tmp_path: Path, seed: int
) -> None:
    model = Model(tmp_path, seed)
    model.wanted = {0: 0}
    model.check(model.follower.fetch({("t", 0): 0}))
    stood = 0
    for _ in range(STEPS):
        for _ in range(model.random.choice((0, 0, 1, 2))):
            model.change()
        if model.random.random() < 0.3:
            model.wait()
        model.fetch()
        stood += model.bench.engine.counts()["standing"]
    assert stood > STEPS // 4, "the histories have idle partitions"
