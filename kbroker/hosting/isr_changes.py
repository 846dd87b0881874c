"""Sends ISR changes of this broker's leaders to the active controller.

Leaders ask as their followers come and go; what they ask within BATCH_MS goes in one request, and
one request is under way at a time. It is repeated until somebody answers: the controller may have
done what was asked before its response was lost, so a leader counts on neither the old nor the new
in-sync replicas until it knows.

A controller that this broker does not reach, or that does not reach this broker, is registered all
the same if both reach the store. Producers would wait for as long as that lasts, so the leader
changes the state in the store itself then, as all did before AlterIsr.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from kbroker.cluster.control_requests import PartitionKey
from kbroker.errors import ErrorCode, WireError
from kbroker.hosting.replicas import HostedReplica
from kbroker.hosting.slots import Slot
from kbroker.ipc.calls import IsrChangeRequests, IsrResult, IsrState, Nothing, WantedIsr
from kbroker.ipc.pending import Pending, pass_on, run
from kbroker.ipc.process_table import Address
from kbroker.logcontext import RateLimit

logger = logging.getLogger(__name__)

BATCH_MS = 50
BACKOFF_MS, BACKOFF_MAX_MS = 100, 1_000
# The time without a response until the store is changed.
UNANSWERED_MS = 2_000


class Controllers(Protocol):
    """Sends ISR changes to the active controller."""

    def alter_isr(self, wanted: Sequence[WantedIsr]) -> Pending[list[IsrResult]]:
        """The results, in request order. WireError if no response arrived: the change may have been
        made, and the same request is sent again.
        """

    def read_isr(self, keys: Sequence[PartitionKey]) -> Pending[list[IsrState | None]]:
        """The stored state of each partition; None for one without a state."""


class Replicas(Protocol):
    """The replicas on this broker: ``Hosting``."""

    def replica(self, key: PartitionKey) -> HostedReplica | None:
        """The replica of a partition; None if this broker has none, or knows of none yet."""

    def change_isr(self, states: Mapping[PartitionKey, IsrState | None]) -> None:
        """The partitions have these in-sync replicas now, if they still have that leader epoch.
        None: of those whose leaders wait for a LeaderAndIsr.
        """


class IsrChangeJournal(Protocol):
    """What the next incarnation of this process has to ask again: ``hosting.journal.Journal``."""

    def note(self, *, asked: Sequence[WantedIsr]) -> None:
        """These are about to be sent."""


class AwaitedIsrChange:
    """A change without a result yet, and the Pending that waits for it."""

    __slots__ = ("is_noted", "slot", "waiting", "wanted")

    def __init__(self, wanted: WantedIsr, waiting: list[Pending[IsrResult]]) -> None:
        self.wanted = wanted
        self.waiting = waiting
        self.is_noted = False
        self.slot: Slot | None = None  # of the replica; None while it is not known

    def is_outdated(self, replica: HostedReplica | None, broker_id: int) -> bool:
        """Whether this replica, the present one, is not what the change was wanted of; notes which
        that is as soon as it is known.

        INVARIANT: what is outdated is not sent. A topic that was deleted and recreated has the
        epochs of the old one, by which the controller could not tell them apart.
        """
        if replica is None:
            return self.slot is not None
        slot = (replica.slot, replica.slot_incarnation)
        self.slot = self.slot or slot
        leads = (replica.told.leader, replica.told.leader_epoch)
        return slot != self.slot or leads != (broker_id, self.wanted.leader_epoch)


class IsrChanges:
    """broker_id: of this broker. sleep: returns a Pending that resolves after so many ms. stored: a
    way that does without the controller; None: that is not another one.
    """

    def __init__(
        self,
        broker_id: int,
        replicas: Replicas,
        controllers: Controllers,
        sleep: Callable[[int], Pending[None]],
        journal: IsrChangeJournal | None = None,
        stored: Controllers | None = None,
    ) -> None:
        self._journal = journal
        self._stored = stored
        self._broker_id = broker_id
        self._replicas = replicas
        self._controllers = controllers
        self._sleep = sleep
        # BOUND: one per partition that this broker leads.
        self._asked: dict[PartitionKey, AwaitedIsrChange] = {}
        self._is_working = False
        self._failures = RateLimit()

    def ask(self, wanted: WantedIsr) -> Pending[IsrResult]:
        """Propose a change to the controller. After an error nothing has changed, and the leader
        waits for a LeaderAndIsr.

        Of a partition there is one change at a time: what was asked before, in an earlier leader
        epoch, is not sent any more.
        """
        pending: Pending[IsrResult] = Pending()
        present = self._asked.get(wanted.key)
        if present is not None and present.wanted == wanted:
            present.waiting.append(pending)
        else:
            before = [] if present is None else present.waiting
            self._enter(AwaitedIsrChange(wanted, [*before, pending]))
        self._begin()
        return pending

    def _enter(self, asked: AwaitedIsrChange) -> None:
        asked.is_outdated(self._replicas.replica(asked.wanted.key), self._broker_id)
        self._asked[asked.wanted.key] = asked

    def ask_again(self, asked: Iterable[WantedIsr]) -> None:
        """The last incarnation of this process has proposed these, and there is no result."""
        for wanted in asked:
            self._enter(AwaitedIsrChange(wanted, []))
        if self._asked:
            self._begin()

    def _begin(self) -> None:
        if not self._is_working:
            self._is_working = True
            run(self._work()).then(_raise_failure)

    def pending(self) -> list[WantedIsr]:
        """The changes without a result. The controller may have made them already."""
        return [asked.wanted for asked in self._asked.values()]

    async def serve_alter(self, sender: Address, request: IsrChangeRequests) -> list[IsrResult]:
        """An io worker asks for its leaders."""
        return [await outcome for outcome in [self.ask(wanted) for wanted in request.wanted]]

    def serve_pending(self, sender: Address, _: Nothing) -> list[WantedIsr]:
        """An io worker starts."""
        return self.pending()

    async def _work(self) -> None:
        backoff_ms = BACKOFF_MS
        try:
            while self._asked:
                await self._sleep(BATCH_MS)
                try:
                    self._drop_outdated()
                    if self._asked:
                        await self._send(list(self._asked.values()))
                    backoff_ms = BACKOFF_MS
                except WireError as error:
                    times = self._failures.due(error.code)
                    if times:
                        text = "cannot change the in-sync replicas of %d partitions (%d times): %s"
                        logger.warning(text + "; trying again",
                                       len(self._asked), times, error)  # fmt: skip
                    await self._sleep(backoff_ms)
                    backoff_ms = min(2 * backoff_ms, BACKOFF_MAX_MS)
        finally:
            self._is_working = False

    def _drop_outdated(self) -> None:
        """Another leader was elected, or the log was deleted, before there was a result."""
        outdated = [
            asked
            for key, asked in self._asked.items()
            if asked.is_outdated(self._replicas.replica(key), self._broker_id)
        ]
        fenced = IsrResult(ErrorCode.FENCED_LEADER_EPOCH)
        if outdated:
            self._settle([(asked, fenced) for asked in outdated])

    async def _send(self, batch: Sequence[AwaitedIsrChange]) -> None:
        """Send a batch. Raises WireError; changes without a result are sent again with the next
        batch.
        """
        new = [asked for asked in batch if not asked.is_noted]
        if self._journal is not None and new:
            self._journal.note(asked=[asked.wanted for asked in new])
            for asked in new:
                asked.is_noted = True
        results = await self._response(batch)
        rejected, settled = [], list[tuple[AwaitedIsrChange, IsrResult]]()
        for asked, result in zip(batch, results, strict=True):
            if result.error is not ErrorCode.NONE:
                rejected.append(asked)
            else:
                settled.append((asked, result))
        self._settle(settled)
        if rejected:
            await self._read_again(rejected)

    async def _response(self, batch: Sequence[AwaitedIsrChange]) -> list[IsrResult]:
        """The results, in the order of the batch. Raises WireError."""
        wanted = [asked.wanted for asked in batch]
        first: Pending[list[IsrResult]] = Pending()
        pass_on(self._controllers.alter_isr(wanted), first)
        if self._stored is not None:
            run(self._write(wanted, first, self._stored)).then(_raise_failure)
        return await first

    async def _write(
        self,
        wanted: Sequence[WantedIsr],
        response: Pending[list[IsrResult]],
        stored: Controllers,
    ) -> None:
        """Change the states in the store, if there is no response in time. What is still on its way
        to the controller is then for an earlier partition epoch, and has no effect any more.
        """
        await self._sleep(UNANSWERED_MS)
        if response.done:
            return
        try:
            results = await stored.alter_isr(wanted)
        except WireError:
            return  # the store does not respond either; the controller may
        if not response.done:
            logger.warning(
                "the controller does not respond; changed the in-sync replicas of %d partitions in "
                "the metadata store",
                len(wanted),
            )  # fmt: skip
        response.resolve(results)

    async def _read_again(self, rejected: Sequence[AwaitedIsrChange]) -> None:
        """Settle rejected changes by what the store has. If the leader epoch is the same, the
        leader continues with that, as if it had proposed it: its state was outdated, or that of a
        controller that has been replaced and does not know it. Otherwise a LeaderAndIsr is on its
        way.
        """
        states = await self._controllers.read_isr([asked.wanted.key for asked in rejected])
        settled = []
        for asked, state in zip(rejected, states, strict=True):
            leads = (self._broker_id, asked.wanted.leader_epoch)
            if state is not None and (state.leader, state.leader_epoch) == leads:
                settled.append((asked, IsrResult(ErrorCode.NONE, state)))
            else:
                settled.append((asked, IsrResult(ErrorCode.FENCED_LEADER_EPOCH)))
        self._settle(settled)

    def _settle(self, settled: Sequence[tuple[AwaitedIsrChange, IsrResult]]) -> None:
        # Before anybody gets the results: a process that starts now gets it with its image.
        self._replicas.change_isr({one.wanted.key: result.state for one, result in settled})
        for asked, result in settled:
            if self._asked.get(asked.wanted.key) is asked:
                del self._asked[asked.wanted.key]
            waiting, asked.waiting = asked.waiting, []
            for pending in waiting:
                pending.resolve(result)


def _raise_failure(outcome: Pending[None]) -> None:
    """An unexpected error ends the process."""
    if outcome.error is not None:
        raise outcome.error
