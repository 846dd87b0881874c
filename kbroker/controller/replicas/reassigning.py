"""Carries reassignments out: those of requests and those of ``/admin/reassign_partitions``.

``reassignments`` decides what to do. Each step is one transaction of the topic's document and
the partitions' states, after which the brokers are told. The state of a partition that is being
reassigned is watched: its reassignment is completed when all target replicas are in sync, by this
controller or the next. A request that takes a replica out of the ISR at once, by another target or
by cancelling, waits until the brokers that stay in sync have answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby, islice

from kbroker.cluster.control_requests import PartitionKey
from kbroker.controller.election.active_controller import ActiveController, Completed
from kbroker.controller.election.announcements import Batch
from kbroker.controller.replicas.partition_writes import PartitionWrites
from kbroker.controller.state import decisions, reassignments
from kbroker.controller.state.state import Change, PartitionState, Reassigned
from kbroker.controller.store import persistence
from kbroker.controller.store.store_failure import store_failure
from kbroker.controller.store.store_watch import StoreWatch
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.pending import Pending, run
from kbroker.logcontext import Whole
from kbroker.metastore import paths
from kbroker.metastore.store import BadVersion, NodeExists, NoNode, TooLarge

logger = logging.getLogger(__name__)

# Partitions of a topic in one transaction.
GROUP = 200
Errors = dict[PartitionKey, WireError | None]


class Reassigning:
    """Serves AlterPartitionReassignments and ListPartitionReassignments of one controller."""

    def __init__(
        self, controller: ActiveController, writes: PartitionWrites, watch: StoreWatch
    ) -> None:
        self._controller = controller
        self._writes = writes
        self._watch = watch
        self._state = controller.state
        self._store = controller.store
        self._under_way: dict[PartitionKey, None] = {}

    @property
    def is_any(self) -> bool:
        """Whether any partition is being reassigned."""
        return bool(self._under_way)

    # -- beginning ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Continue what an earlier controller began."""
        await self._watch.follow(paths.REASSIGN_PARTITIONS, self._look_at_node)
        for key in list(self._state.keys()):
            partition, topic = self._state.partition(key), self._state.existing(key[0])
            if partition is not None and reassignments.is_reassigned(partition):
                if not topic.deleting:
                    await self._follow(key)
        if self._under_way:
            logger.info("continuing the reassignment of %d partitions", len(self._under_way))
        if self._store.is_shared:
            await self._look_at_node()
        for key in list(self._under_way):
            await self._continue(key)

    def alter(self, wanted: Mapping[PartitionKey, list[int] | None]) -> Pending[Errors]:
        """Begin reassignments, or cancel them (None); the error of each partition."""
        left = self._left_in_sync(wanted)
        if left:
            return run(self._alter_heard(wanted, left))
        return self._controller.events.put(lambda: self._alter(wanted))

    async def _alter_heard(
        self,
        wanted: Mapping[PartitionKey, list[int] | None],
        left: Mapping[int, Iterable[PartitionKey]],
    ) -> Errors:
        await self._hear(left)
        return await self._controller.events.put(lambda: self._alter(wanted))

    def _left_in_sync(
        self, wanted: Mapping[PartitionKey, list[int] | None]
    ) -> dict[int, list[PartitionKey]]:
        """The brokers that stay in sync for partitions whose other in-sync replicas go at once."""
        partitions: dict[int, list[PartitionKey]] = {}
        for key, replicas in wanted.items():
            for broker_id in reassignments.left_in_sync(self._state, key, replicas):
                partitions.setdefault(broker_id, []).append(key)
        return partitions

    def _hear(self, left: Mapping[int, Iterable[PartitionKey]]) -> Pending[list[Completed]]:
        """INVARIANT: no request removes an in-sync replica before those that stay have answered.
        One that has failed counts as in sync until its session ends, and may come back without
        records that only the removed one has then. When its session has ended, it is not in sync.
        """
        batch = self._writes.batch()
        for broker_id, keys in left.items():
            batch.repeat(broker_id, keys)
        return self._writes.send(batch)

    async def _alter(self, wanted: Mapping[PartitionKey, list[int] | None]) -> Errors:
        errors: Errors = {}
        accepted: dict[PartitionKey, list[int]] = {}
        for key, replicas in wanted.items():
            errors[key] = reassignments.reason_against(self._state, key, replicas)
            present = self._state.partition(key)
            if errors[key] is None and present is not None:
                accepted[key] = reassignments.origin(present) if replicas is None else replicas
        # A request replaces the state that a tool has written for the partition.
        await self._remove_from_node(lambda key, _: key in accepted)
        return errors | await self._carry_out(accepted)

    def listed(
        self, keys: Iterable[PartitionKey] | None = None
    ) -> list[tuple[PartitionKey, PartitionState]]:
        """The partitions that are being reassigned; keys: None for all."""
        keys = self._under_way if keys is None else keys
        rows = ((key, self._state.partition(key)) for key in keys)
        return [(k, p) for k, p in rows if p is not None and reassignments.is_reassigned(p)]

    async def _look_at_node(self, *, is_heard: bool = False) -> None:
        try:
            node = await self._store.get(paths.REASSIGN_PARTITIONS)
            wanted = paths.decode_reassignment(node.data)
        except NoNode:
            return
        except DAMAGED as error:
            logger.error("removing %s, which cannot be read: %r", paths.REASSIGN_PARTITIONS, error)
            with suppress(NoNode):
                await self._store.multi().delete(paths.REASSIGN_PARTITIONS).commit()
            return
        new: dict[PartitionKey, list[int]] = {}
        errors: Errors = {}
        for key, replicas in wanted.items():
            present = self._state.partition(key)
            errors[key] = reassignments.reason_against(self._state, key, replicas, must_live=False)
            is_begun = key in self._under_way and present is not None
            if errors[key] is None and not (
                is_begun and present is not None and reassignments.target(present) == replicas
            ):
                new[key] = replicas
        left = {} if is_heard else self._left_in_sync(new)
        if left:
            again = partial(self._look_at_node, is_heard=True)
            self._hear(left).then(lambda _: self._writes.put(again))
            return
        errors |= await self._carry_out(new)
        failed = {key: error for key, error in errors.items() if error is not None}
        for key, reason in failed.items():
            logger.warning("cannot reassign %s-%d to %s: %s", *key, wanted[key], reason)
        if failed:
            await self._remove_from_node(lambda key, _: key in failed)

    # -- steps -------------------------------------------------------------------------------

    async def _carry_out(self, targets: Mapping[PartitionKey, list[int]]) -> Errors:
        """Bring partitions as near to their targets as they can be now."""
        errors: Errors = {}
        for name, of_topic in groupby(sorted(targets), key=lambda key: key[0]):
            while group := list(islice(of_topic, GROUP)):
                try:
                    errors |= await self._step(name, {key: targets[key] for key in group})
                except (BadVersion, NodeExists, NoNode, TooLarge) as error:
                    errors |= dict.fromkeys(group, store_failure(error))
        return errors

    async def _step(self, name: str, targets: Mapping[PartitionKey, list[int]]) -> Errors:
        state = self._state
        before: dict[PartitionKey, PartitionState] = {}

        def decide(key: PartitionKey, old: PartitionState) -> PartitionState | None:
            before[key] = old
            return reassignments.step(state, key, old, targets[key])

        async def reread() -> list[Change]:
            return await persistence.reread_topics(self._store, state, [name])

        decision = await self._controller.write(
            partial(decisions.reassign, state, name, list(targets), decide), reread
        )
        self._controller.note(decision.changes)
        batch = self._writes.batch()
        changed = {
            (name, number): new
            for change in decision.changes
            if isinstance(change, Reassigned)
            for number, new in change.partitions.items()
        }
        for key, new in changed.items():
            _tell(batch, key, before[key], new)
        unled = [key for key, new in changed.items() if not new.is_stored]
        try:
            await self._writes.settle(unled, batch, "it was reassigned")
        finally:
            self._writes.send(batch)
        errors: Errors = {}
        for key, replicas in targets.items():
            errors[key] = None if key in changed else self._reason_to_wait(key, replicas)
            await self._settle_watch(key)
        return errors

    def _reason_to_wait(self, key: PartitionKey, replicas: Sequence[int]) -> WireError | None:
        """Why nothing has changed."""
        present = self._state.partition(key)
        if present is not None and reassignments.target(present) == list(replicas):
            return None
        text = f"None of the remaining replicas of {key[0]}-{key[1]} can lead it."
        return WireError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, text)

    async def _settle_watch(self, key: PartitionKey) -> None:
        """Follow a partition as long as it is being reassigned."""
        present, topic = self._state.partition(key), self._state.topic(key[0])
        is_gone = present is None or topic is None or topic.deleting
        if present is not None and not is_gone and reassignments.is_reassigned(present):
            await self._follow(key)
            return
        if self._under_way.pop(key, key) is None:
            self._watch.unfollow(paths.partition_state(*key))
        if present is None or is_gone:
            await self._remove_from_node(lambda other, _: other == key)
        else:
            replicas = present.replicas
            logger.info("%s-%d now has the replicas %s", *key, replicas)
            await self._remove_from_node(lambda k, r: k == key and r == replicas)

    async def _follow(self, key: PartitionKey) -> None:
        if key not in self._under_way:
            self._under_way[key] = None
            await self._watch.follow(paths.partition_state(*key), partial(self._look_at, key))

    async def _look_at(self, key: PartitionKey) -> None:
        """The state of a partition that is being reassigned has changed."""
        changes = await persistence.reread_states(self._store, self._state, [key])
        if changes:
            self._controller.enter(changes)
        await self._continue(key)

    async def _continue(self, key: PartitionKey) -> None:
        present, topic = self._state.partition(key), self._state.topic(key[0])
        if present is None or topic is None or topic.deleting:
            await self._settle_watch(key)
        elif reassignments.is_complete(present):
            await self._carry_out({key: reassignments.target(present)})

    # -- the node of tools -------------------------------------------------------------------

    async def _remove_from_node(self, is_over: Callable[[PartitionKey, list[int]], bool]) -> None:
        """Take partitions out of ``/admin/reassign_partitions``: tools look there for progress."""
        if not self._store.is_shared:
            return
        for _ in range(persistence.ATTEMPTS):
            try:
                node = await self._store.get(paths.REASSIGN_PARTITIONS)
                present = paths.decode_reassignment(node.data)
            except (NoNode, *DAMAGED):
                return  # there is nothing that a tool could read
            left = {key: r for key, r in present.items() if not is_over(key, r)}
            if len(left) == len(present):
                return
            transaction = self._store.multi()
            if left:
                transaction.set(node.path, paths.encode_reassignment(left), node.stat.version)
            else:
                transaction.delete(node.path, node.stat.version)
            with suppress(NoNode, BadVersion):
                await transaction.commit()
                return


def _tell(batch: Batch, key: PartitionKey, old: PartitionState, new: PartitionState) -> None:
    """All replicas are told who leads; those that are none any more delete their logs."""
    text = "%s-%d is moved: replicas %s, adding %s, removing %s, led by %d, in sync %s (epoch %d)"
    logger.info(
        text, *key, Whole(str(new.replicas)), list(new.adding), list(new.removing), new.leader,
        new.isr, new.leader_epoch,
    )  # fmt: skip
    if not new.is_stored:
        return
    batch.lead(key, [broker_id for broker_id in new.replicas if broker_id in old.replicas])
    batch.lead(key, [b for b in new.replicas if b not in old.replicas], is_new=True)
    for broker_id in old.replicas:
        if broker_id not in new.replicas:
            batch.stop(broker_id, key, new.leader_epoch, delete=True)
