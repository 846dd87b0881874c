"""A member of a group whose coordinator assigns the partitions (KIP-848)."""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Any

from kbroker.client.batches.offsets import TopicPartition as Key
from kbroker.client.connections.metadata import Topic
from kbroker.client.connections.retry import Backoff
from kbroker.client.consumer.classic_member import Complete, Event, Fatal, Prepare
from kbroker.client.consumer.commits import LOST_WORDS, CommittingMember
from kbroker.client.consumer.member_thread import Action, Ask, End, Interrupted, LookUp, WaitUntil
from kbroker.client.errors import ClientError, CommitFailed, RejectedError
from kbroker.client.settings.client_settings import ClientSettings
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

logger = logging.getLogger(__name__)

FOREVER = float("inf")
JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
# Until the coordinator has told its interval.
_FIRST_INTERVAL_S = 5.0
_LEAVE_S = 5.0
# How long the id of a topic may be unknown before it is looked up again.
_RESOLVE_PAUSE_S = 0.5
_AGAIN = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
_FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})

IdKey = tuple[bytes, int]


class ConsumerProtocolState(Enum):
    """RECONCILING: the thread that polls takes partitions over and gives others up. FENCED: it has
    to hear that all are lost. STALE: the same, after a pause of the application."""

    IDLE = "not subscribed"
    JOINING = "joining"
    STABLE = "heartbeats"
    RECONCILING = "taking partitions over"
    FENCED = "partitions are lost"
    LEAVING = "leaving"
    GONE = "gone"


