"""Serves control requests from other brokers' controllers: decode, ``Hosting.take``, encode.

Requests on one connection are served one at a time. Among several controllers, an outdated one is
fenced when its request is served.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol

from kbroker.cluster.control_requests import ControlRequest, ControlResponse
from kbroker.errors import WireError
from kbroker.ipc.calls import ControlMessage, ControlReply
from kbroker.ipc.pending import Pending
from kbroker.ipc.process_table import Address
from kbroker.logcontext import RateLimit
from kbroker.peers.control_codec import CLUSTER_PARTITIONS_MAX, from_wire, response_to_wire
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, request_class
from kbroker.protocol.primitives import DecodeError

logger = logging.getLogger(__name__)

# The time for which a request is decoded before the process does its other work.
SLICE_NS = 20_000_000
# BOUND: elements of a request are thrice as many: a partition has several lists of replicas.
ELEMENTS_PARTITIONS = 3 * CLUSTER_PARTITIONS_MAX


class ControlRequestTaker(Protocol):
    """Carries out control requests: ``Hosting``."""

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        """Resolves with the response."""


class ControlServer:
    """sleep: yields, so that the process can do its other work."""

    def __init__(
        self, hosting: ControlRequestTaker, cluster_id: str, sleep: Callable[[int], Pending[None]]
    ) -> None:
        self._hosting = hosting
        self._cluster_id = cluster_id
        self._sleep = sleep
        self._rejections = RateLimit()

    async def serve(self, sender: Address, asked: ControlMessage) -> ControlReply:
        """Raises INVALID_REQUEST for a malformed request; nothing has changed then."""
        api = ApiKey(asked.api_key)
        try:
            message = await decoded(asked, self._sleep)
            request = from_wire(message, asked.version, self._cluster_id)
        except DecodeError as error:
            return ControlReply(None, str(error))
        except WireError as error:
            times = self._rejections.due(api)
            if times:
                logger.warning(
                    "rejected a %s request (%d times): %s", api.name, times, error.message
                )
            raise
        result = await self._hosting.take(request)
        response = response_to_wire(result, request, asked.version)
        return ControlReply(codec.encode(response, asked.version), "")


async def decoded(asked: ControlMessage, sleep: Callable[[int], Pending[None]]) -> Any:
    """The message, decoded in slices: the process does its other work in between. DecodeError."""
    api = ApiKey(asked.api_key)
    steps = codec.decode_steps(request_class(api), asked.version, asked.body)
    while True:
        message = run_for(steps, SLICE_NS)
        if message is not None:
            return message[0]
        await sleep(0)


def run_for(steps: Generator[None, None, Any], duration_ns: int) -> Any:
    """The generator's return value; None if it has not finished by then."""
    until = time.monotonic_ns() + duration_ns
    try:
        while True:
            next(steps)
            if time.monotonic_ns() >= until:
                return None
    except StopIteration as stop:
        return stop.value
