"""Links of an io worker to other brokers, for requests of its coordinators and to coordinators.

One link has one request under way; whoever has one keeps a queue. The address is that of the image
when the request is sent.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kbroker.ipc.rpc import Pending, run
from kbroker.logcontext import RateLimit
from kbroker.peers.connecting import Connecting
from kbroker.peers.endpoints import inter_broker_endpoint
from kbroker.peers.link import Link, LinkTimeouts, PeerAddress
from kbroker.protocol.message import Message
from kbroker.types import BrokerId
from kbroker.workers.base import now_ms, raise_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbroker.cluster.image import ClusterImage
    from kbroker.config.loader import BrokerConfig
    from kbroker.config.protocol_version import ProtocolVersion
    from kbroker.peers.security import PeerSecurity


logger = logging.getLogger(__name__)

W = TypeVar("W")


class LinkingProcess(Protocol):
    """The io worker."""

    @property
    def image(self) -> ClusterImage: ...

    @property
    def config(self) -> BrokerConfig: ...

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None: ...
    def remove_reader(self, fd: int) -> None: ...
    def watch_writable(self, fd: int, wanted: bool) -> None: ...


class BrokerLinks:
    """The links of one io worker, which calls ``tick``. broker_id: of this broker. security: of
    connections to others; None: they are not secured.
    """

    def __init__(
        self, process: LinkingProcess, broker_id: int, security: PeerSecurity | None = None
    ) -> None:
        self.broker_id = broker_id
        self.process = process
        self._security = security
        self._connecting: Connecting | None = None
        self._made: list[BrokerLink] = []

    def make(self, to: int) -> BrokerLink:
        """A new link to that broker."""
        process, config = self.process, self.process.config
        if self._connecting is None:
            self._connecting = Connecting(self._security)
            process.add_reader(self._connecting.fd, self._connecting.run)
        times = LinkTimeouts(
            config["socket.connection.setup.timeout.ms"], config["request.timeout.ms"]
        )
        link = Link(process, self._connecting, str(self.broker_id), times, now_ms)
        made = BrokerLink(to, process, link)
        self._made.append(made)
        return made

    def tick(self, now: int) -> None:
        """Give up requests that take too long, and those to brokers that are gone."""
        for made in self._made:
            made.tick(now)

    def close(self) -> None:
        """The process ends."""
        for made in self._made:
            made.link.close()


class BrokerLink:
    """One of them."""

    def __init__(self, broker_id: int, process: LinkingProcess, link: Link) -> None:
        self.broker_id = broker_id
        self.link = link
        self._process = process
        self._endpoint: PeerAddress | None = None

    def ask(self, request: Message, version: int) -> Pending[Any]:
        """Resolves with the response or LinkFailed; raises LinkFailed if there is no way to ask."""
        return self.link.ask(self._present_endpoint(), request, version)

    @property
    def protocol_version(self) -> ProtocolVersion:
        """Of requests between brokers."""
        return self._process.config.protocol_version

    def connection(self) -> int:
        """The number of the connection that the next request will use, if it is there already;
        else one that no connection has had. Raises LinkFailed as ``ask`` does.
        """
        self._present_endpoint()
        return self.link.connection

    def tick(self, now: int) -> None:
        if BrokerId(self.broker_id) not in self._process.image.brokers:
            # A machine that is gone does not even refuse connections.
            self.link.give_up("it is no longer in the cluster")
        self.link.tick(now)

    def _present_endpoint(self) -> PeerAddress:
        """Raises LinkFailed. A broker that has moved gets another connection, and one whose
        session ends.
        """
        self.link.renew()
        process = self._process
        endpoint = inter_broker_endpoint(process.image, self.broker_id, process.config)
        if endpoint != self._endpoint:
            self.link.close("it has moved")
            self._endpoint = endpoint
        return endpoint


class BrokerQueue(Generic[W]):
    """What waits for a request to one broker: all that comes while one is under way goes together
    with the next one. Subclasses say what goes into a request, and send it.
    """

    # What they cannot do when a request fails, with the broker's number, for the log.
    cannot = ""

    def __init__(self, link: BrokerLink) -> None:
        self.link = link
        self.waiting: deque[W] = deque()
        self._is_working = False
        self._failures = RateLimit()

    def next_batch(self) -> list[W]:
        """Take from ``waiting`` what goes into the next request."""
        raise NotImplementedError

    async def send(self, batch: list[W]) -> None:
        """Send a request, and resolve what waits for it. Raises nothing."""
        raise NotImplementedError

    def put(self, wanted: W) -> None:
        self.waiting.append(wanted)
        if not self._is_working:
            run(self._work()).then(raise_failure)

    async def _work(self) -> None:
        self._is_working = True
        while self.waiting:
            await self.send(self.next_batch())
        self._is_working = False

    def failed(self, error: Exception) -> None:
        """A request had no response: log it, but not each time."""
        times = self._failures.due()
        if times:
            text = self.cannot + " (%d times): %s; trying again"
            logger.warning(text, self.link.broker_id, times, error)
