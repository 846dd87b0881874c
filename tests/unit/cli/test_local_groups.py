"""The exporter is asked what shared memory does not have, unless it cannot answer."""

from __future__ import annotations

import socket
import time
from typing import Any, cast

from kbroker.cli.local.attached import AttachedBroker
from kbroker.cli.local.groups import TIMEOUT_S, groups
from kbroker.ipc.process_kinds import ProcessKind
from kbroker.ipc.process_table import Address

EXPORTER = Address(ProcessKind.EXPORTER, 0)


class SilentBroker:
    """Takes connections for the exporter, as the kernel does for one that is stopped."""

    def __init__(self, listener: socket.socket, silent_s: float) -> None:
        host, port = listener.getsockname()
        self.status: dict[str, Any] = {"metrics": f"{host}:{port}"}
        self._heartbeat_ns = time.monotonic_ns() - int(silent_s * 1e9)

    def processes(self) -> dict[Address, Any]:
        return {EXPORTER: {"heartbeat_ns": self._heartbeat_ns}}


def test_exporter_without_a_sign_of_life_is_not_waited_for() -> None:
    """What says that it is stuck must not come later for it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        broker = SilentBroker(listener, TIMEOUT_S + 0.1)

        assert groups(cast(AttachedBroker, broker)) is None

        try:
            listener.accept()
        except BlockingIOError:
            return
        raise AssertionError("it was asked")
