"""Serves requests of other brokers to the active controller: ControlledShutdown and AlterIsr.

A broker that is not the controller says so, and whoever asks looks for the one that is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kbroker.cluster.controller_requests import (
    AlterIsr,
    AlterIsrResponse,
    ControlledShutdown,
    ControllerRequest,
    ControllerResponse,
    ShutdownResponse,
)
from kbroker.controller.replicas.background import Background
from kbroker.controller.store.store_failure import store_failure
from kbroker.errors import ErrorCode, WireError
from kbroker.hosting.control_server import decoded
from kbroker.ipc.calls import ControlMessage, ControlReply
from kbroker.ipc.pending import Pending
from kbroker.ipc.process_table import Address
from kbroker.logcontext import RateLimit
from kbroker.metastore.settled import Fenced
from kbroker.metastore.store import StoreError, StoreFailed
from kbroker.peers.controller_codec import API_OF, request_from_wire, response_to_wire
from kbroker.protocol import codec
from kbroker.protocol.primitives import DecodeError

logger = logging.getLogger(__name__)

SERVED = frozenset(API_OF.values())
FAILURES = (WireError, StoreFailed, StoreError, Fenced)


class ControllerServer:
    """Serves requests of brokers to the controller. background: None if this broker is not the
    controller, or the store is unreachable.

    sleep: lets the process do its other work. is_shared: whether there may be other brokers.
    """

    def __init__(
        self,
        background: Callable[[], Background | None],
        sleep: Callable[[int], Pending[None]],
        *,
        is_shared: bool,
    ) -> None:
        self._duties = background
        self._sleep = sleep
        self._is_shared = is_shared
        self._rejections = RateLimit()

    async def serve(self, sender: Address, asked: ControlMessage) -> ControlReply:
        """Serve a request from the wire. INVALID_REQUEST for impossible values."""
        try:
            request = request_from_wire(await decoded(asked, self._sleep))
        except DecodeError as error:
            return ControlReply(None, str(error))
        response = await self.respond(request) if self._is_shared else self._reject(request)
        return ControlReply(codec.encode(response_to_wire(response), asked.version), "")

    def _reject(self, request: ControllerRequest) -> ControllerResponse:
        """No other broker is registered, and this one does not ask itself over the wire."""
        times = self._rejections.due(type(request))
        if times:
            logger.warning(
                "rejected %s of broker %d with epoch %d (%d times): a broker without "
                "zookeeper.connect is the only one",
                type(request).__name__, request.broker_id, request.broker_epoch, times,
            )  # fmt: skip
        if isinstance(request, ControlledShutdown):
            return ShutdownResponse(ErrorCode.STALE_BROKER_EPOCH)
        return AlterIsrResponse(ErrorCode.STALE_BROKER_EPOCH)

    async def respond(self, request: ControllerRequest) -> ControllerResponse:
        """The controller's response; NOT_CONTROLLER if it resigns meanwhile."""
        background = self._duties()
        if isinstance(request, ControlledShutdown):
            return await _shut_down(background, request)
        return await _alter(background, request)


async def _shut_down(
    background: Background | None, request: ControlledShutdown
) -> ShutdownResponse:
    """COMPAT: the code of a broker that is not the controller is Kafka's."""
    if background is None:
        return ShutdownResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
    try:
        return ShutdownResponse(remaining=tuple(await background.shutdowns.shut_down(*request)))
    except FAILURES as error:
        code = code_of(error)
    return ShutdownResponse(
        ErrorCode.STALE_CONTROLLER_EPOCH if code is ErrorCode.NOT_CONTROLLER else code
    )


async def _alter(background: Background | None, request: AlterIsr) -> AlterIsrResponse:
    if background is None:
        return AlterIsrResponse(ErrorCode.NOT_CONTROLLER)
    try:
        results = await background.in_sync.alter(*request)
    except FAILURES as error:
        return AlterIsrResponse(code_of(error))
    keys = (wanted.key for wanted in request.partitions)
    return AlterIsrResponse(partitions=dict(zip(keys, results, strict=True)))


def code_of(error: WireError | StoreFailed | StoreError | Fenced) -> ErrorCode:
    """The error code of a request that failed as a whole."""
    return error.code if isinstance(error, WireError) else store_failure(error).code
