"""A producer of 0.8 with ``zk.connect`` notices what changes in ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.brokers.zookeeper import skip_without_zookeeper

from kbroker.client.admin.topics import NewTopic, add_partitions, create_topics
from kbroker.client.connections.cluster import Cluster as Client
from kbroker.client.errors import UnreachableError
from kbroker.client.zookeeper.registered_brokers import NoBrokersRegistered
from kbroker.legacy import FailedToSendMessage, KeyedMessage, Producer
from kbroker.legacy.broker_watch import BrokerWatch
from kbroker.testing import Cluster, wait_until
from perf.brokers import free_ports

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    skip_without_zookeeper()
    with Cluster(2, num_io_threads=1) as started:
        yield started


def test_changes_of_topics_and_brokers_are_noticed(cluster: Cluster) -> None:
    """PROD-14. Nothing is sent again, and metadata is not refreshed by time."""
    with Client(cluster.bootstrap) as client:
        create_topics(client, [NewTopic("grows", replicas=[[0]])])
        settings = {
            "zk.connect": cluster.zookeeper_connect,
            "request.required.acks": 1,
            "message.send.max.retries": 0,
            "topic.metadata.refresh.interval.ms": -1,
        }
        with Producer(settings) as producer:
            watch = producer._dispatcher._view._watch
            producer.send(KeyedMessage("grows", message=b"a", partition=0))
            with pytest.raises(FailedToSendMessage):
                producer.send(KeyedMessage("grows", message=b"b", partition=1))
            producer.send(KeyedMessage("grows", message=b"c", partition=0))
            assert not watch.changed

            add_partitions(client, {"grows": 2}, assignments={"grows": [[1]]})
            wait_until(lambda: watch.changed, 20, "the new partition is noticed")
            cluster.wait_in_sync("grows")
            producer.send(KeyedMessage("grows", message=b"d", partition=1))
            assert not watch.changed

            cluster.brokers[1].stop()
            wait_until(lambda: watch.changed, 30, "the end of a broker is noticed")
            producer.send(KeyedMessage("grows", message=b"e", partition=0))
        assert watch._client is None


def test_zookeeper_without_brokers_or_none_at_all_is_named(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = BrokerWatch(f"{cluster.zookeeper_connect.partition('/')[0]}/elsewhere")
    with pytest.raises(NoBrokersRegistered, match="elsewhere"):
        watch.addresses(["t"])
    watch.close()
    monkeypatch.setattr("kbroker.legacy.broker_watch.CONNECT_TIMEOUT_S", 0.5)
    with pytest.raises(UnreachableError, match="refused"):
        BrokerWatch(f"127.0.0.1:{free_ports(1)[0]}").addresses([])
