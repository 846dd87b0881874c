"""Which software clients say that they are (KIP-511), by connection."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator, Sequence

from kbroker._ext.shared.client_figures import read_clients
from kbroker.exposition.mbeans import ATTRIBUTE, SOFTWARE, Bean, Sample, Samples, Tags

CONNECTIONS = Bean(
    "kafka.server",
    "socket-server-metrics",
    SOFTWARE,
    ATTRIBUTE,
    "Open client connections, by the software that the client says it is.",
)
UNKNOWN = "unknown"


class ClientSoftware:
    """listeners: their names, by index."""

    def __init__(self, region: mmap.mmap, network_count: int, listeners: Sequence[str]) -> None:
        self._region = region
        self._network_count = network_count
        self._listeners = listeners

    def samples(self) -> Iterator[Samples]:
        """As many as there are rows of clients at the most, whatever clients say."""
        yield CONNECTIONS, list(self._connections())

    def _connections(self) -> Iterator[Sample]:
        connections: Counter[tuple[str, str, str, str]] = Counter()
        for network, listener, _, name, version, count, *_ in read_clients(
            self._region, self._network_count
        ):
            if count > 0:
                connections[shown(name), shown(version), self._name(listener), str(network)] += (
                    count
                )
        names = ("clientSoftwareName", "clientSoftwareVersion", "listener", "networkProcessor")
        for values, count in sorted(connections.items()):
            yield Tags(*zip(names, values, strict=True)), count

    def _name(self, listener: int) -> str:
        known = 0 <= listener < len(self._listeners)
        return self._listeners[listener] if known else UNKNOWN


def shown(text: bytes) -> str:
    """What has no name is unknown, as in Kafka."""
    return text.decode("utf-8", "replace") or UNKNOWN
