"""What a broker does when another one is gone, before the session of that one has ended.

The evidence is ``peers.evidence``'s. A leader takes a dead follower out of its in-sync replicas;
the controller replaces a dead leader, if all other brokers that it can ask agree; and if it is the
controller that is gone, whoever knows it first and has the others' agreement deletes its node, so
that another one is elected. Everything that is written is conditional, so a broker that lives after
all is fenced as one whose session has ended, and nothing is done here that its end would not do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from kbroker.controller.election.events import EventQueue
from kbroker.controller.replicas.background import Background
from kbroker.controller.state.state import ClusterState, RegisteredBroker
from kbroker.controller.store import persistence
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.ipc.pending import Pending, TooLate, run, within
from kbroker.metastore import paths
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.store import BadVersion, NoNode, StoreFailed
from kbroker.peers.evidence import (
    ANSWER_MS,
    NO_EPOCH,
    ROUND_MS,
    STILL_SERVED_MS,
    Hearing,
    Inquiry,
    InquiryOutcome,
    PeerEvidence,
)
from kbroker.peers.link import LinkFailed
from kbroker.peers.watch import WatchedBroker, WatchOwner
from kbroker.wording import named_brokers

logger = logging.getLogger(__name__)

# What is not done because nobody is elected, or another broker objects, is looked at again: after
# this time, then twice as long. BOUND: as long as sessions last, by the last row.
AGAIN_MS, AGAIN_MAX_MS, TRIES_MAX = 100, 2_000, 16
NOBODY = -1


class Presence(NamedTuple):
    """Who is the controller. epoch_version: of the node that each election sets; session_id: of
    the controller's node.
    """

    broker_id: int
    version: int
    epoch_version: int
    session_id: int


class Peers(Protocol):
    """The other brokers: ``peers.watch.PeerWatches``."""

    def watch(self, wanted: Mapping[int, WatchedBroker], owner: WatchOwner) -> None:
        """Watch these registrations and no others."""

    def evidence(self, broker_id: int) -> PeerEvidence | None:
        """What is known of a broker; None for one that is not watched."""

    async def ask(self, broker_id: int, about_id: int, about_epoch: int) -> Hearing:
        """Whether a broker hears from another one. Raises LinkFailed."""


class FailoverHost(Protocol):
    """What this needs of the controller process."""

    def now_ms(self) -> int:
        """A monotonic clock."""

    def sleep(self, delay_ms: int) -> Pending[None]: ...

    @property
    def background(self) -> Background | None:
        """The controller's, while this broker is it and reaches the store."""

    def drop_follower(self, broker_id: int, closed_ms: int) -> Pending[int]:
        """Have the leaders here take a follower out of the in-sync replicas that has not asked for
        anything since its connections were closed. Resolves with the time of its last request here,
        0 if there was none.
        """


class FailoverCounts:
    """Totals of one process. moved_ms: how long the last removal took, from when the broker's
    connections ended until the others knew the new leaders.
    """

    def __init__(self) -> None:
        self.removals = self.depositions = self.vetoes = self.moved_ms = 0


