"""The way to the active controller, whichever broker that is at the moment.

The store says who it is, and is asked again after every failure and by every response of a broker
that is not the controller. If it is this broker, it is asked by a call.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from kbroker.cluster.control_requests import LiveBroker
from kbroker.cluster.controller_requests import ControllerRequest, ControllerResponse
from kbroker.config.protocol_version import ProtocolVersion
from kbroker.errors import ErrorCode
from kbroker.peers.controller_codec import API_OF, request_to_wire, response_from_wire
from kbroker.peers.endpoints import PeerListener, endpoint_of
from kbroker.peers.link import Link, LinkFailed
from kbroker.peers.versions import sent_version
from kbroker.protocol.primitives import DecodeError

# The errors of a broker that is not the controller, or about to resign.
ELSEWHERE = (ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_CONTROLLER_EPOCH)
NOBODY = -1

Own = Callable[[ControllerRequest], Coroutine[Any, Any, ControllerResponse]]
Find = Callable[[], Coroutine[Any, Any, tuple[int, LiveBroker] | None]]


class ControllerLink:
    """A link for one request at a time: a second one cancels the first.

    me: its id. own: answers where it is the controller itself. find: who the controller is, and
    where. listener: the one that controllers are reached by.
    """

    def __init__(
        self,
        me: int,
        own: Own,
        find: Find,
        link: Link,
        listener: PeerListener,
        protocol: ProtocolVersion,
    ) -> None:
        self._me = me
        self._own = own
        self._find = find
        self._link = link
        self._listener = listener
        self._protocol = protocol
        self._known: tuple[int, LiveBroker] | None = None
        self.asked = NOBODY  # the broker that was asked last
        self._told = NOBODY  # the controller according to the metadata
        self._round = 0

    async def ask(self, request: ControllerRequest) -> ControllerResponse:
        """The response of the active controller, which may be NOT_CONTROLLER. LinkFailed: there was
        no response, and the request may have been executed.
        """
        self._round += 1
        this_round = self._round
        self._link.give_up()
        controller = self._known or await self._find()
        if this_round != self._round:
            raise LinkFailed("it was asked again in the meantime")
        self._known = None
        if controller is None:
            raise LinkFailed("no broker is the controller")
        if controller[0] != self.asked:
            self._link.close("another broker is the controller")
        self.asked = controller[0]
        if controller[0] == self._me:
            response = await self._own(request)
        else:
            response = await self._ask(controller[1], request)
        if response.error not in ELSEWHERE:
            self._known = controller
        return response

    async def _ask(self, live: LiveBroker, request: ControllerRequest) -> ControllerResponse:
        version = sent_version(API_OF[type(request)], self._protocol)
        assert version is not None, "this protocol has no such request"
        endpoint = endpoint_of(live.endpoints, self._listener)
        response = await self._link.ask(endpoint, request_to_wire(request), version)
        try:
            return response_from_wire(response, request)
        except DecodeError as error:
            self._link.close()
            raise LinkFailed(f"its response is malformed: {error}") from error

    def tick(self, now_ms: int, controller_id: int) -> None:
        """Fail a request that has timed out, or whose controller has been replaced.

        controller_id: the controller by the metadata. A new one tells all brokers; a machine that
        is gone would be waited for long after that.
        """
        self._link.tick(now_ms)
        if controller_id != self._told:
            self._told = controller_id
            if controller_id != self.asked:
                self._known = None
                self._link.close("another broker is the controller")

    def close(self) -> None:
        """The process ends."""
        self._link.close()
