"""How log lines name a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker._ext.network.connection import Connection


def peer(connection: Connection) -> str:
    """The client, for a log line: address and client id."""
    address = f"{connection.peer_host}:{connection.peer_port}"
    client_id = connection.client_id
    if client_id is None:
        return address
    return f"{address} (client id {client_id.decode('utf-8', 'replace')!r})"
