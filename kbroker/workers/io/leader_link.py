"""The link of an io worker to one leader: sends its partitions' requests, then fetches.

One request is under way at a time. Questions come first, since partitions that ask are not fetched;
then one fetch for all the others, which the leader keeps until there is something for it. The bytes
are ``_ext.io.replica_fetch``'s; here is what is rare: connecting, questions, errors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker._ext.io.fetched_log import FetchedLog
from kbroker._ext.io.replica_fetch import ReplicaFetch
from kbroker._ext.sockets.peer_link import PeerLink
from kbroker.errors import ErrorCode
from kbroker.peers.link import LinkFailed
from kbroker.peers.secured import Secured
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.header import request_header_version
from kbroker.protocol.message import Message
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kbroker.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kbroker.replication.following import EpochQuestion, FollowedPartition, Question
from kbroker.replication.truncation import EpochEnd
from kbroker.types import Offset

if TYPE_CHECKING:
    from kbroker._ext.shared.log_figures import LogFigures
    from kbroker._ext.shared.replication_quota import ReplicationQuota
    from kbroker.config.loader import BrokerConfig
    from kbroker.peers.connecting import Connecting
    from kbroker.peers.link import PeerAddress
    from kbroker.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

# BOUND: bytes from one link in one turn, so that producers do not wait after it
# (docs/decisions/0016-how-a-follower-follows.md).
TURN_BYTES = 256 << 10
# BOUND: partitions per request, so that neither side is busy for long.
ASKED_MAX = 1000
# How long throttled partitions are left out before the quota is looked at again: there may be a
# higher one, or another process may not need it any more.
THROTTLED_MAX_MS = 100
# For so long after a partition has come, others are expected, and fetches wait for a shorter time:
# a partition that comes is fetched with the next request, and producers may wait for that.
EXPECTING_MS = 3_000
EXPECTING_WAIT_MS = 50
# A leader that has had nothing new for so long is asked to keep a fetch this many times as long: in
# an idle cluster of many brokers, fetches that only wait are most of what there is to do.
IDLE_AFTER_MS = 5_000
IDLE_WAIT_FACTOR = 10
# A response that comes before this part of its time was sent for a reason. Clocks of turns differ
# by some ms.
EARLY_SHARE = 0.9
# Such a wait is at most this part of replica.lag.time.max.ms: the leader takes two of them for no
# silence (``in_sync``). And of replica.socket.timeout.ms.
IDLE_WAIT_SHARE = 6
# An unreachable leader is logged again after this many attempts.
TOLD_EVERY = 60
# The leader has dropped the fetch session, or disagrees about it: the next request starts a new
# one.
SESSION_ERRORS = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
)


class Versions(NamedTuple):
    """Which version of which request is sent to other brokers."""

    fetch: int
    offset_for_leader_epoch: int
    list_offsets: int


class Follower:
    """A followed partition in its slot. ``fetched``: while it is fetched."""

    __slots__ = ("fetched", "key", "link", "log", "machine", "slot")

    def __init__(
        self, slot: int, log: PartitionLog, machine: FollowedPartition, link: LeaderLink
    ) -> None:
        self.slot = slot
        self.key = log.key
        self.log = log
        self.machine = machine
        self.link = link
        self.fetched: FetchedLog | None = None


class LinkOwner(Protocol):
    """What a link needs from ``Followers``."""

    broker_id: int
    connecting: Connecting
    figures: LogFigures | None
    quota: ReplicationQuota

    @property
    def config(self) -> BrokerConfig: ...

    def now_ms(self) -> int: ...
    def wall_clock_ms(self) -> int: ...

    def endpoint(self, leader: int) -> PeerAddress:
        """Raises LinkFailed if it is not known."""

    def watch(self, fd: int, callback: Callable[[], None]) -> None: ...
    def watch_writable(self, fd: int, wanted: bool) -> None: ...
    def unwatch(self, fd: int) -> None: ...

    def is_throttled(self, follower: Follower) -> bool:
        """Whether the quota applies to the partition."""

    def step(self, follower: Follower, change: Callable[[], None]) -> None:
        """Pass an event to a state machine, and do what follows from it."""

    def on_event(self, follower: Follower, what: int, value: object) -> None:
        """Something rare happened to a partition while it was fetched."""


class SentQuestion(NamedTuple):
    follower: Follower
    question: Question


class LeaderLink:
    """index: of this link among those to the same leader."""

    def __init__(self, owner: LinkOwner, leader: int, index: int, versions: Versions) -> None:
        self.leader = leader
        self.followers: dict[int, Follower] = {}
        self.fetch = ReplicaFetch(versions.fetch, owner.broker_id)
        self._owner = owner
        self._index = index
        self._versions = versions
        self._asking: dict[int, Follower] = {}
        self._asked: dict[tuple[str, int], SentQuestion] = {}
        self._link: PeerLink | None = None
        self._reason: Callable[[OSError], str] = str  # why the link was lost
        self._renew_at_ms: int | None = None  # the session of the connection is about to end then
        self._is_connecting = False
        self._is_closed = False
        # The time of the next attempt to connect, and the number of failures.
        self._retry_at_ms = 0
        self._failures = 0
        # The request in flight, and its start time.
        self._awaited: ApiKey | None = None
        self._sent_at_ms = 0
        self._news_ms = 0  # when the leader had something new, or a partition came
        self._is_watched_for_writing = False
        # Fetched partitions to which the quota applies; while some are left out, when to look at it
        # again.
        self._throttled: dict[int, FetchedLog] = {}
        self._throttled_until_ms: int | None = None
        self._expecting_until_ms = 0
        self.take_settings()

    def take_settings(self) -> None:
        """Follow the limits of the settings, with the next request."""
        config = self._owner.config
        self._wait_max_ms: int = config["replica.fetch.wait.max.ms"]
        self.fetch.bytes_min = config["replica.fetch.min.bytes"]
        self._idle_wait_max_ms = self._wait_max_ms
        if self.fetch.bytes_min <= 1:  # else records wait for more of them for as long
            limits = (config["replica.lag.time.max.ms"], config["replica.socket.timeout.ms"])
            longest = min(IDLE_WAIT_FACTOR * self._wait_max_ms, min(limits) // IDLE_WAIT_SHARE)
            self._idle_wait_max_ms = max(self._wait_max_ms, longest)
        self.fetch.bytes_max = config["replica.fetch.response.max.bytes"]
        self.fetch.partition_bytes_max = config["replica.fetch.max.bytes"]

    # -- partitions --

    def expect_more(self) -> None:
        """A partition comes, and others may."""
        self._expecting_until_ms = self._owner.now_ms() + EXPECTING_MS

    def place(self, follower: Follower) -> None:
        """Fetch the partition, send its request or leave it alone, according to its state. Earlier
        requests in flight have no effect any more.
        """
        machine = follower.machine
        self._fetch_no_more(follower)
        self._asking.pop(follower.slot, None)
        self._news_ms = self._owner.now_ms()
        self.followers[follower.slot] = follower
        if machine.is_fetching:
            follower.fetched = FetchedLog(
                follower.log.appender, *follower.key, machine.leader_epoch, self._owner.figures
            )
            self.fetch.add(follower.fetched)
            self.throttle(follower)
        elif machine.asks:
            self._asking[follower.slot] = follower

    def remove(self, follower: Follower) -> None:
        """The partition is not followed any more: stop its requests and ignore its records."""
        self._fetch_no_more(follower)
        self._asking.pop(follower.slot, None)
        self.followers.pop(follower.slot, None)

    def _fetch_no_more(self, follower: Follower) -> None:
        if follower.fetched is not None:
            self.fetch.remove(follower.fetched)
            self._throttled.pop(follower.slot, None)
            follower.fetched = None

    def throttle(self, follower: Follower) -> None:
        """Apply the quota to the partition, or no longer."""
        fetched = follower.fetched
        if fetched is None:
            return
        fetched.throttled = self._owner.is_throttled(follower)
        if fetched.throttled:
            self._throttled[follower.slot] = fetched
            self._throttled_until_ms = None
        elif self._throttled.pop(follower.slot, None) is not None and not fetched.wanted:
            self.fetch.add(fetched)

    def _leave_out_throttled(self, now_ms: int) -> None:
        """Leave out of the next fetch what is throttled and behind, if the quota is used up."""
        if self._throttled_until_ms is not None and now_ms < self._throttled_until_ms:
            return
        wait_ms = self._owner.quota.wait_ms(now_ms)
        self._throttled_until_ms = None
        for fetched in self._throttled.values():
            if wait_ms and fetched.behind:
                self.fetch.remove(fetched)
                self._throttled_until_ms = now_ms + min(wait_ms, THROTTLED_MAX_MS)
            elif not fetched.wanted:
                self.fetch.add(fetched)

    # -- the connection --

    @property
    def is_connected(self) -> bool:
        return self._link is not None

    def next_deadline_ms(self) -> int | None:
        """The time of the next turn without an event."""
        if self._link is None:
            return None if self._is_connecting else self._retry_at_ms
        if self._awaited is None:
            return self._throttled_until_ms if self._throttled else None
        return self._sent_at_ms + int(self._owner.config["replica.socket.timeout.ms"])

    def turn(self, now_ms: int) -> None:
        """Do whatever is due: connect, send a request or fetch. Called at the end of every turn."""
        if self._link is None:
            if not self._is_connecting and now_ms >= self._retry_at_ms:
                self._connect()
        elif self._awaited is not None:
            if now_ms - self._sent_at_ms > self._owner.config["replica.socket.timeout.ms"]:
                self._lose(f"no response within {now_ms - self._sent_at_ms} ms")
        elif self._renew_at_ms is not None and now_ms >= self._renew_at_ms:
            logger.debug("renewing the session with broker %d", self.leader)
            self._disconnect()
            self._connect()
        else:
            if self._throttled:
                self._leave_out_throttled(now_ms)
            if self._asking or self.fetch.count:
                self._send_next(self._link, now_ms)

    def _connect(self) -> None:
        config = self._owner.config
        try:
            endpoint = self._owner.endpoint(self.leader)
        except LinkFailed as error:
            self._retry(str(error))
            return
        self._is_connecting = True
        self._owner.connecting.connect(
            endpoint.host,
            endpoint.port,
            config["replica.socket.timeout.ms"] / 1000,
            config["replica.socket.receive.buffer.bytes"],
            self._on_connected,
        )

    def _on_connected(self, outcome: Secured | OSError) -> None:
        self._is_connecting = False
        if isinstance(outcome, OSError):
            self._retry(str(outcome))
            return
        if self._is_closed:
            outcome.socket.close()
            return
        config = self._owner.config
        # A leader sends at most the requested bytes, or a single batch from one produce request.
        frame_max = config["replica.fetch.response.max.bytes"] + config["socket.request.max.bytes"]
        name = f"broker-{self._owner.broker_id}-fetcher-{self._index}"
        self._link = link = PeerLink(outcome.transport(), name, frame_max)
        self._reason = outcome.reason
        is_renewed = self._renew_at_ms is not None
        self._renew_at_ms = None
        if outcome.renews_after_ms is not None:
            self._renew_at_ms = self._owner.now_ms() + outcome.renews_after_ms
        self.fetch.use(link)
        self._owner.watch(link.fd, self._on_ready)
        self._failures = 0
        logger.log(
            logging.DEBUG if is_renewed else logging.INFO,
            "connected to broker %d to follow %d partitions", self.leader, len(self.followers),
        )  # fmt: skip

    def _retry(self, why: str) -> None:
        if self._failures % TOLD_EVERY == 0 and not self._is_closed:
            logger.warning(
                "cannot connect to broker %d, the leader of %d partitions: %s; trying again",
                self.leader, len(self.followers), why,
            )  # fmt: skip
        self._failures += 1
        self._renew_at_ms = None
        self._retry_at_ms = self._owner.now_ms() + self._owner.config["replica.fetch.backoff.ms"]

    def _lose(self, why: str) -> None:
        """Close a failed connection; partitions keep their states."""
        logger.warning("lost the connection to broker %d: %s; connecting again", self.leader, why)
        self._disconnect()
        self._renew_at_ms = None
        self._retry_at_ms = self._owner.now_ms() + self._owner.config["replica.fetch.backoff.ms"]

    def _disconnect(self) -> None:
        if self._link is not None:
            self._owner.unwatch(self._link.fd)
            self._link.close()
        self._link = self._awaited = None
        self._is_watched_for_writing = False
        self.fetch.use(None)

    def close(self) -> None:
        """Close the link; nothing is followed over it any more."""
        self._is_closed = True
        self._disconnect()

    # -- requests --

    def _send_next(self, link: PeerLink, now_ms: int) -> None:
        try:
            if not self._asking:
                self.fetch.wait_max_ms = self._wait_ms(now_ms)
                self.fetch.send()
                self._awaited = ApiKey.FETCH
            else:
                self._ask(link)
        except OSError as error:
            self._lose(self._reason(error))
            return
        self._sent_at_ms = now_ms
        self._watch_writable(link)

    def _wait_ms(self, now_ms: int) -> int:
        """How long the leader may keep the next fetch."""
        if now_ms < self._expecting_until_ms:
            return min(self._wait_max_ms, EXPECTING_WAIT_MS)
        if self._throttled or now_ms - self._news_ms < IDLE_AFTER_MS:
            return self._wait_max_ms
        return self._idle_wait_max_ms

    def _is_early(self, now_ms: int) -> bool:
        """Whether the leader has sent a response before its time. Of a short wait this cannot be
        told, nor does it matter.
        """
        wait_ms = self.fetch.wait_max_ms
        return wait_ms > EXPECTING_WAIT_MS and now_ms - self._sent_at_ms < EARLY_SHARE * wait_ms

    def _watch_writable(self, link: PeerLink) -> None:
        if link.has_unsent != self._is_watched_for_writing:
            self._is_watched_for_writing = link.has_unsent
            self._owner.watch_writable(link.fd, link.has_unsent)

    def _ask(self, link: PeerLink) -> None:
        """Send one kind of request for all partitions that need it."""
        first = next(iter(self._asking.values())).machine.question
        some = [f for f in self._asking.values() if type(f.machine.question) is type(first)]
        asked = [
            SentQuestion(f, f.machine.question)
            for f in islice(some, ASKED_MAX)
            if f.machine.question
        ]
        self._asked = {one.follower.key: one for one in asked}
        message: Message
        if isinstance(first, EpochQuestion):
            api, version = ApiKey.OFFSET_FOR_LEADER_EPOCH, self._versions.offset_for_leader_epoch
            message = epoch_request(self._owner.broker_id, asked)
        else:
            api, version = ApiKey.LIST_OFFSETS, self._versions.list_offsets
            message = offset_request(self._owner.broker_id, asked)
        flexible = request_header_version(api, version) >= 2
        link.request(int(api), version, flexible, codec.encode(message, version))
        self._awaited = api

    # -- responses --

    def _on_ready(self) -> None:
        link = self._link
        if link is None:
            return
        try:
            if link.has_unsent:
                link.flush()
                self._watch_writable(link)
            if self._awaited is ApiKey.FETCH:
                self._read_fetch()
            else:
                self._read_responses(link)
        except OSError as error:
            self._lose(self._reason(error))
        except ValueError as error:
            self._lose(str(error))

    def _read_fetch(self) -> None:
        throttled = self.fetch.throttled_bytes
        try:
            if self.fetch.read(TURN_BYTES, self._owner.wall_clock_ms()):
                self._awaited = None
                now_ms = self._owner.now_ms()
                if not self.fetch.is_empty:
                    self._news_ms = now_ms
                elif self._is_early(now_ms):
                    # The leader has a partition for this broker, which may not know of it yet.
                    self._news_ms = now_ms
                    self.expect_more()
        finally:
            self._owner.quota.add(self.fetch.throttled_bytes - throttled, self._owner.now_ms())
            # Including data received before the connection was closed.
            for fetched, what, value in self.fetch.take_events():
                self._on_event(fetched, what, value)

    def _on_event(self, fetched: FetchedLog | None, what: int, value: object) -> None:
        if fetched is None:
            self._on_response_error(value)
            return
        follower = self.followers.get(fetched.appender.slot)
        if follower is not None and follower.fetched is fetched:
            self._owner.on_event(follower, what, value)

    def _on_response_error(self, error: object) -> None:
        if error in SESSION_ERRORS:
            return
        raise ValueError(f"it responds to fetches with error {error}")

    def _read_responses(self, link: PeerLink) -> None:
        link.receive(TURN_BYTES)
        body = link.take()
        if body is None:
            return
        awaited, self._awaited = self._awaited, None
        asked, self._asked = self._asked, {}
        now_ms = self._owner.now_ms()
        if awaited is ApiKey.OFFSET_FOR_LEADER_EPOCH:
            version = self._versions.offset_for_leader_epoch
            epochs = codec.decode_exact(OffsetForLeaderEpochResponse, version, body)
            for name, row in ((t.topic, row) for t in epochs.topics for row in t.partitions):
                one = asked.pop((name, row.partition), None)
                end = EpochEnd(row.leader_epoch, Offset(row.end_offset))
                self._deliver(one, FollowedPartition.on_epoch_end, row.error_code, end, now_ms)
        else:
            offsets = codec.decode_exact(ListOffsetsResponse, self._versions.list_offsets, body)
            for name, at in ((t.name, at) for t in offsets.topics for at in t.partitions):
                one = asked.pop((name, at.partition_index), None)
                self._deliver(one, FollowedPartition.on_offset, at.error_code, at.offset, now_ms)
        for left in asked.values():
            text = f"the response of broker {self.leader} leaves it out"
            self._deliver(left, FollowedPartition.pause, now_ms, text)

    def _deliver(
        self, asked: SentQuestion | None, take: Callable[..., None], *values: object
    ) -> None:
        if asked is None:
            return
        follower, question = asked
        # A role change in between makes the response outdated.
        if self.followers.get(follower.slot) is follower and follower.machine.question is question:
            self._owner.step(follower, partial(take, follower.machine, *values))


def epoch_request(replica_id: int, asked: list[SentQuestion]) -> OffsetForLeaderEpochRequest:
    """The OffsetForLeaderEpoch request for these epochs, by topic."""
    request = OffsetForLeaderEpochRequest(replica_id=replica_id)
    topic_of = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    row_of = OffsetForLeaderEpochRequest.OffsetForLeaderPartition
    for topic, some in groupby(asked, lambda one: one.follower.key[0]):
        rows = [
            row_of(
                partition=one.follower.key[1],
                current_leader_epoch=one.follower.machine.leader_epoch,
                leader_epoch=one.question.epoch,
            )
            for one in some
            if isinstance(one.question, EpochQuestion)
        ]
        request.topics.append(topic_of(topic=topic, partitions=rows))
    return request


def offset_request(replica_id: int, asked: list[SentQuestion]) -> ListOffsetsRequest:
    """An end of these logs, by topic."""
    request = ListOffsetsRequest(replica_id=replica_id, isolation_level=0)
    topic_of = ListOffsetsRequest.ListOffsetsTopic
    row_of = ListOffsetsRequest.ListOffsetsPartition
    for topic, some in groupby(asked, lambda one: one.follower.key[0]):
        rows = [
            row_of(
                partition_index=one.follower.key[1],
                current_leader_epoch=one.follower.machine.leader_epoch,
                timestamp=one.question.timestamp,
            )
            for one in some
            if not isinstance(one.question, EpochQuestion)
        ]
        request.topics.append(topic_of(name=topic, partitions=rows))
    return request
