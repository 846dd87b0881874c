"""AlterIsr: a leader proposes a new ISR, and the controller accepts or rejects it.

COMPAT: a leader of Kafka 2.7 goes on after three errors of a partition only, and even then its
in-sync replicas stay as they are until it is told of a new leader epoch. So there are no others,
and after a change that is based on something old, a new leader epoch is begun.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from kbroker.cluster.control_requests import PartitionKey
from kbroker.controller.election.events import EventQueue
from kbroker.controller.replicas.partition_writes import PartitionWrites
from kbroker.controller.state import elections
from kbroker.controller.state.state import PartitionState
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import IsrResult, IsrState, WantedIsr
from kbroker.ipc.pending import Pending

logger = logging.getLogger(__name__)

# How long the ISR stays frozen after a broker that is shutting down was proposed for it.
LEAVING_MS = 2_000


class IsrRequests:
    """Serves AlterIsr."""

    def __init__(
        self,
        writes: PartitionWrites,
        events: EventQueue,
        sleep: Callable[[int], Pending[None]],
    ) -> None:
        self._writes = writes
        self._events = events
        self._sleep = sleep
        self._state = writes.state
        # Frozen until later, with their leaders.
        self._later: dict[PartitionKey, int] = {}

    def alter(
        self, broker_id: int, broker_epoch: int, wanted: Sequence[WantedIsr]
    ) -> Pending[list[IsrResult]]:
        """The results, in request order. STALE_BROKER_EPOCH if the broker is not registered with
        that epoch.
        """
        return self._events.put(lambda: self._alter(broker_id, broker_epoch, wanted))

    async def _alter(
        self, broker_id: int, broker_epoch: int, wanted: Sequence[WantedIsr]
    ) -> list[IsrResult]:
        broker = self._state.brokers.get(broker_id)
        if broker is None or broker.epoch != broker_epoch:
            text = f"Broker {broker_id} is not registered with epoch {broker_epoch}."
            raise WireError(ErrorCode.STALE_BROKER_EPOCH, text)
        ahead = [one.key for one in wanted if self._is_ahead(broker_id, one)]
        if ahead:
            await self._writes.reread(ahead)
        errors: dict[PartitionKey, ErrorCode] = {}
        asked = {one.key: one for one in wanted}

        def decide(key: PartitionKey, old: PartitionState) -> PartitionState | None:
            one = asked[key]
            errors[key] = self._error_of(broker_id, one, old)
            if errors[key] is not ErrorCode.NONE or one.isr == old.isr:
                return None
            return old._replace(isr=list(one.isr))

        batch = self._writes.batch()
        why = f"broker {broker_id}, the leader, asked for it"
        written = await self._writes.change(asked, decide, batch, why)
        self._writes.send(batch)
        old = [key for key, code in errors.items() if code is ErrorCode.INVALID_UPDATE_VERSION]
        leaving = {key for key in old if self._adds_leaving(asked[key])}
        now = [key for key in old if key not in leaving]
        if now:
            self._writes.put(partial(self._renew, broker_id, now))
        if leaving:
            self._renew_later(broker_id, leaving)
        return [self._result(one, errors, one.key in written) for one in wanted]

    def _is_ahead(self, broker_id: int, one: WantedIsr) -> bool:
        """Whether the leader knows a newer state than this controller.

        It has written that itself, as no response of the controller arrived, and its report comes
        later. By the older state the request would be answered as a retry, and nothing be written,
        or rejected for a new leader epoch, of which the leader may not hear.
        """
        present = self._state.partition(one.key)
        return (
            present is not None
            and (present.leader, present.leader_epoch) == (broker_id, one.leader_epoch)
            and present.partition_epoch < one.partition_epoch
        )

    def _error_of(self, broker_id: int, one: WantedIsr, present: PartitionState) -> ErrorCode:
        if present.leader != broker_id or one.leader_epoch != present.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if one.isr == present.isr:
            return ErrorCode.NONE  # a retry: the response to the first request was lost
        if one.partition_epoch != present.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        added = [b for b in one.isr if b not in present.isr]
        is_possible = (
            broker_id in one.isr
            and len(set(one.isr)) == len(one.isr)
            and all(b in present.replicas and self._state.is_live(b, one.key) for b in added)
            and set(one.isr) <= set(present.replicas)
        )
        if is_possible:
            return ErrorCode.NONE
        if self._adds_leaving(one):
            return ErrorCode.INVALID_UPDATE_VERSION
        text = "rejected in-sync replicas %s of %s-%d by broker %d: not all are alive and assigned"
        logger.warning(text, one.isr, *one.key, broker_id)
        return ErrorCode.INVALID_UPDATE_VERSION

    def _adds_leaving(self, one: WantedIsr) -> bool:
        """Whether a broker is to join that is shutting down.

        COMPAT: a Kafka that does so goes on following, and its leader asks for this again after
        each new leader epoch, until it has stopped.
        """
        present = self._state.partition(one.key)
        added = set(one.isr) - set(present.isr if present is not None else ())
        return not added.isdisjoint(self._state.shutting_down)

    def _renew_later(self, broker_id: int, keys: Iterable[PartitionKey]) -> None:
        """Renew leader epochs after a while, not each time that their leader asks."""
        is_waiting = bool(self._later)
        self._later |= dict.fromkeys(keys, broker_id)
        if not is_waiting:
            self._sleep(LEAVING_MS).then(lambda _: self._writes.put(self._renew_those))

    async def _renew_those(self) -> None:
        later, self._later = self._later, {}
        for broker_id in dict.fromkeys(later.values()):
            await self._renew(broker_id, [key for key in later if later[key] == broker_id])

    def _result(
        self, one: WantedIsr, errors: dict[PartitionKey, ErrorCode], is_written: bool
    ) -> IsrResult:
        present = self._state.partition(one.key)
        error = errors.get(one.key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if error is ErrorCode.NONE and present is not None and not is_written:
            # Other clients kept changing it, or it is unchanged.
            error = ErrorCode.NONE if present.isr == one.isr else ErrorCode.INVALID_UPDATE_VERSION
        if error is not ErrorCode.NONE or present is None:
            return IsrResult(error)
        leader, leader_epoch, isr = present.leader, present.leader_epoch, present.isr
        return IsrResult(error, IsrState(leader, leader_epoch, isr, present.partition_epoch))

    async def _renew(self, broker_id: int, keys: Sequence[PartitionKey]) -> None:
        """Renew the leader epoch, because the leader's ISR would stay frozen otherwise."""

        def decide(_: PartitionKey, old: PartitionState) -> PartitionState | None:
            return elections.renew(old) if old.leader == broker_id else None

        batch = self._writes.batch()
        why = "a change by its leader was rejected, which stops others until a new epoch"
        await self._writes.change(keys, decide, batch, why)
        self._writes.send(batch)
