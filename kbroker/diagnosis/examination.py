"""What is wrong with a cluster: asks its brokers, and leaves the judgement to ``health.cluster``.

Each question may fail by itself, for want of a right or of an answer: then it is among what is
unknown, and the others are asked all the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

from kbroker.client.admin.cluster import ClusterSummary, probe, summarize_cluster
from kbroker.client.admin.configs import TOPIC, Setting, describe_configs
from kbroker.client.admin.partitions import LogDirTotal, in_requests, log_dir_totals
from kbroker.client.admin.topics import TopicState, list_topics
from kbroker.client.admin.transactions import (
    describe_transaction,
    hanging_transactions,
    list_transactions,
)
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError, RejectedError, UnsupportedByBroker
from kbroker.diagnosis.group_progress import NotWatchedYet
from kbroker.health.broker import DirectoryFact
from kbroker.health.cluster import (
    ClientFact,
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
from kbroker.health.finding import CRITICAL, WARNING, Finding
from kbroker.health.settings import (
    MIN_IN_SYNC,
    UNCLEAN,
    Danger,
    SettingFact,
    TopicFact,
    danger_of,
    endangered,
    setting_facts,
)
from kbroker.protocol.messages.describe_cluster import DescribeClusterRequest

T = TypeVar("T")
# BOUND: transactions that are described.
TRANSACTIONS_MAX = 20
PROBES_AT_ONCE = 8
# How long a broker may take to answer.
REACHED_S = 3.0
# A producer has so long by default (transaction.max.timeout.ms).
TRANSACTION_OPEN_MS = 15 * 60 * 1000
ADVERTISED = "set advertised.listeners of the broker to an address that can be reached from here"


class Examination(NamedTuple):
    """What the brokers said, and what is wrong by that."""

    facts: ClusterFacts
    findings: list[Finding]


class _Asking:
    """Asks one question after the other; notes which had no answer."""

    def __init__(self) -> None:
        self.unknown: list[str] = []

    def ask(self, what: str, question: Callable[[], T]) -> T | None:
        """None if nobody knows."""
        try:
            return question()
        except ClientError as error:
            self.unknown.append(f"{what}: {error}")
            return None


def examine(
    cluster: Cluster,
    *,
    groups: Callable[[], list[GroupFact]] | None = None,
    reaches: bool = True,
) -> Examination:
    """Ask everything. groups: tells how those get on that are behind; None: they are not looked at.
    reaches: whether to connect to each broker. Raises UnreachableError, Timeout.
    """
    asking = _Asking()
    state = summarize_cluster(cluster)
    now_ms = int(time.time() * 1000)
    away = unreachable(cluster, state) if reaches else []
    gone = {one.subject for one in away}
    nodes = [row.node for row in state.brokers if _name(row.node) not in gone]
    reports = [
        report
        for node in nodes
        if (report := asking.ask(f"health of {_name(node)}", partial(report_of, cluster, node)))
    ]
    disks = [
        disk
        for node in nodes
        for disk in asking.ask(f"log directories of {_name(node)}", partial(_disks, cluster, node))
        or ()
    ]
    facts = ClusterFacts(
        now_ms,
        ",".join(f"{row.host}:{row.port}" for row in state.brokers[:1]) or cluster.bootstrap,
        [row.node for row in state.brokers],
        state.controller,
        missing_facts(state),
        away,
        [
            PartitionFact(topic, number, row.leader, row.replicas, row.isr)
            for (topic, number), row in sorted(state.troubled.items())
        ],
        disks,
        clients=[one for report in reports for one in report.clients],
        reported=[one for report in reports for one in report.findings],
        clocks_ms=[(report.node, report.ahead_ms) for report in reports],
    )
    dangers = next((one.dangers for one in reports if one.dangers is not None), None)
    if dangers is not None:
        facts = facts._replace(settings=setting_facts(dangers, len(facts.registered)))
    if away:
        what = "groups, transactions and settings" if dangers is None else "groups and transactions"
        asking.unknown.append(f"{what}: not asked, as {away[0].subject} cannot be reached")
    else:
        facts = _with_more(cluster, facts, asking, groups)
        if dangers is None:
            found = asking.ask(
                "settings", lambda: dangerous_settings(cluster, len(facts.registered))
            )
            facts = facts._replace(settings=found or ())
    facts = facts._replace(unknown=asking.unknown)
    return Examination(facts, findings(facts))


def _with_more(
    cluster: Cluster,
    facts: ClusterFacts,
    asking: _Asking,
    groups: Callable[[], list[GroupFact]] | None,
) -> ClusterFacts:
    """What all brokers must answer."""
    behind = None
    if groups is not None:
        try:
            behind = asking.ask("groups", groups)
        except NotWatchedYet as error:
            asking.unknown.append(str(error))
    open_for_long = asking.ask("transactions", lambda: _transactions(cluster, facts.now_ms))
    left_open = asking.ask("hanging transactions", lambda: _left_open(cluster, facts.now_ms))
    return facts._replace(
        groups=behind or (), transactions=open_for_long or (), left_open=left_open or ()
    )


def _name(node: int) -> str:
    return f"broker {node}"


class Report(NamedTuple):
    """What a broker says of itself. ahead_ms: its clock of this machine's. dangers: to topics, as
    far as this user may see them; None from one that does not look for them.
    """

    node: int
    findings: list[ReportedFact]
    clients: list[ClientFact]
    ahead_ms: int
    dangers: dict[str, Danger] | None = None


def report_of(cluster: Cluster, node: int) -> Report | None:
    """None from a broker that does not say: Kafka's do not. Raises ClientError."""
    request = DescribeClusterRequest(include_health=True)
    before = time.time()
    try:
        response = cluster.call(node, request, what="health")
    except UnsupportedByBroker:
        return None
    after = time.time()
    if response.error_code:
        raise RejectedError(response.error_code, "health", response.error_message)
    if not response.health:
        return None
    return _report(node, response.health, (before + after) * 500)


