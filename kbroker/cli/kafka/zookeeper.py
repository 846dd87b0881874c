"""``--zookeeper``, as tools of Kafka 0.8 to 2.x take it: the brokers are those registered there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kbroker.cli.kafka.options import Given, valued
from kbroker.cli.kafka.running import ToolFailed, connected, properties_of

if TYPE_CHECKING:
    from kbroker.client.connections.cluster import Cluster
    from kbroker.client.zookeeper.zookeeper_tls import ZooKeeperTls

ZOOKEEPER = valued(
    "zookeeper",
    "urls",
    "The ZooKeeper of the brokers, host:port/chroot, instead of their own "
    "addresses; output is as in 0.8.",
)
ZOOKEEPER_TLS = valued(
    "zk-tls-config-file",
    "ZooKeeper TLS configuration",
    "A file with zookeeper.ssl. settings for the connection to ZooKeeper; others in it are "
    "ignored, as is the file if no ZooKeeper is asked.",
)


def registered(given: Given) -> str:
    """The brokers of ``--zookeeper``, as bootstrap servers. Raises ToolFailed, ClientError."""
    from kbroker.client.zookeeper.registered_brokers import registered_brokers

    return ",".join(registered_brokers(given.one("zookeeper"), tls=tls_given(given)))


def tls_given(given: Given) -> ZooKeeperTls | None:
    """What the file of ``--zk-tls-config-file`` says, if there is one. Raises ToolFailed."""
    if ZOOKEEPER_TLS.name not in given:
        return None
    path = given.one(ZOOKEEPER_TLS.name)
    return tls_of(properties_of(path), path)


def tls_of(settings: Mapping[str, str], where: str) -> ZooKeeperTls | None:
    """None where TLS is off, which it is unless a setting enables it. where: what has them. Raises
    Failed, also for settings of TLS that do not say whether it is on.
    """
    from kbroker.client.errors import SettingRefused
    from kbroker.client.zookeeper.zookeeper_tls import ENABLE, PREFIX, ZooKeeperTls

    enabled = settings.get(ENABLE, "").strip().lower()
    if enabled == "false" or not any(name.startswith(PREFIX) for name in settings):
        return None
    try:
        return ZooKeeperTls(settings)
    except SettingRefused as error:
        raise ToolFailed(f"{where}: {error}") from error


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
