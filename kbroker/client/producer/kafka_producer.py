"""``KafkaProducer``: sends records to topics, in batches, from any thread."""

from __future__ import annotations

import itertools
import logging
import os
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from kbroker._ext.client.forwarder import Forwarder
from kbroker._ext.client.record_futures import RecordFuture, RecordFutures
from kbroker._ext.client.send_loop import SendLoop
from kbroker.client.batches.offsets import GroupMetadata
from kbroker.client.batches.record_arrays import Fields, Parts, both_parts_of, timestamps_of
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.hosts import require_threads
from kbroker.client.errors import (
    BufferExhausted,
    ClientClosed,
    ClientError,
    Timeout,
    TransactionState,
)
from kbroker.client.monitoring.monitoring import Monitoring
from kbroker.client.producer import at_exit, parts
from kbroker.client.producer.identity import BROKEN, OPEN, READY, Offsets, ProducerSession
from kbroker.client.producer.producer_metrics import ProducerMetrics
from kbroker.client.producer.producer_settings import SETTINGS, producer_settings
from kbroker.client.producer.records import (
    Callback,
    Headers,
    ProducerRecord,
    told,
)
from kbroker.client.producer.sender_thread import SenderThread
from kbroker.client.producer.working import Clusters, Introduction, Working, watch

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

logger = logging.getLogger(__name__)

_numbers = itertools.count(1)


