"""The health of a cluster: what is wrong, by cause, and the command that mends it."""

from __future__ import annotations

from kbroker.health.broker import DirectoryFact
from kbroker.health.cluster import (
    ClusterFacts,
    DiskFact,
    GroupFact,
    LeftOpenFact,
    MissingFact,
    PartitionFact,
    ReportedFact,
    TransactionFact,
    UnreachableFact,
    findings,
)
from kbroker.health.finding import BROKER, CLUSTER, CRITICAL, Finding
from kbroker.health.settings import SettingFact

WELL = ClusterFacts(1_000_000, "a:9092", [1, 2, 3], 1)
GIB = 1 << 30
STUCK = Finding("process-stuck", CRITICAL, BROKER, "io-0", "stuck", "requests wait", "kbroker top")


def kinds(facts: ClusterFacts) -> list[str]:
    return [one.kind for one in findings(facts)]


def test_nothing_is_listed_that_is_well() -> None:
    well = WELL._replace(
        disks=[DiskFact(1, DirectoryFact("/d", False, 100 * GIB, 60 * GIB))],
        groups=[GroupFact("g", 10, 6.0, read=50, written=50, members=1)],
        clocks_ms=[(1, 10), (2, -40), (3, 900)],
    )

    assert findings(well) == []


def test_missing_broker_is_named_with_its_address_its_time_and_its_cost() -> None:
    (found,) = findings(WELL._replace(missing=[MissingFact(3, "c:9092", 5_000, 2, 40)]))

    assert found.subject == "broker 3 (c:9092)"
    assert found.since_ms == 5_000
    assert "2 partitions have no leader" in found.cost
    assert "40 partitions are under-replicated" in found.cost
    assert found.command == "systemctl start kbroker  # on c"


def test_missing_broker_of_unknown_address_has_none() -> None:
    (found,) = findings(WELL._replace(missing=[MissingFact(3, None, None, 0, 0)]))

    assert (found.subject, found.since_ms) == ("broker 3", None)
    assert found.command == "systemctl start kbroker"


def test_partitions_of_a_missing_broker_are_told_with_it_only() -> None:
    facts = WELL._replace(
        missing=[MissingFact(3, None, None, 1, 1)],
        partitions=[
            PartitionFact("t", 0, None, [3], [3]),
            PartitionFact("t", 1, 1, [1, 3], [1]),
            PartitionFact("t", 2, 1, [1, 2], [1]),
            PartitionFact("u", 0, None, [1, 2], [1]),
        ],
    )

    found = {one.kind: one for one in findings(facts)}

    assert found.keys() == {"broker-missing", "partitions-offline", "replicas-behind"}
    assert found["partitions-offline"].subject == "u-0"
    behind = found["replicas-behind"]
    assert behind.subject == "broker 2"
    assert behind.what.startswith("its replica of 1 partition is not in sync: ")
    assert behind.cost == "this partition has fewer copies: t-2"
    assert found["broker-missing"].cost == (
        "1 partition has no leader: nobody can read or write it; 1 partition is under-replicated"
    )


def test_groups_are_told_apart_by_what_they_read_and_what_comes() -> None:
    groups = [
        GroupFact("still", 100, 6.0, read=0, written=10, members=1),
        GroupFact("slow", 100, 6.0, read=6, written=60, members=1),
        GroupFact("catching up", 100, 6.0, read=60, written=6, members=1),
        GroupFact("left", 7, 6.0, read=0, written=0, members=0),
    ]

    found = findings(WELL._replace(groups=groups))

    assert [(one.kind, one.subject) for one in found] == [
        ("group-stands-still", "group still"),
        ("group-falls-behind", "group slow"),
        ("group-stands-still", "group left"),
    ]
    assert "has no members" in found[2].what
    assert "1 records/s, and 10 come" in found[1].what


def test_clock_is_compared_with_those_of_the_others() -> None:
    (found,) = findings(WELL._replace(clocks_ms=[(1, 60_000), (2, 60_010), (3, 0)]))

    assert (found.kind, found.subject) == ("clock-differs", "broker 3")
    assert "60.0 s behind" in found.what


def test_the_worst_comes_first_and_everything_has_a_command() -> None:
    facts = WELL._replace(
        controller=None,
        unreachable=[UnreachableFact("broker 2", "b:9092", "refused", None)],
        disks=[
            DiskFact(1, DirectoryFact("/d", False, 100 * GIB, 10 * GIB)),
            DiskFact(2, DirectoryFact("/e", False, 100 * GIB, 0)),
            DiskFact(2, DirectoryFact("/f", True, None, None)),
        ],
        transactions=[TransactionFact("it's", 2_000)],
        left_open=[LeftOpenFact("t", 3, 1234, 1_700_000_000_000)],
        settings=[SettingFact("min.insync.replicas", "1", 1, ["t"], "x", "alter {topic}")],
        reported=[ReportedFact(1, STUCK)],
    )

    found = findings(facts)

    assert [one.severity for one in found] == sorted(one.severity for one in found)
    assert all(one.command and one.cost for one in found)
    assert {one.kind for one in found} == {
        "no-controller", "broker-unreachable", "disk-full", "log-dir-failed", "transaction-hangs",
        "setting-endangers-data", "process-stuck", "transaction-left-open",
    }  # fmt: skip
    (transaction,) = [one for one in found if one.kind == "transaction-hangs"]
    assert transaction.command is not None
    assert "'it'\"'\"'s'" in transaction.command


def test_what_a_broker_says_of_itself_is_the_clusters_too_and_counts_before_its_disks() -> None:
    disk = DiskFact(1, DirectoryFact("/d", False, 100 * GIB, 0))

    (found,) = findings(WELL._replace(reported=[ReportedFact(1, STUCK)], disks=[disk]))

    assert (found.scope, found.subject) == (CLUSTER, "io-0 of broker 1")
