"""The options given to ``.option(...)``, validated before any job starts.

Names, defaults, precedence and refusals are those of Spark's Kafka connector, so that a job moves
between the two by changing one word; what is kbroker's own is marked so in
``option_table``. Every refusal says what to write instead.

``parse_read`` and ``parse_write`` are pure: they see strings and return frozen values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import SettingRefused
from kbroker.spark.options.given_options import KAFKA_PREFIX, GivenOptions
from kbroker.spark.options.option_table import (
    ID_PREFIX,
    INTENT_TOPIC,
    PREFETCH_OFFSETS,
    WRITER_LIMITS,
)
from kbroker.spark.options.option_values import (
    EARLIEST,
    LATEST,
    Limit,
    LimitKind,
    OptionError,
    TopicSubscription,
    names,
)
from kbroker.spark.pool import DEFAULT_LIMITS, PoolLimits

_START_INSTEAD = "write the source option startingOffsets (earliest, latest or JSON) instead"
_BYTES_INSTEAD = "columns key and value are binary; cast them in the query instead"
_REFUSED_READ = {
    "auto.offset.reset": f"{_START_INSTEAD}; a restarted query continues where it was",
    "key.deserializer": _BYTES_INSTEAD,
    "value.deserializer": _BYTES_INSTEAD,
    "enable.auto.commit": "leave it out; set groupId to have offsets committed",
    "interceptor.classes": "leave it out; transform the rows in the query instead",
}
_KEYS_DECIDE = (
    "leave it out; the key decides where a row goes, as in Kafka's clients, or its column partition"
)
_NO_EFFECT = "leave it out; it would have no effect here"
_RETRIED = "set kafka.delivery.timeout.ms instead; retriable errors are retried until then"
_LINGER = "write kafka.linger.ms instead"
# These would be ignored, which is not what a user who sets them expects.
_REFUSED_WRITE = {
    "key.serializer": "leave it out; column key is written as it is (string or binary)",
    "value.serializer": "leave it out; column value is written as it is (string or binary)",
    "interceptor.classes": "leave it out; transform the rows in the query instead",
    **dict.fromkeys(
        (
            *("partitioner.class", "partitioner.ignore.keys"),
            *("partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms"),
        ),
        _KEYS_DECIDE,
    ),
    **dict.fromkeys(("retries", "retry.backoff.ms", "retry.backoff.max.ms"), _RETRIED),
    "queue.buffering.max.ms": _LINGER,
    "batch.num.messages": "write kafka.batch.size instead, in bytes",
    "message.max.bytes": "write kafka.max.request.size instead",
    "socket.timeout.ms": "write kafka.request.timeout.ms instead",
    **dict.fromkeys(
        (
            *("auto.include.jmx.reporter", "client.dns.lookup", "connections.max.idle.ms"),
            *("enable.metrics.push", "metadata.max.age.ms", "metadata.max.idle.ms"),
            *("metadata.recovery.strategy", "metric.reporters", "metrics.num.samples"),
            *("metrics.recording.level", "metrics.sample.window.ms", "receive.buffer.bytes"),
            *("reconnect.backoff.max.ms", "reconnect.backoff.ms", "send.buffer.bytes"),
            *("socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms"),
            *("debug", "statistics.interval.ms"),
        ),
        _NO_EFFECT,
    ),
}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything a reader needs. kafka: settings without their prefix, for the client."""

    bootstrap: str
    subscription: TopicSubscription
    starting: Limit
    ending: Limit
    kafka: Mapping[str, str] = field(default_factory=dict)
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    include_headers: bool = False
    read_committed: bool = False
    group_id: str | None = None
    poll_timeout_ms: int = 120_000
    offset_attempts: int = 3
    offset_retry_ms: int = 1000
    checkpoint_location: str | None = None
    allow_unsafe_start: bool = False
    prefetch_max_offsets: int = PREFETCH_OFFSETS
    pushdown: bool = False
    pack_partitions: bool = False
    split_by_partition: bool = False
    pool: PoolLimits = DEFAULT_LIMITS


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a writer. topic: for every row, or None if the column has it."""

    bootstrap: str
    kafka: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None
    keep_timestamps: bool = False
    exactly_once: bool = False
    transactional_id_prefix: str = ID_PREFIX
    intent_topic: str = INTENT_TOPIC
    lost_transactions: str = "fail"
    write_id: str | None = None
    write_batch: int = 0
    checkpoint_location: str | None = None
    pool: PoolLimits = WRITER_LIMITS


def parse_read(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Raises OptionError."""
    given = GivenOptions(options)
    options_read = _read_common(given, streaming=streaming)
    _check_client(options_read.bootstrap, options_read.kafka)
    given.warn_of_unknown("stream" if streaming else "batch")
    return options_read


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Raises OptionError."""
    given = GivenOptions(options)
    kafka = given.kafka_settings(_REFUSED_WRITE)
    if "max.block.ms" in kafka:
        # Until a topic is known; the client has one deadline for all its requests.
        kafka.setdefault("default.api.timeout.ms", kafka["max.block.ms"])
    topic = given.named("topic")
    delivery = given.choice("delivery", "at-least-once", "exactly-once")
    if delivery == "exactly-once" and kafka.get("transactional.id"):
        raise OptionError(
            "kafka.transactional.id cannot be set with delivery=exactly-once, which makes one for"
            " each task: write transactionalIdPrefix instead"
        )
    lost = given.choice("lostTransactions", "fail", "rewrite", "skip")
    given.boolean("includeHeaders", False)
    bootstrap = given.bootstrap("producer")
    _check_client(bootstrap, kafka)
    given.warn_of_unknown("write")
    return WriteOptions(
        bootstrap=bootstrap,
        kafka=kafka,
        topic=topic,
        keep_timestamps=given.boolean("keepTimestamps", False),
        exactly_once=delivery == "exactly-once",
        transactional_id_prefix=given.named("transactionalIdPrefix") or ID_PREFIX,
        intent_topic=given.named("intentTopic") or INTENT_TOPIC,
        lost_transactions=lost,
        write_id=given.named("writeId"),
        write_batch=given.count("writeBatch", 0),
        checkpoint_location=given.named("checkpointLocation"),
        pool=PoolLimits(
            idle_s=given.seconds("spark.kafka.producer.cache.timeout", WRITER_LIMITS.idle_s)
        ),
    )


def _check_client(bootstrap: str, kafka: Mapping[str, str]) -> None:
    """Reject what a task's client would reject, before there is a task. Does not connect."""
    try:
        Cluster.from_options({**kafka, "bootstrap.servers": bootstrap})
    except SettingRefused as error:
        raise OptionError(f"{KAFKA_PREFIX}{error}") from error


