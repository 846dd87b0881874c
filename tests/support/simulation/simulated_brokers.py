"""Three brokers as a consumer of the client sees them, in simulated time: logs with leader epochs,
metadata that spreads slowly, fetch sessions, and whatever is wrong with a broker for a while.

A broker answers by its own view of who leads: one that has not heard of a newer leader serves its
old log, as a broker does that was cut off.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from support.simulation.simulated_logs import NO_PRODUCER, Log, Record

from kbroker.client.connections.metadata import NO_TOPIC_ID
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.find_coordinator import FindCoordinatorResponse
from kbroker.protocol.messages.list_offsets import EARLIEST, ListOffsetsResponse
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochResponse

Key = tuple[str, int]
Reply = Callable[[Any], None]
FOREVER = float("inf")
TOPICS = {"a": bytes(15) + b"\1", "b": bytes(15) + b"\2"}
KEYS: list[Key] = [("a", 0), ("a", 1), ("a", 2), ("b", 0)]
NODES = 3
MOVED_ERRORS = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
)


class Event:
    """Something that will happen, unless it is cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call: Callable[[], Any] | None = call

    def cancel(self) -> None:
        self.call = None


class World:
    """The clock, and what happens when."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self._events: list[tuple[float, int, Event]] = []
        self._numbers = itertools.count()

    def clock(self) -> float:
        return self.now

    def after(self, seconds: float, call: Callable[[], Any]) -> Event:
        made = Event(call)
        heapq.heappush(self._events, (self.now + max(0.0, seconds), next(self._numbers), made))
        return made

    def run_next(self) -> bool:
        """The next event; False: there is none."""
        while self._events:
            at, _, event = heapq.heappop(self._events)
            if event.call is not None:
                self.now = max(self.now, at)
                event.call()
                return True
        return False


class Lead(NamedTuple):
    """topic_id: of the topic that has the name; brokers tell it unless ``has_ids`` is false."""

    leader: int
    epoch: int
    log: Log
    topic_id: bytes


class Broker:
    """silent_until: it neither reads nor answers before. views: who leads, as far as it has heard.
    incarnation: connections to an earlier one are cut. waiting: what is to be told that.
    ids: of the topics that it has heard of.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = ("broker", 9000 + number)
        self.is_dead = False
        self.is_gone = False  # the others have noticed
        self.silent_until = 0.0
        self.slow_s = 0.0
        self.errors = 0  # so many requests more are answered with errors
        self.incarnation = 0
        self.views: dict[Key, Lead] = {}
        self.ids = dict(TOPICS)
        self.sessions: dict[int, dict[Key, Any]] = {}
        self.epochs: dict[int, int] = {}
        self.waiting: dict[int, Callable[[], Any]] = {}


