"""``--zookeeper``, as tools of Kafka 0.8 to 2.x take it: the brokers are those registered there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kbroker.cli.kafka.options import Given, valued
from kbroker.cli.kafka.running import connected

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

ZOOKEEPER = valued(
    "zookeeper",
    "urls",
    "The ZooKeeper of the brokers, host:port/chroot, instead of their own "
    "addresses; output is as in 0.8.",
)


def registered(given: Given) -> str:
    """The brokers of ``--zookeeper``, as bootstrap servers. Raises ClientError."""
    from kbroker.client.legacy.registered_brokers import registered_brokers

    return ",".join(registered_brokers(given.one("zookeeper")))


@contextmanager
def connected_either(
    given: Given, deadline_ms: int | None = None, config: str = "command-config"
) -> Iterator[Cluster]:
    """The cluster of ``--bootstrap-server``, or of ``--zookeeper``. config: the option with the
    settings of the client.
    """
    bootstrap = given.one("bootstrap-server")
    if bootstrap is None and "zookeeper" in given:
        bootstrap = registered(given)
    with connected(bootstrap, given.one(config), deadline_ms=deadline_ms) as cluster:
        yield cluster