def _read_common(given: GivenOptions, *, streaming: bool) -> ReadOptions:
    if streaming:
        _refuse_ends(given)
    default_start = LimitKind.LATEST if streaming else LimitKind.EARLIEST
    starting = given.limit("starting", default_start)
    ending = given.limit("ending", LimitKind.LATEST)
    if not streaming:
        _check_batch_limits(starting, ending)
    subscription = given.subscription()
    kafka = given.kafka_settings(_REFUSED_READ)
    group_id = given.named("groupId") or kafka.get("group.id")
    if starting.kind is LimitKind.COMMITTED and not group_id:
        raise OptionError(
            "startingOffsets is committed, but there is no group: set groupId as well"
        )
    least, most = given.integer("minOffsetsPerTrigger"), given.positive("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger ({least}) is higher than maxOffsetsPerTrigger ({most}): write a"
            " smaller minimum or a larger maximum"
        )
    isolation = kafka.get("isolation.level", "read_uncommitted").lower()
    if isolation not in ("read_uncommitted", "read_committed"):
        raise OptionError(
            f"kafka.isolation.level is {isolation!r}: write read_committed or read_uncommitted"
        )
    split = given.choice("split", "size", "partition")
    return ReadOptions(
        bootstrap=given.bootstrap("consumer"),
        subscription=subscription,
        starting=starting,
        ending=ending,
        kafka=kafka,
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        min_partitions=given.positive("minPartitions"),
        max_records_per_partition=given.positive("maxRecordsPerPartition"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_bytes_per_trigger=given.positive("maxBytesPerTrigger"),
        max_trigger_delay_ms=given.duration_ms("maxTriggerDelay", 15 * 60_000),
        include_headers=given.boolean("includeHeaders", False),
        read_committed=isolation == "read_committed",
        group_id=group_id,
        poll_timeout_ms=given.positive("kafkaConsumer.pollTimeoutMs", 120_000) or 120_000,
        offset_attempts=max(1, given.count("fetchOffset.numRetries", 3)),
        offset_retry_ms=given.count("fetchOffset.retryIntervalMs", 1000),
        checkpoint_location=given.named("checkpointLocation"),
        allow_unsafe_start=given.boolean("allowUnsafeStart", False),
        prefetch_max_offsets=given.count("prefetchMaxOffsets", PREFETCH_OFFSETS),
        pushdown=given.boolean("pushdown", False),
        pack_partitions=given.boolean("packPartitions", False),
        split_by_partition=split == "partition",
        pool=PoolLimits(
            given.count("spark.kafka.consumer.cache.capacity", DEFAULT_LIMITS.capacity),
            given.seconds("spark.kafka.consumer.cache.timeout", DEFAULT_LIMITS.idle_s),
        ),
    )


def _refuse_ends(given: GivenOptions) -> None:
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if given.has(name):
            raise OptionError(
                f"{name} has no meaning in a stream: leave it out, read with spark.read, or stop "
                "at the present end with trigger(availableNow=True)"
            )


def _check_batch_limits(starting: Limit, ending: Limit) -> None:
    if starting.kind is LimitKind.LATEST:
        raise OptionError(
            "startingOffsets cannot be latest in a batch, which would be empty: write earliest or"
            ' JSON such as {"topicA":{"0":23}}'
        )
    for (topic, partition), offset in starting.values.items():
        if starting.kind is LimitKind.OFFSETS and offset == LATEST:
            raise OptionError(
                f"startingOffsets of {topic}-{partition} cannot be latest (-1) in a batch: write -2"
                " for earliest or an offset"
            )
    if ending.kind is LimitKind.EARLIEST:
        raise OptionError("endingOffsets cannot be earliest in a batch: write latest or JSON")
    for (topic, partition), offset in ending.values.items():
        if ending.kind is LimitKind.OFFSETS and offset == EARLIEST:
            raise OptionError(
                f"endingOffsets of {topic}-{partition} cannot be earliest (-2) in a batch: write -1"
                " for latest or an offset"
            )
    if starting.kind is not ending.kind:
        return
    if starting.kind in (LimitKind.OFFSETS, LimitKind.TIMESTAMPS):
        _check_pairs(starting, ending)


def _check_pairs(starting: Limit, ending: Limit) -> None:
    """Both sides name partitions: the same ones, in order."""
    differ = set(starting.values) ^ set(ending.values)
    if differ:
        raise OptionError(
            f"starting and ending {starting.kind.value} contain different partitions; only one "
            f"side has {names(differ)}: write both for each partition"
        )
    for partition, start in starting.values.items():
        end = ending.values[partition]
        if start > end and start >= 0 and end >= 0:
            raise OptionError(
                f"starting {starting.kind.value} of {names([partition])} is {start}, after the"
                f" ending one, {end}: write a start that is not after the end"
            )
