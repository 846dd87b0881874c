"""``KafkaConsumer``: reads records of topics, alone or as a member of a group."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import index
from types import TracebackType
from typing import Any, NamedTuple

from kbroker._ext.client.consumer_record import ConsumerRecord
from kbroker._ext.client.forwarder import Forwarder
from kbroker._ext.client.record_futures import RecordFutures
from kbroker._ext.client.record_reader import RecordColumns
from kbroker.client.batches.offsets import EARLIEST, LATEST, NO_OFFSET, GroupMetadata, list_offsets
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.hosts import require_threads
from kbroker.client.connections.metadata import Topic
from kbroker.client.consumer import at_exit
from kbroker.client.consumer.commits import Callback
from kbroker.client.consumer.consumer_metadata import ask
from kbroker.client.consumer.consumer_metrics import ConsumerMetrics
from kbroker.client.consumer.consumer_settings import SETTINGS, consumer_settings
from kbroker.client.consumer.core import Core
from kbroker.client.consumer.dropped import watch
from kbroker.client.consumer.membership import ConsumerMembership, RebalanceListener
from kbroker.client.consumer.partitions import (
    OffsetAndMetadata,
    TopicPartition,
    as_committed,
    key_of,
    keys_of,
)
from kbroker.client.consumer.subscribing import check_listener, names_of, pattern_of
from kbroker.client.errors import CommitFailed, ConsumerState, RejectedError
from kbroker.client.monitoring.monitoring import Monitoring
from kbroker.errors import ErrorCode

logger = logging.getLogger(__name__)

_CLOSE_S = 30.0
_ITERATE_S = 1.0
_COLUMN_ROWS = 5_000
# About two responses' worth of small records; arrays are cheaper than objects.
_ARROW_ROWS = 100_000


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time. leader_epoch: -1 if unknown."""

    offset: int
    timestamp: int
    leader_epoch: int


