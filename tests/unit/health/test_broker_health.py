"""The health of one broker: what fails which probe."""

from __future__ import annotations

import pytest

from kbroker.health.broker import (
    BrokerFacts,
    DirectoryFact,
    ProcessFact,
    checks,
    findings,
)
from kbroker.health.finding import HEALTHY, LIVE, READY, WRITES

GIB = 1 << 30
ROOM = DirectoryFact("/data", False, 100 * GIB, 50 * GIB)
SUPERVISOR = ProcessFact("supervisor", "ready", 100)
IO = ProcessFact("io-0", "ready", 100)
ALL = {LIVE, READY, WRITES, HEALTHY}


def facts(
    *processes: ProcessFact,
    directories: tuple[DirectoryFact, ...] = (ROOM,),
    has_parent: bool = True,
    zookeeper: bool | None = None,
) -> BrokerFacts:
    return BrokerFacts(
        1, 1_000_000, processes or (SUPERVISOR, IO), directories, has_parent, zookeeper
    )


def failed(told: BrokerFacts) -> set[str]:
    return {
        probe for probe in ALL if any(check.problem is not None for check in checks(told, probe))
    }


def test_well_broker_has_no_findings_and_fails_no_probe() -> None:
    assert findings(facts(zookeeper=True)) == []
    assert failed(facts(zookeeper=True)) == set()


@pytest.mark.parametrize(
    ("told", "kind", "fails"),
    [
        (facts(SUPERVISOR, IO._replace(silent_ms=5_001)), "process-stuck", ALL - {LIVE}),
        (facts(SUPERVISOR, IO._replace(silent_ms=30_001)), "process-stuck", ALL),
        (facts(SUPERVISOR._replace(silent_ms=5_001), IO), "process-stuck", ALL - {LIVE}),
        (facts(SUPERVISOR, IO._replace(state="starting")), "process-not-ready", ALL - {LIVE}),
        (facts(SUPERVISOR, IO._replace(state="gone")), "process-not-ready", ALL - {LIVE}),
        (facts(has_parent=False), "supervisor-gone", ALL),
        (
            facts(directories=(ROOM._replace(free_bytes=0),)),
            "disk-full",
            {WRITES, HEALTHY},
        ),
        (
            facts(directories=(ROOM, ROOM._replace(path="/more", has_failed=True))),
            "log-dir-failed",
            {HEALTHY},
        ),
        (
            facts(directories=(ROOM._replace(has_failed=True),)),
            "log-dirs-failed",
            ALL - {LIVE},
        ),
        (facts(zookeeper=False), "zookeeper-disconnected", {HEALTHY}),
        (facts(directories=(ROOM._replace(free_bytes=14 * GIB),)), "disk-low", set()),
    ],
)
def test_fault_has_a_finding_and_fails_its_probes(
    told: BrokerFacts, kind: str, fails: set[str]
) -> None:
    found = findings(told)

    assert found[0].kind == kind
    assert found[0].command
    assert failed(told) == fails


def test_silence_of_five_seconds_is_no_finding_yet() -> None:
    assert findings(facts(SUPERVISOR, IO._replace(silent_ms=5_000))) == []


def test_stuck_process_is_stuck_since_its_last_sign_of_life() -> None:
    (found,) = findings(facts(SUPERVISOR, IO._replace(silent_ms=7_000)))

    assert found.since_ms == 1_000_000 - 7_000
    assert found.document["since_ms"] == 993_000
    assert "since_ms" not in findings(facts(has_parent=False))[0].document


def test_share_below_five_percent_is_critical() -> None:
    low = facts(directories=(ROOM._replace(free_bytes=14 * GIB),))
    very_low = facts(directories=(ROOM._replace(free_bytes=4 * GIB),))

    assert [one.severity for one in findings(low) + findings(very_low)] == ["warning", "critical"]


# -- rejected writes


REJECTING = ROOM._replace(
    free_bytes=4096, rejected_ms=1_000, rejecting_ms=9_000, free_then_bytes=4096
)


def test_rejected_write_is_told_at_once_and_with_its_directory() -> None:
    (found,) = findings(facts(directories=(REJECTING,)))

    assert found.kind == "disk-full"
    assert "/data" in found.what
    assert found.since_ms == 1_000_000 - 9_000


def test_directory_stays_full_while_nobody_writes_and_there_is_no_more_room() -> None:
    assert REJECTING._replace(rejected_ms=3_600_000).rejects_writes


def test_directory_takes_writes_again_when_there_is_more_room() -> None:
    assert not REJECTING._replace(rejected_ms=4_000, free_bytes=GIB).rejects_writes
    assert REJECTING._replace(rejected_ms=1_000, free_bytes=GIB).rejects_writes


def test_write_that_lacked_something_else_than_room_is_news_for_a_while_only() -> None:
    limited = ROOM._replace(rejected_ms=1_000, rejecting_ms=1_000, free_then_bytes=-1)

    assert limited.rejects_writes
    assert not limited._replace(rejected_ms=4_000).rejects_writes


def test_size_that_cannot_be_had_is_absent() -> None:
    unknown = DirectoryFact("/data", False, None, None)

    assert findings(facts(directories=(unknown,))) == []
    disk = next(
        one for one in checks(facts(directories=(unknown,)), HEALTHY) if one.name == "disk /data"
    )
    assert (disk.problem, disk.detail) == (None, "")
