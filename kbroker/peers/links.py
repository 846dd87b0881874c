"""Sends a controller's requests: a direct call for its own broker, a connection to each other.

Each broker has one request in flight, in order, which is retried until the broker responds or its
registration ends. Runs in the loop of the controller process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kbroker.cluster.control_requests import ControlRequest, ControlResponse, LiveBroker
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ErrorCode
from kbroker.ipc.pending import Pending, run
from kbroker.logcontext import RateLimit
from kbroker.peers.connecting import Connecting
from kbroker.peers.control_codec import API_OF, merged, response_from_wire, sendable, to_wire
from kbroker.peers.control_queue import ControlQueue, QueuedRequest
from kbroker.peers.endpoints import endpoint_of, listener_for_control
from kbroker.peers.link import Link, LinkFailed, LinkTimeouts, Loop
from kbroker.peers.versions import sent_version
from kbroker.protocol.codec import EncodeError
from kbroker.types import BrokerId

if TYPE_CHECKING:
    from kbroker.peers.security import PeerSecurity

logger = logging.getLogger(__name__)

BACKOFF_MS, BACKOFF_MAX_MS = 100, 1_000


class PeerRegistration(Protocol):
    """A broker's registration: ``controller.state.RegisteredBroker``."""

    @property
    def epoch(self) -> int: ...

    @property
    def live(self) -> LiveBroker: ...


class OwnBroker(Protocol):
    """This broker: ``Hosting``."""

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        """Resolves with the response."""


class LinksProcess(Loop, Protocol):
    """The controller process."""

    def sleep(self, delay_ms: int) -> Pending[None]:
        """A Pending that resolves after this time."""


def stale() -> ControlResponse:
    """The response for a registration that has ended."""
    return ControlResponse(ErrorCode.STALE_BROKER_EPOCH)


class Links:
    """me: this broker's id; ``own`` takes requests to this broker. security: of connections to
    others; None: they are not secured.
    """

    def __init__(
        self,
        me: BrokerId,
        own: OwnBroker,
        process: LinksProcess,
        config: BrokerConfig,
        now_ms: Callable[[], int],
        security: PeerSecurity | None = None,
    ) -> None:
        self._me = me
        self._own = own
        self._process = process
        self._protocol = config.protocol_version
        self._listener = listener_for_control(config)
        self._times = LinkTimeouts(
            config["socket.connection.setup.timeout.ms"], config["controller.socket.timeout.ms"]
        )
        self._now_ms = now_ms
        self._connecting = Connecting(security)
        process.add_reader(self._connecting.fd, self._connecting.run)
        self._peers: dict[int, Peer] = {}

    def send(self, broker_id: int, request: ControlRequest) -> Pending[ControlResponse]:
        """Requests for one broker arrive in the order in which they were sent."""
        if broker_id == self._me:
            return self._own.take(request)
        peer = self._peers.get(broker_id)
        if peer is None or peer.epoch != request.sender.broker_epoch:
            pending: Pending[ControlResponse] = Pending()
            pending.resolve(stale())
            return pending
        return peer.send(request)

    def set_live(self, brokers: Mapping[int, PeerRegistration]) -> None:
        """Set the registered brokers. Requests to any other registration complete with
        STALE_BROKER_EPOCH.
        """
        others = {number: one for number, one in brokers.items() if number != self._me}
        for number, peer in list(self._peers.items()):
            if number not in others or others[number].epoch != peer.epoch:
                del self._peers[number]
                peer.end()
        for number, registered in others.items():
            known = self._peers.get(number)
            if known is None:
                self._peers[number] = self._peer(number, registered)
            else:
                known.move(registered.live)

    def link(self) -> Link:
        """A new link, which the caller must tick, and close before these are closed."""
        return Link(self._process, self._connecting, str(self._me), self._times, self._now_ms)

    def _peer(self, number: int, registered: PeerRegistration) -> Peer:
        link = self.link()

        def say(live: LiveBroker, request: ControlRequest) -> Coroutine[Any, None, ControlResponse]:
            return self._say(link, live, request)

        return Peer(number, registered, link, say, self._process.sleep)

    async def _say(self, link: Link, live: LiveBroker, request: ControlRequest) -> ControlResponse:
        """Send a request in the version of inter.broker.protocol.version. Raises LinkFailed."""
        endpoint = endpoint_of(live.endpoints, self._listener)
        version = sent_version(API_OF[type(request)], self._protocol)
        assert version is not None, "every protocol has control requests"
        results = []
        for part in sendable(request, version):
            response = await link.ask(endpoint, to_wire(part, version), version)
            results.append(response_from_wire(response, part, version))
        return merged(results)

    def tick(self, now_ms: int) -> None:
        """Fail requests that have timed out."""
        for peer in list(self._peers.values()):
            peer.link.tick(now_ms)

    def resign(self) -> None:
        """Stop sending: this broker is no longer the controller."""
        self.set_live({})

    def close(self) -> None:
        """Close all connections; the process is stopping."""
        self.resign()
        self._process.remove_reader(self._connecting.fd)


class Peer:
    """One registration of another broker. say: sends a request to it."""

    def __init__(
        self,
        broker_id: int,
        registered: PeerRegistration,
        link: Link,
        say: Callable[[LiveBroker, ControlRequest], Coroutine[Any, None, ControlResponse]],
        sleep: Callable[[int], Pending[None]],
    ) -> None:
        self.epoch = registered.epoch
        self.link = link
        self._broker_id = broker_id
        self._live = registered.live
        self._say = say
        self._sleep = sleep
        self._queue = ControlQueue()
        self._under_way: QueuedRequest | None = None
        self._is_working = self._is_ended = False
        self._failures = RateLimit()

    def send(self, request: ControlRequest) -> Pending[ControlResponse]:
        """Resolves with the response, whenever it arrives."""
        pending = self._queue.put(request)
        if not self._is_working:
            run(self._work()).then(raise_failure)
        return pending

    def move(self, live: LiveBroker) -> None:
        """Set new endpoints of the same registration."""
        if live != self._live:
            self._live = live
            self.link.close("its listeners have changed")

    def end(self) -> None:
        """The registration has ended: no response will arrive."""
        self._is_ended = True
        self.link.close("its registration has ended")
        waiting = [self._under_way] if self._under_way is not None else []
        while self._queue:
            waiting.append(self._queue.take())
        for one in waiting:
            one.resolve(stale())

    async def _work(self) -> None:
        self._is_working = True
        while self._queue and not self._is_ended:
            present = self._under_way = self._queue.take()
            response = await self._until_completed(present.request)
            self._under_way = None
            present.resolve(response)
        self._is_working = False

    async def _until_completed(self, request: ControlRequest) -> ControlResponse:
        backoff_ms = BACKOFF_MS
        name = type(request).__name__
        while not self._is_ended:
            try:
                return await self._say(self._live, request)
            except EncodeError:
                logger.exception("cannot encode a %s for broker %d", name, self._broker_id)
                return ControlResponse(ErrorCode.UNKNOWN_SERVER_ERROR)
            except LinkFailed as error:
                times = 0 if self._is_ended else self._failures.due()
                if times:
                    text = "cannot send %s to broker %d (%d times): %s; trying again"
                    logger.warning(text, name, self._broker_id, times, error)
            await self._sleep(backoff_ms)
            backoff_ms = min(2 * backoff_ms, BACKOFF_MAX_MS)
        return stale()


def raise_failure(outcome: Pending[None]) -> None:
    """An unexpected error ends the process."""
    if outcome.error is not None:
        raise outcome.error
