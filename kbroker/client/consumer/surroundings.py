"""What a consumer runs on: a clock, threads, connections. A simulation has others of the same kind.

Only ``Core`` and those that make a thread or a connection know it; the rest is handed a ``Clock``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.consumer.fetch_link import FetchLink
from kbroker.client.consumer.lanes import Inbox, Lane, NodeLanes, aside
from kbroker.client.consumer.member_thread import MemberThread, ThreadedMember

Clock = Callable[[], float]
"""Seconds since some moment, as ``time.monotonic``."""


class Surroundings:
    """The machine itself."""

    clock: Clock = staticmethod(time.monotonic)

    def cluster(self, bootstrap: str, security: Any, **settings: Any) -> Cluster:
        """A cluster for one thread."""
        return Cluster(bootstrap, security, **settings)

    def inbox(self) -> Inbox:
        """What other threads have for the thread that polls."""
        return Inbox()

    def lane(self, name: str, cluster: Cluster, inbox: Inbox) -> Lane:
        """A thread for calls, one after the other."""
        return Lane(name, cluster, inbox)

    def node_lanes(self, name: str, cluster: Callable[[], Cluster], inbox: Inbox) -> NodeLanes:
        """One of these for each broker."""
        return NodeLanes(name, cluster, inbox)

    def connect(
        self,
        name: str,
        inbox: Inbox,
        host: str,
        port: int,
        seconds: float,
        then: Callable[[Connection | None, Exception | None], Any],
        **settings: Any,
    ) -> None:
        """Begin to connect for fetches, which takes ``seconds`` at most. settings: of Connection.
        then: gets the connection or an error, in the thread that polls.
        """

        def connect() -> Connection:
            return Connection(host, port, deadline=time.monotonic() + seconds, **settings)

        aside(name, inbox, connect, then)

    def fetch_link(self, connection: Connection) -> FetchLink:
        """A connection that never blocks."""
        return FetchLink(connection)

    def member_thread(self, group: str, cluster: Cluster, member: ThreadedMember) -> MemberThread:
        """Keeps a member in its group."""
        return MemberThread(group, cluster, member)
