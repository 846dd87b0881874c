"""Real brokers for tests, started in a temporary directory and removed afterwards.

    from kbroker.testing import Broker

    with Broker(num_io_threads=2) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)

``Cluster`` is several of them on a real ZooKeeper. With pytest the fixtures ``kbroker`` (one broker
a test), ``kbroker_broker`` (one a session) and ``kbroker_cluster`` (three a test) do the same; see
``kbroker.testing.plugin``. The process of the tests imports no broker code: brokers are forks of a
process that did (``kbroker.testing.template``).
"""

from kbroker.spark.java import java_home
from kbroker.testing.broker import Broker, BrokerFailed
from kbroker.testing.cluster import Cluster
from kbroker.testing.waiting import ProcessEnded, wait_until
from kbroker.testing.zookeeper import ZooKeeperMissing

__all__ = [
    "Broker",
    "BrokerFailed",
    "Cluster",
    "ProcessEnded",
    "ZooKeeperMissing",
    "java_home",
    "wait_until",
]
