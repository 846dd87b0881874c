"""``df.write.format("kbroker")`` and ``writeStream``: Arrow batches to topics.

The default is at-least-once, as of Spark's connector: a task that is tried again writes again.
``delivery=exactly-once`` leaves the transaction of each task open; the driver commits all of them
once all tasks are done, after it recorded which ones (``intents``), so that a repeated micro-batch
commits the same transactions instead of writing again (``exactly_once``). It must come to that
before ``kafka.transaction.timeout.ms`` is over; after that the commit fails, loudly.

Spark makes a new writer object for the commit of each micro-batch: what it needs travels in the
messages of the tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from kbroker.client.batches.produce import IN_FLIGHT_MAX
from kbroker.client.batches.transactions import ProducerIdentity
from kbroker.client.errors import ClientError
from kbroker.record.compression import CODEC_NAMES
from kbroker.spark.checkpoint import query_id
from kbroker.spark.exactly_once import (
    WriteAttempt,
    abort_attempt,
    commit_written,
    complete_recorded,
    intents_of,
    transactional_id,
)
from kbroker.spark.options.option_values import OptionError
from kbroker.spark.options.options import WriteOptions, parse_write
from kbroker.spark.pool import borrowed
from kbroker.spark.worker_process import prepare_worker

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker.client.batches.arrow import ArrowProducer
    from kbroker.client.connections.cluster import Cluster

# The maximum that brokers allow by default: a micro-batch may take long.
TRANSACTION_TIMEOUT_MS = 900_000
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"

# Configs that are arguments of the producer, with their minimum and maximum.
_LIMITS = (
    ("batch.size", "batch_bytes", 1, 1 << 30),
    ("buffer.memory", "buffer_bytes", 1, 1 << 40),
    ("max.in.flight.requests.per.connection", "max_in_flight", 1, IN_FLIGHT_MAX),
    ("max.request.size", "request_bytes", 1, 1 << 30),
)
_NO_ATTEMPT = WriteAttempt("", 0, "")
_HEADERS = "array<struct<key:string,value:binary>>"
_COLUMNS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": (_HEADERS,),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}


@dataclass
class WrittenRows(WriterCommitMessage):
    """The result of a task. attempt: with delivery=exactly-once, the attempt of a batch of a write.
    identity: of the open transaction. repeated: an earlier run recorded the batch, so nothing was
    written.
    """

    rows: int = 0
    attempt: WriteAttempt = _NO_ATTEMPT
    identity: ProducerIdentity | None = None
    repeated: bool = False


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """Raises OptionError."""
    parsed = _parsed(options)
    if overwrite:
        raise OptionError('a topic cannot be overwritten: write .mode("append")')
    return BatchWriter(parsed, written_columns(parsed, schema))


def stream_writer(options: Mapping[str, str], schema: StructType) -> DataSourceStreamArrowWriter:
    """Raises OptionError."""
    parsed = _parsed(options)
    return StreamWriter(parsed, written_columns(parsed, schema))


def _parsed(options: Mapping[str, str]) -> WriteOptions:
    """Reject here what a task would reject, before there is one. Raises OptionError."""
    parsed = parse_write(options)
    settings = producer_settings(parsed.kafka)
    if parsed.exactly_once and settings["acks"] != -1:
        raise OptionError(
            f"kafka.acks is {parsed.kafka['acks']!r} with delivery=exactly-once, which needs all: "
            "leave it out"
        )
    return parsed


def written_columns(options: WriteOptions, schema: StructType) -> list[str]:
    """The columns of a record. Raises OptionError if one is missing or of another type; other
    columns are left out.
    """
    given = {one.name: one.dataType.simpleString() for one in schema.fields}
    if "value" not in given:
        raise OptionError(
            "the rows have no column value: add one, such as selectExpr('body AS value')"
        )
    if options.topic is None and "topic" not in given:
        raise OptionError(
            'the rows have no column topic: write .option("topic", ...), or add the column'
        )
    wanted = dict(_COLUMNS)
    if options.topic is not None:
        del wanted["topic"]
    if not options.keep_timestamps:
        del wanted["timestamp"]
    for name, kinds in wanted.items():
        if name in given and given[name] not in kinds:
            how = f"cast it to {' or '.join(kinds)} in the query"
            if name == "headers":
                # A cast follows the order of the fields, and would swap keys and values.
                how = (
                    f"make it {_HEADERS}, such as"
                    " transform(headers, h -> named_struct('key', h.key, 'value', h.value))"
                )
            raise OptionError(f"column {name} is {given[name]}: {how}")
    return [name for name in given if name in wanted]


class _Writer:
    """The common part of batch and stream writers."""

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = list(columns)
        # Made by the driver for each micro-batch, and sent to the tasks with this object.
        self._attempt = uuid.uuid4().hex

    def _write(
        self, batches: Iterator[pa.RecordBatch], attempt: WriteAttempt, partition: int
    ) -> WrittenRows:
        options = self._options
        prepare_worker()
        with borrowed(options.bootstrap, options.kafka, limits=options.pool) as cluster:
            if not options.exactly_once:
                with self._producer(cluster, None) as producer:
                    for one in batches:
                        producer.write(one.select(self._columns))
                    producer.flush()
                    return WrittenRows(producer.rows)
            if intents_of(cluster, options).find(attempt.write, attempt.batch) is not None:
                return WrittenRows(attempt=attempt, repeated=True)
            name = transactional_id(options, attempt.write, attempt.batch, partition)
            return self._write_transaction(cluster, batches, name, attempt)

    def _write_transaction(
        self,
        cluster: Cluster,
        batches: Iterator[pa.RecordBatch],
        name: str,
        attempt: WriteAttempt,
    ) -> WrittenRows:
        """The transaction stays open, unless there is no row."""
        producer = self._producer(cluster, name)
        identity = None
        try:
            for one in batches:
                if identity is None and one.num_rows:
                    identity = self._begin(cluster, producer, attempt)
                if identity is not None:
                    producer.write(one.select(self._columns))
            if identity is not None:
                producer.flush()
            return WrittenRows(producer.rows, attempt, identity)
        except BaseException:
            if identity is not None:
                with suppress(ClientError):  # the broker aborts it after its timeout
                    producer.end(commit=False)
            raise
        finally:
            producer.close()

    def _begin(
        self, cluster: Cluster, producer: ArrowProducer, attempt: WriteAttempt
    ) -> ProducerIdentity:
        """Raises RejectedError if the driver has aborted the attempt: checked before, so as not to
        fence the next attempt; and after, because it may have fenced the id just before.
        """
        intents = intents_of(cluster, self._options)
        intents.require_not_aborted(attempt.write, attempt.name)
        identity = producer.begin()
        intents.require_not_aborted(attempt.write, attempt.name)
        return identity

    def _producer(self, cluster: Cluster, transactional_id: str | None) -> ArrowProducer:
        from kbroker.client.batches.arrow import ArrowProducer

        settings = producer_settings(self._options.kafka)
        if transactional_id is not None:
            settings["transactional_id"] = transactional_id
            settings["idempotent"] = True
        else:
            settings.pop("transaction_timeout_ms")
        return ArrowProducer(cluster, topic=self._options.topic, **settings)

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        written = [one for one in messages if isinstance(one, WrittenRows)]
        identities = [one.identity for one in written if one.identity is not None]
        repeated = next((one for one in written if one.repeated), None)
        options = self._options
        if not options.exactly_once or not (identities or repeated):
            return
        with borrowed(options.bootstrap, options.kafka, limits=options.pool) as cluster:
            if repeated is not None:
                of = repeated.attempt
                complete_recorded(cluster, options, of.write, of.batch)
            else:
                of = written[0].attempt
                commit_written(cluster, options, of.write, of.batch, identities)

    def _abort(self, messages: Sequence[WriterCommitMessage | None], attempt: WriteAttempt) -> None:
        """messages: one for each partition, None for those whose task did not finish."""
        options = self._options
        if not options.exactly_once:
            return
        identities = [
            one.identity for one in messages if isinstance(one, WrittenRows) and one.identity
        ]
        silent = [partition for partition, one in enumerate(messages) if one is None]
        with borrowed(options.bootstrap, options.kafka, limits=options.pool) as cluster:
            abort_attempt(cluster, options, attempt, identities, silent)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Sent to the tasks, and called to commit."""

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._write_id = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        return self._write(iterator, self._attempt_at_batch(), context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages, self._attempt_at_batch())

    def _attempt_at_batch(self) -> WriteAttempt:
        return WriteAttempt(self._write_id, self._options.write_batch, self._attempt)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes micro-batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty(QUERY_ID) or ""
        batch = context.getLocalProperty(BATCH_ID)
        if self._options.exactly_once and not (query and batch):
            raise OptionError("delivery=exactly-once needs the number of the batch from Spark")
        attempt = WriteAttempt(query, int(batch or 0), self._attempt)
        return self._write(iterator, attempt, context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Without any message, only the checkpoint identifies the query, and so which of the open
        transactions belong to this batch; no task's attempt is known then. If it does not, a
        restart of the query aborts them.
        """
        from_messages = next(
            (one.attempt for one in messages if isinstance(one, WrittenRows)), None
        )
        attempt = from_messages or self._attempt_of_checkpoint(batchId)
        if attempt is not None:
            self._abort(messages, attempt)

    def _attempt_of_checkpoint(self, batch: int) -> WriteAttempt | None:
        options = self._options
        if not options.exactly_once or options.checkpoint_location is None:
            return None
        query = query_id(options.checkpoint_location)
        return None if query is None else WriteAttempt(query, batch, "")


def producer_settings(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of ``ArrowProducer`` for settings under their Kafka names. Raises OptionError."""
    from kbroker.client.batches.arrow import BATCH_BYTES

    acks = kafka.get("acks", "all").lower()
    if acks not in ("all", "-1", "0", "1"):
        raise OptionError(f"kafka.acks is {acks!r}: write all, 1 or 0")
    codec = kafka.get("compression.type", "none").lower()
    if codec not in CODEC_NAMES:
        raise OptionError(f"kafka.compression.type is {codec!r}: write {', '.join(CODEC_NAMES)}")
    in_all = acks in ("all", "-1")
    settings: dict[str, Any] = {
        "acks": -1 if in_all else int(acks),
        "idempotent": in_all and kafka.get("enable.idempotence", "true").lower() != "false",
        "codec": codec,
        "delivery_timeout": _number(kafka, "delivery.timeout.ms", 120_000) / 1000,
        "transaction_timeout_ms": _number(kafka, "transaction.timeout.ms", TRANSACTION_TIMEOUT_MS),
    }
    level = f"compression.{settings['codec']}.level"
    if level in kafka:
        settings["level"] = _number(kafka, level, 0)
    for name, argument, least, most in _LIMITS:
        if name in kafka:
            settings[argument] = min(max(least, _number(kafka, name, 0)), most)
    if "request_bytes" in settings:
        batch_bytes = settings.get("batch_bytes", BATCH_BYTES)
        settings["batch_bytes"] = min(batch_bytes, settings["request_bytes"])
    if "linger.ms" in kafka:
        settings["linger"] = _number(kafka, "linger.ms", 0) / 1000
    return settings


def _number(kafka: Mapping[str, str], name: str, default: int) -> int:
    text = kafka.get(name, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise OptionError(f"kafka.{name} is {text!r}: write a whole number") from error