class KafkaConsumer:
    """Reads records from the partitions that are assigned to it.

        with KafkaConsumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
            consumer.subscribe(["orders"])
            while True:
                for record in consumer.poll(1.0):
                    print(record.topic, record.partition, record.offset, record.value)

    config: settings under Java's names (docs/consumer-settings.md); keywords: the same, with ``_``
    or ``.``. Raises SettingRefused. Connects when it is first used. One thread at a time may use
    it; only ``wakeup`` is for any thread. Times are in seconds, ``timeout=None`` is
    ``default.api.timeout.ms``. It does not survive a fork.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        require_threads()
        values = self._settings = consumer_settings(config, settings)
        for name in values.without_effect(SETTINGS):
            logger.warning("the setting %s has no effect: %s", name, SETTINGS[name].no_effect)
        self._core = Core(values)
        self.client_id: str = self._core.client_id
        self._limit: int = values["max.poll.records"]
        self._interceptors = values["interceptor.classes"]
        self._manual = False
        self._metrics = ConsumerMetrics(values, self._core)
        try:
            self._monitoring = self._made_monitoring()
        except BaseException:
            self._core.close(0.0)
            raise
        self._core.on_connected = self._monitoring.connected
        at_exit.add(self)
        self._watch = watch(self, self._core, self._monitoring, self._metrics)

    def _made_monitoring(self) -> Monitoring:
        settings, core = self._settings, self._core
        resource = {
            "group_id": settings["group.id"],
            "group_instance_id": settings["group.instance.id"],
            "client_rack": settings["client.rack"],
        }
        return Monitoring(
            settings, "kafka.consumer", core.client_id, self._metrics, resource, core.cluster
        )

    def __enter__(self) -> KafkaConsumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Records that a program has failed with were not handled: they are read again.
        if error is not None:
            self.stop_auto_commit()
        self.close()

    # -- what is read

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read topics as a member of ``group.id``, which shares their partitions.

        pattern: instead of topics, a regular expression for their whole names, also of topics that
        are created later. listener: told of partitions that come and go. Replaces an earlier
        subscription; the group rebalances while ``poll`` is called.
        """
        if (topics is None) == (pattern is None):
            raise TypeError("subscribe to topics, or to a pattern")
        names = names_of(topics)
        matches = None if pattern is None else pattern_of(pattern)
        check_listener(listener)
        with self._core as core:
            core.grouped()
            if self._manual:
                raise ConsumerState("partitions are assigned by hand: call unsubscribe first")
            if topics is not None and not names:
                self._unsubscribe()
                return
            core.pattern = matches
            core.topics = names
            joined = core.membership is not None
            if core.membership is None:
                core.membership = ConsumerMembership(core)
            core.membership.listener = listener
            core.track()
            if core.pattern is None:
                core.membership.subscribe(names)
            else:
                core.match_pattern()
                if joined and not core.topics:
                    core.membership.subscribe(names)

    def subscription(self) -> set[str]:
        """The topics that are subscribed to."""
        return set(self._core.topics)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read these (topic, partition), without the help of a group, and no others."""
        keys = keys_of(partitions)
        with self._core as core:
            if core.membership is not None:
                raise ConsumerState("topics are subscribed to: call unsubscribe first")
            core.commit_soon()
            self._manual = bool(keys)
            core.assign(keys)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read."""
        return {TopicPartition(*key) for key in self._core.fetcher.parts}

    def unsubscribe(self) -> None:
        """Read nothing any more; a member leaves its group."""
        with self._core:
            self._unsubscribe()

    def _unsubscribe(self) -> None:
        core = self._core
        if core.membership is not None:
            core.membership.close(core.request_s)
            core.membership = None
        else:
            core.commit_soon()
        core.pattern = None
        core.topics = frozenset()
        self._manual = False
        core.assign(())

    def enforce_rebalance(self) -> None:
        """Let the group rebalance, when ``poll`` is called next."""
        with self._core as core:
            if core.membership is None:
                raise ConsumerState("no topics are subscribed to")
            core.membership.rejoin("enforce_rebalance was called")

    # -- records

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, in order within each partition; an empty list after ``timeout``.

        At most ``max_records``, by default ``max.poll.records``. Raises, with the position kept:
        UnreadableRecord and DeserializationFailed, which say where to seek to continue;
        NoOffsetForPartition, OffsetOutOfRange; CommitFailed never. Raises UnreachableError if no
        broker has ever been reached, or not for ``default.api.timeout.ms``; what else a broker
        refuses; and what a rebalance listener raises.
        """
        limit = self._limit if max_records is None else max_records
        with self._core as core:

            def collect() -> list[ConsumerRecord]:
                records = core.collector.records(limit)
                if records:
                    for interceptor in self._interceptors:
                        records = _intercepted(interceptor, records)
                return records

            return core.poll(timeout, ("records", max_records), collect)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records, one after the other and without end; the position is behind the last one.

        A ``poll`` each, so several times slower than lists.
        """
        while True:
            yield from self.poll(_ITERATE_S, 1)

    def poll_columns(
        self,
        timeout: float = 1.0,
        max_records: int = _COLUMN_ROWS,
        *,
        keys: bool = True,
        arrays: bool = False,
    ) -> list[RecordColumns]:
        """The same without an object for each record: lists of values, keys, offsets, timestamps.

        At most ``max_records``, and about half a megabyte. keys: False leaves them out. There are
        no headers and no interceptors. arrays: ``.arrays`` has all of it as arrays of numpy, with
        the positions of keys and values in one buffer; then there is no object for a value either,
        and no deserializer is called.
        """
        with self._core as core:
            kind = "columns", max_records, keys, arrays
            return core.poll(
                timeout, kind, lambda: core.collector.columns(max_records, keys, arrays)
            )

    def poll_arrow(
        self,
        timeout: float = 1.0,
        max_records: int = _ARROW_ROWS,
        columns: Iterable[str] | None = None,
    ) -> list[Any]:
        """The same as Arrow record batches, each with records of one partition.

        columns: of ``kbroker.client.arrow.FIELDS``, None: all but headers. Deserializers and
        interceptors are not called. max_records: about; what one response has of a partition is not
        divided. The first call that finds records imports pyarrow, also beyond its timeout.
        """
        names = None if columns is None else tuple(columns)
        with self._core as core:
            kind = "arrow", max_records, names
            return core.poll(timeout, kind, lambda: core.collector.arrow(max_records, names))

    def forward(
        self, to: Callable[[str, int], Forwarder], timeout: float = 1.0
    ) -> list[RecordFutures]:
        """Pass the next records on to a producer, into topics of the same names.

        to: the ``KafkaProducer.forwarder`` for records of a topic and partition. Returns the
        futures of what was taken over; it is empty after ``timeout``, or if a forwarder ``is_full``
        or its producer does not know the topic that is ``missing``: then the records stay here.
        """
        with self._core as core:

            def collect() -> list[Any]:
                futures = core.collector.forward(to)
                return futures or ([None] if core.collector.is_blocked else [])

            found = core.poll(timeout, ("forwarded",), collect)
            return [futures for futures in found if futures is not None]

    # -- positions

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where ``poll`` continues, in the form of ``commit_sync``; of those that are known."""
        with self._core as core:
            return {TopicPartition(*key): row for key, row in core.consumed().items()}

    def seek(
        self, partition: tuple[str, int], offset: int | OffsetAndMetadata, leader_epoch: int = -1
    ) -> None:
        """Let ``poll`` continue at an offset.

        leader_epoch: of the record before it; if the log was truncated since, reading continues
        where that epoch ended there (KIP-320).
        """
        key = key_of(partition)
        row = as_committed({key: offset})[key]
        epoch = row.leader_epoch if isinstance(offset, OffsetAndMetadata) else leader_epoch
        with self._core as core:
            core.part(key).seek(row.offset, epoch)
            core.positions.look()
            core.fetcher.changed = True

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Continue at the first record of partitions, of all assigned ones without arguments."""
        self._look_up(partitions, EARLIEST)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Continue behind the last record of partitions, of all assigned ones without arguments."""
        self._look_up(partitions, LATEST)

    def _look_up(self, partitions: Iterable[tuple[str, int]], reset: int) -> None:
        with self._core as core:
            for key in list(partitions) or list(core.fetcher.parts):
                core.part(key).look_up(reset)
            core.positions.look()

    def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
        """The offset of the next record that ``poll`` returns."""
        with self._core as core:
            part = core.part(partition)
            if part.position is None or part.validating:
                core.until(
                    lambda: part.position is not None and not part.validating,
                    f"the position in {partition[0]}-{partition[1]}",
                    self._seconds(timeout),
                    part,
                )
            assert part.position is not None
            return part.position

    def pause(self, *partitions: tuple[str, int]) -> None:
        """``poll`` returns no records of these until ``resume``; they stay assigned."""
        with self._core as core:
            for key in partitions:
                core.part(key).paused = True
            core.fetcher.changed = True

    def resume(self, *partitions: tuple[str, int]) -> None:
        """``poll`` returns their records again."""
        with self._core as core:
            for key in partitions:
                core.part(key).paused = False
            core.fetcher.sets.resumed()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {
            TopicPartition(*key) for key, part in self._core.fetcher.parts.items() if part.paused
        }

    def current_lag(self, partition: tuple[str, int]) -> int | None:
        """Records between the position and the end, as of the last fetch; None if unknown."""
        with self._core as core:
            part = core.part(partition)
            committed = self._settings["isolation.level"] == "read_committed"
            end = part.last_stable_offset if committed else part.high_watermark
            if end is None or part.position is None:
                return None
            return max(0, end - part.position)

    def keep(self, found: list[Any]) -> None:
        """What the last call (``poll``, ``poll_columns`` or ``poll_arrow``) has returned has not
        reached the program: the next one returns it again, and it is not committed before.
        """
        with self._core as core:
            core.collector.keep(found)

    def kept(self, *kind: Any) -> list[Any]:
        """What is kept for a call of this kind: "records", "columns" or "arrow", and its arguments
        but ``timeout``. That reaches the program.
        """
        with self._core as core:
            return core.collector.begin(kind)

    # -- commits

    def commit_sync(
        self, offsets: Mapping[Any, Any] | None = None, timeout: float | None = None
    ) -> None:
        """Commit, and wait until the coordinator has it.

        offsets: {(topic, partition): offset of the next record to read, or (offset, metadata), or
        OffsetAndMetadata}, None: the positions of all assigned partitions. Raises CommitFailed if
        the group has given the partitions to others, Timeout, RejectedError.
        """
        with self._core as core:
            rows = core.consumed() if offsets is None else as_committed(offsets)
            core.commit(rows, self._seconds(timeout))

    def commit_async(
        self, offsets: Mapping[Any, Any] | None = None, callback: Callback | None = None
    ) -> None:
        """The same without waiting. Commits are done in their order.

        callback: gets the offsets and None or the error, from a later call of ``poll``,
        ``commit_sync`` or ``close``.
        """
        with self._core as core:
            rows = core.consumed() if offsets is None else as_committed(offsets)
            commits = core.grouped()
            commits.run_callbacks()
            commits.commit(rows, core.request_s, callback)

    def committed(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None where that is nothing."""
        keys = keys_of(partitions)
        seconds = self._seconds(timeout)
        with self._core as core:
            call = core.grouped().look_up(keys, seconds)
            offsets = core.result(call, "committed offsets", seconds)
        return {
            TopicPartition(*key): OffsetAndMetadata(*offsets[key]) if key in offsets else None
            for key in keys
        }

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group now, for ``send_offsets_to_transaction``."""
        with self._core as core:
            group = core.grouped().group
            try:
                who = core.identity()
            except CommitFailed:
                return GroupMetadata(group)  # COMPAT: as in Java, it is no error to ask
        return GroupMetadata(group, who.generation, who.member, who.instance)

    # -- logs and topics

    def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition."""
        return self._bounds(partitions, EARLIEST, timeout)

    def end_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition gets; with ``read_committed``, that of
        the first record whose transaction is open.
        """
        return self._bounds(partitions, LATEST, timeout)

    def _bounds(
        self, partitions: Iterable[tuple[str, int]], which: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(keys_of(partitions), which)
        offsets = self._listed(wanted, timeout)
        return {TopicPartition(*key): offsets[key].offset for key in wanted}

    def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (milliseconds since 1970); None if there is none."""
        wanted = {key_of(key): index(at) for key, at in timestamps.items()}
        for at in wanted.values():
            if at < 0:
                raise ValueError(f"{at} is not a time")
        offsets = self._listed(wanted, timeout)
        return {
            TopicPartition(*key): (
                OffsetAndTimestamp(*offsets[key]) if offsets[key].offset != NO_OFFSET else None
            )
            for key in wanted
        }

    def _listed(self, wanted: Mapping[tuple[str, int], int], timeout: float | None) -> Any:
        committed = self._settings["isolation.level"] == "read_committed"
        with self._core as core:
            return core.ask(
                lambda cluster, seconds: list_offsets(
                    cluster, wanted, read_committed=committed, deadline=seconds
                ),
                "offsets",
                self._seconds(timeout),
            )

    def partitions_for(self, topic: str, timeout: float | None = None) -> set[int]:
        """The partitions of a topic. Raises RejectedError if it does not exist."""
        topics = self._topics([topic], timeout)
        if topic not in topics:
            raise RejectedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}")
        return set(topics[topic].partitions)

    def list_topics(self, timeout: float | None = None) -> dict[str, set[int]]:
        """The partitions of all topics that this user may see."""
        return {name: set(row.partitions) for name, row in self._topics(None, timeout).items()}

    def _topics(self, names: list[str] | None, timeout: float | None) -> dict[str, Topic]:
        create = self._settings["allow.auto.create.topics"]

        def call(cluster: Cluster, seconds: float) -> dict[str, Topic]:
            retry = cluster.retry("metadata", seconds)
            while True:
                try:
                    left = max(0.0, retry.left())
                    return ask(cluster, names, create, left, retry.attempts).topics
                except Exception as error:
                    retry.asked = cluster.asked
                    retry.pause(error)

        with self._core as core:
            return core.ask(call, "metadata", self._seconds(timeout))

    def metrics(self) -> dict[str, float]:
        """Values by name, under the names of Java's groups ``consumer-fetch-manager-metrics`` and
        ``consumer-coordinator-metrics``.
        """
        return self._metrics.values()

    def client_instance_id(self, timeout: float | None = None) -> str | None:
        """The id that brokers have given this client, for what it pushes of its metrics (KIP-714);
        None if they do not ask for metrics. Raises SettingRefused without ``enable.metrics.push``.
        """
        return self._monitoring.instance_id(self._seconds(timeout))

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Where the metrics are served, if ``kbroker.metrics.port`` is set."""
        return self._monitoring.address

    # -- the end

    def wakeup(self) -> None:
        """Let the call that waits, or the next one that would, raise WakeupError. Any thread."""
        self._core.wake()

    def hurry(self) -> None:
        """Let the ``poll`` that waits, or the next one, return what is there. Any thread."""
        self._core.hurry()

    def forget_wakeup(self) -> None:
        """A ``wakeup`` or ``hurry`` before has no effect any more. Not while another thread is in a
        call.
        """
        self._core.forget_wake()

    def stop_auto_commit(self) -> None:
        """Commit nothing by itself any more, as if ``enable.auto.commit`` were false."""
        self._core.stop_auto_commit()

    def forget(self) -> None:
        """In a new process, whose threads and connections are another's."""
        self._core.closed = True
        self._monitoring.forget()

    def close(self, timeout: float | None = None) -> None:
        """Commit, if that is automatic, leave the group, and end; may be called again.

        timeout: seconds for all of that, by default 30.
        """
        core = self._core
        at_exit.discard(self)
        if core.closed or core.pid != os.getpid():
            return
        self._watch.detach()
        deadline = time.monotonic() + (_CLOSE_S if timeout is None else timeout)
        try:
            core.close(max(0.0, deadline - time.monotonic()))
        finally:
            self._monitoring.close(deadline - time.monotonic())
            self._metrics.close()
        for interceptor in self._interceptors:
            if hasattr(interceptor, "close"):
                interceptor.close()

    def _seconds(self, timeout: float | None) -> float:
        return self._core.default_s if timeout is None else timeout


def _intercepted(interceptor: Any, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
    """COMPAT: as in Java, an interceptor that fails is left out."""
    try:
        changed = interceptor.on_consume(records)
    except Exception:
        logger.exception("on_consume of %r raised an error; records are as they were", interceptor)
        return records
    return records if changed is None else changed