class KafkaProducer:
    """Sends records, which are written in batches by a thread of its own.

        with KafkaProducer(bootstrap_servers="localhost:9092", linger_ms=5) as producer:
            future = producer.send("topic", b"value", key=b"key")
            print(future.result().offset)

    config: settings under Java's names (docs/producer-settings.md); keywords: the same, with ``_``
    or ``.``. Raises SettingRefused. Connects when it is first used. Any thread may call any method,
    except those of transactions, which one thread calls. It does not survive a fork.
    """

    # Whether `append` waits for memory.
    _waits: ClassVar[bool] = True
    # What makes its clusters; simulations have others, and another sender.
    _clusters_of: ClassVar[type[Clusters]] = Clusters

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        require_threads()
        values = self._settings = producer_settings(config, settings)
        for name in values.without_effect(SETTINGS):
            logger.warning("the setting %s has no effect: %s", name, SETTINGS[name].no_effect)
        self._transactional = values["transactional.id"] is not None
        self.client_id: str = values["client.id"] or f"producer-{next(_numbers)}"
        self._partitioner = values["partitioner.class"]
        self._key_serializer = parts.serializer(values["key.serializer"])
        self._value_serializer = parts.serializer(values["value.serializer"])
        self._interceptors = values["interceptor.classes"]
        self._block_s = values["max.block.ms"] / 1000
        fetch_ms = values["metadata.fetch.timeout.ms"]
        self._metadata_s = self._block_s if fetch_ms is None else fetch_ms / 1000
        self._pool = parts.pool(values, values["block.on.buffer.full"] and self._waits)
        acks = values["acks"]
        timeout_ms = values["timeout.ms"]
        self._loop = SendLoop(
            self._pool,
            client_id=self.client_id,
            acks=acks,
            timeout_ms=values["request.timeout.ms"] if timeout_ms is None else timeout_ms,
            request_us=values["request.timeout.ms"] * 1000,
            request_bytes_max=values["max.request.size"],
            in_flight_max=values["max.in.flight.requests.per.connection"],
            transactional_id=values["transactional.id"],
        )
        cluster_of = self._clusters_of(values, self.client_id)
        me = weakref.ref(self)  # what works for it must not keep it alive
        self._sender = self._made_sender(
            cluster_of(), (lambda error: _failed(me, error)) if self._transactional else None
        )
        self._identity = ProducerSession(values, cluster_of(), self._sender)
        introduction = Introduction(values, self._pool, self._sender, self._identity)
        self._sender.ask_identity = introduction.ask  # type: ignore[method-assign]
        self._sender.add_partitions = self._identity.add_partitions
        self._metrics = ProducerMetrics(
            values, self.client_id, self._pool, self._loop, self._sender
        )
        self._monitoring = Monitoring(
            values,
            "kafka.producer",
            self.client_id,
            self._metrics,
            {"transactional_id": values["transactional.id"]},
            cluster_of,
        )
        cluster_of.connected = self._monitoring.connected
        self._working = Working(
            values, self._pool, self._sender, self._identity, self._monitoring, self._metrics,
            self._interceptors,
        )  # fmt: skip
        self._transaction_records = 0
        self._append = self._pool.append
        self._closed = False
        self._settle()
        self._pid = os.getpid()
        at_exit.add(self)
        self._sender.start()
        self._watch = watch(self, self.client_id, self._working, self._pool, self._sender)
        if values["enable.idempotence"] and not self._transactional:
            self._sender.post(introduction.ask)

    def _made_sender(
        self, cluster: Cluster, failed: Callable[[ClientError], None] | None
    ) -> SenderThread:
        return SenderThread(self._settings, self._pool, self._loop, cluster, failed)

    def __enter__(self) -> KafkaProducer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Records were promised to be sent, also by a program that fails; not to who interrupts it.
        self.close(None if error is None or isinstance(error, Exception) else 0.0)

    # -- records

    def send(
        self,
        topic: str | ProducerRecord,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        *,
        callback: Callback | None = None,
    ) -> RecordFuture:
        """Send a record; its future ends with the ``RecordMetadata`` or why it was not written.

        timestamp_ms: since 1970, None: now. Or ``send(ProducerRecord(...), callback)``, as in Java.
        callback: called with the RecordMetadata and None, or with None and the error. Returns at
        once, unless metadata or memory are missing: raises Timeout and BufferExhausted after
        ``max.block.ms``, ClientClosed. A record that cannot be encoded or is too large fails its
        own future only.
        """
        future = None
        if self._is_plain:
            try:
                # A ProducerRecord is refused.
                future = self._append(
                    topic,  # type: ignore[arg-type]
                    key, value, headers, partition, timestamp_ms,
                )  # fmt: skip
            except (TypeError, ValueError, OverflowError) as error:
                if not isinstance(topic, ProducerRecord):
                    future = parts.refused(error, topic)
        if future is None:
            rest = value, key, headers, partition, timestamp_ms
            if isinstance(topic, ProducerRecord):
                record = topic
                callback = record.callback(rest, callback)
            else:
                record = ProducerRecord(topic, *rest)
            future = self._send_record(record)
        if callback is not None:
            future.add_done_callback(told(callback))
        return future

    def _send_record(self, record: ProducerRecord) -> RecordFuture:
        steps = self.sending(record)
        try:
            need = next(steps)
            while True:
                try:
                    assert isinstance(need, str), f"{need!r} although `append` waits for memory"
                    self._sender.metadata.wait_for(need, self._metadata_s)
                except ClientError as error:
                    need = steps.throw(error)
                else:
                    need = next(steps)
        except StopIteration as end:
            made: RecordFuture = end.value
            return made

    def sending(
        self, record: ProducerRecord
    ) -> Generator[str | BufferExhausted, None, RecordFuture]:
        """The steps of ``send``; returns the future. Yields a topic whose partitions must be known
        before the next step or, if ``append`` does not wait, the error that there is no memory.
        """
        self._check_open()
        given = record.topic
        try:
            for interceptor in self._interceptors:
                record = parts.intercepted(interceptor, record)
            topic = self._named(record.topic)
            if not self._pool.partition_count(topic):
                yield topic
            key = parts.serialized(self._key_serializer, topic, record.key)
            value = parts.serialized(self._value_serializer, topic, record.value)
            partition = record.partition
            if partition is None and callable(self._partitioner):
                partition = self._placed(topic, key)
            future = None
            while future is None:
                need: str | BufferExhausted = topic
                try:
                    future = self._append(
                        topic, key, value, record.headers, partition, record.timestamp_ms
                    )
                except BufferExhausted as error:
                    if self._waits:
                        raise
                    need = error
                if future is None:
                    yield need
        except (TypeError, ValueError, OverflowError) as error:
            future = parts.refused(error, given)
        except ClientError as error:
            if error.retriable or isinstance(error, ClientClosed | TransactionState):
                raise
            future = RecordFuture.refused(error)  # no such topic, not authorized, ...
        if self._interceptors:
            future.add_done_callback(self._acknowledge)
        return future

    def send_many(
        self,
        topic: str,
        values: Sequence[Any] | Fields,
        keys: Sequence[Any] | Fields | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | ArrayLike | None = None,
    ) -> RecordFutures:
        """Send a record for each value, in their order, with the key at the same place.

        values, keys: lists, or ``Fields``: parts of a buffer, such as those of ``poll_columns``,
        for which no serializer is called. headers and partition are those of all; timestamp_ms,
        too, or it is an array with one for each. The result's ``result()`` says where the records
        are, ``exceptions()`` which ones have failed. Raises as ``send``, and ValueError for parts
        that are not in their buffer; then nothing is sent.
        """
        values, keys = self.encoded(topic, values, keys, partition)
        times = timestamps_of(timestamp_ms, len(values))
        futures = None
        while futures is None:
            if not self._pool.partition_count(topic):
                self._sender.metadata.wait_for(topic, self._metadata_s)
            futures = self.append_many(topic, values, keys, headers, partition, times)
        return futures

    def append_many(self, topic: str, values: Any, *row: Any) -> RecordFutures | None:
        """As those of the accumulator; values: what ``encoded`` has returned."""
        if isinstance(values, Parts):
            return self._pool.append_parts(topic, values, *row)
        return self._pool.append_many(topic, values, *row)

    def encoded(self, topic: str, values: Any, keys: Any, partition: int | None) -> tuple[Any, Any]:
        """The values and keys of ``send_many`` as they are sent, if they may be: lists or Parts."""
        if self._interceptors or (callable(self._partitioner) and partition is None):
            raise TypeError("send_many has no interceptors and no partitioner: use send")
        self._check_open()
        self._named(topic)
        if isinstance(keys, Fields):
            keys = keys if isinstance(values, Fields) else list(keys)
        elif self._key_serializer is not None and keys is not None:
            keys = [parts.serialized(self._key_serializer, topic, key) for key in keys]
        if isinstance(values, Fields):
            return both_parts_of(values, keys)
        if self._value_serializer is not None:
            values = [parts.serialized(self._value_serializer, topic, value) for value in values]
        return values, keys

    def forwarder(self, *, keep_partitions: bool = False) -> Forwarder:
        """What ``KafkaConsumer.forward`` passes records to, for one thread.

        keep_partitions: a record keeps the number of its partition where the topic has it here.
        Batches of up to ``batch.size`` bytes may stay as they are, also compressed, unless
        ``compression.type`` is set to something else.
        """
        if self._interceptors or callable(self._partitioner) or self._transactional:
            raise TypeError("a forwarder has no interceptors, no partitioner and no transactions")
        return Forwarder(
            self._pool,
            keep_partitions=keep_partitions,
            keep_codecs="compression.type" not in self._settings.given,
            whole_bytes_max=min(self._settings["max.request.size"], self._settings["batch.size"]),
        )

    def await_topic(self, topic: str, timeout: float) -> None:
        """Return when the partitions of a topic are known. Raises Timeout, RejectedError."""
        self._check_usable()
        self._sender.metadata.wait_for(topic, timeout)

    def trouble(self) -> str:
        """Why records are not acknowledged, as far as that is known; empty if nothing is wrong."""
        return self._sender.trouble()

    @staticmethod
    def _named(topic: Any) -> str:
        if not isinstance(topic, str) or not topic:
            raise TypeError(f"{topic!r} is not the name of a topic")
        return topic

    def _placed(self, topic: str, key: bytes | None) -> int:
        everything = list(range(self._pool.partition_count(topic)))
        try:
            return int(self._partitioner(key, everything, self._pool.led(topic) or everything))
        except Exception as error:
            raise parts.failed_in("the partitioner", error) from error

    def _acknowledge(self, future: RecordFuture) -> None:
        error = future.exception()
        metadata = None if error is not None else future.result()
        for interceptor in self._interceptors:
            try:
                interceptor.on_acknowledgement(metadata, error)
            except Exception:
                logger.exception("on_acknowledgement of %r raised an error", interceptor)

    def partitions_for(self, topic: str) -> set[int]:
        """The partitions of a topic, also of one that brokers create. Raises as ``await_topic``."""
        self._check_usable()
        return set(self._sender.metadata.partitions(topic, self._block_s))

    def flush(self, timeout: float | None = None) -> None:
        """Return when all records that were sent before are acknowledged or have failed, and their
        callbacks have returned.

        Open batches are sent at once. timeout: seconds; raises Timeout after it. Not for callbacks,
        whose thread would wait for itself.
        """
        self._check_process()
        if self._sender.is_current:
            raise ClientError("flush was called by a callback")
        seconds = float("inf") if timeout is None else timeout
        began = time.monotonic()
        if not self._pool.flush(seconds):
            raise Timeout("acknowledgements of all records", seconds, self._sender.waits_for())
        if not self._sender.settle(max(seconds - (time.monotonic() - began), 0.0)):
            raise Timeout("callbacks of all records", seconds)

    def metrics(self) -> dict[str, float]:
        """Values by name, under the names of Java's group ``producer-metrics``."""
        self._check_process()
        return self._metrics.values()

    def metrics_by_node(self) -> dict[int, dict[str, float]]:
        """The same of each broker that records were for: group ``producer-node-metrics``."""
        return self._metrics.by_node()

    def metrics_by_topic(self) -> dict[str, dict[str, float]]:
        """The same of each topic that records were sent to: group ``producer-topic-metrics``."""
        return self._metrics.by_topic()

    def client_instance_id(self, timeout: float | None = None) -> str | None:
        """The id that brokers have given this client, for what it pushes of its metrics (KIP-714);
        None if they do not ask for metrics. timeout: ``max.block.ms`` by default. Raises
        SettingRefused without ``enable.metrics.push``.
        """
        self._check_process()
        return self._monitoring.instance_id(self._block_s if timeout is None else timeout)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Where the metrics are served, if ``kbroker.metrics.port`` is set."""
        return self._monitoring.address

    def close(self, timeout: float | None = None) -> None:
        """Send what is buffered, within ``timeout`` seconds, and end; what is left then fails, with
        ClientClosed. A transaction that is open is aborted.

        May be called again. None: no limit but ``delivery.timeout.ms``; a callback's call does not
        wait.
        """
        if self._closed:
            return
        self._closed = True
        at_exit.discard(self)
        if self._pid != os.getpid():
            return
        self._watch.detach()
        self._settle()
        self._working.close(timeout)

    def is_flushed(self, seconds: float) -> bool:
        """Send open batches at once; whether all have ended within ``seconds``."""
        return bool(self._pool.flush(seconds))

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ClientClosed(
                "the producer belongs to the process that created it: create one after the fork"
            )

    def _check_usable(self) -> None:
        self._check_process()
        if self._closed:
            raise ClientClosed("the producer is closed")

    def _check_open(self) -> None:
        self._check_usable()
        if self._transactional and self._identity.state != OPEN:
            self._identity.expect("send", OPEN)

    def _settle(self) -> None:
        """Whether a record may be sent, and needs no Python of ours (serializers and the like)."""
        self._is_plain = not (
            self._closed
            or self._key_serializer
            or self._value_serializer
            or self._interceptors
            or callable(self._partitioner)
            or (self._transactional and self._identity.state != OPEN)
        )

    def forget(self) -> None:
        """In a new process: there is no thread that would send."""
        self._closed = True
        self._settle()
        self._monitoring.forget()

    # -- transactions

    def init_transactions(self, timeout: float | None = None) -> None:
        """Fence other producers with the same ``transactional.id``, and abort what they have open.

        Needed once before the first transaction. Raises Timeout, RejectedError.
        """
        self._check_process()
        self._identity.init(self._block_s if timeout is None else timeout)
        self._settle()

    def begin_transaction(self) -> None:
        """What is sent from now on is read by ``read_committed`` consumers once it is committed."""
        self._check_process()
        self._identity.expect("begin_transaction", READY)
        self._sender.begin_transaction()
        self._transaction_records = self._pool.counts()["records"]
        self._identity.told = False
        self._identity.state = OPEN
        self._settle()

    def send_offsets_to_transaction(self, offsets: Offsets, group: str | GroupMetadata) -> None:
        """Commit a group's offsets with the transaction: {(topic, partition): offset}, or
        (offset, metadata) for each.

        group: its name, or ``group_metadata()`` of the consumer that has read the records: then a
        consumer that has lost its partitions to others of the group commits nothing.
        """
        self._check_process()
        try:
            self._identity.commit_offsets(group, offsets)
        finally:
            self._settle()

    def commit_transaction(self) -> None:
        """Commit, once all records are acknowledged. Raises why one was not: then only
        ``abort_transaction`` is possible; after a Timeout, that of ``max.block.ms``, it may be
        called again.
        """
        self._check_process()
        self._identity.expect("commit_transaction", OPEN)
        deadline = time.monotonic() + self._block_s
        self.flush(self._block_s)
        self._identity.expect("commit_transaction", OPEN)
        self._note_records()
        try:
            self._identity.commit(deadline - time.monotonic())
        finally:
            self._settle()

    @property
    def in_transaction(self) -> bool:
        """Whether there is one to be committed or aborted."""
        return self._identity.state in (OPEN, BROKEN)

    def abort_transaction(self) -> None:
        """Abort: records that were not sent are not sent any more, the others are never read by
        ``read_committed`` consumers. Raises Timeout after ``max.block.ms``; then it may be called
        again.
        """
        self._check_process()
        self._identity.expect("abort_transaction", OPEN, BROKEN)
        deadline = time.monotonic() + self._block_s
        was_broken = self._identity.give_up()
        self._settle()
        self._sender.aborting = True
        self._pool.wake()
        try:
            self.flush(self._block_s)
        finally:
            self._sender.aborting = False
        self._note_records()
        sure = not (self._sender.unsure or was_broken)
        try:
            self._identity.abort(deadline - time.monotonic(), sure=sure)
        finally:
            self._settle()

    def _note_records(self) -> None:
        if self._pool.counts()["records"] != self._transaction_records:
            self._identity.told = True

    def _transaction_failed(self, error: ClientError) -> None:
        """In the sender's thread: a record of the transaction was not written."""
        self._identity.fail(error)
        self._settle()


def _failed(producer: weakref.ref[KafkaProducer], error: ClientError) -> None:
    owner = producer()
    if owner is not None:
        owner._transaction_failed(error)