def _report(node: int, text: str, asked_ms: float) -> Report | None:
    """None for a document of a later release that is another one."""
    try:
        document = json.loads(text)
        facts = [
            ReportedFact(
                node,
                Finding(
                    str(row["kind"]),
                    str(row["severity"]),
                    str(row["scope"]),
                    str(row["subject"]),
                    str(row["what"]),
                    str(row["cost"]),
                    row.get("command"),
                    row.get("since_ms"),
                ),
            )
            for row in document["findings"]
            if row["severity"] in (CRITICAL, WARNING)
        ]
        clients = [
            ClientFact(node, str(row["name"]), str(row["quota"])) for row in document["throttled"]
        ]
        dangers = None
        if "dangers" in document:
            dangers = {
                str(danger): Danger(int(total), list(map(str, topics)))
                for danger, (total, topics) in document["dangers"].items()
            }
        return Report(node, facts, clients, int(document["clock_ms"] - asked_ms), dangers)
    except (ValueError, KeyError, TypeError):
        return None


def missing_facts(state: ClusterSummary) -> list[MissingFact]:
    """The brokers that are not there."""
    return [
        MissingFact(
            one.node,
            f"{one.host}:{one.port}" if one.host else None,
            one.since_ms,
            one.offline,
            one.under_replicated,
        )
        for one in state.missing
    ]


def unreachable(
    cluster: Cluster, state: ClusterSummary, timeout_s: float = REACHED_S
) -> list[UnreachableFact]:
    """The brokers that are registered but do not answer here: a broker that was killed is
    registered until its session expires. timeout_s: for each, of which some are tried at a time.
    """
    with ThreadPoolExecutor(PROBES_AT_ONCE) as pool:
        tried = list(
            pool.map(lambda row: probe(cluster, row.host, row.port, timeout_s), state.brokers)
        )
    return [
        UnreachableFact(_name(broker.node), each.address, each.error, ADVERTISED)
        for broker, each in zip(state.brokers, tried, strict=True)
        if each.error is not None
    ]


def _disks(cluster: Cluster, node: int) -> list[DiskFact]:
    """The log directories of a broker. Raises ClientError."""
    return [DiskFact(node, _directory(row)) for row in log_dir_totals(cluster, node)]


def _directory(row: LogDirTotal) -> DirectoryFact:
    has_failed = row.error is not None
    return DirectoryFact(row.path, has_failed, row.total_bytes, row.usable_bytes)


def _transactions(cluster: Cluster, now_ms: int) -> list[TransactionFact]:
    facts = []
    rows = list_transactions(cluster, longer_than_ms=TRANSACTION_OPEN_MS)
    for row in [row for row in rows if row.state == "Ongoing"][:TRANSACTIONS_MAX]:
        try:
            state = describe_transaction(cluster, row.transactional_id)
        except RejectedError:
            continue  # it has ended
        if state.started_ms is not None:
            open_s = (now_ms - state.started_ms) / 1000
            # Its producer may have asked for more time.
            if open_s * 1000 > max(TRANSACTION_OPEN_MS, state.timeout_ms):
                facts.append(TransactionFact(row.transactional_id, open_s))
    return facts


def _left_open(cluster: Cluster, now_ms: int) -> list[LeftOpenFact]:
    rows = hanging_transactions(cluster, None, now_ms - TRANSACTION_OPEN_MS)
    return [
        LeftOpenFact(topic, number, row.open_from, row.last_timestamp)
        for (topic, number), row in rows[:TRANSACTIONS_MAX]
        if row.open_from is not None
    ]


# -- settings


def dangerous_settings(cluster: Cluster, brokers: int) -> list[SettingFact]:
    """Of all topics, of brokers that do not look for them. Raises ClientError."""
    topics = {row.name: row for row in list_topics(cluster) if not row.internal}
    values = _topic_values(cluster, list(topics))
    return settings_that_endanger(topics, values, brokers)


def _topic_values(cluster: Cluster, names: list[str]) -> dict[str, dict[str, str | None]]:
    values: dict[str, dict[str, str | None]] = {}
    for some in in_requests(names):
        for name, rows in describe_configs(cluster, TOPIC, some, [MIN_IN_SYNC, UNCLEAN]).items():
            if not isinstance(rows, RejectedError):
                values[name] = {row.name: row.value for row in _of_list(rows)}
    return values


def _of_list(rows: list[Setting]) -> list[Setting]:
    return [row for row in rows if row.name in (MIN_IN_SYNC, UNCLEAN)]


def settings_that_endanger(
    topics: dict[str, TopicState], values: dict[str, dict[str, str | None]], brokers: int
) -> list[SettingFact]:
    """values: of settings, by topic."""
    facts = [_topic_fact(row, values.get(name, {})) for name, row in topics.items()]
    found = endangered(facts, brokers)
    return setting_facts({danger: danger_of(names) for danger, names in found.items()}, brokers)


def _topic_fact(topic: TopicState, values: dict[str, str | None]) -> TopicFact:
    in_sync = values.get(MIN_IN_SYNC)
    return TopicFact(
        topic.name,
        min((len(row.replicas) for row in topic.partitions), default=0),
        int(in_sync) if in_sync is not None and in_sync.isdecimal() else None,
        values.get(UNCLEAN) == "true",
    )
