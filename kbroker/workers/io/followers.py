"""The partitions of an io worker that other brokers lead: their logs follow their leaders'.

What a partition does next, ``replication.following`` decides; ``leader_link`` carries it to its
leader and back; this module does to the log, to its readers and to the disk what follows from it.

INVARIANT: a partition whose role or leader changes is taken off its link in the same step. Nothing
of a response that is still on its way is appended after that.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kbroker._ext.io.replica_fetch import ERROR, FAULT, HIGH_WATERMARK, LOG_START, STORAGE
from kbroker.errors import StorageError, may_do_without
from kbroker.logcontext import ManyLines
from kbroker.peers.connecting import Connecting
from kbroker.peers.endpoints import inter_broker_endpoint
from kbroker.peers.versions import sent_version
from kbroker.protocol.api import ApiKey
from kbroker.replication.fetched_run import Appended, Fault, fault_text
from kbroker.replication.following import FollowedPartition, FollowingState, fetcher_number
from kbroker.replication.partition import Partition, Role
from kbroker.replication.throttles import FOLLOWER_REPLICAS, throttled_partitions
from kbroker.types import Offset
from kbroker.workers.base import now_ms
from kbroker.workers.io.leader_link import Follower, LeaderLink, Versions
from kbroker.workers.io.replica_log import ReplicaLog, ReplicatingProcess

if TYPE_CHECKING:
    from kbroker._ext.io.io_loop import IoLoop
    from kbroker._ext.shared.log_figures import LogFigures
    from kbroker._ext.shared.replication_quota import ReplicationQuota
    from kbroker.cluster.changes import ImageChanges
    from kbroker.config.loader import BrokerConfig
    from kbroker.peers.link import PeerAddress
    from kbroker.peers.security import PeerSecurity
    from kbroker.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


class Followers:
    """Made by the io worker, after its loop. versions: of the requests that brokers send. quota: of
    what is fetched for throttled partitions (KIP-73). figures: where lags are shown. security: of
    connections to leaders.
    """

    def __init__(
        self,
        process: ReplicatingProcess,
        loop: IoLoop,
        *,
        broker_id: int,
        versions: Callable[[BrokerConfig], Versions],
        quota: ReplicationQuota,
        figures: LogFigures | None = None,
        security: PeerSecurity | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.figures = figures
        self.quota = quota
        self.connecting = Connecting(security)
        self._process = process
        self._loop = loop
        self._versions = versions
        self._followers: dict[int, Follower] = {}
        # By leader and number of the link.
        self._links: dict[tuple[int, int], LeaderLink] = {}
        # (when, slot) of partitions that wait for a time; those that wait no more are passed over.
        self._delayed: list[tuple[int, int]] = []
        self._troubles = ManyLines(logger)
        self._bytes_before = 0  # of links that are closed
        self.committed_cuts = 0  # truncations below the high watermark
        self._failed: set[int] = set()  # slots of partitions that are paused after a failure
        # Throttled partitions by topic, followed or not; no topic without any.
        self._throttled: dict[str, frozenset[int]] = {}
        quota.rate = self.config["follower.replication.throttled.rate"]
        process.add_reader(self.connecting.fd, self.connecting.run)

    # -- what links need --

    @property
    def config(self) -> BrokerConfig:
        return self._process.config

    def now_ms(self) -> int:
        return now_ms()

    def wall_clock_ms(self) -> int:
        return self._process.clock.now_ms()

    def endpoint(self, leader: int) -> PeerAddress:
        """The leader's endpoint for brokers. Raises LinkFailed."""
        return inter_broker_endpoint(self._process.image, leader, self.config)

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._process.add_reader(fd, callback)

    def watch_writable(self, fd: int, wanted: bool) -> None:
        self._process.watch_writable(fd, wanted)

    def unwatch(self, fd: int) -> None:
        self._process.remove_reader(fd)

    def is_throttled(self, follower: Follower) -> bool:
        """Whether the quota applies to the partition."""
        topic, partition = follower.key
        return partition in self._throttled.get(topic, ())

    # -- roles --

    def take_role(self, slot: int, partition: Partition, log: PartitionLog | None) -> None:
        """The partition's state is ``partition`` from now on. log: None while it is not open."""
        if log is None or partition.role is not Role.FOLLOWER or partition.leader < 0:
            self.stop(slot)
            return
        follower = self._followers.get(slot)
        if follower is not None and follower.log is log:
            machine = follower.machine
            if (machine.leader, machine.leader_epoch) == (partition.leader, partition.leader_epoch):
                return
        self._follow(slot, partition.leader, partition.leader_epoch, log)

    def _follow(self, slot: int, leader: int, leader_epoch: int, log: PartitionLog) -> None:
        before = self._followers.get(slot)
        self.stop(slot)
        backoff_ms = self.config["replica.fetch.backoff.ms"]
        ours = ReplicaLog(log, self._loop, self._process.clock)
        machine = FollowedPartition(log.name, ours, backoff_ms)
        follower = Follower(slot, log, machine, self._link_to(leader, log))
        self._followers[slot] = follower
        follower.link.expect_more()
        is_new = before is None or before.machine.leader != leader
        level = logging.INFO if is_new else logging.DEBUG
        logger.log(level, "%s follows broker %d in leader epoch %d", log.name, leader, leader_epoch)
        self.step(follower, lambda: machine.follow(leader, leader_epoch))

    def _link_to(self, leader: int, log: PartitionLog) -> LeaderLink:
        index = fetcher_number(log.topic, log.partition, self.config["num.replica.fetchers"])
        link = self._links.get((leader, index))
        if link is None:
            link = LeaderLink(self, leader, index, self._versions(self.config))
            self._links[leader, index] = link
        return link

    def stop(self, slot: int) -> None:
        """Stop following: the partition is led here, or its log is closed or deleted."""
        follower = self._followers.pop(slot, None)
        self._failed.discard(slot)
        if follower is not None:
            follower.link.remove(follower)

    # -- the state machines --

    def step(self, follower: Follower, change: Callable[[], None]) -> None:
        """Pass an event to a state machine, and do what follows from it."""
        log, cuts = follower.log, follower.log.cuts
        committed_cuts = follower.machine.committed_cuts
        follower.machine.backoff_ms = self.config["replica.fetch.backoff.ms"]
        try:
            change()
        except (OSError, StorageError) as error:
            self._fail(follower, error)
            return
        self.committed_cuts += follower.machine.committed_cuts - committed_cuts
        trouble = follower.machine.take_trouble()
        if trouble is not None:
            self._troubles.say(
                logging.INFO, "%s: cannot follow broker %d: %s; trying again in %d ms",
                log.name, follower.machine.leader, trouble, follower.machine.backoff_ms,
            )  # fmt: skip
        if log.cuts != cuts:
            self._loop.wake(follower.slot)
        follower.link.place(follower)
        if follower.machine.state is FollowingState.FAILED:
            self._failed.add(follower.slot)
        else:
            self._failed.discard(follower.slot)
        retry_at_ms = follower.machine.retry_at_ms
        if retry_at_ms is not None:
            heapq.heappush(self._delayed, (retry_at_ms, follower.slot))

    def _fail(self, follower: Follower, error: Exception) -> None:
        """A change of the log was not possible: for want of room, or its directory has failed."""
        log = follower.log
        if isinstance(error, OSError) and may_do_without(error):
            text = f"cannot change its log: {error}"
            self.step(follower, lambda: follower.machine.pause(self.now_ms(), text))
            return
        if isinstance(error, OSError):
            log.fail(error)
        self._process.on_storage_failure(follower.slot)

    def on_event(self, follower: Follower, what: int, value: object) -> None:
        """Something rare happened to a partition while it was fetched."""
        machine, log = follower.machine, follower.log
        if what == ERROR:
            assert isinstance(value, int)
            error = value
            self.step(follower, lambda: machine.on_fetch_error(error, self.now_ms()))
        elif what == FAULT:
            assert isinstance(value, tuple)
            outcome = Appended(Fault(value[0]), *value[1:])
            text = fault_text(log, outcome, machine.leader, machine.leader_epoch)
            self.step(follower, lambda: machine.on_fault(outcome.fault, text, self.now_ms()))
        elif what == STORAGE:
            assert isinstance(value, Exception)
            self._fail(follower, value)
        else:
            assert isinstance(value, int)
            self._on_offset(follower, what, Offset(value))

    def _on_offset(self, follower: Follower, what: int, offset: Offset) -> None:
        """The leader's high watermark or log start offset, which needs a lookup in the log."""
        log = follower.log
        try:
            if what == HIGH_WATERMARK:
                end = min(offset, log.log_end_offset)
                if end > log.high_watermark:
                    log.appender.set_high_watermark(*log.place_of(end))
            elif what == LOG_START and offset > log.log_start_offset:
                log.delete_records(offset)
                if follower.fetched is not None:
                    follower.link.fetch.queue(follower.fetched)
        except (OSError, StorageError) as error:
            self._fail(follower, error)
            return
        self._loop.touch(log.appender)
        self._loop.wake(follower.slot)

    # -- the loop --

    def publish(self) -> None:
        """Have appends published at the end of this turn; must be called before it."""
        for link in self._links.values():
            for appender in link.fetch.take_touched():
                self._loop.touch(appender)

    def end_turn(self) -> None:
        """Send requests and fetches. Called after the syncs of the turn: the next fetch offset
        tells the leader what is durable here.
        """
        if not self._links:
            return  # nobody is followed
        self._troubles.write()
        now = self.now_ms()
        while self._delayed and self._delayed[0][0] <= now:
            _, slot = heapq.heappop(self._delayed)
            follower = self._followers.get(slot)
            if follower is not None and (follower.machine.retry_at_ms or now + 1) <= now:
                self.step(follower, partial(follower.machine.resume, now))
        for key, link in list(self._links.items()):
            if link.followers:
                link.turn(now)
            else:
                self._bytes_before += link.fetch.bytes_total
                link.close()
                del self._links[key]

    def next_deadline_ms(self) -> int | None:
        """When ``end_turn`` has something to do without an event."""
        if not self._links:
            return None
        deadlines = [
            due for link in self._links.values() if (due := link.next_deadline_ms()) is not None
        ]
        if self._delayed:
            deadlines.append(self._delayed[0][0])
        return min(deadlines, default=None)

    def take_topics(self, changes: ImageChanges) -> None:
        """Throttle what these topics' settings name; comes before their partitions' roles."""
        changed: set[str] = set()
        for name, change in changes.topics.items():
            topic = change.new
            throttled: frozenset[int] = frozenset()
            if topic is not None:
                throttled = throttled_partitions(
                    topic.config, FOLLOWER_REPLICAS, self.broker_id, len(topic.partitions)
                )
            if throttled != self._throttled.get(name, frozenset()):
                self._throttled[name] = throttled
                changed.add(name)
            if not throttled:
                self._throttled.pop(name, None)
        if changed:
            for follower in self._followers.values():
                if follower.log.topic in changed:
                    follower.link.throttle(follower)

    def take_settings(self) -> None:
        """Apply the current configs."""
        self.quota.rate = self.config["follower.replication.throttled.rate"]
        for link in self._links.values():
            link.take_settings()
        for slot, follower in list(self._followers.items()):
            machine = follower.machine
            if self._link_to(machine.leader, follower.log) is not follower.link:
                self._follow(slot, machine.leader, machine.leader_epoch, follower.log)

    def close(self) -> None:
        """The process ends, or its logs are closed."""
        for slot in list(self._followers):
            self.stop(slot)
        for link in self._links.values():
            link.close()
        self._links.clear()

    def machine(self, slot: int) -> FollowedPartition:
        """The state of a partition that is followed."""
        return self._followers[slot].machine

    def has_caught_up(self, slot: int) -> bool:
        """Whether a partition has everything that its leader says is committed."""
        follower = self._followers.get(slot)
        fetched = None if follower is None else follower.fetched
        if follower is None or fetched is None or fetched.told_high_watermark < 0:
            return False
        return follower.log.log_end_offset >= fetched.told_high_watermark

    # -- counts --

    @property
    def count(self) -> int:
        """Partitions that are followed."""
        return len(self._followers)

    @property
    def failed_count(self) -> int:
        """The number of partitions paused after a failure."""
        return len(self._failed)

    @property
    def lag_max(self) -> int:
        """By how many committed records the partition is behind its leader that is most behind."""
        return max((link.fetch.lag_max() for link in self._links.values()), default=0)

    @property
    def bytes_total(self) -> int:
        """Bytes of batches that were appended."""
        return self._bytes_before + sum(link.fetch.bytes_total for link in self._links.values())


def sent_versions(config: BrokerConfig) -> Versions:
    """The versions of requests between brokers, by inter.broker.protocol.version."""

    def version(api: ApiKey) -> int:
        sent = sent_version(api, config.protocol_version)
        assert sent is not None, api
        return sent

    return Versions(
        fetch=version(ApiKey.FETCH),
        offset_for_leader_epoch=version(ApiKey.OFFSET_FOR_LEADER_EPOCH),
        list_offsets=version(ApiKey.LIST_OFFSETS),
    )
