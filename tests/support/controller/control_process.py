"""A controller process that decodes requests between brokers, and executes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbroker.cluster.control_requests import ControlRequest, ControlResponse, PartitionKey
from kbroker.errors import ErrorCode
from kbroker.hosting.control_server import ControlServer
from kbroker.ipc.calls import ControlMessage, ControlReply, IsrResult, IsrState, WantedIsr
from kbroker.ipc.pending import Pending, run
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.peer_status import PeerStatusRequest, PeerStatusResponse
from kbroker.protocol.primitives import DecodeError
from kbroker.workers.controller.controller_server import SERVED, ControllerServer


class TakesAnything:
    """A broker that accepts everything."""

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        done: Pending[ControlResponse] = Pending()
        done.resolve(ControlResponse())
        return done


class GrantsAnything:
    """The duties of a controller that grants everything."""

    def __init__(self) -> None:
        self.shutdowns = self.in_sync = self

    async def shut_down(self, *_: Any) -> list[PartitionKey]:
        return []

    async def alter(self, _: int, __: int, wanted: Sequence[WantedIsr]) -> list[IsrResult]:
        return [
            IsrResult(ErrorCode.NONE, IsrState(0, one.leader_epoch, one.isr, one.partition_epoch))
            for one in wanted
        ]


def at_once(delay_ms: int) -> Pending[None]:
    return Pending()


DUTIES: Any = GrantsAnything()
CONTROL_SERVER = ControlServer(TakesAnything(), "cluster-1", at_once)
CONTROLLER_SERVER = ControllerServer(lambda: DUTIES, at_once, is_shared=True)


def hears_nobody(asked: ControlMessage) -> ControlReply:
    """The answer to PeerStatus."""
    try:
        codec.decode_exact(PeerStatusRequest, asked.version, asked.body)
    except DecodeError as error:
        return ControlReply(None, str(error))
    return ControlReply(codec.encode(PeerStatusResponse(), asked.version), "")


def serve_control(to: Any, api_key: int, version: int, body: str) -> ControlReply:
    """The controller process's results."""
    asked = ControlMessage(api_key, version, bytes.fromhex(body))
    if api_key == ApiKey.PEER_STATUS:
        return hears_nobody(asked)
    server = CONTROLLER_SERVER if api_key in SERVED else CONTROL_SERVER
    outcome = run(server.serve(to, asked))
    assert outcome.done, "a short request is decoded in one go"
    if outcome.error is not None:
        raise outcome.error
    reply: ControlReply = outcome.value
    return reply