class Brokers:
    """loss: how often a request or a response is lost, and the connection with it. transactional:
    some records are in transactions. read_committed: consumers do not read those that are not
    committed. has_ids: topics have ids, by which they are fetched. keys: all partitions.
    former: logs of topics that were deleted, and created again.
    """

    log_type: Any = Log

    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes = [Broker(number) for number in range(NODES)]
        self.leads: dict[Key, Lead] = {}
        self.keys = list(KEYS)
        self.has_ids = True
        self.former: list[tuple[Key, Any]] = []
        self.disturbed: dict[Key, float] = {}  # when something last happened to them
        self.coordinator = 0
        self.group: Any = None  # simulated_group
        self.loss = 0.0
        self.transactional = self.read_committed = False
        self.refused: set[Key] = set()
        self.records: dict[int, Record] = {}
        self.appended_at: dict[Key, list[tuple[float, int]]] = {key: [] for key in KEYS}
        self.fetch_version = 17
        self.requests = 0
        self._tokens = itertools.count()
        self._sessions = itertools.count(1)
        self._uids = itertools.count()
        self._topic_ids = itertools.count(10)
        for at, key in enumerate(KEYS):
            lead = Lead(at % NODES, 0, self.log_type(), TOPICS[key[0]])
            self._lead(key, lead, at_once=True)

    # -- what happens to them

    def _lead(self, key: Key, lead: Lead, at_once: bool = False) -> None:
        self.leads[key] = lead
        self.disturb_partition(key)
        for broker in self.nodes:
            wait = 0.0 if at_once else self.world.random.choice((0.0, 0.05, 0.5, 3.0))
            self.world.after(wait, lambda broker=broker: self._hear(broker, key))
            if at_once or broker.number == lead.leader:
                self._hear(broker, key)

    def _hear(self, broker: Broker, key: Key) -> None:
        if broker.silent_until > self.world.now:
            if broker.silent_until < FOREVER:
                left = broker.silent_until - self.world.now
                self.world.after(left + 0.1, lambda: self._hear(broker, key))
            return
        lead = self.leads[key]
        if broker.ids.get(key[0]) == lead.topic_id:  # else it hears of the topic as a whole
            broker.views[key] = lead

    def grow(self, name: str) -> Key:
        """A topic has a partition more."""
        key = name, sum(one[0] == name for one in self.keys)
        self.keys.append(key)
        self.appended_at[key] = []
        topic_id = next(lead.topic_id for one, lead in self.leads.items() if one[0] == name)
        self._lead(key, Lead(self.world.random.randrange(NODES), 0, self.log_type(), topic_id))
        return key

    def recreate(self, name: str) -> None:
        """A topic is deleted, and after a while there is another one of that name."""
        chance, world = self.world.random, self.world
        topic_id = next(self._topic_ids).to_bytes(16, "big")
        for key in [key for key in self.keys if key[0] == name]:
            self.former.append((key, self.leads[key].log))
            leader = chance.randrange(NODES)
            self.leads[key] = Lead(leader, 0, self.log_type(), topic_id)
            self.appended_at[key] = []
        away_s = chance.choice((0.0, 0.5, 5.0))
        for broker in self.nodes:
            gone_s = chance.choice((0.0, 0.05, 3.0))
            created_s = away_s + chance.choice((0.0, 0.05, 3.0))
            world.after(gone_s, lambda broker=broker: self._hear_of_end(broker, name))
            world.after(created_s, lambda broker=broker: self._hear_of_topic(broker, name))

    def _hear_of_end(self, broker: Broker, name: str) -> None:
        present = next(lead.topic_id for key, lead in self.leads.items() if key[0] == name)
        if self.is_well(broker) and broker.ids.get(name) != present:
            broker.ids.pop(name, None)
            for key in [key for key in broker.views if key[0] == name]:
                del broker.views[key]

    def _hear_of_topic(self, broker: Broker, name: str) -> None:
        if broker.silent_until > self.world.now:
            if broker.silent_until < FOREVER:
                left = broker.silent_until - self.world.now
                self.world.after(left + 0.1, lambda: self._hear_of_topic(broker, name))
            return
        for key in [key for key in self.keys if key[0] == name]:
            broker.ids[name] = self.leads[key].topic_id
            broker.views[key] = self.leads[key]
            self.disturb_partition(key)

    def move(self, key: Key, cut: int = 0, to: Broker | None = None) -> None:
        """Another broker leads, ``to`` if given. cut: batches lost in an unclean election."""
        lead = self.leads[key]
        among = self.nodes if to is None else [to]
        able = [one.number for one in among if self.is_well(one) and one.number != lead.leader]
        if able:
            epoch = lead.epoch + self.world.random.choice((1, 1, 2))
            chosen = self.world.random.choice(able)
            log = lead.log.of_next_leader(epoch, cut)
            self._lead(key, Lead(chosen, epoch, log, lead.topic_id))

    def disturb(self, broker: Broker | None = None) -> None:
        """Something happens to a broker (None: to all), or ends."""
        of_group = self.group is not None and broker is not None
        if broker is None or (of_group and broker.number == self.coordinator):
            for key in self.keys:
                self.disturb_partition(key)
        else:
            for key, lead in self.leads.items():
                if lead.leader == broker.number:
                    self.disturb_partition(key)

    def disturb_partition(self, key: Key, seconds: float = 0.0) -> None:
        """Something happens to it, or will have ended then."""
        self.disturbed[key] = max(self.disturbed.get(key, 0.0), self.world.now + seconds)

    def is_well(self, broker: Broker) -> bool:
        return not broker.is_dead and broker.silent_until <= self.world.now

    def append(self, key: Key, count: int) -> None:
        lead = self.leads[key]
        leader = self.nodes[lead.leader]
        if not self.is_well(leader) or leader.ids.get(key[0]) != lead.topic_id:
            return
        uids = [next(self._uids) for _ in range(count)]
        chance, producer = self.world.random, NO_PRODUCER
        if self.transactional:
            producer = chance.choice((NO_PRODUCER, 5, 6))
        for record in lead.log.append(uids, lead.epoch, producer):
            self.records[record.uid] = record
        for producer in [one for one in lead.log.open if chance.random() < 0.3]:
            lead.log.end_transaction(producer, lead.epoch, chance.random() < 0.6)
        self.appended_at[key].append((self.world.now, self.readable(lead.log)))

    def readable(self, log: Log) -> int:
        """Where consumers may read to."""
        return log.stable if self.read_committed else log.end

    def end_transactions(self) -> None:
        """All that are open."""
        for lead in self.leads.values():
            for producer in list(lead.log.open):
                lead.log.end_transaction(producer, lead.epoch, self.world.random.random() < 0.5)

    def cut(self, broker: Broker) -> None:
        """All of its connections end, as with a restart; sessions are forgotten."""
        self.disturb(broker)
        broker.incarnation += 1
        broker.sessions.clear()
        waiting, broker.waiting = broker.waiting, {}
        for lost in waiting.values():
            self.world.after(0.0, lost)

    def kill(self, broker: Broker, silently: bool) -> None:
        """For good. silently: nobody is told, as when the machine is gone."""
        if silently:
            broker.silent_until = FOREVER
        else:
            broker.is_dead = True
            self.cut(broker)

    def coordinate(self, node: int) -> None:
        self.coordinator = node
        self.disturb()

    def move_from(self, broker: Broker) -> None:
        """The cluster has noticed that a broker is gone."""
        if self.is_well(broker):
            return
        broker.is_gone = True
        for key, lead in list(self.leads.items()):
            if lead.leader == broker.number:
                self.move(key)
        able = [one.number for one in self.nodes if self.is_well(one)]
        if self.coordinator == broker.number and able:
            self.coordinate(self.world.random.choice(able))

    # -- requests

    def delay(self, broker: Broker) -> float:
        return self.world.random.uniform(0.001, 0.02) + self.world.random.random() * broker.slow_s

    def is_lost(self) -> bool:
        return self.loss > 0 and self.world.random.random() < self.loss

    def deliver(self, node: int, request: Any, reply: Reply, lost: Callable[[], Any]) -> None:
        """Send it to a broker. reply: gets the answer. lost: the connection has ended instead."""
        broker, token = self.nodes[node], next(self._tokens)
        broker.waiting[token] = lost
        self.requests += 1

        def fail() -> None:
            if broker.waiting.pop(token, None) is not None:
                lost()

        def arrive() -> None:
            if token not in broker.waiting:
                return
            if broker.silent_until > self.world.now:
                if broker.silent_until < FOREVER:
                    self.world.after(broker.silent_until - self.world.now, arrive)
            elif self.is_lost():
                fail()
            else:
                self.handle(broker, request, answer)

        def answer(response: Any) -> None:
            self.world.after(self.delay(broker), lambda: back(response))

        def back(response: Any) -> None:
            if broker.silent_until > self.world.now:
                if broker.silent_until < FOREVER:
                    left = broker.silent_until - self.world.now
                    self.world.after(left, lambda: back(response))
            elif self.is_lost():
                fail()
            elif broker.waiting.pop(token, None) is not None:
                reply(response)

        if broker.is_dead:
            self.world.after(0.001, fail)
        else:
            self.world.after(self.delay(broker), arrive)

    def handle(self, broker: Broker, request: Any, reply: Reply) -> None:
        """What a broker does with a request; it may reply later."""
        name = type(request).__name__.removesuffix("Request")
        of_group = {
            "JoinGroup",
            "SyncGroup",
            "Heartbeat",
            "LeaveGroup",
            "OffsetCommit",
            "OffsetFetch",
            "ConsumerGroupHeartbeat",
            "DescribeGroups",
        }
        is_wrong = broker.errors > 0
        broker.errors -= is_wrong
        if name in of_group:
            error = 0
            if broker.number != self.coordinator:
                error = ErrorCode.NOT_COORDINATOR
            elif is_wrong:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            self.group.handle(name, request, reply, error)
        elif name == "Fetch":
            self._fetch(broker, request, reply, is_wrong)
        else:
            handler = {
                "Metadata": self._metadata,
                "FindCoordinator": self._find_coordinator,
                "ListOffsets": self._list_offsets,
                "OffsetForLeaderEpoch": self._end_of_epoch,
            }[name]
            reply(handler(broker, request, is_wrong))

    def _metadata(self, broker: Broker, request: Any, is_wrong: bool) -> Any:
        alive = [one for one in self.nodes if not one.is_gone]
        rows = [
            MetadataResponse.MetadataResponseBroker(
                node_id=one.number, host=one.address[0], port=one.address[1]
            )
            for one in alive
        ]
        listed = {one.number for one in alive}
        topics = []
        for name in TOPICS:
            parts = []
            if name not in broker.ids:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                topics.append(MetadataResponse.MetadataResponseTopic(name=name, error_code=error))
                continue
            topic_id = broker.ids[name] if self.has_ids else NO_TOPIC_ID
            for key in (key for key in broker.views if key[0] == name):
                view = broker.views[key]
                leader = view.leader if view.leader in listed and not is_wrong else -1
                error = 0 if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE
                parts.append(
                    MetadataResponse.MetadataResponsePartition(
                        error_code=error,
                        partition_index=key[1],
                        leader_id=leader,
                        leader_epoch=view.epoch,
                        replica_nodes=[0, 1, 2],
                        isr_nodes=[0, 1, 2],
                    )
                )
            topics.append(
                MetadataResponse.MetadataResponseTopic(
                    name=name, topic_id=topic_id, partitions=parts
                )
            )
        wanted = request.topics and {row.name for row in request.topics}
        topics = [row for row in topics if not wanted or row.name in wanted]
        return MetadataResponse(brokers=rows, topics=topics)

    def _find_coordinator(self, broker: Broker, request: Any, is_wrong: bool) -> Any:
        there = self.nodes[self.coordinator]
        if is_wrong:
            return FindCoordinatorResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        host, port = there.address
        return FindCoordinatorResponse(node_id=there.number, host=host, port=port)

    def _error(self, broker: Broker, key: Key, epoch: int, is_wrong: bool) -> int:
        view = broker.views.get(key)
        if view is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if is_wrong:
            return self.world.random.choice(MOVED_ERRORS)
        if 0 <= epoch < view.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > view.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if view.leader != broker.number:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return 0

    def _list_offsets(self, broker: Broker, request: Any, is_wrong: bool) -> Any:
        topics = []
        for topic in request.topics:
            parts = []
            for row in topic.partitions:
                key = topic.name, row.partition_index
                error = self._error(broker, key, row.current_leader_epoch, is_wrong)
                fields: dict[str, int] = {}
                if not error:
                    log = broker.views[key].log
                    end = log.stable if request.isolation_level else log.end
                    offset = log.start if row.timestamp == EARLIEST else end
                    epoch = log.epoch_at(offset) if row.timestamp == EARLIEST else -1
                    fields = {"offset": offset, "leader_epoch": epoch}
                parts.append(
                    ListOffsetsResponse.ListOffsetsPartitionResponse(
                        partition_index=row.partition_index,
                        error_code=error,
                        **fields,
                    )
                )
            topics.append(
                ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=parts)
            )
        return ListOffsetsResponse(topics=topics)

    def _end_of_epoch(self, broker: Broker, request: Any, is_wrong: bool) -> Any:
        topics = []
        for topic in request.topics:
            parts = []
            for row in topic.partitions:
                key = topic.topic, row.partition
                error = self._error(broker, key, row.current_leader_epoch, is_wrong)
                epoch, end = (-1, -1) if error else broker.views[key].log.end_of(row.leader_epoch)
                parts.append(
                    OffsetForLeaderEpochResponse.EpochEndOffset(
                        error_code=error,
                        partition=row.partition,
                        leader_epoch=epoch,
                        end_offset=end,
                    )
                )
            topics.append(
                OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                    topic=topic.topic, partitions=parts
                )
            )
        return OffsetForLeaderEpochResponse(topics=topics)

    # -- fetches

    def _fetch(self, broker: Broker, request: Any, reply: Reply, is_wrong: bool) -> None:
        known, number, error = self._session(broker, request)
        if error:
            reply(FetchResponse(error_code=error, session_id=0))
            return
        level = request.isolation_level
        found = self._rows(broker, known, is_wrong, level)
        if found or request.max_wait_ms == 0:
            reply(self._response(found, number))
            return

        def later() -> None:
            reply(self._response(self._rows(broker, known, False, level), number))

        self.world.after(request.max_wait_ms / 1000, later)

    def _session(self, broker: Broker, request: Any) -> tuple[dict[Key, Any], int, int]:
        """What is asked for, with what was asked for before in the session."""
        rows = {
            (topic.topic, row.partition): (topic.topic_id if self.has_ids else NO_TOPIC_ID, row)
            for topic in request.topics
            for row in topic.partitions
        }
        if request.session_epoch <= 0:
            broker.sessions.pop(request.session_id, None)
            if request.session_epoch < 0 or self.world.random.random() < 0.1:
                return rows, 0, 0
            number = next(self._sessions)
            broker.sessions[number], broker.epochs[number] = rows, 1
            return rows, number, 0
        known = broker.sessions.get(request.session_id)
        if known is None:
            return {}, 0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if broker.epochs[request.session_id] != request.session_epoch:
            return {}, 0, ErrorCode.INVALID_FETCH_SESSION_EPOCH
        broker.epochs[request.session_id] += 1
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                known.pop((topic.topic, partition), None)
        known.update(rows)
        return known, request.session_id, 0

    def _rows(
        self, broker: Broker, known: dict[Key, Any], is_wrong: bool, level: int
    ) -> dict[Key, Any]:
        """What there is to say of these partitions."""
        found = {}
        for key, (topic_id, row) in known.items():
            if topic_id != NO_TOPIC_ID and broker.ids.get(key[0]) != topic_id:
                fields = {"error_code": ErrorCode.UNKNOWN_TOPIC_ID}
            else:
                fields = self._row(broker, key, row, is_wrong, level)
            if fields:
                data = FetchResponse.PartitionData(partition_index=key[1], **fields)
                found[key] = topic_id, data
        return found

    def _row(
        self, broker: Broker, key: Key, row: Any, is_wrong: bool, level: int
    ) -> dict[str, Any]:
        error = self._error(broker, key, row.current_leader_epoch, is_wrong)
        view = broker.views.get(key)
        if key in self.refused:
            return {"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        if view is None:
            return {"error_code": error}
        if error:
            fields: dict[str, Any] = {"error_code": error}
            if self.world.random.random() < 0.5 and not is_wrong:
                # KIP-951
                fields["current_leader"] = FetchResponse.LeaderIdAndEpoch(
                    leader_id=view.leader, leader_epoch=view.epoch
                )
            return fields
        log = view.log
        if not log.start <= row.fetch_offset <= log.end:
            return {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}
        found = log.read(row.fetch_offset, self.world.random.randint(1, 4), bool(level))
        if not found:
            return {}
        fields = {
            "records": memoryview(b"".join(batch.data for batch in found)),
            "high_watermark": log.end,
            "last_stable_offset": log.stable,
            "log_start_offset": log.start,
        }
        if level:
            fields["aborted_transactions"] = [
                FetchResponse.AbortedTransaction(producer_id=one.producer, first_offset=one.first)
                for one in log.aborted_in(row.fetch_offset, found[-1].end)
            ]
        return fields

    def _response(self, found: dict[Key, Any], number: int) -> Any:
        topics = [
            FetchResponse.FetchableTopicResponse(
                topic=name,
                topic_id=topic_id,
                partitions=[
                    row for key, (of, row) in found.items() if (key[0], of) == (name, topic_id)
                ],
            )
            for name, topic_id in dict.fromkeys((key[0], of) for key, (of, _) in found.items())
        ]
        return FetchResponse(session_id=number, responses=topics)
