"""Applies control requests to this broker, whichever controller sends them.

Requests are rejected as in Kafka: as a whole if there has been a later controller or if the request
was meant for an earlier registration of this broker, otherwise by partition. What is accepted takes
effect at once; the response is sent when the processes of this broker have it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from kbroker.cluster.control_requests import (
    NO_BROKER_EPOCH,
    ControlRequest,
    ControlResponse,
    LeaderAndIsr,
    LedPartition,
    PartitionKey,
    Sender,
    StopReplica,
    UpdateMetadata,
)
from kbroker.cluster.features import ALL, Finalized
from kbroker.cluster.image import NO_SLOT
from kbroker.errors import ErrorCode
from kbroker.hosting.deletions import Deletions
from kbroker.hosting.image import Changes, HostImage, set_or_forget
from kbroker.hosting.journal import VERSIONS_SKIPPED, Journal, Remembered
from kbroker.hosting.metadata import Metadata
from kbroker.hosting.offline_replicas import OfflineReplicas
from kbroker.hosting.replicas import HostedReplica, HostedReplicas, SlotAssigner
from kbroker.ipc.calls import IsrState, StoppedReplica
from kbroker.ipc.pending import Pending, run
from kbroker.logcontext import Whole
from kbroker.security.acls import AccessControlEntry, ResourcePattern
from kbroker.storage.dirs.creation_note import NO_CREATION
from kbroker.types import BrokerId

logger = logging.getLogger(__name__)

Configs = Mapping[str, dict[str, str]]
NO_CONFIGS: Configs = {}
NO_QUOTAS: Mapping[str, dict[str, float]] = {}


class Processes(Protocol):
    """The processes of this broker: ``Publisher``."""

    def publish(self, changes: Changes = ...) -> Pending[dict[str, int]]:
        """Send changes; resolves when all have them, with the codes of partitions not served."""

    async def stop_replicas(self, replicas: Sequence[StoppedReplica]) -> None:
        """Delete these logs, or set them aside; returns when that is done."""


class Hosting:
    """``broker_epoch``: of this broker's registration. ``controller_epoch``: the latest that any
    request had; requests with an earlier one are rejected.
    """

    def __init__(
        self, broker_id: BrokerId, cluster_id: str, slots: SlotAssigner, features: Finalized = ALL
    ) -> None:
        """features: those in effect until ``set_features``."""
        self.broker_epoch = NO_BROKER_EPOCH
        self.controller_epoch = 0
        self.image = HostImage(broker_id, cluster_id, HostedReplicas(broker_id, slots), features)
        self._controller = broker_id  # that sent the last request
        self._slots = slots
        self._deletions = Deletions()
        self._processes: Processes
        self._offline: OfflineReplicas | None = None
        self._journal: Journal | None = None
        # This broker will stop. It stops following: a leader would count it as in sync, and wait
        # for it when it has stopped.
        self.is_leaving = False

    def ask_of_offline(self, offline: OfflineReplicas) -> None:
        """Ask this which replicas are offline. Without it, only io workers say so, once."""
        self._offline = offline

    def publish_to(self, processes: Processes) -> None:
        """Set the receiver of changes. Called once, before the first change."""
        self._processes = processes

    def note_in(self, journal: Journal) -> None:
        """Note every change there, before anybody learns of it."""
        self._journal = journal

    def restore(self, remembered: Remembered) -> None:
        """Continue where the last incarnation of this process has ended."""
        self.broker_epoch, self.controller_epoch = (
            remembered.broker_epoch,
            remembered.controller_epoch,
        )
        self.image.version = remembered.version
        self.image.changed(remembered.controller_epoch)
        self.image.version += VERSIONS_SKIPPED
        self.metadata.restore(remembered.controller_id, remembered.brokers, remembered.known)
        self.replicas.restore(remembered.hosted)

    def release_unused(self, assigned: Mapping[str, Iterable[int]]) -> None:
        """Free slots whose logs were deleted, or whose replicas nobody has learned of, before the
        last incarnation has ended. assigned: the partitions that have slots, by topic.
        """
        for name, numbers in assigned.items():
            unused = [number for number in numbers if self.replicas.replica((name, number)) is None]
            self._slots.release(name, unused)

    def registered(self, broker_epoch: int, controller_epoch: int) -> None:
        """The broker has this registration. Requests to an earlier one, and those of controllers
        with an earlier epoch, are rejected from now on.
        """
        self.broker_epoch = broker_epoch
        self.controller_epoch = max(self.controller_epoch, controller_epoch)
        self._note()

    def change_isr(self, states: Mapping[PartitionKey, IsrState | None]) -> None:
        """The leaders have results of the ISR changes that they wanted. None: of a rejected one."""
        changed = [
            key
            for key, state in states.items()
            if state is not None and self.replicas.change_isr(key, state)
        ]
        if self._journal is not None:
            self._journal.note(hosted=changed, answered=list(states))

    def replica(self, key: PartitionKey) -> HostedReplica | None:
        """The replica of a partition on this broker."""
        return self.replicas.replica(key)

    @property
    def replicas(self) -> HostedReplicas:
        return self.image.replicas

    @property
    def metadata(self) -> Metadata:
        return self.image.metadata

    def set_features(self, features: Finalized) -> Pending[dict[str, int]]:
        """Set the finalized features; resolves when every process has them."""
        self.image.features = features
        self.image.changed()
        return self._processes.publish(Changes(features=True))

    # -- control requests --------------------------------------------------------------------

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        """Apply a control request; resolves with the response."""
        error = self._fence(request.sender)
        if error is not ErrorCode.NONE:
            rejected: Pending[ControlResponse] = Pending()
            rejected.resolve(ControlResponse(error))
            return rejected
        if isinstance(request, LeaderAndIsr):
            return self._lead_and_follow(request)
        if isinstance(request, UpdateMetadata):
            return self._update_metadata(request)
        return self._stop(request)

    def _fence(self, sender: Sender) -> ErrorCode:
        if NO_BROKER_EPOCH != sender.broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if sender.controller_epoch < self.controller_epoch:
            logger.warning(
                "rejected controller %d with epoch %d: there has been one with epoch %d",
                sender.controller_id, sender.controller_epoch, self.controller_epoch,
            )  # fmt: skip
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if sender.controller_epoch > self.controller_epoch:
            self.controller_epoch = sender.controller_epoch
            self._note()
        if sender.controller_id != self._controller:
            self._controller = BrokerId(sender.controller_id)
            if self._controller != self.image.broker_id:  # it knows
                text = "broker %d is the controller now, with epoch %d"
                logger.info(text, sender.controller_id, sender.controller_epoch)
        return ErrorCode.NONE

    def _lead_and_follow(self, request: LeaderAndIsr) -> Pending[ControlResponse]:
        outlived = self.replicas.of_other_creations(request)
        if outlived:
            self._set_outlived_aside(outlived)
        renewed = {topic for topic, _ in outlived}
        held = [
            partition
            for partition in request.partitions
            if partition.topic in renewed or partition.key in self._deletions
        ]
        if held:
            return run(self._lead_in_parts(request, held))
        slots = {partition.key: self._slot(partition.key) for partition in request.partitions}
        rejected = self.replicas.take(request)
        for key, code in rejected.items():
            # COMPAT: as in Kafka, offline takes precedence over stale: a controller repeats its
            # state to learn which replicas are offline.
            if code is ErrorCode.STALE_CONTROLLER_EPOCH and self._is_offline(key):
                rejected[key] = ErrorCode.KAFKA_STORAGE_ERROR
        accepted = [key for key in slots if key not in rejected]
        if self.is_leaving:
            for key in accepted:
                self._follow_nobody(key)
        self._note(hosted=accepted)
        # All other processes look up slots of partitions in the metadata.
        moved = [key for key in accepted if self._slot(key) != slots[key] and self._is_known(key)]
        return run(self._publish_replicas(accepted, moved, rejected))

    async def _lead_in_parts(
        self, request: LeaderAndIsr, held: list[LedPartition]
    ) -> ControlResponse:
        """Apply what is possible at once, the rest when old logs are deleted, if still valid."""
        late_keys = {partition.key for partition in held}
        others = [partition for partition in request.partitions if partition.key not in late_keys]
        first = self._lead_and_follow(request._replace(partitions=others))
        kept = await self._deletions.hold(held)
        second = await self.take(request._replace(partitions=kept))
        response = await first
        late = dict.fromkeys(
            (partition.key for partition in held), ErrorCode.STALE_CONTROLLER_EPOCH
        )
        if second.error is ErrorCode.NONE:
            for partition in kept:
                del late[partition.key]
        return ControlResponse(partitions={**response.partitions, **second.partitions, **late})

    def _set_outlived_aside(self, outlived: Mapping[PartitionKey, HostedReplica]) -> None:
        """The store says that another topic has the name now, of which no StopReplica has told."""
        logger.error(
            "topics %s were deleted and created again, and no controller has ordered that their "
            "logs here be deleted; setting the logs aside",
            Whole(", ".join(dict.fromkeys(topic for topic, _ in outlived))),
        )  # fmt: skip
        run(self.set_aside(outlived)).then(_raise_error)

    async def _publish_replicas(
        self,
        accepted: Collection[PartitionKey],
        moved: Collection[PartitionKey],
        errors: dict[PartitionKey, ErrorCode],
    ) -> ControlResponse:
        """The response, once io workers have the accepted replicas."""
        if accepted:
            unavailable = await self._publish(Changes(accepted, moved))
            for key in accepted:
                code = unavailable.get(f"{key[0]}-{key[1]}")
                if code:
                    errors[key] = ErrorCode(code)
        if self._offline is not None:
            offline = (k for k, c in errors.items() if c is ErrorCode.KAFKA_STORAGE_ERROR)
            self._offline.note_told(offline)
        return ControlResponse(partitions=errors)

    def _follow_nobody(self, key: PartitionKey) -> None:
        replica = self.replicas.replica(key)
        if replica is not None and replica.told.leader != self.image.broker_id:
            self.replicas.stop(key)

    def _is_offline(self, key: PartitionKey) -> bool:
        return self._offline is not None and self._offline.has(key)

    def _update_metadata(self, request: UpdateMetadata) -> Pending[ControlResponse]:
        partitions, brokers = self.metadata.take(request)
        self._note(partitions, brokers=brokers is not None)
        # An io worker knows more about its replicas than the metadata does.
        unhosted = [key for key in partitions if self.replicas.replica(key) is None]
        changes = Changes(unhosted, partitions, brokers=brokers)

        async def publish() -> ControlResponse:
            if partitions or brokers is not None:
                await self._publish(changes)
            return ControlResponse()

        return run(publish())

    def _stop(self, request: StopReplica) -> Pending[ControlResponse]:
        """INVARIANT: that a log is deleted is not said before every log directory was looked at: a
        replica that is not known here may be on disk, from an earlier run.
        """
        stopped, rejected = self.replicas.fence(request)
        kept = [asked.key for asked in stopped if not asked.delete]
        deleted = {asked.key: self.replicas.replica(asked.key) for asked in stopped if asked.delete}
        for key in kept:
            self.replicas.stop(key)
        self._note(hosted=kept)
        self._deletions.drop_held(asked.key for asked in stopped)
        self._deletions.begin(list(deleted))
        return run(self._finish_stop(kept, deleted, rejected))

    async def _finish_stop(
        self,
        kept: Collection[PartitionKey],
        deleted: Mapping[PartitionKey, HostedReplica | None],
        rejected: dict[PartitionKey, ErrorCode],
    ) -> ControlResponse:
        """Update network processes first, so that no client reads a log that is being deleted; then
        delete the logs, update io workers and free the slots.
        """
        try:
            await self._publish(Changes(kept))
            if deleted:
                await self._remove(deleted, is_kept=False)
        finally:
            self._deletions.end(list(deleted))
        return ControlResponse(partitions=rejected)

    async def set_aside(self, moved: Mapping[PartitionKey, HostedReplica]) -> None:
        """Stop replicas that are assigned to other brokers, of which no controller has said so. No
        log is deleted.
        """
        self._deletions.begin(list(moved))
        try:
            await self._remove(moved, is_kept=True)
        finally:
            self._deletions.end(list(moved))

    def is_deleting(self, key: PartitionKey) -> bool:
        """Whether a log of the partition is being deleted, or set aside."""
        return key in self._deletions

    async def _remove(
        self, replicas: Mapping[PartitionKey, HostedReplica | None], *, is_kept: bool
    ) -> None:
        known = {key: one for key, one in replicas.items() if one is not None}
        rows = [
            StoppedReplica(*key, one.slot, one.slot_incarnation, is_kept)
            for key, one in known.items()
        ]
        rows += [StoppedReplica(*key, NO_SLOT, 0, is_kept) for key in replicas if key not in known]
        await self._processes.stop_replicas(rows)
        if known:
            await self._forget(known)

    async def _forget(self, deleted: Mapping[PartitionKey, HostedReplica]) -> None:
        """Remove replicas whose logs are deleted, unless another deletion has already done so."""
        gone = [
            key
            for key, replica in deleted.items()
            if self.replicas.remove(key, replica.slot_incarnation)
        ]
        self._note(hosted=gone)
        await self._publish(Changes(gone, [key for key in gone if self._is_known(key)]))
        for name in dict.fromkeys(topic for topic, _ in gone):
            self._slots.release(name, [partition for topic, partition in gone if topic == name])

    def creation(self, name: str) -> bytes:
        """The creation of a topic with replicas here; NO_CREATION if it is not known."""
        topic = self.replicas.topic(name)
        return NO_CREATION if topic is None else topic.creation

    def learn_creations(self, creations: Mapping[str, bytes]) -> None:
        """The creations of topics whose replicas are here already, and may be open."""
        learned: list[PartitionKey] = []
        for name, creation in creations.items():
            topic = self.replicas.topic(name)
            if topic is not None and topic.creation != creation:
                self.replicas.learn(name, creation)
                learned += [(name, number) for number in topic.replicas]
        if learned:
            self._note(hosted=learned)
            self._publish(Changes(learned))

    # -- settings: no controller tells them, every broker reads them in the store -------------

    def set_configs(
        self,
        topics: Configs = NO_CONFIGS,
        brokers: Configs = NO_CONFIGS,
        groups: Configs = NO_CONFIGS,
        quotas: Mapping[str, dict[str, float]] = NO_QUOTAS,
        client_metrics: Configs = NO_CONFIGS,
    ) -> Pending[dict[str, int]]:
        """Apply these configs; resolves when every process uses them.

        topics: may include topics without a replica here. brokers: by id, ``default``, or ``file``
        (see the architecture page). groups, quotas, client_metrics: one without any is removed.
        """
        set_or_forget(self.image.topic_config, topics)
        self.image.broker_config.update(brokers)
        set_or_forget(self.image.group_config, groups)
        set_or_forget(self.image.client_metrics, client_metrics)
        present = [name for name in topics if self.has_topic(name)]
        set_or_forget(self.image.quotas, quotas)
        return self._publish(
            Changes(
                topics=present,
                settings=bool(brokers),
                groups=list(groups),
                # Of a user whose credentials have changed, too: they are in the same node, and
                # network processes forget them when their image changes.
                quotas=list(quotas),
                client_metrics=list(client_metrics),
            )
        )

    def set_acls(
        self, acls: Mapping[ResourcePattern, Collection[AccessControlEntry]]
    ) -> Pending[dict[str, int]]:
        """Apply the ACLs of these resources; resolves when every process uses them."""
        known = self.image.acls
        if known is None:
            known = self.image.acls = {}
        for resource, entries in acls.items():
            if entries:
                known[resource] = entries
            else:
                known.pop(resource, None)
        return self._publish(Changes(acls=list(acls)))

    # -- the next incarnation ----------------------------------------------------------------

    def _note(
        self,
        known: Iterable[PartitionKey] = (),
        hosted: Iterable[PartitionKey] = (),
        *,
        brokers: bool = False,
    ) -> None:
        """These have changed, which no process and no controller knows yet."""
        if self._journal is not None:
            self._journal.note(known, hosted, brokers=brokers)

    # -- publication --------------------------------------------------------------------------

    def _publish(self, changes: Changes) -> Pending[dict[str, int]]:
        if any(changes) or changes.brokers is not None:
            self.image.changed(self.controller_epoch)
        return self._processes.publish(changes)

    def has_topic(self, name: str) -> bool:
        return self.metadata.topic(name) is not None or self.replicas.topic(name) is not None

    def _is_known(self, key: PartitionKey) -> bool:
        topic = self.metadata.topic(key[0])
        return topic is not None and key[1] in topic.partitions

    def _slot(self, key: PartitionKey) -> tuple[int, int] | None:
        replica = self.replicas.replica(key)
        return None if replica is None else (replica.slot, replica.slot_incarnation)


def _raise_error(outcome: Pending[None]) -> None:
    if outcome.error is not None:
        raise outcome.error
