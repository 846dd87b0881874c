"""The options of the data source, one row each: name, where it applies, default.

What is kbroker's own, not of Spark's Kafka connector, is marked so. The documentation has the same
rows (docs/spark.md); how they are read is in ``options``.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.spark.pool import PoolLimits


@dataclass(frozen=True, slots=True)
class SparkOption:
    """A row of the table of options. uses: of ``batch``, ``stream`` and ``write``. own: Spark's
    Kafka connector does not have it."""

    name: str
    uses: str
    default: str
    text: str
    own: bool = False


# Defaults that other modules use, too.
PREFETCH_OFFSETS = 1000
WRITER_LIMITS = PoolLimits(idle_s=600.0)
ID_PREFIX = "kbroker-spark"
INTENT_TOPIC = "__kbroker_spark_intents"

OPTIONS = (
    SparkOption(
        "kafka.bootstrap.servers", "batch stream write", "(required)", "host:port, comma-separated"
    ),
    SparkOption("assign", "batch stream", "", 'partitions: `{"topicA":[0,1]}`'),
    SparkOption(
        "subscribe",
        "batch stream",
        "",
        "topics, comma-separated; also internal ones, which the connector does not read",
    ),
    SparkOption(
        "subscribePattern",
        "batch stream",
        "",
        "Python regular expression, matched anywhere in a name; `^...$` for the whole name",
    ),
    SparkOption(
        "startingOffsets",
        "batch stream",
        "batch `earliest`, stream `latest`",
        '`earliest`, `latest` (stream), or `{"topicA":{"0":23,"1":-2}}`; -2 is earliest, -1 latest;'
        " kbroker also takes `committed`",
    ),
    SparkOption("startingTimestamp", "batch stream", "", "ms; takes precedence over the next two"),
    SparkOption(
        "startingOffsetsByTimestamp", "batch stream", "", 'ms: `{"topicA":{"0":1700000000000}}`'
    ),
    SparkOption(
        "startingOffsetsByTimestampStrategy",
        "batch stream",
        "error",
        "`error` or `latest`, if no record is that recent",
    ),
    SparkOption("endingOffsets", "batch", "latest", "`latest` or JSON; -1 is latest"),
    SparkOption("endingTimestamp", "batch", "", "ms; latest if there is no such record"),
    SparkOption("endingOffsetsByTimestamp", "batch", "", "as startingOffsetsByTimestamp"),
    SparkOption("failOnDataLoss", "batch stream", "true", "whether missing offsets are an error"),
    SparkOption("minPartitions", "batch stream", "", "at least about this many tasks"),
    SparkOption("maxRecordsPerPartition", "batch stream", "", "maximum offsets per task"),
    SparkOption(
        "maxOffsetsPerTrigger", "stream", "", "offsets per micro-batch, divided in proportion"
    ),
    SparkOption("minOffsetsPerTrigger", "stream", "", "wait until there are this many"),
    SparkOption("maxTriggerDelay", "stream", "15m", "but no longer than this"),
    SparkOption("includeHeaders", "batch stream write", "false", "the column `headers`"),
    SparkOption("groupIdPrefix", "batch stream", "", "accepted, but there is no group membership"),
    SparkOption("kafkaConsumer.pollTimeoutMs", "batch stream", "120000", "deadline of one fetch"),
    SparkOption("fetchOffset.numRetries", "batch stream", "3", "attempts to get offsets"),
    SparkOption("fetchOffset.retryIntervalMs", "batch stream", "1000", "pause between them"),
    SparkOption(
        "spark.kafka.consumer.cache.capacity",
        "batch stream",
        "64",
        "maximum number of idle clients that a Python worker keeps",
    ),
    SparkOption(
        "spark.kafka.consumer.cache.timeout", "batch stream", "5m", "for at most this long"
    ),
    SparkOption(
        "spark.kafka.producer.cache.timeout",
        "write",
        "10m",
        "how long a Python worker keeps idle clients",
    ),
    SparkOption("topic", "write", "", "used for every row, whatever its column `topic` says"),
    SparkOption(
        "groupId",
        "batch stream",
        "",
        "a stream commits its offsets to this group; also used by `startingOffsets=committed`",
        own=True,
    ),
    SparkOption(
        "checkpointLocation",
        "stream write",
        "",
        "of the query; on the reader as well: where the first offsets are recorded",
        own=True,
    ),
    SparkOption(
        "allowUnsafeStart",
        "stream",
        "false",
        "start a stream without recording its first offsets",
        own=True,
    ),
    SparkOption(
        "maxBytesPerTrigger", "stream", "", "about this many bytes per micro-batch", own=True
    ),
    SparkOption(
        "prefetchMaxOffsets",
        "stream",
        str(PREFETCH_OFFSETS),
        "a micro-batch of at most this many is read by the driver, for one task; 0: never",
        own=True,
    ),
    SparkOption(
        "pushdown", "batch", "false", "filters on offsets and time reach the reader", own=True
    ),
    SparkOption("packPartitions", "batch stream", "false", "small ranges share a task", own=True),
    SparkOption("split", "batch stream", "size", "`size`, or `partition`: one task each", own=True),
    SparkOption("keepTimestamps", "write", "false", "records get the column `timestamp`", own=True),
    SparkOption("delivery", "write", "at-least-once", "or `exactly-once`", own=True),
    SparkOption("transactionalIdPrefix", "write", ID_PREFIX, "of exactly-once writes", own=True),
    SparkOption(
        "lostTransactions",
        "write",
        "fail",
        "when a recorded batch has partly expired: `fail`, `rewrite` all of it, or `skip` the rest",
        own=True,
    ),
    SparkOption("writeId", "write", "", "a batch written again under it is not repeated", own=True),
    SparkOption(
        "writeBatch", "write", "0", "of writeId: the number that foreachBatch passes", own=True
    ),
    SparkOption("intentTopic", "write", INTENT_TOPIC, "of exactly-once writes", own=True),
)

BY_NAME = {option.name.lower(): option for option in OPTIONS}
