"""Requests between brokers that the controller process serves, as received."""

from __future__ import annotations

from kbroker.ipc.calls.base import CONTROLLER
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation

# A controller retries after 30 s.
CONTROL_DEADLINE_MS = 20_000


class ControlMessage(Document):
    """LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown or AlterIsr, undecoded, without
    its header.
    """

    api_key: int
    version: int
    body: bytes


class ControlReply(Document):
    """The body of the response. None: the request is malformed, as ``reason`` says."""

    body: bytes | None
    reason: str


# INVALID_REQUEST, and nothing has changed, for values that no controller sends.
CONTROL_REQUEST = CallOperation(
    "control_request", ControlMessage, ControlReply, (CONTROLLER,), CONTROL_DEADLINE_MS
)
