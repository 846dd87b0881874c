"""The partitions of one io worker: this broker's role in each, and its log.

Follows the cluster image: opens logs, reconfigures them, changes roles. What a change of metadata
means for a partition, ``replication.partition`` says; it takes effect here, in the slot first, so
that clients and other processes see it before anything else happens.

INVARIANT: a log is deleted by order of the controller (``stop``) and by nothing else. A partition
that the image no longer names, or names with another topic id, keeps its log; it is not served
until the controller says more. An order may be to keep the log under another name, too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker import logcontext
from kbroker.cluster.changes import ImageChanges, PartitionChange, TopicChange
from kbroker.cluster.image import NO_SLOT
from kbroker.config.topic_config import TopicConfig
from kbroker.errors import ErrorCode, StorageError
from kbroker.ipc.pending import Pending, run
from kbroker.replication.partition import Change, Partition, Role
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.dirs.ownership import DirOwner
from kbroker.storage.manager.recovery_threads import OpenRequest
from kbroker.workers.base import raise_failure
from kbroker.workers.descriptor_limit import DescriptorLimit

if TYPE_CHECKING:
    from kbroker._ext.io.io_loop import IoLoop
    from kbroker.cluster.image import ClusterImage, PartitionImage, TopicImage
    from kbroker.config.loader import BrokerConfig
    from kbroker.ipc.calls import StoppedReplica
    from kbroker.ipc.rpc import Rpc
    from kbroker.storage.log.partition_log import PartitionLog
    from kbroker.storage.manager.log_manager import LogManager

logger = logging.getLogger(__name__)

# Partitions opened before the loop runs again, so that heartbeats and clients do not wait for all
# of them.
OPEN_STEP = 8


class OpenReplica(NamedTuple):
    """The replica in a slot."""

    key: TopicPartition
    slot_incarnation: int
    partition: Partition


class OpeningLogs:
    """The logs that an image has asked for. left: those not opened yet. errors: the codes of those
    that cannot be opened, by ``topic-partition``; ``done`` resolves with them.
    """

    __slots__ = ("_then", "done", "errors", "left")

    def __init__(self, left: Iterable[TopicPartition], then: Callable[[], None] | None) -> None:
        self._then = then
        self.left = deque(left)
        self.errors: dict[str, int] = {}
        self.done: Pending[dict[str, int]] = Pending()

    def end(self) -> None:
        """There is nothing left."""
        if self._then is not None:
            self._then()
        self.done.resolve(self.errors)


class HostingProcess(Protocol):
    """What hosted partitions need from their io worker."""

    rpc: Rpc
    image: ClusterImage

    @property
    def config(self) -> BrokerConfig: ...

    def lead_lost(self, slot: int) -> None:
        """This broker no longer leads the partition: stop what serves it."""

    def role_changed(self, slot: int, partition: Partition, log: PartitionLog | None) -> None:
        """The role, leader or leader epoch has changed: start or stop following. log: None while it
        is not open, and when it will be deleted.
        """

    def on_storage_failure(self, slot: int) -> None:
        """A write failed: the log directory goes offline."""


class HostedPartitions:
    """Made by the io worker, after its loop and its LogManager."""

    def __init__(
        self,
        process: HostingProcess,
        logs: LogManager,
        loop: IoLoop,
        *,
        broker_id: int,
        worker_index: int,
        worker_count: int,
    ) -> None:
        self._process = process
        self._logs = logs
        self._loop = loop
        self._broker_id = broker_id
        self._worker_index = worker_index
        self._worker_count = worker_count
        self._replicas: dict[int, OpenReplica] = {}
        # Where changes of leaders are logged: those of one image together.
        self._log: Callable[..., None] = logger.log
        # Slots and incarnations whose logs were deleted, until the image does not name them either.
        self._stopped: set[tuple[int, int]] = set()
        # Partitions created while this process runs, until their logs are open.
        self._new: set[tuple[bytes, int]] = set()
        self._descriptors = DescriptorLimit()
        # Those with logs left, the latest last.
        self._openings: list[OpeningLogs] = []
        # Slots of partitions that are led with fewer replicas in sync than min.insync.replicas.
        self._under_min_isr: set[int] = set()

    # -- what is here --

    def owns(self, topic: TopicImage, number: int) -> bool:
        slot = topic.partitions[number].slot
        return slot >= 0 and slot % self._worker_count == self._worker_index

    def leads(self, slot: int) -> bool:
        """Whether this broker leads the partition of a slot."""
        replica = self._replicas.get(slot)
        return replica is not None and replica.partition.leads

    def led_log(self, slot: int) -> PartitionLog | None:
        """The log of a partition, if it is open and led here."""
        return self._logs.log(slot) if self.leads(slot) else None

    def held_log(self, slot: int) -> PartitionLog | None:
        """The log of a partition, if it is open and led or followed here."""
        replica = self._replicas.get(slot)
        is_held = replica is not None and replica.partition.role in (Role.LEADER, Role.FOLLOWER)
        return self._logs.log(slot) if is_held else None

    def lead_repaired(self, slot: int) -> ImageChanges:
        """A repaired log is led from now on; its topic, as if changed."""
        replica = self._replicas.get(slot)
        change = None if replica is None else replica.partition.lead_repaired()
        if replica is None or change is None:
            return ImageChanges({})
        self._logs.suspects.prove(replica.key)
        self._take_effect(slot, replica, change)
        return self._as_if_changed({replica.key[0]: [replica.key[1]]})

    def suspect_followers(self) -> list[int]:
        """Slots of partitions that follow, and may have lost records in a power failure."""
        return [
            slot
            for slot, replica in self._replicas.items()
            if replica.partition.is_suspect and replica.partition.role is Role.FOLLOWER
        ]

    def has_caught_up(self, slot: int) -> None:
        """A follower has all that its leader knows to be committed."""
        replica = self._replicas[slot]
        replica.partition.is_suspect = False
        self._logs.suspects.prove(replica.key)

    def _owned(self, topic: TopicImage) -> list[PartitionImage]:
        return [image for number, image in enumerate(topic.partitions) if self.owns(topic, number)]

    # -- the image --

    def take(self, changes: ImageChanges, *, is_snapshot: bool) -> None:
        """Follow an image in everything but the opening of logs (``open``), at once."""
        owned = [c for c in changes.partitions() if self.owns(c.topic, c.partition)]
        if not is_snapshot:
            self._note_new(changes.deleted(), owned)
        if changes.settings:
            # A broker-wide default has changed: every topic may inherit it.
            self._reconfigure(self._process.image.topics.values())
        self._reconfigure(changes.reconfigured())
        for topic in changes.deleted():
            self._forget(topic)
        with logcontext.many_lines(logger) as lines:
            self._log = lines.say
            for change in owned:
                self._follow(change.new)
                if change.topic.creation:
                    self._logs.learn_creation(change.new.slot, change.topic.creation)
            self._log = logger.log

    def _note_new(self, deleted: Iterable[TopicImage], owned: Iterable[PartitionChange]) -> None:
        """A partition that the controller calls new has no log in any directory.

        It is called so until the next change of its leader: only the first time counts.
        """
        for topic in deleted:
            self._new -= {(topic.topic_id, n) for n in range(len(topic.partitions))}
        self._new |= {(c.topic.topic_id, c.partition) for c in owned if c.is_new}

    def _follow(self, image: PartitionImage) -> None:
        """Take a new role. A log that is not open yet is opened with the role it has by then."""
        replica = self._replicas.get(image.slot)
        if replica is None or replica.slot_incarnation != image.slot_incarnation:
            return
        change = replica.partition.take(image)
        if change is not None:
            self._take_effect(image.slot, replica, change)

    def _forget(self, topic: TopicImage) -> None:
        """The image no longer has the topic, or has another one with its name."""
        present = self._process.image.topics.get(topic.name)
        named = {
            (image.slot, image.slot_incarnation)
            for image in (present.partitions if present else ())
        }
        for image in self._owned(topic):
            if (image.slot, image.slot_incarnation) in named:
                continue
            self._stopped.discard((image.slot, image.slot_incarnation))
            replica = self._replicas.get(image.slot)
            change = None if replica is None else replica.partition.resign()
            if replica is not None and change is not None:
                text = "%s-%d is no longer in the metadata; keeping its log until a StopReplica"
                logger.warning(text, *replica.key)
                self._take_effect(image.slot, replica, change)

    def _take_effect(self, slot: int, replica: OpenReplica, change: Change) -> None:
        """Apply the partition's state to its log and slot."""
        partition = replica.partition
        if change.lost:
            text = "%s-%d is now led by broker %d"
            self._log(logging.INFO, text, *replica.key, partition.leader)
        if change.gained and not partition.is_alone:
            text = "%s-%d is led here in leader epoch %d"
            self._log(logging.INFO, text, *replica.key, partition.leader_epoch)
        self._change_log(slot, partition)
        self._process.role_changed(slot, partition, self._logs.log(slot))
        if change.lost:
            self._process.lead_lost(slot)
            self._loop.fail_waiting(slot, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _change_log(self, slot: int, partition: Partition) -> None:
        log = self._logs.log(slot)
        if log is None:
            return
        try:
            log.take_role(partition.role, partition.leader_epoch, partition.partition_epoch)
            self._set_commit_rule(slot, log, partition)
        except StorageError:
            self._process.on_storage_failure(slot)
            return
        self._loop.touch(log.appender)
        self._loop.wake(slot)

    def _set_commit_rule(self, slot: int, log: PartitionLog, partition: Partition) -> None:
        """Set when appends count as committed, and whether acks=all is possible."""
        if not partition.is_alone:
            log.hold_high_watermark()
        elif log.appender.high_watermark_held:
            log.appender.follow_log_end()
        self.show_in_sync(slot, log, partition)

    def show_in_sync(self, slot: int, log: PartitionLog, partition: Partition) -> None:
        """Have produces with acks=all, coordinators and markers see whether enough replicas are in
        sync.
        """
        committed = log.appender.committed
        committed.is_under_min_isr = partition.is_under_min_isr
        committed.is_maximal_under_min_isr = partition.is_maximal_under_min_isr
        if partition.leads and partition.is_under_min_isr:
            self._under_min_isr.add(slot)
        else:
            self._under_min_isr.discard(slot)

    @property
    def under_min_isr(self) -> int:
        """Partitions that are led here and reject acks=all."""
        return len(self._under_min_isr)

    def has_failed(self, slot: int) -> None:
        """The log directory of a slot is offline."""
        self._under_min_isr.discard(slot)

    # -- orders --

    async def stop(self, replicas: Iterable[StoppedReplica]) -> None:
        """Delete the logs of these replicas, or set them aside; those that are not open here are
        looked for on disk.
        """
        stopped, unopened = [], []
        for stopping in replicas:
            order = self._with_slot(stopping)
            replica = self._replicas.get(order.slot)
            if order.slot != NO_SLOT:
                self._stopped.add((order.slot, order.slot_incarnation))
            if replica is None or replica.slot_incarnation != order.slot_incarnation:
                if not self._is_outlived(order):
                    unopened.append(order)
                continue
            if self._logs.shortages.is_waiting(order.slot):
                unopened.append(order)
            self._process.lead_lost(order.slot)
            self._process.role_changed(order.slot, replica.partition, None)
            self._loop.remove(order.slot, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            del self._replicas[order.slot]
            self._under_min_isr.discard(order.slot)
            stopped.append(order)
        kept = {order.slot for order in stopped if order.is_kept}
        self._logs.remove_partitions([order.slot for order in stopped], kept)
        for is_kept in (False, True):
            keys = [(one.topic, one.partition) for one in unopened if one.is_kept is is_kept]
            if keys:
                self._logs.remove_unopened(keys, is_kept=is_kept)
        # A topic recreated under a name may have had to wait for these logs to be deleted.
        await self.open(self._as_if_changed(dict.fromkeys(order.topic for order in stopped))).done

    def _with_slot(self, order: StoppedReplica) -> StoppedReplica:
        """With its slot, of a replica that only this process knows of."""
        slot = self._logs.open_slot((order.topic, order.partition))
        replica = None if slot is None else self._replicas.get(slot)
        if order.slot != NO_SLOT or replica is None or self._is_outlived(order):
            return order
        assert slot is not None
        return order._replace(slot=slot, slot_incarnation=replica.slot_incarnation)

    def _is_outlived(self, order: StoppedReplica) -> bool:
        """Whether the partition has a later replica here, so that the order has come late."""
        topic = self._process.image.topics.get(order.topic)
        if topic is None or order.partition >= len(topic.partitions):
            return False
        image = topic.partitions[order.partition]
        place = image.slot, image.slot_incarnation
        is_ordered = place == (order.slot, order.slot_incarnation) or place in self._stopped
        return image.slot != NO_SLOT and not is_ordered

    def _as_if_changed(self, numbers: Mapping[str, Collection[int] | None]) -> ImageChanges:
        """numbers: the partitions by topic; None: all."""
        present = self._process.image.topics
        return ImageChanges(
            {
                name: TopicChange(present[name], present[name], some)
                for name, some in numbers.items()
                if name in present
            }
        )

    # -- settings --

    def topic_config(self, topic: TopicImage | None) -> TopicConfig:
        return TopicConfig.stored({} if topic is None else topic.config, self._process.config)

    def _reconfigure(self, topics: Iterable[TopicImage]) -> None:
        for topic in topics:
            owned = [image.slot for image in self._owned(topic)]
            config = self.topic_config(topic) if owned else None
            for slot in owned:
                replica, log = self._replicas.get(slot), self._logs.log(slot)
                if config is not None and replica is not None and log is not None:
                    self._logs.update_config(slot, config)
                    replica.partition.min_in_sync = config["min.insync.replicas"]
                    self.show_in_sync(slot, log, replica.partition)

    # -- opening --

    def open(self, changes: ImageChanges, then: Callable[[], None] | None = None) -> OpeningLogs:
        """Open the logs of changed partitions that are not open: some now, the rest a few at a time
        while this process serves. The latest image comes first, since its changes may be urgent.

        then: called when they are open.
        """
        opening = OpeningLogs(
            [
                (change.topic.name, change.partition)
                for change in changes.partitions()
                if self._is_to_be_opened((change.topic.name, change.partition))
            ],
            then,
        )
        self._logs.note_lost(self._counted_in_sync(opening.left))
        left = sum(len(one.left) for one in (*self._openings, opening))
        self._descriptors.check(len(self._logs.logs()) + left)
        self._open_some(opening)
        if not opening.left:
            opening.end()
            return opening
        self._openings.append(opening)
        if len(self._openings) == 1:
            run(self._open_rest()).then(raise_failure)
        return opening

    def _counted_in_sync(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, DirOwner]:
        """Those of the replicas that must have a log: if they have none, it is lost."""
        counts = {}
        for name, number in keys:
            topic = self._process.image.topics[name]
            image = topic.partitions[number]
            is_in_sync = len(image.replicas) > 1 and self._broker_id in image.isr
            if is_in_sync and not image.is_new:
                counts[name, number] = DirOwner(topic.topic_id, topic.creation)
        return counts

    async def _open_rest(self) -> None:
        while self._openings:
            await self._process.rpc.sleep(0)
            opening = self._openings[-1]
            self._open_some(opening)
            if not opening.left:
                opening.end()  # which may open others
                self._openings.remove(opening)

    def _open_some(self, opening: OpeningLogs) -> None:
        step = OPEN_STEP * self._logs.opening.recoveries_at_once
        some = [opening.left.popleft() for _ in range(min(step, len(opening.left)))]
        # There may have been later images and orders.
        some = [key for key in some if self._is_to_be_opened(key)]
        self._logs.note_replaced(self._counted_in_sync(some))
        requests = [self._request(*key) for key in some]
        with self._logs.opening.recovering(requests):
            for request in requests:
                code = self._open_one(request)
                if code:
                    opening.errors[f"{request.topic}-{request.partition}"] = code

    async def errors_so_far(self, opening: OpeningLogs) -> dict[str, int]:
        """The errors of ``opening``, in a cluster without waiting for it.

        Changes of other partitions wait for the response, and so does the controller. What it has
        to know of a log that could not be opened then, its slot says (OFFLINE).
        """
        if self._process.config.uses_zookeeper:
            return dict(opening.errors)
        return await opening.done

    async def open_again(self, slots: Collection[int]) -> ImageChanges:
        """Open logs for which there were no descriptors before; their partitions, as if changed."""
        logs = {
            name: [n for n, partition in enumerate(topic.partitions) if partition.slot in slots]
            for name, topic in self._process.image.topics.items()
        }
        changes = self._as_if_changed({name: some for name, some in logs.items() if some})
        await self.open(changes).done
        return changes

    def _is_to_be_opened(self, key: TopicPartition) -> bool:
        name, number = key
        topic = self._process.image.topics.get(name)
        if topic is None or number >= len(topic.partitions) or not self.owns(topic, number):
            return False
        image = topic.partitions[number]
        if (image.slot, image.slot_incarnation) in self._stopped:
            return False
        return self._logs.log(image.slot) is None

    def _request(self, name: str, number: int) -> OpenRequest:
        topic = self._process.image.topics[name]
        image, config = topic.partitions[number], self.topic_config(topic)
        replica = self._replicas.get(image.slot)
        if replica is None or replica.slot_incarnation != image.slot_incarnation:
            key = name, number
            replica = OpenReplica(key, image.slot_incarnation, Partition(self._broker_id))
            is_new = self._is_new(topic, number)
            replica.partition.is_suspect = key in self._logs.suspects and not is_new
            self._replicas[image.slot] = replica
        partition = replica.partition
        partition.min_in_sync = config["min.insync.replicas"]
        partition.take(image)
        return OpenRequest(
            topic.name,
            topic.topic_id,
            number,
            image.slot,
            image.slot_incarnation,
            partition.leader_epoch,
            config,
            is_new=self._is_new(topic, number),
            role=partition.role,
            partition_epoch=partition.partition_epoch,
            is_alone=partition.is_alone,
            has_leader=partition.role is Role.FOLLOWER and partition.leader >= 0,
            creation=topic.creation,
        )

    def _is_new(self, topic: TopicImage, number: int) -> bool:
        """Whether no log can be the replica's own. A controller that goes on with a reassignment
        calls a replica new that has been in sync meanwhile.
        """
        image = topic.partitions[number]
        is_in_sync = self._broker_id in image.isr and image.partition_epoch > 0
        return (topic.topic_id, number) in self._new and not is_in_sync

    def _open_one(self, request: OpenRequest) -> int:
        """Open or create a log and serve it; returns the error code of a failure."""
        try:
            opened = self._logs.open_partition(request)
            if opened is not None:
                slot = request.slot
                self._set_commit_rule(slot, opened, self._replicas[slot].partition)
        except StorageError as error:
            logger.error("cannot open %s-%d: %s", *request.key, error)
            return int(ErrorCode.KAFKA_STORAGE_ERROR)
        if opened is not None:
            self._new.discard((request.topic_id, request.partition))
            self._loop.put(opened.appender)
            self._loop.touch(opened.appender)
            self._loop.wake(request.slot)  # recovery may have found more than was published
            partition = self._replicas[request.slot].partition
            if partition.role is Role.FOLLOWER and request.key in self._logs.suspects:
                partition.is_suspect = True  # it was damaged
            self._process.role_changed(request.slot, partition, opened)
        return 0