class ConsumerMember:
    """See ``member_thread.Member``, and ``ClassicMember`` for the thread that polls."""

    cooperative = True

    def __init__(self, settings: ClientSettings, now: float) -> None:
        self.group: str = settings["group.id"]
        self.instance: str | None = settings["group.instance.id"]
        self._rack: str | None = settings["client.rack"] or None
        self._assignor: str | None = settings["group.remote.assignor"]
        self._poll_ms: int = settings["max.poll.interval.ms"]
        self._request_s: float = settings["request.timeout.ms"] / 1000
        self._backoff = Backoff.of(settings, "retry.backoff")
        self._failures = 0  # in a row
        self.state = ConsumerProtocolState.IDLE
        # WIRE: as Kafka writes ids, 16 random bytes in base64 for URLs, without padding.
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self.member_id = made
        self.epoch = JOIN_EPOCH
        self.topics: frozenset[str] = frozenset()
        self._sent_topics: frozenset[str] | None = None
        self._owned: frozenset[IdKey] = frozenset()
        # How often that has been assigned, and how much of it the coordinator was told.
        self._assignment = self._told = 0
        self._owned_since: dict[Key, int] = {}  # epochs in which partitions were taken over
        self._target: frozenset[IdKey] | None = None
        self._names: dict[bytes, str] = {}
        self._resolve_at = now
        self._event: Event | None = None
        self._whole = True
        self._stopped = False
        self._in_flight: tuple[frozenset[str] | None, int | None] = (None, None)
        self._interval_s = _FIRST_INTERVAL_S
        self._heartbeat_at = now
        self._not_before = now
        self._polled_at = now
        self.rebalances = 0
        self.heartbeats = 0

    # -- the thread that polls

    def polled(self, now: float) -> None:
        """``poll`` was called."""
        self._polled_at = now
        if self.state is ConsumerProtocolState.IDLE and self._stopped and self._event is None:
            self._begin()

    def subscribe(self, topics: frozenset[str]) -> None:
        """Take part with these topics from now on."""
        self.topics = topics
        if self.state is ConsumerProtocolState.IDLE:
            self._begin()

    def topics_changed(self) -> None:
        """The coordinator sees that by itself."""

    def rejoin(self, reason: str) -> None:
        """COMPAT: as in Java, only the coordinator of this protocol begins rebalances."""
        logger.info(
            "group %s: %s; its coordinator assigns partitions by itself", self.group, reason
        )

    def event(self) -> Event | None:
        """What the thread that polls has to do, once."""
        event, self._event = self._event, None
        return event

    def prepared(self, owned: Iterable[Key], lost: bool) -> None:
        """It has heard that all partitions are lost."""
        if self.state is ConsumerProtocolState.FENCED:
            self._owned = frozenset()
            self._owned_since.clear()
            self._join()

    def completed(self, owned: Iterable[Key], rejoin: bool) -> None:
        """It has taken partitions over, and given the others up."""
        owned = list(owned)
        self._owned_since = {key: self._owned_since.get(key, self.epoch) for key in owned}
        ids = {name: topic_id for topic_id, name in self._names.items()}
        self._owned = frozenset(
            (ids[topic], partition) for topic, partition in owned if topic in ids
        )
        self._assignment += 1
        if self.state is ConsumerProtocolState.RECONCILING:
            self.state = ConsumerProtocolState.STABLE

    def leave(self) -> None:
        """Be no member any more."""
        if self.state is not ConsumerProtocolState.GONE:
            self.state = ConsumerProtocolState.LEAVING

    def identity(self) -> CommittingMember:
        """Who commits. Raises CommitFailed while it is not a member."""
        if self.epoch <= JOIN_EPOCH:
            what = f"commit offsets of group {self.group}"
            raise CommitFailed(ErrorCode.UNKNOWN_MEMBER_ID, what, LOST_WORDS)
        return CommittingMember(self.epoch, self.member_id, self.instance)

    def renewed(self, was: CommittingMember, keys: Collection[Key]) -> CommittingMember | None:
        """See ``commits.Committer``: a later epoch, in which it still has these partitions."""
        if self.epoch <= JOIN_EPOCH or self.member_id != was.member:
            return None
        if any(self._owned_since.get(key, FOREVER) > was.generation for key in keys):
            return None
        return self.identity()

    # -- the member's thread

    def is_leaving(self) -> bool:
        return self.state in (ConsumerProtocolState.LEAVING, ConsumerProtocolState.GONE)

    def next(self, now: float) -> Action:
        """What to do now."""
        if self.state is ConsumerProtocolState.GONE:
            return End()
        if self.state is ConsumerProtocolState.LEAVING:
            return self._leave(now)
        if self.state in (ConsumerProtocolState.IDLE, ConsumerProtocolState.FENCED):
            return WaitUntil(FOREVER)
        if now < self._not_before:
            return WaitUntil(self._not_before)
        if self.epoch > JOIN_EPOCH and now >= self._polled_at + self._poll_ms / 1000:
            return self._stop_for_lack_of_polls()
        if self.state is ConsumerProtocolState.STABLE and self._target is not None:
            unknown = {topic_id for topic_id, _ in self._target} - self._names.keys()
            if unknown and now >= self._resolve_at:
                self._resolve_at = now + _RESOLVE_PAUSE_S
                return LookUp(self.topics)
            self._reconcile()
        return self._beat(now)

    def _beat(self, now: float) -> Action:
        news = self.state is not ConsumerProtocolState.RECONCILING and (
            self._sent_topics != self.topics or self._told != self._assignment
        )
        if (
            self.state is not ConsumerProtocolState.JOINING
            and not news
            and now < self._heartbeat_at
        ):
            until = min(self._heartbeat_at, self._polled_at + self._poll_ms / 1000)
            if self._target is not None and self.state is ConsumerProtocolState.STABLE:
                until = min(until, max(self._resolve_at, now + 0.01))
            return WaitUntil(until)
        self._heartbeat_at = now + self._interval_s
        self.heartbeats += 1
        return Ask(self._heartbeat(), self._request_s)

    def _heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        """What has changed since the last response; everything when it joins."""
        whole = self._whole or self.epoch == JOIN_EPOCH
        topics = self.topics if whole or self._sent_topics != self.topics else None
        owned = self._owned if whole or self._told != self._assignment else None
        if self.epoch == JOIN_EPOCH:
            owned = frozenset()
        self._in_flight = topics, None if owned is None else self._assignment
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance if whole else None,
            rack_id=self._rack if whole else None,
            rebalance_timeout_ms=self._poll_ms if whole else -1,
            subscribed_topic_names=None if topics is None else sorted(topics),
            server_assignor=self._assignor if whole else None,
            topic_partitions=None if owned is None else _rows(owned),
        )

    def take(self, response: Any, now: float) -> None:
        """The response to a heartbeat."""
        if self.is_leaving():
            return
        code = response.error_code
        if code in _FENCED:
            self._fence(f"the coordinator says {ErrorCode(code).name}")
        elif code in _AGAIN:
            self._whole = True
            self._pause(now)
        elif code:
            self._stop(RejectedError(code, self._what(), response.error_message))
        elif self.state not in (ConsumerProtocolState.FENCED, ConsumerProtocolState.IDLE):
            self._accepted(response, now)

    def _accepted(self, response: Any, now: float) -> None:
        self._failures = 0
        topics, told = self._in_flight
        self._sent_topics = self._sent_topics if topics is None else topics
        self._told = self._told if told is None else told
        self._whole = False
        if response.member_id:
            self.member_id = response.member_id
        self.epoch = response.member_epoch
        if response.heartbeat_interval_ms > 0:
            self._interval_s = response.heartbeat_interval_ms / 1000
        self._heartbeat_at = now + self._interval_s
        if self.state is ConsumerProtocolState.JOINING:
            self.state = ConsumerProtocolState.STABLE
        if response.assignment is not None:
            self._target = frozenset(
                (row.topic_id, partition)
                for row in response.assignment.topic_partitions
                for partition in row.partitions
            )
            self._resolve_at = now

    def take_topics(self, topics: Mapping[str, Topic], now: float) -> None:
        """Metadata with the ids of topics."""
        self._names.update({topic.id: name for name, topic in topics.items()})

    def _reconcile(self) -> None:
        """Let the thread that polls move to the target, as far as topics are known by name.

        COMPAT: as in Java, the coordinator is told what the member owns after each assignment, also
        if it is what it was told before: there may have been another assignment between, for whose
        end it waits.
        """
        assert self._target is not None
        known = frozenset(key for key in self._target if key[0] in self._names)
        if known == self._target:
            self._target = None
            self._assignment += known == self._owned
        if known == self._owned:
            return
        self.rebalances += 1
        self.state = ConsumerProtocolState.RECONCILING
        self._event = Complete(
            tuple(sorted((self._names[topic_id], partition) for topic_id, partition in known))
        )

    # -- the ends of membership

    def _begin(self) -> None:
        """Join: first, or after an error, since which others may have its partitions."""
        self._stopped = False
        if self._owned:
            self._fence("it tries again after an error")
        else:
            self._join()

    def _join(self) -> None:
        self.state = ConsumerProtocolState.JOINING
        self.epoch = JOIN_EPOCH
        self._whole = True
        self._target = None
        self._sent_topics = None

    def _fence(self, reason: str) -> None:
        """The member was removed: its partitions are lost, and it joins again."""
        logger.info("group %s: %s; the consumer joins again", self.group, reason)
        self.epoch = JOIN_EPOCH
        self._owned_since.clear()
        self._target = None
        self.state = ConsumerProtocolState.FENCED
        self._event = Prepare(True)

    def _stop_for_lack_of_polls(self) -> Action:
        logger.warning(
            "poll was not called for max.poll.interval.ms, %d: the consumer leaves group %s until "
            "it is; handle records faster, or lower max.poll.records",
            self._poll_ms,
            self.group,
        )
        request = self._leave_request()
        self._fence("poll was called again")
        return Ask(request, min(self._request_s, _LEAVE_S))

    def _leave_request(self) -> ConsumerGroupHeartbeatRequest:
        """COMPAT: a static member stays for whoever continues it, and says so."""
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=LEAVE_EPOCH if self.instance is None else STATIC_LEAVE_EPOCH,
            instance_id=self.instance,
        )

    def _leave(self, now: float) -> Action:
        self.state = ConsumerProtocolState.GONE
        if self.epoch <= JOIN_EPOCH and self._sent_topics is None and not self.heartbeats:
            return WaitUntil(now)
        self.epoch = LEAVE_EPOCH
        return Ask(self._leave_request(), min(self._request_s, _LEAVE_S))

    def failed(self, error: ClientError, now: float) -> None:
        """There was no response: what the last heartbeat said may not have arrived."""
        if self.is_leaving() or isinstance(error, Interrupted):
            return
        self._whole = True
        if error.retriable:
            logger.debug("group %s: %s; asking again", self.group, error)
            self._pause(now)
        else:
            self._stop(error)

    def _pause(self, now: float) -> None:
        """Before the next request."""
        self._failures += 1
        self._not_before = now + self._backoff.after(self._failures)
        self._heartbeat_at = min(self._heartbeat_at, self._not_before)

    def _what(self) -> str:
        return f"heartbeat in group {self.group}"

    def _stop(self, error: ClientError) -> None:
        """Until ``poll`` is called after the call that raises the error."""
        self.epoch = JOIN_EPOCH
        self.state = ConsumerProtocolState.IDLE
        self._stopped = True
        self._event = Fatal(error)


def _rows(keys: Iterable[IdKey]) -> list[Any]:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(keys):
        by_topic.setdefault(topic_id, []).append(partition)
    return [
        ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in by_topic.items()
    ]
