"""Fetches from the leaders of all assigned partitions, and hands out what arrived, in order.

All of it runs in the thread that polls, between its waits. A broker has one request in flight, and
is asked for more while the records of the response before are being read, so at most two responses
of a broker are in memory.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable, Iterable
from typing import Any

from kbroker._ext.record.record_cursor import RecordsDamaged, end_offset
from kbroker.client.batches.offsets import TopicPartition as Key
from kbroker.client.connections.cluster import NO_TOPIC_ID
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.ending import Ending
from kbroker.client.connections.metadata import BrokerAddress
from kbroker.client.connections.retry import Backoff
from kbroker.client.consumer.consumer_metadata import ConsumerMetadata
from kbroker.client.consumer.fetch_link import FetchLink
from kbroker.client.consumer.fetch_node import FetchedFrom, FetchNode, Source
from kbroker.client.consumer.fetch_session import RequestedPartition, ids_known
from kbroker.client.consumer.fetched_sets import FetchedSets
from kbroker.client.consumer.lanes import Inbox
from kbroker.client.consumer.partitions import NO_NODE, FetchedSet, ReadPartition
from kbroker.client.consumer.surroundings import Surroundings
from kbroker.client.errors import (
    ClientError,
    ConnectionLost,
    OffsetOutOfRange,
    RejectedError,
    UnreadableRecord,
)
from kbroker.client.settings.client_settings import ClientSettings
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest

logger = logging.getLogger(__name__)

# From this version on a fetch names topics by id alone.
_FIRST_BY_ID = 13
# BOUND: what is asked for of a partition whose first batch is larger than it may be (KIP-74: an old
# broker cuts it).
_BATCH_BYTES_MAX = 1 << 30
# A broker that is silent for longer than a fetch may wait, and this, may lead nothing any more.
_SILENT_S = 3.0
# How long the leaders are read from after the replica in this rack was silent, or gone; and after
# it has answered with an error.
_RACKLESS_S = 30.0
_RACKLESS_AFTER_ERROR_S = 5.0
# Responses of a broker that may be in memory when it is asked for another one.
_RESPONSES_AHEAD = 1
# Metadata or the session is stale; another attempt will do.
_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
_OF_SESSIONS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class Fetcher:
    """parts: the assigned partitions, which the consumer keeps. out_of_range: called for one whose
    position is not in the log. on_leaders: called when the metadata has other leaders.
    """

    def __init__(
        self,
        settings: ClientSettings,
        client_id: str,
        inbox: Inbox,
        metadata: ConsumerMetadata,
        out_of_range: Callable[[ReadPartition, OffsetOutOfRange], None],
        on_leaders: Callable[[], None],
        surroundings: Surroundings,
    ) -> None:
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._settings = settings
        self._client_id = client_id
        self._inbox = inbox
        self._metadata = metadata
        self._out_of_range = out_of_range
        self._on_leaders = on_leaders
        self._max_wait_ms: int = settings["fetch.max.wait.ms"]
        self._min_bytes: int = settings["fetch.min.bytes"]
        self._max_bytes: int = settings["fetch.max.bytes"]
        self._isolation = int(settings["isolation.level"] == "read_committed")
        self._rack: str = settings["client.rack"]
        self._request_s: float = settings["request.timeout.ms"] / 1000
        self._retries = Backoff.of(settings, "retry.backoff")
        self._reconnects = Backoff.of(settings, "reconnect.backoff")
        self._age_s: float = settings["metadata.max.age.ms"] / 1000
        self._silent_s = self._max_wait_ms / 1000 + _SILENT_S
        self._rackless_until = 0.0
        self.parts: dict[Key, ReadPartition] = {}
        self._nodes: dict[int, FetchNode] = {}
        self.sets = FetchedSets(self.parts, self._release, self._note_change, self._clock)
        self._ending = Ending()  # of connections under way
        self.changed = True  # something may be fetched that was not before
        self._look_at = 0.0
        self.counts = dict.fromkeys(
            ("fetches", "fetched_bytes", "fetched_records", "latency_us", "throttled_ms"), 0
        )

    def _note_change(self) -> None:
        self.changed = True

    # -- asking

    def send(self, now: float) -> None:
        """Ask all brokers that are to be asked now."""
        if not self.changed and now < self._look_at:
            return
        self.changed = False
        self._look_at = now + 1.0
        self.sets.drop_stale()
        by_node: dict[int, list[ReadPartition]] = {}
        for part in self.parts.values():
            if part.may_fetch(now):
                by_node.setdefault(part.node(now), []).append(part)
            elif part.retry_at > now:
                self._look_at = min(self._look_at, part.retry_at)
        if by_node.pop(NO_NODE, None):
            self._metadata.want()
        for node_id, parts in by_node.items():
            node = self._nodes.get(node_id)
            if node is None:
                node = self._nodes[node_id] = FetchNode(node_id)
            self._ask(node, parts, now)

    def _ask(self, node: FetchNode, parts: list[ReadPartition], now: float) -> None:
        if node.retry_at > now:
            self._look_at = min(self._look_at, node.retry_at)
            return
        if node.link is not None and not node.link.in_flight and node.link.connection.expired:
            node.link.close()  # its authentication ends soon
            node.link = None
        if node.link is None:
            self._connect(node)
            return
        if node.link.in_flight or node.responses > _RESPONSES_AHEAD:
            return
        wanted = {
            part.key: RequestedPartition(
                part.topic_id, part.fetch_offset, part.leader_epoch, part.max_bytes
            )
            for part in parts
        }
        try:
            version = node.link.version()
            if version >= _FIRST_BY_ID and not ids_known(wanted.values()):
                version = node.link.version(_FIRST_BY_ID - 1)
            node.sent = {
                part.key: FetchedFrom(part, part.version, part.fetch_offset) for part in parts
            }
            node.link.send(self._request(node, wanted, version), version)
            self.counts["fetches"] += 1
        except ClientError as error:
            self._lost(node, error)

    def _request(
        self, node: FetchNode, wanted: dict[Key, RequestedPartition], version: int
    ) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            isolation_level=self._isolation,
            rack_id=self._rack if self._clock() >= self._rackless_until else "",
            **node.session.fields(wanted, version >= _FIRST_BY_ID),
        )

    # -- connections

    def _connect(self, node: FetchNode) -> None:
        if node.connecting:
            return
        broker = self._metadata.brokers.get(node.id)
        if broker is None:
            self._metadata.want()
            return
        node.connecting = True
        host, port = node.address = broker.host, broker.port
        seconds = self._settings["socket.connection.setup.timeout.ms"] / 1000
        buffer: int = self._settings["receive.buffer.bytes"]
        self._surroundings.connect(
            f"kafka-consumer-connect-{node.id}",
            self._inbox,
            host,
            port,
            seconds,
            lambda made, error: self._connected(node, made, error),
            security=self._settings.security,
            client_id=self._client_id,
            ending=self._ending,
            receive_buffer_bytes=buffer if buffer > 0 else None,
        )

    def _connected(self, node: FetchNode, made: Connection | None, error: Exception | None) -> None:
        node.connecting = False
        self.changed = True
        if made is None:
            self._failed(node, error)
            return
        if self._ending.has_begun or self._nodes.get(node.id) is not node:
            made.close()
            return
        node.failures = 0
        node.trouble = None
        node.link = self._surroundings.fetch_link(made)

    def _failed(self, node: FetchNode, error: Exception | None) -> None:
        """A connection or a request was in vain."""
        node.failures += 1
        node.trouble = error
        node.retry_at = self._clock() + self._reconnects.after(node.failures)
        self._metadata.want()
        self.changed = True
        if isinstance(error, ClientError) and not error.retriable:
            for part in self.parts.values():
                if part.leader == node.id and part.fault is None:
                    part.fail(error)
        self._leave_replica(node, self._clock() + _RACKLESS_S)

    def _leave_replica(self, node: FetchNode, until: float) -> None:
        """The leader would name it again (KIP-392), so it is not told the rack until then."""
        for part in self.parts.values():
            if part.preferred == node.id:
                part.preferred = NO_NODE
                self._rackless_until = max(self._rackless_until, until)
                self.changed = True

    def _lost(self, node: FetchNode, error: ClientError) -> None:
        if node.link is not None:
            node.link.close()
        node.link = None
        node.session.reset()
        node.sent = {}
        logger.info("lost the connection to node %d: %s; fetching again", node.id, error)
        self._failed(node, error)

    # -- waiting

    def wait(self, seconds: float) -> None:
        """Return when something has arrived or was posted, or after these seconds."""
        if self.receive() or not self._inbox.is_empty:
            return
        poll = select.poll()
        poll.register(self._inbox.fileno(), select.POLLIN)
        now = self._clock()
        for node in self._nodes.values():
            link = node.link
            if link is not None and link.in_flight:
                events = select.POLLIN | (select.POLLOUT if link.wants_to_write else 0)
                poll.register(link.fileno(), events)
                seconds = min(seconds, max(0.0, self._deadline(link) - now))
        poll.poll(max(0.0, seconds) * 1000)
        self.receive()

    def _deadline(self, link: FetchLink) -> float:
        return link.sent_at + self._request_s + self._max_wait_ms / 1000

    def receive(self) -> bool:
        """Take all responses that are there; whether there was one."""
        any_received = False
        for node in list(self._nodes.values()):
            link = node.link
            if link is None or not link.in_flight:
                continue
            try:
                if link.wants_to_write:
                    link.write()
                response = link.receive()
            except ClientError as error:
                self._lost(node, error)
                continue
            if response is not None:
                any_received = True
                self._take(node, response, self._clock())
            elif (now := self._clock()) > self._deadline(link):
                why = f"no response to a fetch within {self._request_s:.3g} s"
                self._lost(node, ConnectionLost(link.address, why))
            elif now > max(link.sent_at, node.doubted_at) + self._silent_s:
                node.doubted_at = now
                self._leave_replica(node, now + _RACKLESS_S)
                self._metadata.want()  # its partitions may have other leaders by now
        return any_received

    # -- responses

    def _take(self, node: FetchNode, response: Any, now: float) -> None:
        self.changed = True
        sent, node.sent = node.sent, {}
        assert node.link is not None
        self.counts["latency_us"] += int((now - node.link.sent_at) * 1e6)
        if response.throttle_time_ms > 0:
            self.counts["throttled_ms"] += response.throttle_time_ms
            node.retry_at = now + response.throttle_time_ms / 1000
        if response.error_code:
            # Of the session, which begins again; or of a topic's id, which metadata tells.
            if response.error_code not in _OF_SESSIONS:
                self._leave_replica(node, now + _RACKLESS_AFTER_ERROR_S)
            node.session.reset()
            node.rejections += 1
            node.retry_at = max(node.retry_at, now + self._retries.after(node.rejections))
            self._metadata.want()
            return
        names = [(node.session.name_of(topic), topic) for topic in response.responses]
        node.rejections = 0
        node.session.accepted(response.session_id)
        if any(name is None for name, _ in names):
            node.session.reset()  # the broker speaks of a topic that was not asked for
            self._metadata.want()
        source = Source(node)
        for name, topic in names:
            for row in topic.partitions:
                asked = sent.get((name or "", row.partition_index))
                if asked is None or not asked.holds or not self._has(asked.part):
                    continue  # it was given up, or is read from another position
                self._take_row(asked.part, row, source, response, now)
        if source.left:
            node.responses += 1

    def _has(self, part: ReadPartition) -> bool:
        return self.parts.get(part.key) is part

    def _take_row(
        self, part: ReadPartition, row: Any, source: Source, response: Any, now: float
    ) -> None:
        if row.error_code:
            if part.preferred == source.node.id:
                self._rejected_by_replica(part, row.error_code, source.node, now)
            else:
                self._rejected(part, row, response, now)
            return
        part.rejections = 0
        part.high_watermark = row.high_watermark
        part.last_stable_offset = row.last_stable_offset
        part.log_start_offset = row.log_start_offset
        if row.preferred_read_replica >= 0 and row.preferred_read_replica != part.preferred:
            part.preferred = row.preferred_read_replica
            part.preferred_until = now + self._age_s
        records = row.records
        if records is None or not len(records):
            return
        aborted = [(one.producer_id, one.first_offset) for one in row.aborted_transactions or ()]
        fetched = FetchedSet(part, records, aborted if self._isolation else (), source)
        topic, partition = part.key
        try:
            fetched.next_offset = int(end_offset(records, part.fetch_offset))
        except RecordsDamaged as error:
            offset, why = error.args
            after = max(offset, part.fetch_offset) + 1
            fetched.fault = UnreadableRecord(
                topic, partition, max(offset, part.fetch_offset), after, why
            )
        if fetched.fault is None and fetched.next_offset == part.fetch_offset:
            fetched.fault = self._without_batch(part, records)
            if fetched.fault is None:
                return
        if fetched.fault is None:
            part.fetch_offset = fetched.next_offset
        else:
            part.retry_at = float("inf")  # until the position is changed
        source.left += 1
        self.counts["fetched_bytes"] += len(records)
        self.sets.add(fetched)

    def _without_batch(self, part: ReadPartition, records: memoryview) -> UnreadableRecord | None:
        """No complete batch at or after the position: ask for more bytes, unless it is damaged."""
        topic, partition = part.key
        claimed = int.from_bytes(records[8:12], "big") + 12
        if len(records) >= 12 and claimed <= len(records):
            why = "a batch with offsets that do not belong there"
        elif part.max_bytes >= _BATCH_BYTES_MAX:
            why = f"a batch of {claimed} bytes"
        else:
            part.max_bytes = max(1, part.max_bytes) * 2
            return None
        return UnreadableRecord(topic, partition, part.fetch_offset, part.fetch_offset + 1, why)

    def _rejected_by_replica(
        self, part: ReadPartition, code: int, node: FetchNode, now: float
    ) -> None:
        """The leader may be able to, and says what is so."""
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            part.preferred = NO_NODE  # it may be behind: then the leader does not name it
            return
        logger.info(
            "%s-%d: error %d of replica %d; reading from the leader", *part.key, code, node.id
        )
        self._leave_replica(node, now + _RACKLESS_AFTER_ERROR_S)
        if code in _MOVED:
            self._metadata.want()

    def _rejected(self, part: ReadPartition, row: Any, response: Any, now: float) -> None:
        code = row.error_code
        topic, partition = part.key
        if code in _MOVED:
            part.fetch_later(self._retries, now)
            self._adopt_leader(part, row, response)
            self._metadata.want()
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if part.fetch_offset != part.position:
                return  # it is told again when what was fetched is read
            self._out_of_range(
                part,
                OffsetOutOfRange(
                    topic, partition, part.fetch_offset, row.log_start_offset, row.high_watermark
                ),
            )
        elif code == ErrorCode.CORRUPT_MESSAGE:
            why = "the broker cannot read them"
            at = part.fetch_offset
            part.fail(UnreadableRecord(topic, partition, at, at + 1, why))
        else:
            error = RejectedError(code, f"fetch of {topic}-{partition}")
            part.fetch_later(self._retries, now)
            if error.retriable or code == ErrorCode.UNKNOWN_SERVER_ERROR:
                logger.warning("%s; fetching again", error)
            else:
                part.fail(error)

    def _adopt_leader(self, part: ReadPartition, row: Any, response: Any) -> None:
        """KIP-951: the broker tells who leads."""
        told = row.current_leader
        if told is None or told.leader_epoch <= part.leader_epoch:
            return
        endpoints = {one.node_id: one for one in response.node_endpoints}
        endpoint = endpoints.get(told.leader_id)
        if endpoint is not None and told.leader_id not in self._metadata.brokers:
            self._metadata.brokers[told.leader_id] = BrokerAddress(
                endpoint.host, endpoint.port, endpoint.rack
            )
        if told.leader_id in self._metadata.brokers:
            self._metadata.lead(part.key, told.leader_id, told.leader_epoch)
            self._on_leaders()
            part.fetch_now()

    def _release(self, fetched: FetchedSet) -> None:
        source, fetched.source = fetched.source, None
        if source is None:
            return
        source.left -= 1
        if source.left == 0:
            source.node.responses -= 1
            self.changed = True

    # -- metadata

    def adopt_metadata(self) -> tuple[list[ReadPartition], list[ReadPartition]]:
        """Leaders as they are known now. Returns the partitions whose position is to be compared
        with the log of a new leader, and those whose position is of a topic that is gone, while
        another one has its name.
        """
        doubtful, replaced = [], []
        for part in self.parts.values():
            topic, partition = part.key
            known = self._metadata.topics.get(topic)
            row = known.partitions.get(partition) if known is not None else None
            if known is None or row is None:
                continue
            incarnation = self._metadata.incarnation(topic)
            if part.incarnation != incarnation:
                if part.incarnation is not None:
                    part.epoch = -1  # another topic of that name has epochs of its own
                    if NO_TOPIC_ID not in (part.topic_id, known.id):
                        replaced.append(part)
                part.incarnation, part.leader_epoch = incarnation, -1
            part.topic_id = known.id
            if row.leader_epoch < part.leader_epoch:
                continue  # from a broker that is behind
            if row.leader_epoch > part.leader_epoch >= 0:
                part.fetch_again()
                if part.epoch >= 0:
                    doubtful.append(part)
            leader = NO_NODE if row.leader is None else row.leader
            if (leader, row.leader_epoch) != (part.leader, part.leader_epoch):
                part.ask_another()
                if part.rejections:
                    part.fetch_now()
            part.leader, part.leader_epoch = leader, row.leader_epoch
        for node in list(self._nodes.values()):
            broker = self._metadata.brokers.get(node.id)
            if broker is not None and node.address not in (None, (broker.host, broker.port)):
                self._forget(node)
        self.changed = True
        return doubtful, replaced

    def _forget(self, node: FetchNode) -> None:
        """It has another address now."""
        if node.link is not None:
            node.link.close()
        del self._nodes[node.id]

    def due_in(self, now: float) -> float:
        """Seconds until ``send`` has something to do."""
        return 0.0 if self.changed else max(0.0, self._look_at - now)

    def retain(self, keys: Iterable[Key]) -> None:
        """Only these partitions are left."""
        wanted = set(keys)
        for key in [key for key in self.parts if key not in wanted]:
            gone = self.parts.pop(key)
            gone.drop_reader()
            gone.clear_fault()
        self.sets.drop_stale()
        self.changed = True

    def close(self, now: float) -> None:
        """End sessions, and close all connections."""
        self._ending.begin()
        for node in self._nodes.values():
            link, node.link = node.link, None
            if link is None:
                continue
            if node.session.is_open and not link.in_flight:
                try:
                    request = FetchRequest(
                        max_wait_ms=0, min_bytes=0, max_bytes=0, **node.session.final()
                    )
                    link.send(request, link.version())
                except ClientError:
                    pass  # the broker forgets it by itself
            link.close()
        for part in self.parts.values():
            part.drop_reader()
        self.sets.clear()
