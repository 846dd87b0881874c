"""What the user wrote in ``.option(...)``, checked before any job starts.

Names, defaults, precedence and refusals are those of Spark's Kafka connector, so that a job moves
between the two by changing one word; what is kbroker's own is marked so in OPTIONS. Names are
case-insensitive. Every refusal says what to write instead.

``parse_read`` and ``parse_write`` are pure: they see strings and return frozen values.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from kbroker.client.cluster import Cluster
from kbroker.client.errors import SettingRefused
from kbroker.client.offsets import EARLIEST as EARLIEST  # what callers give for an offset
from kbroker.client.offsets import LATEST as LATEST
from kbroker.spark.kafka_settings import doubt
from kbroker.spark.pool import DEFAULT_LIMITS, PoolLimits

log = logging.getLogger(__name__)

TopicPartition = tuple[str, int]

KAFKA_PREFIX = "kafka."


class OptionError(ValueError):
    """An option is missing, contradicts another one or cannot be read."""


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table of options. uses: of ``batch``, ``stream`` and ``write``. own: Spark's
    Kafka connector does not have it."""

    name: str
    uses: str
    default: str
    text: str
    own: bool = False


PREFETCH_OFFSETS = 1000
WRITER_LIMITS = PoolLimits(idle_s=600.0)
OPTIONS = (
    Option("kafka.bootstrap.servers", "batch stream write", "(required)", "host:port, by commas"),
    Option("assign", "batch stream", "", 'partitions: `{"topicA":[0,1]}`'),
    Option(
        "subscribe",
        "batch stream",
        "",
        "topics, by commas; also internal ones, of which the connector reads nothing",
    ),
    Option(
        "subscribePattern",
        "batch stream",
        "",
        "regular expression found anywhere in a name; `^...$` for all of it",
    ),
    Option(
        "startingOffsets",
        "batch stream",
        "batch `earliest`, stream `latest`",
        '`earliest`, `latest` (stream), or `{"topicA":{"0":23,"1":-2}}`; -2 is earliest, -1 latest;'
        " kbroker also takes `committed`",
    ),
    Option("startingTimestamp", "batch stream", "", "ms; goes before the next two"),
    Option(
        "startingOffsetsByTimestamp", "batch stream", "", 'ms: `{"topicA":{"0":1700000000000}}`'
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "batch stream",
        "error",
        "`error` or `latest`, where no record is that young",
    ),
    Option("endingOffsets", "batch", "latest", "`latest` or JSON; -1 is latest"),
    Option("endingTimestamp", "batch", "", "ms; no such record means latest"),
    Option("endingOffsetsByTimestamp", "batch", "", "as startingOffsetsByTimestamp"),
    Option("failOnDataLoss", "batch stream", "true", "whether missing offsets are an error"),
    Option("minPartitions", "batch stream", "", "at least about so many tasks"),
    Option("maxRecordsPerPartition", "batch stream", "", "no task reads more offsets"),
    Option("maxOffsetsPerTrigger", "stream", "", "offsets of a micro-batch, shared in proportion"),
    Option("minOffsetsPerTrigger", "stream", "", "wait until there are so many"),
    Option("maxTriggerDelay", "stream", "15m", "but not longer than this"),
    Option("includeHeaders", "batch stream write", "false", "the column `headers`"),
    Option("groupIdPrefix", "batch stream", "", "accepted; there is no group membership"),
    Option("kafkaConsumer.pollTimeoutMs", "batch stream", "120000", "deadline of one fetch"),
    Option("fetchOffset.numRetries", "batch stream", "3", "attempts to get offsets"),
    Option("fetchOffset.retryIntervalMs", "batch stream", "1000", "pause between them"),
    Option(
        "spark.kafka.consumer.cache.capacity",
        "batch stream",
        "64",
        "at most so many idle clients are kept by a Python worker",
    ),
    Option("spark.kafka.consumer.cache.timeout", "batch stream", "5m", "for at most so long"),
    Option(
        "spark.kafka.producer.cache.timeout",
        "write",
        "10m",
        "for at most so long idle clients are kept by a Python worker",
    ),
    Option("topic", "write", "", "for every row, whatever its column `topic` says"),
    Option(
        "groupId",
        "batch stream",
        "",
        "a stream commits its offsets to this group; of `startingOffsets=committed`",
        own=True,
    ),
    Option(
        "checkpointLocation",
        "stream write",
        "",
        "of the query; on the reader too: where the first offsets are kept",
        own=True,
    ),
    Option(
        "allowUnsafeStart",
        "stream",
        "false",
        "start a stream whose first offsets are kept nowhere",
        own=True,
    ),
    Option("maxBytesPerTrigger", "stream", "", "about so many bytes in a micro-batch", own=True),
    Option(
        "prefetchMaxOffsets",
        "stream",
        str(PREFETCH_OFFSETS),
        "a micro-batch of at most so many is read by the driver, for one task; 0: never",
        own=True,
    ),
    Option("pushdown", "batch", "false", "filters on offsets and time reach the reader", own=True),
    Option("packPartitions", "batch stream", "false", "small ranges share a task", own=True),
    Option("split", "batch stream", "size", "`size`, or `partition`: a task each", own=True),
    Option("keepTimestamps", "write", "false", "records get the column `timestamp`", own=True),
    Option("delivery", "write", "at-least-once", "or `exactly-once`", own=True),
    Option("transactionalIdPrefix", "write", "kbroker-spark", "of exactly-once writes", own=True),
    Option(
        "lostTransactions",
        "write",
        "fail",
        "of a recorded batch that expired in part: `fail`, `rewrite` all of it, or `skip` them",
        own=True,
    ),
    Option("writeId", "write", "", "a batch written again under it is not repeated", own=True),
    Option("writeBatch", "write", "0", "of writeId: the number that foreachBatch passes", own=True),
    Option("intentTopic", "write", "__kbroker_spark_intents", "of exactly-once writes", own=True),
)

