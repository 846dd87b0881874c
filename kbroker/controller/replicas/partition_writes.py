"""Writes decisions about many partitions, and sends the requests at the end of the event."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from kbroker import logcontext
from kbroker.cluster.control_requests import NO_LEADER, PartitionKey
from kbroker.controller.election.active_controller import ActiveController, Completed
from kbroker.controller.election.announcements import Batch
from kbroker.controller.election.events import Work
from kbroker.controller.state import decisions, elections
from kbroker.controller.state.decisions import Decide
from kbroker.controller.state.state import Change, PartitionsChanged, PartitionState, TopicState
from kbroker.controller.store import persistence
from kbroker.ipc.pending import Pending, in_window
from kbroker.metastore.settled import Fenced
from kbroker.metastore.store import BadVersion, NodeExists, NoNode

logger = logging.getLogger(__name__)

# Partitions that are written in one transaction, and transactions under way at the same time: the
# store syncs each to disk.
GROUP, GROUPS_AT_ONCE = 50, 4
UNCLEAN = "unclean.leader.election.enable"

Changed = dict[PartitionKey, PartitionState]


class PartitionWrites:
    """setting: returns the current value of a broker config."""

    def __init__(self, controller: ActiveController, setting: Callable[[str], Any]) -> None:
        self._controller = controller
        self._setting = setting
        self.state = controller.state
        self.store = controller.store

    def put(self, work: Work[None]) -> None:
        """Run this as an event of its own; dropped when another controller is elected."""
        self._controller.events.put(work).then(self._ended)

    def _ended(self, outcome: Pending[None]) -> None:
        error = outcome.error
        if error is not None and not isinstance(error, Fenced):
            logger.error("the controller failed to handle an event: %s", error, exc_info=error)
            self._controller.failed()

    def set_live(self) -> None:
        self._controller.set_live()

    def note(self, changes: Iterable[Change]) -> None:
        """Enter what others have written; no broker is told of it yet."""
        self._controller.note(changes)

    async def reread(self, keys: Sequence[PartitionKey]) -> None:
        """Take the states of these partitions from the store."""
        self.note(await persistence.reread_states(self.store, self.state, keys))

    def batch(self) -> Batch:
        """A batch for the requests of one event, to be sent at its end."""
        return Batch(self.state)

    def send(self, batch: Batch) -> Pending[list[Completed]]:
        return self._controller.send(batch.requests())

    def told(self) -> Pending[None]:
        """Resolves when brokers have responded to all requests so far."""
        return self._controller.all_told()

    def told_here(self) -> Pending[None]:
        """As ``told``, of this broker alone."""
        return self._controller.told_here()

    async def change(
        self, keys: Iterable[PartitionKey], decide: Decide, batch: Batch, why: str
    ) -> Changed:
        """Apply ``decide`` to each partition; returns the new states of those that changed.

        A change that starts a new leader epoch is sent to all replicas; any other one, which the
        leader itself has asked for, is only metadata. A partition that other clients keep changing
        is left as it is. why: the cause, for the log.
        """
        counts = self._controller.counts
        began_ns, elections_before = counts.now_ns(), counts.leader_elections
        rest = iter(keys)
        groups = iter(lambda: list(islice(rest, GROUP)), [])
        writes = (self._change_group(group, decide, batch, why) for group in groups)
        changed: Changed = {}
        for some in await in_window(writes, GROUPS_AT_ONCE):
            changed |= some
        if counts.leader_elections != elections_before:
            counts.elected(counts.now_ns() - began_ns)
        return changed

    async def _change_group(
        self, keys: Sequence[PartitionKey], decide: Decide, batch: Batch, why: str
    ) -> Changed:
        try:
            return await self._write(keys, decide, batch, why)
        except (BadVersion, NodeExists, NoNode) as error:
            if len(keys) == 1:
                text = "cannot write the state of %s-%d: another client keeps changing %s"
                logger.error(text, *keys[0], error.path)
                return {}
        changed: Changed = {}
        for key in keys:
            changed |= await self._change_group([key], decide, batch, why)
        return changed

    async def _write(
        self, keys: Sequence[PartitionKey], decide: Decide, batch: Batch, why: str
    ) -> Changed:
        state, store = self.state, self.store

        async def reread() -> list[Change]:
            changes = await persistence.reread_states(store, state, keys)
            await persistence.ensure_partition_nodes(store, state, keys)
            return changes

        await persistence.ensure_partition_nodes(store, state, keys)
        decision = await self._controller.write(
            partial(decisions.change_partitions, state, keys, decide), reread
        )
        before = {key: state.partition(key) for key in keys}
        self._controller.note(decision.changes)
        changed = {
            (change.name, number): partition
            for change in decision.changes
            if isinstance(change, PartitionsChanged)
            for number, partition in change.partitions.items()
        }
        with logcontext.many_lines(logger) as lines:
            for key, partition in changed.items():
                old = before[key]
                if old is None or old.leader_epoch != partition.leader_epoch:
                    batch.lead(key, is_new=old is not None and not old.is_stored)
                else:
                    batch.refresh([key])
                self._controller.counts.note(old, partition)
                say(key, old, partition, why, lines.say)
        return changed

    async def settle(self, keys: Iterable[PartitionKey], batch: Batch, why: str) -> Changed:
        """Elect live leaders for these partitions, and shrink their ISR."""

        def decide(key: PartitionKey, old: PartitionState) -> PartitionState | None:
            # Not before the session of a replica in sync has ended: it may live after all.
            is_early = not self.state.removed_early.keys().isdisjoint(old.isr)
            may_be_unclean = not is_early and self.is_unclean(self.state.existing(key[0]))
            return elections.settle(self.state, key, old, may_be_unclean=may_be_unclean)

        return await self.change(self.needing(keys, decide), decide, batch, why)

    def needing(self, keys: Iterable[PartitionKey], decide: Decide) -> list[PartitionKey]:
        """The partitions that ``decide`` would change, by the known state: most need nothing."""
        return [
            key
            for key in keys
            if (old := self.state.partition(key)) is not None and decide(key, old) is not None
        ]

    def is_unclean(self, topic: TopicState) -> bool:
        """Whether unclean leader election is enabled for the topic."""
        text = self.state.configs.topic(topic.name).get(UNCLEAN)
        return bool(self._setting(UNCLEAN)) if text is None else text.strip().lower() == "true"


def say(
    key: PartitionKey,
    old: PartitionState | None,
    new: PartitionState,
    why: str,
    log: Callable[..., None] = logger.log,
) -> None:
    """Log changes of leader and ISR at INFO, except for first states. log: ``Logger.log``."""
    if old is None or not old.is_stored:
        return
    if new.leader == NO_LEADER:
        text = "%s-%d has no leader: none of its in-sync replicas %s is alive (epoch %d): %s"
        log(logging.WARNING, text, *key, new.isr, new.leader_epoch, why)
        return
    if new.leader != old.leader:
        text = "%s-%d is now led by broker %d instead of %d, in sync: %s (epoch %d): %s"
        log(logging.INFO, text, *key, new.leader, old.leader, new.isr, new.leader_epoch, why)
    else:
        text = "%s-%d: leader %d now has in-sync replicas %s (epoch %d): %s"
        log(logging.INFO, text, *key, new.leader, new.isr, new.leader_epoch, why)
    if new.leader not in old.isr:
        # Of lost records each is named.
        text = "%s-%d: unclean election of broker %d; records that only brokers %s had are lost"
        logger.warning(text, *key, new.leader, old.isr)
