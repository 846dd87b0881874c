"""The options of the data source, one row each: what there is, where it counts, its default.

What is kbroker's own, not of Spark's Kafka connector, is marked so. The documentation has the same
rows (docs/spark.md); how they are read is in ``options``.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.spark.pool import PoolLimits


@dataclass(frozen=True, slots=True)
class Option:
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
        "regular expression of Python, found anywhere in a name; `^...$` for all of it",
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
    Option("transactionalIdPrefix", "write", ID_PREFIX, "of exactly-once writes", own=True),
    Option(
        "lostTransactions",
        "write",
        "fail",
        "of a recorded batch that expired in part: `fail`, `rewrite` all of it, or `skip` them",
        own=True,
    ),
    Option("writeId", "write", "", "a batch written again under it is not repeated", own=True),
    Option("writeBatch", "write", "0", "of writeId: the number that foreachBatch passes", own=True),
    Option("intentTopic", "write", INTENT_TOPIC, "of exactly-once writes", own=True),
)

BY_NAME = {option.name.lower(): option for option in OPTIONS}