_BY_NAME = {option.name.lower(): option for option in OPTIONS}
# Spark adds these by itself.
_OF_SPARK = {"path", "queryname", "paths"}

_STRATEGIES = ("assign", "subscribe", "subscribePattern")
_START_INSTEAD = "write the source option startingOffsets (earliest, latest or JSON) instead"
_BYTES_INSTEAD = "columns key and value are binary; cast them in the query instead"
_REFUSED_READ = {
    "auto.offset.reset": f"{_START_INSTEAD}; a restarted query goes on where it was",
    "key.deserializer": _BYTES_INSTEAD,
    "value.deserializer": _BYTES_INSTEAD,
    "enable.auto.commit": "leave it out; write groupId to have offsets committed",
    "interceptor.classes": "leave it out; transform the rows in the query instead",
}
_REFUSED_WRITE = {
    "key.serializer": "leave it out; column key is written as it is (string or binary)",
    "value.serializer": "leave it out; column value is written as it is (string or binary)",
}


class LimitKind(Enum):
    """How one side of what is read is given."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"
    OFFSETS = "offsets"
    TIMESTAMPS = "timestamps"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Limit:
    """Where reading starts or ends. values: offset (or LATEST, EARLIEST) or ms of each partition,
    for OFFSETS and TIMESTAMPS. timestamp: ms, for TIMESTAMP. latest_without_match: what a time
    after the last record means; otherwise it is an error."""

    kind: LimitKind
    values: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp: int = 0
    latest_without_match: bool = False

    @property
    def moves(self) -> bool:
        """Whether asking again later may give other offsets."""
        if self.kind is LimitKind.OFFSETS:
            return any(offset < 0 for offset in self.values.values())
        return True

    def describe(self) -> str:
        """The text that was written, in canonical form."""
        if self.kind is LimitKind.TIMESTAMP:
            return f"timestamp {self.timestamp}"
        if self.kind in (LimitKind.OFFSETS, LimitKind.TIMESTAMPS):
            return f"{self.kind.value} {format_offsets(self.values)}"
        return self.kind.value


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    def describe(self) -> str:
        """One line that names it."""
        if self.pattern:
            return f"subscribePattern {self.pattern}"
        if self.topics:
            return f"subscribe {','.join(sorted(self.topics))}"
        return "assign " + ",".join(f"{topic}-{part}" for topic, part in sorted(self.partitions))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything a reader needs. kafka: settings without their prefix, for the client."""

    bootstrap: str
    subscription: Subscription
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
    """Everything a writer needs. topic: of every row, or None where the column says it."""

    bootstrap: str
    kafka: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None
    keep_timestamps: bool = False
    exactly_once: bool = False
    transactional_id_prefix: str = "kbroker-spark"
    intent_topic: str = "__kbroker_spark_intents"
    lost_transactions: str = "fail"
    write_id: str | None = None
    write_batch: int = 0
    checkpoint_location: str | None = None
    pool: PoolLimits = WRITER_LIMITS


