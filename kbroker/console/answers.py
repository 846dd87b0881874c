"""What the operations of the API answer, as types: the OpenAPI document has them as schemas.

A figure that cannot be had is None, never 0. Times are in milliseconds since 1970.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class TopicPartitionName(TypedDict):
    topic: str
    partition: int


class Session(TypedDict):
    """user: without a password, it is ANONYMOUS. rights: on the cluster, as the words of ACLs; None
    if the broker does not tell.
    """

    user: str
    logged_in: bool
    takes_passwords: bool
    read_only: bool
    rights: list[str] | None


# -- overview, health


class BrokerRow(TypedDict):
    """leads, replicas: how many partitions it leads, and has a replica of."""

    node: int
    host: str
    port: int
    rack: str | None
    leads: int
    replicas: int


class ListenerRow(TypedDict):
    name: str
    protocol: str
    address: str


class CountedPartitions(TypedDict):
    """partitions: the first of them."""

    count: int
    partitions: list[TopicPartitionName]


class MissingBrokerRow(TypedDict):
    node: int
    address: str | None
    since_ms: int | None
    text: str
    cost: str


class ProcessRow(TypedDict):
    """heartbeat_age_ms: since its last sign of life."""

    name: str
    pid: int
    state: str
    restarts: int
    heartbeat_age_ms: int | None
    connections: NotRequired[int]


class FindingRow(TypedDict):
    kind: str
    severity: str
    scope: str
    subject: str
    what: str
    cost: str
    command: NotRequired[str]
    since_ms: NotRequired[int]


class LogDirLevel(TypedDict):
    path: str
    state: str
    total_bytes: NotRequired[int | None]
    free_bytes: NotRequired[int | None]
    full_in_s: NotRequired[int]


class BrokerHealth(TypedDict):
    """As ``/health`` has it."""

    status: str
    broker_id: int
    cluster_id: str | None
    processes: list[ProcessRow]
    log_dirs: list[LogDirLevel]
    findings: list[FindingRow]
    zookeeper: NotRequired[str]


class Overview(TypedDict):
    version: str
    broker: int
    cluster: str | None
    controller: int | None
    brokers: list[BrokerRow]
    listeners: list[ListenerRow]
    topics: int
    internal_topics: int
    partitions: int
    offline: CountedPartitions
    under_replicated: CountedPartitions
    missing: list[MissingBrokerRow]
    health: BrokerHealth


class Findings(TypedDict):
    """unknown: what could not be looked at, and why."""

    findings: list[FindingRow]
    unknown: list[str]
    at_ms: int


class HistorySeries(TypedDict):
    what: str
    of: str
    points: list[float | None]


class History(TypedDict):
    """left_out: series beyond the bound."""

    broker: int
    step_s: int
    times: list[int]
    series: list[HistorySeries]
    left_out: int


# -- topics


class TopicRow(TypedDict):
    """records: between the first and the last offset. bytes: of its leaders. records_per_second:
    since the console looked before, two seconds to ten minutes ago.
    """

    name: str
    internal: bool
    partitions: int
    replication_factor: int
    offline: int
    under_replicated: int
    records: int | None
    bytes: int | None
    records_per_second: float | None


class Topics(TypedDict):
    """sorted: of how many topics the size or rate is known that they are sorted by; the others come
    last. None if they are sorted by name. sees_all: whether there are none, or none that the user
    may see; None of a list that has some, and if nobody knows.
    """

    total: int
    topics: list[TopicRow]
    sorted: int | None
    sees_all: bool | None
    next_cursor: str | None


class PartitionRow(TypedDict):
    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]
    offline: list[int]
    start: int | None
    end: int | None
    bytes: int | None


class Growth(TypedDict):
    records_last_hour: int | None
    records_last_day: int | None


class TopicDescription(TopicRow):
    """rights: of the user on this topic; None if the broker does not tell."""

    id: str | None
    growth: Growth
    rights: list[str] | None
    rows: list[PartitionRow]
    next_cursor: str | None


class SettingRow(TypedDict):
    """own: set for this topic. value: None of a sensitive one."""

    name: str
    value: str | None
    source: str
    own: bool
    sensitive: bool
    documentation: str


class TopicSettings(TypedDict):
    settings: list[SettingRow]


class ChangedSettings(TypedDict):
    settings: dict[str, str | None]
    dry_run: bool


class CreatedTopicRow(TypedDict):
    name: str
    partitions: int
    replication_factor: int
    dry_run: bool


class PartitionsAdded(TypedDict):
    topic: str
    partitions: int
    dry_run: bool


class Deleted(TypedDict):
    deleted: str


class TrimmedPartition(TypedDict):
    """deleted: how many offsets that are."""

    partition: int
    start: int
    new_start: int
    end: int
    deleted: int


class TrimmedTopic(TypedDict):
    topic: str
    dry_run: bool
    partitions: list[TrimmedPartition]


# -- messages


class Decoded(TypedDict):
    """By the schema of the registry that the data names, by its id or GUID. text: JSON. error: why
    there is none.
    """

    schema: int | str
    format: NotRequired[str]
    text: NotRequired[str]
    cut: NotRequired[bool]
    error: NotRequired[str]


class Data(TypedDict):
    """size: in bytes, of the whole. cut: only the beginning is here. text where it is UTF-8, else
    base64. decoded: of what names a schema, if there is a registry.
    """

    size: int
    cut: bool
    text: NotRequired[str]
    base64: NotRequired[str]
    decoded: NotRequired[Decoded]


class Header(TypedDict):
    name: Data | None
    value: Data | None


class Record(TypedDict):
    """transaction: whether it was committed, aborted, is open, or waits behind an open one; None
    outside of any. Readers of what is committed see neither aborted, nor open, nor waiting.
    """

    partition: int
    offset: int
    timestamp: int | None
    key: Data | None
    value: Data | None
    headers: list[Header]
    transaction: str | None


class PartitionRange(TypedDict):
    """end: of the next record. stable: the end of what readers of what is committed see."""

    partition: int
    start: int
    end: int
    stable: int


class Records(TypedDict):
    """scanned: records that were looked at. not_decoded: those of them that name a schema, and were
    searched by their bytes alone. complete: to the end. next: the offset to read on
    from, in the order of ``partitions``.
    """

    records: list[Record]
    scanned: int
    not_decoded: int
    complete: bool
    next: list[int]
    partitions: list[PartitionRange]


class ReplayedRecord(TypedDict):
    """to_partition, to_offset: where it is now; None in a dry run."""

    partition: int
    offset: int
    to_partition: int | None
    to_offset: int | None


class Replayed(TypedDict):
    """source, topic: where from, where to."""

    source: str
    topic: str
    dry_run: bool
    records: list[ReplayedRecord]


class Written(TypedDict):
    topic: str
    partition: int
    offset: int


# -- groups


class GroupRow(TypedDict):
    group: str
    kind: str
    state: str
    protocol: str
    coordinator: int
    lag: int | None


class Groups(TypedDict):
    """sees_all: as of topics."""

    total: int
    groups: list[GroupRow]
    sees_all: bool | None
    next_cursor: str | None


class MemberRow(TypedDict):
    member: str
    instance: str
    client: str
    host: str
    partitions: list[TopicPartitionName]


class GroupPartition(TopicPartitionName):
    """seconds: the age of the first record that is not read."""

    offset: int | None
    start: int
    end: int
    lag: int | None
    seconds: float | None
    member: str | None


class GroupDescription(TypedDict):
    """kind to epoch: None of what only has offsets. rights: of the user on this group; None if the
    broker does not tell.
    """

    group: str
    kind: str | None
    state: str | None
    assignor: str | None
    coordinator: int | None
    epoch: int | None
    rights: list[str] | None
    members: list[MemberRow]
    lag: int
    partitions: list[GroupPartition]


class LagCurve(TypedDict):
    """partial: some partitions have no replica on this broker."""

    topic: str
    partial: bool
    lags: list[int | None]


class GroupLags(TypedDict):
    group: str
    broker: int
    times: list[int]
    topics: list[LagCurve]


class ResetOffset(TopicPartitionName):
    offset: int | None
    new_offset: int
    new_lag: int


class ResetOffsets(TypedDict):
    dry_run: bool
    partitions: list[ResetOffset]


class DeletedOffset(TopicPartitionName):
    offset: int


class DeletedOffsets(TypedDict):
    group: str
    dry_run: bool
    partitions: list[DeletedOffset]


# -- transactions


class TransactionRow(TypedDict):
    coordinator: int
    transactional_id: str
    producer_id: int
    state: str


class Transactions(TypedDict):
    """open: how many of them are. sees_all: as of topics."""

    open: int
    transactions: list[TransactionRow]
    sees_all: bool | None
    total: int
    next_cursor: str | None


class TransactionDescription(TransactionRow):
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    open_seconds: float | None
    partitions: list[TopicPartitionName]


class Terminated(TypedDict):
    terminated: str


class OpenInPartition(TopicPartitionName):
    """offset: where the transaction begins."""

    offset: int
    producer_id: int
    producer_epoch: int
    last_timestamp: int


class HangingTransactions(TypedDict):
    transactions: list[OpenInPartition]


class AbortedInPartition(TopicPartitionName):
    offset: int
    producer_id: int


# -- quotas, access


class QuotaEntity(TypedDict):
    """type: user, client-id or ip. name: None is whoever has no quota of that type."""

    type: str
    name: str | None


class QuotaRow(TypedDict):
    entity: list[QuotaEntity]
    quotas: dict[str, float]


class Quotas(TypedDict):
    quotas: list[QuotaRow]
    total: int
    next_cursor: str | None


class ChangedQuotas(TypedDict):
    """quotas: None of what is unset."""

    quotas: dict[str, float | None]
    dry_run: bool


class AclRow(TypedDict):
    resource_type: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str


class Acls(TypedDict):
    total: int
    acls: list[AclRow]
    next_cursor: str | None


class CreatedAcl(TypedDict):
    created: AclRow


class DeletedAcls(TypedDict):
    deleted: list[AclRow]


class CredentialRow(TypedDict):
    mechanism: str
    iterations: int


class UserRow(TypedDict):
    user: str
    credentials: list[CredentialRow]


class Users(TypedDict):
    users: list[UserRow]


class ChangedPassword(TypedDict):
    user: str
    mechanisms: list[str]
