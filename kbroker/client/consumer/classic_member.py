"""A member of a group whose members assign the partitions (Kafka's classic protocol)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from kbroker.client.batches.offsets import TopicPartition as Key
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.metadata import Topic
from kbroker.client.connections.retry import Backoff
from kbroker.client.consumer.assignors import Assignor, Members
from kbroker.client.consumer.commits import LOST_WORDS, CommittingMember
from kbroker.client.consumer.member_thread import Action, Ask, End, Interrupted, LookUp, WaitUntil
from kbroker.client.consumer.subscriptions import (
    NO_GENERATION,
    Assignment,
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kbroker.client.errors import ClientError, CommitFailed, RejectedError
from kbroker.client.settings.client_settings import ClientSettings
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.describe_groups import DescribeGroupsRequest
from kbroker.protocol.messages.heartbeat import HeartbeatRequest
from kbroker.protocol.messages.join_group import JoinGroupRequest
from kbroker.protocol.messages.leave_group import LeaveGroupRequest
from kbroker.protocol.messages.sync_group import SyncGroupRequest

logger = logging.getLogger(__name__)

PROTOCOL_TYPE = "consumer"
FOREVER = float("inf")
# Beyond the rebalance timeout, so that the coordinator is who ends a join.
_JOIN_GRACE_S = 5.0
_LEAVE_S = 5.0
_FIRST_LEAVE_OF_SEVERAL = 3  # version of LeaveGroup
_AGAIN = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)


class ClassicState(Enum):
    """What a member waits for. PREPARING, COMPLETING: the thread that polls."""

    IDLE = "not subscribed"
    PREPARING = "giving partitions up"
    JOINING = "joining"
    ASSIGNING = "metadata for its assignor"
    SYNCING = "its assignment"
    COMPLETING = "taking partitions over"
    STABLE = "the next rebalance"
    LEAVING = "leaving"
    GONE = "gone"


class Prepare(NamedTuple):
    """A rebalance begins. lost: the member had been removed, so others may have its partitions."""

    lost: bool


class Complete(NamedTuple):
    """A rebalance ends with this assignment."""

    partitions: tuple[Key, ...]


class Fatal(NamedTuple):
    """The member cannot be one."""

    error: ClientError


Event = Prepare | Complete | Fatal


class ClassicMember:
    """See ``member_thread.Member``. Between ``event`` and ``prepared`` or ``completed``, the thread
    that polls calls the listener; heartbeats go on meanwhile.
    """

    def __init__(self, settings: ClientSettings, assignors: Sequence[Assignor], now: float) -> None:
        self.group: str = settings["group.id"]
        self.instance: str | None = settings["group.instance.id"]
        self._assignors = {one.name: one for one in assignors}
        self.cooperative = all(one.cooperative for one in assignors)
        self._session_ms: int = settings["session.timeout.ms"]
        self._rebalance_ms: int = settings["max.poll.interval.ms"]
        self._heartbeat_s: float = settings["heartbeat.interval.ms"] / 1000
        self._request_s: float = settings["request.timeout.ms"] / 1000
        self._backoff = Backoff.of(settings, "retry.backoff")
        self._failures = 0  # in a row
        self._age_s: float = settings["metadata.max.age.ms"] / 1000
        self._rack: str | None = settings["client.rack"] or None
        self.state = ClassicState.IDLE
        self.generation = NO_GENERATION
        self.member_id = ""
        self.topics: frozenset[str] = frozenset()
        self._joined_topics: frozenset[str] = frozenset()
        self._owned: tuple[Key, ...] = ()
        self._protocol = ""
        self._is_leader = False
        self._skip_assignment = False
        self._to_review = False  # the assignment is its predecessor's, of topics as they were then
        self._group_members: Members = {}
        self._group_topics: dict[str, int] = {}
        self._group_racks: dict[Key, frozenset[str]] = {}
        self._looked_up_at = now
        self._reason = ""
        self._rejoin = False
        self._lost = False
        self._event: Event | None = None
        self._asked: str = ""
        self._heartbeat_at = now
        self._stopped = False
        self._not_before = now
        self._polled_at = now
        self.rebalances = 0
        self.heartbeats = 0

    # -- the thread that polls

    def polled(self, now: float) -> None:
        """``poll`` was called."""
        self._polled_at = now
        if self.state is ClassicState.IDLE and self._event is None and self._stopped:
            self._stopped = False
            self._prepare("it tries again after an error", lost=bool(self._owned))

    def subscribe(self, topics: frozenset[str]) -> None:
        """Take part with these topics from now on."""
        self.topics = topics
        if self.state is ClassicState.IDLE:
            self._prepare("the first subscription", lost=self._stopped and bool(self._owned))
            self._stopped = False
        elif topics != self._joined_topics:
            self.rejoin("the subscription has changed")

    def topics_changed(self) -> None:
        """Partitions have come or gone. A leader looks its group's topics up again, and lets the
        group rebalance if they differ.
        """
        self._looked_up_at = float("-inf")

    def rejoin(self, reason: str) -> None:
        """Begin a rebalance as soon as possible."""
        self._rejoin, self._reason = True, reason

    def event(self) -> Event | None:
        """What the thread that polls has to do, once."""
        event, self._event = self._event, None
        return event

    def prepared(self, owned: Iterable[Key], lost: bool) -> None:
        """Partitions were given up, or are lost; these are left."""
        self._owned = tuple(owned)
        if self.state is not ClassicState.PREPARING:
            return
        if self._lost and not lost:
            self._event = Prepare(True)  # it was removed while it prepared
            return
        self._lost = False
        self.state = ClassicState.JOINING

    def completed(self, owned: Iterable[Key], rejoin: bool) -> None:
        """Partitions were taken over. rejoin: some were given up, which others wait for."""
        self._owned = tuple(owned)
        if self.state is ClassicState.COMPLETING:
            self.state = ClassicState.STABLE
        if rejoin:
            self.rejoin("partitions were given up")

    def leave(self) -> None:
        """Be no member any more."""
        if self.state is not ClassicState.GONE:
            self.state = ClassicState.LEAVING

    def identity(self) -> CommittingMember:
        """Who commits. Raises CommitFailed while it is not a member."""
        if self.generation == NO_GENERATION:
            what = f"commit offsets of group {self.group}"
            raise CommitFailed(ErrorCode.UNKNOWN_MEMBER_ID, what, LOST_WORDS)
        return CommittingMember(self.generation, self.member_id, self.instance)

    def renewed(self, was: CommittingMember, keys: Collection[Key]) -> CommittingMember | None:
        """See ``commits.Committer``: in another generation, others may have had any partition."""
        return None

    # -- the member's thread

    def is_leaving(self) -> bool:
        return self.state in (ClassicState.LEAVING, ClassicState.GONE)

    def next(self, now: float) -> Action:
        """What to do now."""
        if self.state is ClassicState.GONE:
            return End()
        if self.state is ClassicState.LEAVING:
            return self._leave(now)
        if now < self._not_before:
            return WaitUntil(self._not_before)
        if self.state is ClassicState.IDLE:
            return WaitUntil(FOREVER)
        if self.generation != NO_GENERATION and self.state is not ClassicState.JOINING:
            late = self._polled_at + self._rebalance_ms / 1000
            if now >= late:
                return self._stop_for_lack_of_polls()
        if self.state is ClassicState.JOINING:
            return self._join()
        if self.state is ClassicState.ASSIGNING:
            return LookUp(self._subscribed())
        if self.state is ClassicState.SYNCING:
            return self._sync({})
        if self.state is ClassicState.STABLE:
            if self._rejoin:
                self._prepare(self._reason)
                return WaitUntil(now)
            if self._to_review:
                self._asked = "describe"
                return Ask(DescribeGroupsRequest(groups=[self.group]), self._request_s)
            if self._is_leader and now - self._looked_up_at >= self._age_s:
                return LookUp(self._subscribed())
        return self._beat(now)

    def _beat(self, now: float) -> Action:
        """A heartbeat, if one is due."""
        if self.generation == NO_GENERATION:
            return WaitUntil(FOREVER)
        if now < self._heartbeat_at:
            return WaitUntil(min(self._heartbeat_at, self._polled_at + self._rebalance_ms / 1000))
        self._heartbeat_at = now + self._heartbeat_s
        self._asked = "heartbeat"
        self.heartbeats += 1
        return Ask(
            HeartbeatRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance,
            ),
            min(self._request_s, self._session_ms / 1000),
        )

    def _prepare(self, reason: str, lost: bool = False) -> None:
        self._rejoin, self._reason = False, reason
        self.state = ClassicState.PREPARING
        self._lost = lost
        self._event = Prepare(lost)
        logger.info("group %s rebalances: %s", self.group, reason)

    def _reset(self, reason: str, *, forget_member: bool) -> None:
        """The generation is over for this member, which may have been removed."""
        self.generation = NO_GENERATION
        self._is_leader = False
        if forget_member:
            self.member_id = ""
        if self.state in (ClassicState.STABLE, ClassicState.COMPLETING, ClassicState.PREPARING):
            self._prepare(reason, lost=True)
        elif self.state in (ClassicState.ASSIGNING, ClassicState.SYNCING):
            self.state = ClassicState.JOINING

    def _stop_for_lack_of_polls(self) -> Action:
        logger.warning(
            "poll was not called for max.poll.interval.ms, %d: the consumer leaves group %s until "
            "it is; handle records faster, or lower max.poll.records",
            self._rebalance_ms,
            self.group,
        )
        leave = self._leave_request("poll was not called for max.poll.interval.ms")
        self._reset("poll was called again", forget_member=True)
        self._asked = "leave"
        return leave if leave is not None else WaitUntil(0.0)

    # -- leaving

    def _leave(self, now: float) -> Action:
        leave = self._leave_request("the consumer was closed")
        self.member_id, self.generation = "", NO_GENERATION
        self.state = ClassicState.GONE
        self._asked = "leave"
        return leave if leave is not None else WaitUntil(now)

    def _leave_request(self, reason: str) -> Ask | None:
        """COMPAT: as in Java, a static member stays, for whoever continues it."""
        if not self.member_id or self.instance is not None:
            return None
        group, member = self.group, self.member_id

        def request(connection: Connection) -> LeaveGroupRequest:
            if connection.version_of(ApiKey.LEAVE_GROUP) < _FIRST_LEAVE_OF_SEVERAL:
                return LeaveGroupRequest(group_id=group, member_id=member)
            identity = LeaveGroupRequest.MemberIdentity(member_id=member, reason=reason)
            return LeaveGroupRequest(group_id=group, members=[identity])

        return Ask(request, min(self._request_s, _LEAVE_S))

    # -- joining

    def _join(self) -> Ask:
        self._asked = "join"
        self._joined_topics = self.topics
        self._rejoin = False
        rows = [
            JoinGroupRequest.JoinGroupRequestProtocol(
                name=name, metadata=encode_subscription(self._subscription(assignor))
            )
            for name, assignor in self._assignors.items()
        ]
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=self._rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=PROTOCOL_TYPE,
            protocols=rows,
            reason=self._reason[:255] or None,
        )
        seconds = max(self._request_s, self._rebalance_ms / 1000 + _JOIN_GRACE_S)
        return Ask(request, seconds)

    def _subscription(self, assignor: Assignor) -> MemberSubscription:
        return MemberSubscription(
            tuple(sorted(self.topics)),
            assignor.user_data(self.topics),
            self._owned,
            self.generation,
            self._rack,
            self.instance,
        )

    def take(self, response: Any, now: float) -> None:
        """The response to the last request."""
        getattr(self, f"_take_{self._asked}")(response, now)
        if now >= self._not_before:
            self._failures = 0

    def _take_leave(self, response: Any, now: float) -> None:
        """Whether it went well or not: it is no member."""

    def _take_join(self, response: Any, now: float) -> None:
        code = response.error_code
        if self.state is not ClassicState.JOINING:
            if not code:
                self.member_id = response.member_id
            return  # it leaves
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._reset("the member is unknown", forget_member=True)
        elif code:
            self._failed_request(code, f"join group {self.group}", now)
        else:
            self._joined(response, now)

    def _joined(self, response: Any, now: float) -> None:
        self.generation = response.generation_id
        self.member_id = response.member_id
        self._protocol = response.protocol_name or ""
        self._is_leader = response.leader == response.member_id
        self._skip_assignment = response.skip_assignment
        self._to_review = self._is_leader and self._skip_assignment
        self._heartbeat_at = now + self._heartbeat_s
        self.rebalances += 1
        if response.protocol_type not in (None, PROTOCOL_TYPE) or (
            self._protocol not in self._assignors
        ):
            self._fatal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"join group {self.group}")
            return
        if not self._is_leader:
            self.state = ClassicState.SYNCING
            return
        try:
            self._group_members = {
                row.member_id: decode_subscription(row.metadata, row.group_instance_id)
                for row in response.members
            }
        except ValueError as error:
            what = f"join group {self.group}: the subscription of a member: {error}"
            self._fatal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what)
            return
        self.state = ClassicState.ASSIGNING

    def _subscribed(self) -> frozenset[str]:
        return frozenset(topic for row in self._group_members.values() for topic in row.topics)

    def take_topics(self, topics: Mapping[str, Topic], now: float) -> None:
        """Metadata of all topics of the group."""
        self._looked_up_at = now
        counts = {name: len(topic.partitions) for name, topic in topics.items()}
        racks = {
            (name, number): row.racks
            for name, topic in topics.items()
            for number, row in topic.partitions.items()
        }
        if self.state is ClassicState.STABLE:
            if counts != self._group_topics:
                self.rejoin("topics or their partitions have changed")
            elif self._rack is not None and racks != self._group_racks:
                # COMPAT: as in Java, only a leader that has a rack itself looks at this.
                self.rejoin("the racks of replicas have changed")
            return
        if self.state is not ClassicState.ASSIGNING:
            return
        self._group_topics = counts
        self._group_racks = racks
        self.state = ClassicState.SYNCING

    def _take_describe(self, response: Any, now: float) -> None:
        """What the group has. A static member that leads it again has assigned nothing, so nobody
        has seen which partitions came while it was away.
        """
        group = response.groups[0]
        if group.error_code in _AGAIN:
            self._failed_request(group.error_code, f"describe group {self.group}", now)
            return
        self._to_review = False
        if (
            group.error_code
            or group.group_state != "Stable"
            or self.state is not ClassicState.STABLE
        ):
            return
        assigned: set[Key] = set()
        try:
            for row in group.members:
                assigned.update(decode_assignment(row.member_assignment).partitions)
        except ValueError:
            return  # its member says what is wrong with it
        counts = self._group_topics.items()
        if any((name, n) not in assigned for name, count in counts for n in range(count)):
            self.rejoin("partitions came while the group's leader was away")

    def _assignments(self) -> dict[str, bytes]:
        """The leader's part."""
        if not self._is_leader or self._skip_assignment:
            return {}
        assignor = self._assignors[self._protocol]
        # A user's own assignor need not know of racks.
        known = (self._group_racks,) if getattr(assignor, "knows_racks", False) else ()
        assigned = assignor.assign(self._group_topics, self._group_members, *known)
        return {
            member: encode_assignment(Assignment(tuple(assigned.get(member, ()))))
            for member in self._group_members
        }

    def _sync(self, _: Any) -> Ask:
        self._asked = "sync"
        rows = [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=data)
            for member, data in self._assignments().items()
        ]
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._protocol,
            assignments=rows,
        )
        return Ask(request, max(self._request_s, self._rebalance_ms / 1000 + _JOIN_GRACE_S))

    def _take_sync(self, response: Any, now: float) -> None:
        code = response.error_code
        if self.state is not ClassicState.SYNCING:
            return
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.state = ClassicState.JOINING
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._reset("the member is unknown", forget_member=code == ErrorCode.UNKNOWN_MEMBER_ID)
        elif code:
            self._failed_request(code, f"sync group {self.group}", now)
            if self.state is ClassicState.SYNCING:
                self.state = ClassicState.JOINING
        else:
            try:
                assignment = decode_assignment(response.assignment)
            except ValueError as error:
                what = f"sync group {self.group}: the assignment of its leader: {error}"
                self._fatal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what)
                return
            self._assignors[self._protocol].assigned(assignment, self.generation)
            self.state = ClassicState.COMPLETING
            self._event = Complete(assignment.partitions)
            self._heartbeat_at = now + self._heartbeat_s

    def _take_heartbeat(self, response: Any, now: float) -> None:
        code = response.error_code
        if not code or self.is_leaving():
            return
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            if self.state in (ClassicState.STABLE, ClassicState.COMPLETING):
                self.rejoin("the group rebalances")
        elif code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
            # COMPAT: as in Java, a member keeps its id when only its generation is over.
            self._reset(
                f"the coordinator says {ErrorCode(code).name}",
                forget_member=code == ErrorCode.UNKNOWN_MEMBER_ID,
            )
        else:
            self._failed_request(code, f"heartbeat in group {self.group}", now)

    # -- errors

    def failed(self, error: ClientError, now: float) -> None:
        """There was no response."""
        if self.is_leaving() or isinstance(error, Interrupted):
            return
        if self._asked == "sync" and self.state is ClassicState.SYNCING:
            self.state = ClassicState.JOINING  # whether it was assigned something is unknown
        if self._asked == "describe" and not error.retriable:
            self._to_review = False
        elif error.retriable:
            logger.debug("group %s: %s; asking again", self.group, error)
            self._pause(now)
        else:
            self._stop(error)

    def _pause(self, now: float) -> None:
        """Before the next request."""
        self._failures += 1
        self._not_before = now + self._backoff.after(self._failures)
        self._heartbeat_at = min(self._heartbeat_at, self._not_before)

    def _failed_request(self, code: int, what: str, now: float) -> None:
        if code in _AGAIN:
            self._pause(now)
        else:
            self._fatal(code, what)

    def _fatal(self, code: int, what: str) -> None:
        self._stop(RejectedError(code, what))

    def _stop(self, error: ClientError) -> None:
        """Until ``poll`` is called after the call that raises the error."""
        self.generation = NO_GENERATION
        self.state = ClassicState.IDLE
        self._stopped = True
        self._event = Fatal(error)