# -- the parsers


def parse_read(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Raises OptionError."""
    given = _Given(options)
    found = _read_common(given, streaming=streaming)
    _check_client(found.bootstrap, found.kafka)
    given.warn_of_unknown("stream" if streaming else "batch")
    return found


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Raises OptionError."""
    given = _Given(options)
    kafka = given.kafka_settings(_REFUSED_WRITE)
    topic = given.text("topic")
    delivery = (given.text("delivery") or "at-least-once").lower()
    if delivery not in ("at-least-once", "exactly-once"):
        raise OptionError(f"delivery is {delivery!r}: write at-least-once or exactly-once")
    if delivery == "exactly-once" and kafka.get("transactional.id"):
        raise OptionError(
            "kafka.transactional.id cannot be set with delivery=exactly-once, which makes one for"
            " each task: write transactionalIdPrefix instead"
        )
    lost = (given.text("lostTransactions") or "fail").lower()
    if lost not in ("fail", "rewrite", "skip"):
        raise OptionError(f"lostTransactions is {lost!r}: write fail, rewrite or skip")
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
        transactional_id_prefix=given.text("transactionalIdPrefix") or "kbroker-spark",
        intent_topic=given.text("intentTopic") or "__kbroker_spark_intents",
        lost_transactions=lost,
        write_id=given.text("writeId"),
        write_batch=given.integer("writeBatch", 0) or 0,
        checkpoint_location=given.text("checkpointLocation"),
        pool=PoolLimits(
            idle_s=given.seconds("spark.kafka.producer.cache.timeout", WRITER_LIMITS.idle_s)
        ),
    )


def _check_client(bootstrap: str, kafka: Mapping[str, str]) -> None:
    """What a task's client would refuse is refused before there is a task. Connects nowhere."""
    try:
        Cluster.from_options({**kafka, "bootstrap.servers": bootstrap})
    except SettingRefused as error:
        raise OptionError(f"{KAFKA_PREFIX}{error}") from error


def _read_common(given: _Given, *, streaming: bool) -> ReadOptions:
    if streaming:
        _refuse_ends(given)
    default_start = LimitKind.LATEST if streaming else LimitKind.EARLIEST
    starting = given.limit("starting", default_start)
    ending = given.limit("ending", LimitKind.LATEST)
    if not streaming:
        _check_batch_limits(starting, ending)
    subscription = given.subscription()
    kafka = given.kafka_settings(_REFUSED_READ)
    group_id = given.text("groupId") or kafka.get("group.id")
    if starting.kind is LimitKind.COMMITTED and not group_id:
        raise OptionError("startingOffsets is committed, of no group: write groupId as well")
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
    split = (given.text("split") or "size").lower()
    if split not in ("size", "partition"):
        raise OptionError(f"split is {split!r}: write size or partition")
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
        poll_timeout_ms=given.count("kafkaConsumer.pollTimeoutMs", 120_000) or 120_000,
        offset_attempts=max(1, given.integer("fetchOffset.numRetries", 3) or 0),
        offset_retry_ms=max(0, given.integer("fetchOffset.retryIntervalMs", 1000) or 0),
        checkpoint_location=given.text("checkpointLocation"),
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


def _refuse_ends(given: _Given) -> None:
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if given.has(name):
            raise OptionError(
                f"{name} has no meaning in a stream: leave it out, or read with spark.read, or stop"
                " at what is there now with trigger(availableNow=True)"
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
            f"starting and ending {starting.kind.value} name different partitions, only one side"
            f" has {_names(differ)}: write both for each partition"
        )
    for partition, start in starting.values.items():
        end = ending.values[partition]
        if start > end and start >= 0 and end >= 0:
            raise OptionError(
                f"starting {starting.kind.value} of {_names([partition])} is {start}, after the"
                f" ending one, {end}: write a start that is not after the end"
            )


