"""Connections of the network processes."""

from __future__ import annotations

from kbroker.ipc.calls.base import NETWORK, Nothing
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation

COUNT_DEADLINE_MS = 1_000


class OpenConnections(Document):
    """The number of connections from each address; None: ask again."""

    hosts: dict[str, int] | None


# A new acceptor asks for what it finds.
CONNECTIONS = CallOperation("connections", Nothing, OpenConnections, (NETWORK,), COUNT_DEADLINE_MS)
