"""A controller process that decodes control requests, and does what any controller says."""

from __future__ import annotations

from typing import Any

from kbroker.cluster.control_requests import ControlAnswer, ControlRequest
from kbroker.hosting.control_server import ControlServer
from kbroker.ipc.calls import ControlMessage, ControlReply
from kbroker.ipc.pending import Pending, run


class TakesAnything:
    """A broker without scruples."""

    def take(self, request: ControlRequest) -> Pending[ControlAnswer]:
        done: Pending[ControlAnswer] = Pending()
        done.resolve(ControlAnswer())
        return done


CONTROL_SERVER = ControlServer(TakesAnything(), "cluster-1", lambda delay_ms: Pending())


def serve_control(to: Any, api_key: int, version: int, body: str) -> ControlReply:
    """What the controller process answers."""
    asked = ControlMessage(api_key, version, bytes.fromhex(body))
    outcome = run(CONTROL_SERVER.serve(to, asked))
    assert outcome.done, "a short request is decoded in one go"
    if outcome.error is not None:
        raise outcome.error
    reply: ControlReply = outcome.value
    return reply
