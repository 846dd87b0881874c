"""A follower's fetches with a fetch engine, and its reports to the owners of logs."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from support.storage.fetch_log import FetchBench, OwnedLog, follower_fields

from kbroker._ext.shared import lane_layout

NETWORK_BIT = 1 << 1  # FetchBench's engine is network process 1
REPORT = struct.Struct(lane_layout.FOLLOWER_FORMAT)


class Report(NamedTuple):
    """A FollowerProgress."""

    slot: int
    slot_incarnation: int
    replica: int
    leader_epoch: int
    offset: int
    log_start: int
    log_end_seen: int
    segment: int
    position: int
    request_ms: int
    segment_version: int
    cell: int
    flags: int
    unused: int


class Follower:
    """A follower's fetches with one engine."""

    def __init__(self, bench: FetchBench, replica: int = 2, version: int = 12) -> None:
        self.bench, self.replica, self.version = bench, replica, version
        self.session = self.epoch = 0

    def fetch(self, wanted: Any, **fields: Any) -> Any:
        """A request of the session that gets its response at once; the first one starts it."""
        response = self.start(wanted, **fields)
        assert response is not None, "parked"
        if not self.session:
            self.session = response.session_id
        return response

    def start(self, wanted: Any, **fields: Any) -> Any:
        fields = {**follower_fields(self.replica, self.version), **fields}
        if self.version >= 7:
            fields = {"session_id": self.session, "session_epoch": self.epoch, **fields}
        response = self.bench.start(wanted, self.version, **fields)
        self.epoch += 1
        return response


def reports(bench: FetchBench, worker: int = 0) -> list[Report]:
    return [Report(*row) for row in REPORT.iter_unpack(bench.engine.reports.waiting(worker))]


def new_reports(bench: FetchBench, before: list[Report]) -> list[Report]:
    found = reports(bench)
    assert found[: len(before)] == before
    return found[len(before) :]


def wake(bench: FetchBench, log: OwnedLog) -> bool:
    """The wake-up of an io worker, if this process has asked for one."""
    if bench.table.waiters(log.slot) & NETWORK_BIT:
        bench.engine.wake_slot(log.slot, bench.now_ms)
        return True
    return False
