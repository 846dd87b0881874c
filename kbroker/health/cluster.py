"""The health of a cluster, from what its brokers say of it. Pure.

Nothing is listed that is well. What could not be found out is in ``ClusterFacts.unknown``, not
taken for well or wrong.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kbroker.health.broker import (
    LOW_SHARE,
    VERY_LOW_SHARE,
    DirectoryFact,
)
from kbroker.health.finding import CLUSTER, CRITICAL, WARNING, Finding, by_severity
from kbroker.health.settings import SettingFact
from kbroker.wording import counted

# BOUND: topics, partitions or groups that a finding names.
NAMED_MAX = 5
# Clocks that differ by less cannot be told from a slow answer.
CLOCK_MS = 2_000
Partition = tuple[str, int]


class MissingFact(NamedTuple):
    """A broker that has replicas but is not registered. address: ``host:port``, None if nobody
    knows. offline, under_replicated: partitions with a replica there.
    """

    node: int
    address: str | None
    since_ms: int | None
    offline: int
    under_replicated: int


class UnreachableFact(NamedTuple):
    """A broker that is registered but does not answer here. advice: what to do, if known."""

    subject: str
    address: str
    why: str
    advice: str | None


class PartitionFact(NamedTuple):
    """A partition without a leader, or with replicas that are not in sync."""

    topic: str
    number: int
    leader: int | None
    replicas: Sequence[int]
    isr: Sequence[int]


class DiskFact(NamedTuple):
    """A log directory of a broker."""

    node: int
    directory: DirectoryFact


# Between two looks at groups: a little more than clients leave between two commits
# (auto.commit.interval.ms).
GROUP_WATCH_S = 6.0


class GroupFact(NamedTuple):
    """A group that has not read all, looked at twice. seconds: between the looks. read, written:
    records that it has committed, and that came meanwhile.
    """

    group: str
    lag: int
    seconds: float
    read: int
    written: int
    members: int


class TransactionFact(NamedTuple):
    """A transaction that is open for longer than it may."""

    transactional_id: str
    open_s: float


class LeftOpenFact(NamedTuple):
    """A transaction that no coordinator will end, in a partition from this offset on. last_ms: the
    time of its last record.
    """

    topic: str
    partition: int
    offset: int
    last_ms: int


class ClientFact(NamedTuple):
    """A client that has to wait, as it uses more than its quota."""

    node: int
    name: str
    quota: str


class ReportedFact(NamedTuple):
    """What a broker has found out about itself."""

    node: int
    finding: Finding


class ClusterFacts(NamedTuple):
    """now_ms: of the wall clock. bootstrap: for commands. clocks_ms: how far the clock of a broker
    is ahead of this machine's. unknown: what could not be found out, and why.
    """

    now_ms: int
    bootstrap: str
    registered: Sequence[int]
    controller: int | None
    missing: Sequence[MissingFact] = ()
    unreachable: Sequence[UnreachableFact] = ()
    partitions: Sequence[PartitionFact] = ()
    disks: Sequence[DiskFact] = ()
    groups: Sequence[GroupFact] = ()
    transactions: Sequence[TransactionFact] = ()
    left_open: Sequence[LeftOpenFact] = ()
    settings: Sequence[SettingFact] = ()
    clients: Sequence[ClientFact] = ()
    reported: Sequence[ReportedFact] = ()
    clocks_ms: Sequence[tuple[int, int]] = ()
    unknown: Sequence[str] = ()


def findings(facts: ClusterFacts) -> list[Finding]:
    """All that is wrong with the cluster, the worst first."""
    return by_severity(
        [
            *_of_brokers(facts),
            *_of_partitions(facts),
            *_of_disks(facts),
            *_of_transactions(facts),
            *_of_groups(facts),
            *_of_clients(facts),
            *_of_clocks(facts),
            *_of_settings(facts),
        ]
    )


def missing_text(one: MissingFact) -> str:
    """``broker 3 (10.0.0.3:9092)``."""
    return f"broker {one.node}" + (f" ({one.address})" if one.address else "")


def missing_cost(one: MissingFact) -> str:
    """What its absence costs."""
    costs = []
    if one.offline:
        have, them = ("has", "it") if one.offline == 1 else ("have", "them")
        partitions = counted(one.offline, "partition")
        costs.append(f"{partitions} {have} no leader: nobody can read or write {them}")
    if one.under_replicated:
        are = "is" if one.under_replicated == 1 else "are"
        costs.append(f"{counted(one.under_replicated, 'partition')} {are} under-replicated")
    return "; ".join(costs) or "nothing yet: all its partitions are in sync elsewhere"


def named(names: Iterable[str], count: int | None = None) -> str:
    """The first ones, and how many more there are."""
    listed = list(names)
    more = (len(listed) if count is None else count) - len(listed[:NAMED_MAX])
    return ", ".join(listed[:NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")


def _of_brokers(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.controller is None:
        yield Finding(
            "no-controller", CRITICAL, CLUSTER, "controller", "no broker is the controller",
            "no leader can change, and no topic be created", "kbroker status --local",
        )  # fmt: skip
    for one in facts.missing:
        where = f"  # on {one.address.rpartition(':')[0]}" if one.address else ""
        yield Finding(
            "broker-missing", CRITICAL, CLUSTER, missing_text(one), "it is not registered",
            missing_cost(one), f"systemctl start kbroker{where}", one.since_ms,
        )  # fmt: skip
    for away in facts.unreachable:
        yield Finding(
            "broker-unreachable", CRITICAL, CLUSTER, f"{away.subject} ({away.address})",
            f"it cannot be reached from here: {away.why}",
            away.advice or "clients here cannot use the partitions that it leads",
            f"kbroker doctor -b {shlex.quote(away.address)}",
        )  # fmt: skip
    for node, finding in facts.reported:
        yield finding._replace(scope=CLUSTER, subject=f"{finding.subject} of broker {node}")


def _of_partitions(facts: ClusterFacts) -> Iterator[Finding]:
    """By cause: what missing brokers explain is told with them."""
    missing = {one.node for one in facts.missing}
    leaderless = [
        one for one in facts.partitions
        if one.leader is None and not missing.intersection(one.replicas)
    ]  # fmt: skip
    if leaderless:
        first = leaderless[0]
        yield Finding(
            "partitions-offline", CRITICAL, CLUSTER,
            named(f"{one.topic}-{one.number}" for one in leaderless),
            "no leader, though the brokers of their replicas are registered: the replicas that "
            "were in sync are on failed disks, or not copied",
            "nobody can read or write them",
            f"kbroker topic describe {shlex.quote(first.topic)} -b {facts.bootstrap}",
        )  # fmt: skip
    behind: dict[int, list[PartitionFact]] = {}
    for one in facts.partitions:
        for node in one.replicas:
            if one.leader is not None and node not in one.isr and node not in missing:
                behind.setdefault(node, []).append(one)
    failed = {disk.node for disk in facts.disks if disk.directory.has_failed}
    for node, some in sorted(behind.items()):
        why = "its log directory has failed" if node in failed else "it is catching up, or too slow"
        copies, those = f"replicas of {len(some):,} partitions are", "these partitions have"
        if len(some) == 1:
            copies, those = "replica of 1 partition is", "this partition has"
        yield Finding(
            "replicas-behind", WARNING, CLUSTER, f"broker {node}",
            f"its {copies} not in sync: {why}",
            f"{those} fewer copies: " + named(f"{one.topic}-{one.number}" for one in some),
            "kbroker top  # on that machine",
        )  # fmt: skip


def _of_disks(facts: ClusterFacts) -> Iterator[Finding]:
    reporting = {row.node for row in facts.reported}
    for node, one in facts.disks:
        if node in reporting:
            continue  # it knows its own better
        subject = f"log directory {one.path} of broker {node}"
        command = f"df -h {shlex.quote(one.path)}"
        lower = f"{command}; kbroker config set topic TOPIC retention.ms=3600000"
        share = one.free_share
        if one.has_failed:
            yield Finding(
                "log-dir-failed", CRITICAL, CLUSTER, subject,
                "offline, as reading, writing or syncing it has failed",
                "its replicas cannot be read or written there until the disk is mended",
                "dmesg | tail; systemctl restart kbroker",
            )  # fmt: skip
        elif one.rejects_writes:
            yield Finding(
                "disk-full", CRITICAL, CLUSTER, subject, f"full: {one.room_text}",
                "producers get KAFKA_STORAGE_ERROR until there is room; reading goes on", lower,
            )  # fmt: skip
        elif share is not None and share < LOW_SHARE:
            yield Finding(
                "disk-low", CRITICAL if share < VERY_LOW_SHARE else WARNING, CLUSTER, subject,
                f"{share:.1%} free: {one.room_text}", "writes are rejected when it is full", lower,
            )  # fmt: skip


def _of_transactions(facts: ClusterFacts) -> Iterator[Finding]:
    for one in facts.transactions:
        name = shlex.quote(one.transactional_id)
        yield Finding(
            "transaction-hangs", CRITICAL, CLUSTER, f"transaction {one.transactional_id}",
            f"open for {one.open_s:,.0f} s",
            "readers of committed records wait behind it",
            f"kafka-transactions --bootstrap-server {facts.bootstrap} forceTerminateTransaction "
            f"--transactionalId {name}",
            int(facts.now_ms - one.open_s * 1000),
        )  # fmt: skip
    for left in facts.left_open:
        place = f"{shlex.quote(left.topic)} {left.partition} {left.offset}"
        yield Finding(
            "transaction-left-open", CRITICAL, CLUSTER, f"{left.topic}-{left.partition}",
            f"a transaction is open from offset {left.offset} on, and no coordinator will end it",
            "readers of committed records get no further",
            f"kbroker transaction abort-hanging {place} -b {facts.bootstrap}",
            left.last_ms,
        )  # fmt: skip


def _of_groups(facts: ClusterFacts) -> Iterator[Finding]:
    for one in facts.groups:
        describe = f"kbroker group describe {shlex.quote(one.group)} -b {facts.bootstrap}"
        if one.read <= 0:
            kind, what = "group-stands-still", f"it has committed nothing for {one.seconds:.0f} s"
            if not one.members:
                what += ", and has no members"
            cost = f"{one.lag:,} records wait to be read"
        elif one.written > one.read:
            kind = "group-falls-behind"
            what = (
                f"it reads {one.read / one.seconds:,.0f} records/s, and "
                f"{one.written / one.seconds:,.0f} come"
            )
            cost = f"{one.lag:,} records wait to be read, and more and more"
        else:
            continue
        yield Finding(kind, WARNING, CLUSTER, f"group {one.group}", what, cost, describe)


def _of_clients(facts: ClusterFacts) -> Iterator[Finding]:
    for one in facts.clients:
        yield Finding(
            "client-throttled", WARNING, CLUSTER, one.name,
            f"it uses more than its quota of {one.quota} on broker {one.node}",
            "its requests are delayed",
            f"kafka-configs --bootstrap-server {facts.bootstrap} --describe --entity-type clients",
        )  # fmt: skip


def _of_clocks(facts: ClusterFacts) -> Iterator[Finding]:
    """Compared with each other: the clock here may be the one that is wrong."""
    if len(facts.clocks_ms) < 2:
        return
    ordered = sorted(ahead for _, ahead in facts.clocks_ms)
    middle = ordered[len(ordered) // 2]
    for node, ahead in facts.clocks_ms:
        off_ms = ahead - middle
        if abs(off_ms) > CLOCK_MS:
            yield Finding(
                "clock-differs", WARNING, CLUSTER, f"broker {node}",
                f"its clock is {abs(off_ms) / 1000:.1f} s {'ahead of' if off_ms > 0 else 'behind'}"
                " most others",
                "timestamps, retention and transactions' timeouts are off by as much",
                "timedatectl status  # on that machine",
            )  # fmt: skip


def _of_settings(facts: ClusterFacts) -> Iterator[Finding]:
    for one in facts.settings:
        first = shlex.quote(one.topics[0]) if one.topics else "TOPIC"
        yield Finding(
            "setting-endangers-data", WARNING, CLUSTER, named(one.topics, one.total),
            f"{one.setting} is {one.value}", one.cost,
            one.better.format(topic=first, bootstrap=facts.bootstrap),
        )  # fmt: skip