class _Given:
    """The options by lower-case name, and how each kind of value is read."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): (name, str(value)) for name, value in options.items()}

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str) -> str | None:
        """None where it is missing or blank."""
        entry = self._given.get(name.lower())
        return (entry[1].strip() or None) if entry else None

    def boolean(self, name: str, default: bool) -> bool:
        if not self.has(name):
            return default
        text = self.text(name) or ""
        if text.lower() not in ("true", "false"):
            raise OptionError(f"{name} is {text!r}: write true or false")
        return text.lower() == "true"

    def integer(self, name: str, default: int | None = None) -> int | None:
        if not self.has(name):
            return default
        text = self.text(name) or ""
        if not re.fullmatch(r"[+-]?[0-9]+", text):
            raise OptionError(f"{name} is {text!r}: write a whole number")
        return int(text)

    def positive(self, name: str) -> int | None:
        value = self.integer(name)
        if value is not None and value <= 0:
            raise OptionError(f"{name} is {value}, it must be positive: write 1 or more")
        return value

    def count(self, name: str, default: int) -> int:
        value = self.integer(name, default)
        if value is None or value < 0:
            raise OptionError(f"{name} is {value}, it must not be negative: write 0 or more")
        return value

    def duration_ms(self, name: str, default: int) -> int:
        text = self.text(name)
        return default if text is None else parse_duration_ms(name, text)

    def seconds(self, name: str, default: float) -> float:
        """A duration, in seconds."""
        return self.duration_ms(name, round(default * 1000)) / 1000

    def bootstrap(self, client: str) -> str:
        servers = self.text("kafka.bootstrap.servers")
        if servers:
            return servers
        if self.has("bootstrap.servers"):
            raise OptionError(
                "bootstrap.servers is not an option: write kafka.bootstrap.servers instead"
            )
        raise OptionError(
            "kafka.bootstrap.servers must be specified for the"
            f' {client}: write .option("kafka.bootstrap.servers", "host:9092")'
        )

    def kafka_settings(self, refused: Mapping[str, str]) -> dict[str, str]:
        """Settings without ``kafka.``; refused: setting to what to write instead."""
        settings: dict[str, str] = {}
        for lower, (name, value) in self._given.items():
            if not lower.startswith(KAFKA_PREFIX):
                continue
            # Spark may have lowered the name; Kafka's own names are lower case.
            setting = lower[len(KAFKA_PREFIX) :]
            if setting in refused:
                raise OptionError(f"{name} is not supported: {refused[setting]}")
            if (said := doubt(setting, KAFKA_PREFIX)) is not None:
                log.warning("%s", said)
            settings[setting] = value
        settings.pop("bootstrap.servers", None)
        return settings

    def subscription(self) -> Subscription:
        named = [name for name in _STRATEGIES if self.has(name)]
        if not named:
            raise OptionError(
                "no topics are named: write exactly one of subscribe, subscribePattern and assign"
            )
        if len(named) > 1:
            raise OptionError(
                f"{' and '.join(named)} are given: write only one of subscribe, subscribePattern"
                " and assign"
            )
        text = self.text(named[0]) or ""
        if named[0] == "assign":
            return Subscription(partitions=parse_partitions(text))
        if named[0] == "subscribe":
            topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
            if not topics:
                raise OptionError("subscribe names no topic: write names separated by commas")
            return Subscription(topics=topics)
        if not text:
            raise OptionError("subscribePattern is empty: write a regular expression")
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(
                f"subscribePattern {text!r} is no regular expression of Python ({error}): write one"
                " that is found in the names of the topics"
            ) from error
        return Subscription(pattern=text)

    def limit(self, side: str, default: LimitKind) -> Limit:
        """One timestamp goes before timestamps of partitions, and these before offsets."""
        strategy = (self.text("startingOffsetsByTimestampStrategy") or "error").lower()
        if strategy not in ("error", "latest"):
            raise OptionError(
                f"startingOffsetsByTimestampStrategy is {strategy!r}: write error or latest"
            )
        no_match_is_latest = side == "ending" or strategy == "latest"
        if self.has(f"{side}Timestamp"):
            timestamp = self.integer(f"{side}Timestamp") or 0
            return Limit(LimitKind.TIMESTAMP, {}, timestamp, no_match_is_latest)
        by_timestamp = f"{side}OffsetsByTimestamp"
        if self.has(by_timestamp):
            values = parse_offsets(self.text(by_timestamp) or "", by_timestamp)
            return Limit(LimitKind.TIMESTAMPS, values, 0, no_match_is_latest)
        text = self.text(f"{side}Offsets")
        if text is None:
            return Limit(default)
        if text.lower() in ("earliest", "latest"):
            return Limit(LimitKind(text.lower()))
        if text.lower() == "committed" and side == "starting":
            return Limit(LimitKind.COMMITTED)
        values = parse_offsets(text, f"{side}Offsets")
        for place, offset in values.items():
            if offset < EARLIEST:
                earliest = " or -2 (earliest)" if side == "starting" else ""
                raise OptionError(
                    f"{side}Offsets of {_names([place])} is {offset}: write an offset, -1 (latest)"
                    f"{earliest}"
                )
        return Limit(LimitKind.OFFSETS, values)

    def warn_of_unknown(self, use: str) -> None:
        """One line in the log for each option that has no effect."""
        for lower, (name, _) in self._given.items():
            if lower.startswith(KAFKA_PREFIX) or lower in _OF_SPARK:
                continue
            option = _BY_NAME.get(lower)
            if option is None:
                near = difflib.get_close_matches(lower, _BY_NAME, 1)
                hint = f"; did you mean {_BY_NAME[near[0]].name}?" if near else ""
                log.warning("there is no option %s%s", name, hint)
            elif use not in option.uses:
                log.warning("option %s has no effect here (%s)", option.name, use)


# -- values


def parse_duration_ms(name: str, text: str) -> int:
    """``500``, ``500ms``, ``30s``, ``15m``, ``2h``, ``1d``; a bare number counts ms."""
    match = re.fullmatch(r"([0-9]+)(us|ms|s|m|min|h|d)?", text.strip().lower())
    if match is None:
        raise OptionError(f"{name} is {text!r}: write a duration such as 30s, 15m or 500ms")
    per_unit = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    unit = match[2] or "ms"
    return int(match[1]) // 1000 if unit == "us" else int(match[1]) * per_unit[unit]


def parse_partitions(text: str) -> tuple[TopicPartition, ...]:
    """``{"topicA":[0,1]}``. Raises OptionError."""
    what = f'assign is {text!r}: write partitions such as {{"topicA":[0,1],"topicB":[2]}}'
    try:
        parsed = json.loads(text)
        found = [(topic, _as_int(part)) for topic, parts in parsed.items() for part in parts]
    except (ValueError, AttributeError, TypeError) as error:
        raise OptionError(what) from error
    if not found or any(part < 0 for _, part in found):
        raise OptionError(what)
    return tuple(dict.fromkeys(found))


def parse_offsets(text: str, name: str) -> dict[TopicPartition, int]:
    """``{"topicA":{"0":23,"1":-1}}``, offsets or timestamps. Raises OptionError."""
    try:
        return offsets_from_json(json.loads(text))
    except (ValueError, AttributeError, TypeError) as error:
        example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
        words = "earliest, latest or " if name == "startingOffsets" else ""
        raise OptionError(f"{name} is {text!r}: write {words}JSON such as {example}") from error


def offsets_from_json(parsed: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Raises ValueError, AttributeError or TypeError where it has another shape."""
    return {
        (topic, _as_int(partition)): _as_int(offset)
        for topic, offsets in parsed.items()
        for partition, offset in offsets.items()
    }


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """By topic, then partition: what Spark's connector has in its offset log."""
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested


def format_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """``{"topic":{"0":123}}``, sorted and without blanks."""
    return json.dumps(offsets_to_json(offsets), separators=(",", ":"), ensure_ascii=False)


def _as_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))
