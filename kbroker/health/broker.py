"""The health of one broker, from its process table, its log directories and its store. Pure.

A neighbour that is dead is no matter of this broker: ``cluster`` speaks of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kbroker.health.finding import (
    BROKER,
    CRITICAL,
    HEALTHY,
    LIVE,
    READY,
    WARNING,
    WRITES,
    Finding,
    by_severity,
    failing,
)
from kbroker.wording import size_text

# A process shows a sign of life four times a second, the supervisor once. Without one for so long
# it is stuck, and after the longer time the supervisor aborts it.
STUCK_MS = 5_000
STALLED_MS = 30_000
READY_STATE, STUCK_STATE, GONE_STATE = "ready", "stuck", "gone"
SUPERVISOR_NAME = "supervisor"
# Shares of a disk that are free, below which it is said.
LOW_SHARE, VERY_LOW_SHARE = 0.15, 0.05
# A rejected write is news for so long; later it counts only while there is no more room than it
# found. Room that is less than this more, or this share of the disk, is none.
REJECTED_MS = 3_000
ROOM_BYTES, ROOM_SHARE = 1 << 20, 0.01
# A process that was started again as often, and so recently, does not keep running.
RESTARTS_MIN, RESTARTED_S = 2, 600.0
_SERVING = frozenset({READY, WRITES, HEALTHY})


class ProcessFact(NamedTuple):
    """state: ``starting``, ``ready``, ``stopping``, or ``gone``. silent_ms: since its last sign of
    life; None if it cannot be had. restarts: since the broker started. age_s: since the last one;
    None without one, or if it cannot be had.
    """

    name: str
    state: str
    silent_ms: int | None
    restarts: int = 0
    age_s: float | None = None

    @property
    def shown_state(self) -> str:
        """``stuck`` instead of ``ready`` without a sign of life for STUCK_MS."""
        is_silent = self.silent_ms is not None and self.silent_ms > STUCK_MS
        return STUCK_STATE if self.state == READY_STATE and is_silent else self.state


class DirectoryFact(NamedTuple):
    """A log directory. total_bytes, free_bytes: of its file system, for this broker's user; None
    if they cannot be had. rejected_ms, rejecting_ms: how long ago the last write found no room, and
    the first one of those in a row; None: none did. free_then_bytes: what was free at the last one;
    -1 if room was not what it lacked (a quota, a limit of files).
    """

    path: str
    has_failed: bool
    total_bytes: int | None
    free_bytes: int | None
    rejected_ms: int | None = None
    rejecting_ms: int | None = None
    free_then_bytes: int = -1

    @property
    def rejects_writes(self) -> bool:
        """Whether a write finds no room now."""
        if self.has_failed:
            return False
        if self.rejected_ms is not None and self.rejected_ms <= REJECTED_MS:
            return True
        if self.free_bytes is None or self.total_bytes is None:
            return False
        if self.free_bytes == 0:
            return True
        enough = min(ROOM_BYTES, int(self.total_bytes * ROOM_SHARE))
        return self.rejected_ms is not None and self.free_bytes < self.free_then_bytes + enough

    @property
    def state(self) -> str:
        if self.has_failed:
            return "failed"
        return "full" if self.rejects_writes else "online"

    @property
    def free_share(self) -> float | None:
        if self.free_bytes is None or not self.total_bytes:
            return None
        return self.free_bytes / self.total_bytes

    @property
    def room_text(self) -> str:
        """``3.2 GiB of 100.0 GiB free``; empty if it cannot be had."""
        if self.free_bytes is None or self.total_bytes is None:
            return ""
        return f"{size_text(self.free_bytes)} of {size_text(self.total_bytes)} free"


class BrokerFacts(NamedTuple):
    """now_ms: of the wall clock. processes: with the supervisor. has_parent: whether the supervisor
    that started this process lives. zookeeper: whether it is connected; None where there is none.
    """

    broker_id: int
    now_ms: int
    processes: Sequence[ProcessFact]
    directories: Sequence[DirectoryFact]
    has_parent: bool = True
    zookeeper: bool | None = None


class Check(NamedTuple):
    """A line of a probe. problem: None if all is well. detail: what it has to say then."""

    name: str
    problem: str | None
    detail: str = ""


def findings(facts: BrokerFacts) -> list[Finding]:
    """All that is wrong with this broker, the worst first."""
    return by_severity(
        [
            *_of_processes(facts),
            *_of_directories(facts),
            *_of_zookeeper(facts),
            *_of_restarts(facts),
        ]
    )


def is_serving(process: ProcessFact) -> bool:
    """Whether it does what it is there for."""
    return process.shown_state == READY_STATE


def checks(facts: BrokerFacts, probe: str) -> list[Check]:
    """The checks of a probe: LIVE, READY, WRITES or HEALTHY."""
    problems: dict[str, str] = {}
    for finding in failing(findings(facts), probe):
        problems.setdefault(finding.check, finding.what)
    names: dict[str, str] = {SUPERVISOR_NAME: ""}
    if probe != LIVE:
        names["log-dirs"] = ""
        names |= {one.name: "" for one in facts.processes if one.name != SUPERVISOR_NAME}
    if probe in (WRITES, HEALTHY):
        names |= {_disk(one): one.room_text for one in facts.directories}
    if probe == HEALTHY and facts.zookeeper is not None:
        names["zookeeper"] = ""
    names |= {name: "" for name in problems if name not in names}
    return [Check(name, problems.get(name), detail) for name, detail in names.items()]


def _since(facts: BrokerFacts, age_ms: int | None) -> int | None:
    return None if age_ms is None else facts.now_ms - age_ms


def _of_processes(facts: BrokerFacts) -> Iterator[Finding]:
    if not facts.has_parent:
        yield Finding(
            "supervisor-gone",
            CRITICAL,
            BROKER,
            SUPERVISOR_NAME,
            "it is gone",
            "a process that ends is not started again, and nothing stops this broker in order",
            "kbroker stop; kbroker start",
            fails=_SERVING | {LIVE},
            check=SUPERVISOR_NAME,
        )
    for one in facts.processes:
        if is_serving(one):
            continue
        is_supervisor = one.name == SUPERVISOR_NAME
        if is_supervisor and not facts.has_parent:
            continue
        is_stuck = one.shown_state == STUCK_STATE
        is_stalled = is_stuck and (one.silent_ms or 0) > STALLED_MS
        what = f"not ready: {one.state}"
        cost = "requests that need it wait"
        if is_stuck:
            what = f"stuck: no sign of life for {(one.silent_ms or 0) / 1000:.0f} s"
            cost += "; the supervisor aborts it after 30 s, and starts it again"
        if is_supervisor:
            cost = "a process that ends is not started again meanwhile"
        yield Finding(
            "process-stuck" if is_stuck else "process-not-ready",
            CRITICAL if is_stuck else WARNING,
            BROKER,
            one.name,
            what,
            cost,
            "kbroker top",
            _since(facts, one.silent_ms) if is_stuck else None,
            _SERVING | {LIVE} if is_stalled else _SERVING,
            one.name,
        )


def _of_restarts(facts: BrokerFacts) -> Iterator[Finding]:
    for one in facts.processes:
        if one.restarts < RESTARTS_MIN or one.age_s is None or one.age_s > RESTARTED_S:
            continue
        yield Finding(
            "process-restarts",
            WARNING,
            BROKER,
            one.name,
            f"it was started again {one.restarts:,} times, the last time {one.age_s:.0f} s ago",
            "requests that it works on fail each time; the log says why it ended",
            "journalctl -u kbroker -p err",
            _since(facts, int(one.age_s * 1000)),
        )


def _of_directories(facts: BrokerFacts) -> Iterator[Finding]:
    failed = [one for one in facts.directories if one.has_failed]
    all_failed = bool(failed) and len(failed) == len(facts.directories)
    if all_failed:
        yield Finding(
            "log-dirs-failed",
            CRITICAL,
            BROKER,
            "log directories",
            f"all {len(failed)} are offline",
            "nothing of this broker can be read or written",
            "dmesg | tail; kbroker stop; kbroker start",
            fails=_SERVING,
            check="log-dirs",
        )
    for one in facts.directories:
        subject = f"log directory {one.path}"
        if one.has_failed:
            yield Finding(
                "log-dir-failed",
                CRITICAL,
                BROKER,
                subject,
                "offline, as reading, writing or syncing it has failed",
                "its replicas cannot be read or written here until the disk is mended",
                "dmesg | tail; kbroker stop; kbroker start",
                fails=frozenset({HEALTHY}),
                check=_disk(one),
            )
        elif one.rejects_writes:
            room = f" ({one.room_text})" if one.room_text else ""
            yield Finding(
                "disk-full",
                CRITICAL,
                BROKER,
                subject,
                f"rejects writes of {one.path}, for want of room{room}",
                "producers get KAFKA_STORAGE_ERROR until there is room; reading goes on",
                f"df -h {one.path}; kbroker config set topic TOPIC retention.ms=3600000",
                _since(facts, one.rejecting_ms),
                frozenset({WRITES, HEALTHY}),
                _disk(one),
            )
        elif one.free_share is not None and one.free_share < LOW_SHARE:
            very = one.free_share < VERY_LOW_SHARE
            yield Finding(
                "disk-low",
                CRITICAL if very else WARNING,
                BROKER,
                subject,
                f"{one.free_share:.1%} free: {one.room_text}",
                "writes are rejected when it is full",
                f"df -h {one.path}; kbroker config set topic TOPIC retention.ms=3600000",
                check=_disk(one),
            )


def _of_zookeeper(facts: BrokerFacts) -> Iterator[Finding]:
    if facts.zookeeper is False:
        yield Finding(
            "zookeeper-disconnected",
            CRITICAL,
            BROKER,
            "ZooKeeper",
            "disconnected",
            "partitions are served as they are, but no leader can change and no topic be created",
            "kbroker config get broker default zookeeper.connect",
            fails=frozenset({HEALTHY}),
            check="zookeeper",
        )


def _disk(one: DirectoryFact) -> str:
    return f"disk {one.path}"
