"""A connection as the acceptor has handed it over."""

from __future__ import annotations

from typing import NamedTuple


class Arrival(NamedTuple):
    """listener: its index. host, port: of the client. local: address and port of the broker."""

    listener: int
    host: str
    port: int
    local: tuple[str, int]