class Failover:
    """me: this broker's id. is_on: ``failover.fast``, as it is now."""

    def __init__(
        self,
        me: int,
        store: SettledStore,
        peers: Peers,
        host: FailoverHost,
        is_on: Callable[[], bool],
    ) -> None:
        self.counts = FailoverCounts()
        self._me = me
        self._store = store
        self._peers = peers
        self._host = host
        self._is_on = is_on
        self._turns = EventQueue()
        self._registered: dict[int, RegisteredBroker] = {}
        self._is_watching = False
        self._at_work: set[int] = set()
        # Of those, which are to be looked at once more, as something has happened meanwhile.
        self._once_more: set[int] = set()
        # When a controller's connections had ended that was deposed: the same evidence does that
        # once.
        self._deposed: dict[int, int] = {}
        # The registration of each controller that was deposed by this broker.
        self._confirmed: dict[int, int] = {}
        self._heard_ms: dict[int, int] = {}

    # -- what happens --

    def look(self) -> None:
        """The store is connected, or its registrations may have changed."""
        self._turns.put(self._look).then(_raise_unexpected)

    async def _look(self) -> None:
        if not self._is_watching:
            await self._store.watch(paths.BROKER_IDS, lambda _: self.look())
            self._is_watching = True
        self._registered = await persistence.registrations(self._store)
        watched = {
            broker_id: WatchedBroker(broker.epoch, broker.live, broker.answers)
            for broker_id, broker in self._registered.items()
            if broker_id != self._me and self._is_on()
        }
        self._peers.watch(watched, self)

    def gone(self, broker_id: int) -> None:
        """There is evidence that a broker is gone."""
        if not self._is_on():
            return
        if broker_id in self._at_work:
            self._once_more.add(broker_id)
            return
        self._at_work.add(broker_id)
        run(self._replace(broker_id)).then(_raise_unexpected)

    def reached(self, broker_id: int) -> None:
        """There is a connection to it: if it was removed early, it lives after all."""
        background, evidence = self._host.background, self._peers.evidence(broker_id)
        if background is None or evidence is None:
            return
        if background.writes.state.removed_early.get(broker_id, NO_EPOCH) == evidence.epoch:
            logger.info("broker %d, which was removed early, is back in its session", broker_id)
            epoch = evidence.epoch
            background.writes.put(lambda: background.brokers.readmit(broker_id, epoch))

    def leave_out(self, state: ClusterState) -> None:
        """This broker is elected, as it has deposed the last controller: that one is removed from
        the state before anybody is told of it.
        """
        for broker_id, epoch in self._confirmed.items():
            broker = state.brokers.get(broker_id)
            if broker is not None and broker.epoch == epoch and self._is_gone(broker_id):
                logger.warning("broker %d is gone: leaving it out before its session ends",
                               broker_id)  # fmt: skip
                self.counts.removals += 1
                state.removed_early[broker_id] = epoch
                state.remove_broker(broker_id)
        self._confirmed.clear()

    def elected(self) -> None:
        """This broker is the controller now; some may be gone that it did not replace before."""
        for broker_id in list(self._registered):
            evidence = self._peers.evidence(broker_id)
            if evidence is not None and evidence.is_gone:
                self.gone(broker_id)

    def hearing(self, about_id: int, about_epoch: int) -> Hearing:
        """The answer to another broker's question, whether this one hears from a third."""
        evidence = self._peers.evidence(about_id)
        if about_id == self._me:
            return Hearing.HEARS
        if evidence is None or not self._is_on():
            return Hearing.UNKNOWN
        if self._has_heard(about_id, evidence):
            return Hearing.HEARS
        return evidence.hearing

    def _has_heard(self, broker_id: int, evidence: PeerEvidence) -> bool:
        """Whether it has fetched here since its connections ended: it lives, and only the way to it
        is closed.
        """
        if evidence.closed_ms is None:
            return False
        return self._heard_ms.get(broker_id, 0) > evidence.closed_ms + STILL_SERVED_MS

    # -- what is done --

    async def _replace(self, broker_id: int) -> None:
        delay_ms = AGAIN_MS
        try:
            for _ in range(TRIES_MAX):
                if not await self._try(broker_id):
                    return
                await self._host.sleep(delay_ms)
                delay_ms = min(2 * delay_ms, AGAIN_MAX_MS)
        except (StoreFailed, Fenced) as error:
            logger.info("broker %d is gone, but the store fails: %s", broker_id, error)
        finally:
            self._at_work.discard(broker_id)
            if broker_id in self._once_more:
                self._once_more.discard(broker_id)
                self.gone(broker_id)

    async def _try(self, broker_id: int) -> bool:
        """Whether to try again in a while."""
        evidence = self._peers.evidence(broker_id)
        if evidence is None or not evidence.is_gone or evidence.closed_ms is None:
            return False
        closed_ms = evidence.closed_ms
        dropped = self._host.drop_follower(broker_id, closed_ms)
        presence = await self._present()
        broker = (await persistence.registrations(self._store)).get(broker_id)
        if broker is None or evidence.epoch != broker.epoch:
            return False
        self._heard_ms[broker_id] = await dropped
        if not self._is_gone(broker_id):
            return False
        if presence is None:
            return True
        is_controller = presence.broker_id == broker_id
        if presence.broker_id != self._me and not is_controller:
            return False  # the controller has its own evidence
        if is_controller and self._deposed.get(broker_id) == closed_ms:
            return False
        outcome, said = await self._inquire(broker_id, broker.epoch, evidence)
        if outcome is not InquiryOutcome.CONFIRMED or not self._is_gone(broker_id):
            return True
        why = f"its connections ended and its listener refuses; {said}"
        if is_controller:
            self._deposed[broker_id] = closed_ms
            self._confirmed[broker_id] = broker.epoch
            await self._depose(presence, broker, why)
            return False
        return not self._remove(broker_id, broker.epoch, why, closed_ms)

    async def _present(self) -> Presence | None:
        """The controller; None while nobody is elected. The epoch is read first: an election in
        between is noticed.
        """
        try:
            epoch = await self._store.get(paths.CONTROLLER_EPOCH)
            node = await self._store.get(paths.CONTROLLER)
            broker_id = paths.decode_controller(node.data)
        except (NoNode, *DAMAGED):
            return None
        stat = node.stat
        return Presence(broker_id, stat.version, epoch.stat.version, stat.owner_session)

    async def _inquire(
        self, broker_id: int, epoch: int, evidence: PeerEvidence
    ) -> tuple[InquiryOutcome, str]:
        """Ask all other brokers, and say what came of it."""
        if self._has_heard(broker_id, evidence):
            self.counts.vetoes += 1
            logger.info("broker %d cannot be reached, but still follows this one: its session "
                        "decides", broker_id)  # fmt: skip
            return InquiryOutcome.VETOED, ""
        inquiry = Inquiry(self._others(broker_id), self._is_gone)
        while (outcome := inquiry.outcome) is None:
            asked = [(b, self._asked(b, broker_id, epoch)) for b in inquiry.next_round()]
            for other, answer in asked:
                try:
                    inquiry.answered(other, await answer)
                except (LinkFailed, TooLate):
                    inquiry.silent(other)
            if inquiry.outcome is None:
                await self._host.sleep(ROUND_MS)
        if outcome is InquiryOutcome.VETOED:
            self.counts.vetoes += 1
            logger.info(
                "broker %d cannot be reached from here, but %s still hears from it: its session "
                "decides", broker_id, named_brokers(inquiry.vetoes),
            )  # fmt: skip
        elif outcome is InquiryOutcome.UNANSWERED:
            text = "broker %d cannot be reached, but no other broker answers: its session decides"
            logger.info(text, broker_id)
        agreeing = inquiry.agreeing
        if not agreeing:
            return outcome, "no other broker can be asked"
        return outcome, f"{named_brokers(agreeing)} {'agrees' if len(agreeing) == 1 else 'agree'}"

    def _asked(self, other: int, about_id: int, about_epoch: int) -> Pending[Hearing]:
        answer = run(self._peers.ask(other, about_id, about_epoch))
        return within(answer, self._host.sleep(ANSWER_MS))

    def _others(self, broker_id: int) -> list[int]:
        """The brokers that can be asked."""
        return [
            other
            for other, broker in self._registered.items()
            if broker.answers and other not in (self._me, broker_id)
        ]

    def _is_gone(self, broker_id: int) -> bool:
        evidence = self._peers.evidence(broker_id)
        return evidence is not None and evidence.is_gone

    async def _depose(self, presence: Presence, broker: RegisteredBroker, why: str) -> None:
        """Delete the node of a controller that is gone, unless there was an election since."""
        if presence.session_id != broker.session_id:
            return  # elected by another session than the one that registered it
        gone = presence.broker_id
        transaction = self._store.multi()
        transaction.check(paths.CONTROLLER_EPOCH, presence.epoch_version)
        transaction.delete(paths.CONTROLLER, presence.version)
        try:
            await transaction.commit()
        except (NoNode, BadVersion):
            return  # somebody else was first, or its session has ended
        self.counts.depositions += 1
        logger.warning("the controller, broker %d, is gone (%s): have another elected", gone, why)

    def _remove(self, broker_id: int, epoch: int, why: str, closed_ms: int) -> bool:
        """Replace a broker as this controller; False if this broker is about to be the controller,
        or was until just now.
        """
        background = self._host.background
        if background is None:
            return False

        async def remove() -> None:
            # Other events came first, and it may be back; if it comes back later, it is readmitted.
            if not self._is_gone(broker_id):
                return
            logger.warning("broker %d is gone (%s): removing it before its session ends",
                           broker_id, why)  # fmt: skip
            self.counts.removals += 1
            reason = f"broker {broker_id} is gone"
            removal = await background.brokers.remove_early(broker_id, epoch, reason)

            def moved(_: object) -> None:
                self.counts.moved_ms = self._host.now_ms() - closed_ms
                logger.info("%d ms after broker %d had gone, the others know the leaders",
                            self.counts.moved_ms, broker_id)  # fmt: skip

            removal.then(moved)

        background.writes.put(remove)
        return True


def _raise_unexpected(outcome: Pending[None]) -> None:
    """Fenced: the process ends."""
    if outcome.error is not None and not isinstance(outcome.error, (Fenced, StoreFailed)):
        raise outcome.error
