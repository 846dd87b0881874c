"""A connection to each other broker, whose end shows that the broker may be gone.

It carries one question when it is made, who the other broker is, and those of an inquiry; in
between nothing is sent, and no time is spent. To a Kafka nothing is sent at all. When it ends, it
is made again at once; what comes of that, ``evidence`` judges. Runs in the controller process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from kbroker.cluster.control_requests import LiveBroker
from kbroker.errors import ErrorCode
from kbroker.ipc.pending import Pending, run
from kbroker.peers.endpoints import PeerListener, endpoint_of
from kbroker.peers.evidence import Attempt, Hearing, PeerEvidence
from kbroker.peers.link import Link, LinkFailed, PeerAddress
from kbroker.protocol.messages.peer_status import PeerStatusRequest

logger = logging.getLogger(__name__)

VERSION = 0
# How long an attempt to use a link waits for a question that is under way.
BUSY_MS = 20


class WatchedBroker(NamedTuple):
    """A registration of another broker. answers: PeerStatus, as kbrokers do."""

    epoch: int
    live: LiveBroker
    answers: bool


class WatchOwner(Protocol):
    """Who is told: ``controller.election.failover.Failover``."""

    def gone(self, broker_id: int) -> None:
        """There is evidence that a broker is gone."""

    def reached(self, broker_id: int) -> None:
        """There is a connection to it, again or for the first time."""


class WatchingProcess(Protocol):
    """The controller process."""

    def sleep(self, delay_ms: int) -> Pending[None]: ...


class PeerWatch:
    """Of one registration of another broker. link: for its use alone."""

    def __init__(
        self,
        me: int,
        broker_id: int,
        watched: WatchedBroker,
        link: Link,
        listener: PeerListener,
        process: WatchingProcess,
        owner: WatchOwner,
        now_ms: Callable[[], int],
    ) -> None:
        self.watched = watched
        self.evidence = PeerEvidence()
        self.link = link
        self._me = me
        self._broker_id = broker_id
        self._listener = listener
        self._process = process
        self._owner = owner
        self._now_ms = now_ms
        self._is_ended = self._is_told = False
        self._warned = False  # that there is no evidence, after the last connection
        self._ended: Pending[None] = Pending()  # the present connection
        link.lost = self._lost
        run(self._work()).then(_raise_failure)

    def end(self) -> None:
        """The registration has ended, or is another one."""
        self._is_ended = True
        self.link.lost = None
        self.link.close("it is not watched any more")
        self._ended.resolve()

    async def ask(self, about_id: int, about_epoch: int) -> Hearing:
        """Whether the broker hears from another one. Raises LinkFailed."""
        if not self.evidence.is_connected or self.link.is_asking:
            raise LinkFailed("it is not connected")
        request = PeerStatusRequest(broker_id=self._me, about_id=about_id, about_epoch=about_epoch)
        try:
            response = await self.link.ask(self._endpoint(), request, VERSION)
        except LinkFailed as error:
            self._lost(str(error))
            raise
        try:
            return Hearing(response.hearing)
        except ValueError:
            return Hearing.UNKNOWN

    async def _work(self) -> None:
        while not self._is_ended:
            if not self.evidence.is_connected:
                await self._attempt()
            if self.evidence.is_connected:
                await self._ended
            elif not self._is_ended:
                await self._process.sleep(self.evidence.delay_ms)

    async def _attempt(self) -> None:
        if self.link.is_asking:
            await self._process.sleep(BUSY_MS)
            return
        how, epoch, why = Attempt.REACHED, self.watched.epoch, ""
        try:
            if self.watched.answers:
                epoch = await self._greet()
            else:
                await self.link.open(self._endpoint())
        except LinkFailed as error:
            how, why = (Attempt.REFUSED if error.is_refused else Attempt.OTHER), str(error)
        if self._is_ended:
            return
        if how is Attempt.REACHED:
            self._ended = Pending()
        self.evidence.attempted(how, self._now_ms(), epoch)
        self._tell(how, why)

    async def _greet(self) -> int:
        """The epoch of the registration of whoever is there. Raises LinkFailed.

        One that has none yet is not reached: nobody could say whose end the connection's end is.
        """
        request = PeerStatusRequest(broker_id=self._me)
        response = await self.link.ask(self._endpoint(), request, VERSION)
        why, epoch = "", int(response.broker_epoch)
        if response.error_code != ErrorCode.NONE:
            why = f"it answers with error {response.error_code}"
        elif response.broker_id != self._broker_id:
            why = f"broker {response.broker_id} is there"
        elif epoch < 0:
            why = "it has not registered yet"
        if why:
            self.link.close()
            raise LinkFailed(why)
        return epoch

    def _endpoint(self) -> PeerAddress:
        return endpoint_of(self.watched.live.endpoints, self._listener)

    def _tell(self, how: Attempt, why: str) -> None:
        evidence = self.evidence
        if how is Attempt.REACHED:
            self._is_told = self._warned = False
            self._owner.reached(self._broker_id)
        elif evidence.is_gone and not self._is_told:
            self._is_told = True
            self._owner.gone(self._broker_id)
        elif how is Attempt.OTHER and evidence.is_unclear and not self._warned:
            self._warned = True
            logger.info(
                "the connection to broker %d has ended, and nothing shows that the broker is gone "
                "(%s): its session decides", self._broker_id, why,
            )  # fmt: skip

    def _lost(self, reason: str) -> None:
        """The connection has ended; ``_work`` continues after whatever reports it."""
        if self.evidence.is_connected:
            self.evidence.closed(self._now_ms())
            ended = self._ended
            self._process.sleep(0).then(lambda _: ended.resolve())


class PeerWatches:
    """One for each other broker. link: makes one; the caller must call ``tick``."""

    def __init__(
        self,
        me: int,
        link: Callable[[], Link],
        listener: PeerListener,
        process: WatchingProcess,
        now_ms: Callable[[], int],
    ) -> None:
        self._me = me
        self._link = link
        self._listener = listener
        self._process = process
        self._now_ms = now_ms
        self._watches: dict[int, PeerWatch] = {}

    def watch(self, wanted: Mapping[int, WatchedBroker], owner: WatchOwner) -> None:
        """Watch these registrations and no others."""
        for broker_id, watch in list(self._watches.items()):
            if wanted.get(broker_id) != watch.watched:
                del self._watches[broker_id]
                watch.end()
        for broker_id, watched in wanted.items():
            if broker_id not in self._watches:
                self._watches[broker_id] = PeerWatch(
                    self._me, broker_id, watched, self._link(), self._listener, self._process,
                    owner, self._now_ms,
                )  # fmt: skip

    def evidence(self, broker_id: int) -> PeerEvidence | None:
        """What is known of a broker; None for one that is not watched."""
        watch = self._watches.get(broker_id)
        return None if watch is None else watch.evidence

    async def ask(self, broker_id: int, about_id: int, about_epoch: int) -> Hearing:
        """Whether a broker hears from another one. Raises LinkFailed."""
        watch = self._watches.get(broker_id)
        if watch is None:
            raise LinkFailed("it is not watched")
        return await watch.ask(about_id, about_epoch)

    def tick(self, now_ms: int) -> None:
        """Fail requests that have timed out."""
        for watch in list(self._watches.values()):
            watch.link.tick(now_ms)

    def close(self) -> None:
        for watch in self._watches.values():
            watch.end()
        self._watches.clear()


def _raise_failure(outcome: Pending[None]) -> None:
    """An unexpected error ends the process."""
    if outcome.error is not None:
        raise outcome.error
