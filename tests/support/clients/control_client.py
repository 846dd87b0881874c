"""A minimal controller: takes candidacy in ZooKeeper, and sends control requests over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient
from support.brokers.zookeeper import skip_without_zookeeper
from support.clients.wire_client import WireClient

from kbroker.cluster.control_requests import (
    ControlRequest,
    ControlResponse,
    KnownPartition,
    LeaderAndIsr,
    LedPartition,
    LiveBroker,
    Sender,
    StoppedPartition,
    StopReplica,
    UpdateMetadata,
)
from kbroker.errors import ErrorCode
from kbroker.metastore import paths
from kbroker.peers.control_codec import API_OF, merged, response_from_wire, sendable, to_wire
from kbroker.protocol.api import ApiKey
from kbroker.testing import Broker, Cluster

CONTROLLER_ID, EPOCH = 7, 1000
# What Kafka 2.7 sends.
VERSIONS = {ApiKey.LEADER_AND_ISR: 4, ApiKey.STOP_REPLICA: 3, ApiKey.UPDATE_METADATA: 6}


@contextmanager
def controlled_broker(**settings: object) -> Iterator[Broker]:
    """A broker on ZooKeeper, where the test is elected controller while the broker lives."""
    skip_without_zookeeper()
    # The test serves no ControlledShutdown.
    cluster = Cluster(1, controlled_shutdown_enable=False, **settings)
    candidacy = KazooClient(cluster.zookeeper_connect)
    try:
        cluster.start()
        candidacy.start()
        begin_term(candidacy)
        yield cluster.brokers[0]
    finally:
        cluster.close()
        candidacy.stop()
        candidacy.close()


def begin_term(client: KazooClient) -> None:
    """Replace the elected controller, as if its session had ended and the next elections were won,
    too. It lasts as long as the client's session.
    """
    election = client.transaction()
    election.delete(paths.CONTROLLER)
    document = paths.encode_controller(CONTROLLER_ID, 0)
    election.create(paths.CONTROLLER, document, ephemeral=True)
    election.set_data(paths.CONTROLLER_EPOCH, str(EPOCH).encode())
    for result in election.commit():
        if isinstance(result, Exception):
            raise result


class Controller:
    """The controller of a broker with one partition ``topic``-0: the elected one of
    ``controlled_broker``, or an imposter.
    """

    def __init__(self, broker: Broker, topic: str, epoch: int = EPOCH) -> None:
        self.client = WireClient((broker.host, broker.port))
        self.sender = Sender(CONTROLLER_ID, epoch)
        self.topic = topic
        self.here = int(broker.config["broker.id"])
        self.broker = LiveBroker([["PLAINTEXT", broker.host, broker.port, "PLAINTEXT"]], None)
        self.others: dict[int, LiveBroker] = {}
        self.followers: set[int] = set()  # replicas besides the broker and the leader
        self.versions = VERSIONS

    def say(self, request: ControlRequest) -> ControlResponse:
        version = self.versions[API_OF[type(request)]]
        answers = []
        for part in sendable(request, version):
            response = self.client.call(to_wire(part, version), version)
            answers.append(response_from_wire(response, part, version))
        return merged(answers)

    def lead(self, leader_epoch: int, leader: int | None = None) -> ErrorCode:
        """Make the broker leader or follower of the partition; returns the code of the request or
        partition.
        """
        who = self.here if leader is None else leader
        replicas = sorted({self.here, who} | self.followers)
        epoch = self.sender.controller_epoch
        told = LedPartition(
            self.topic, 0, epoch, who, leader_epoch, replicas, leader_epoch, replicas, True
        )
        answer = self.say(LeaderAndIsr(self.sender, [told], {}))
        return answer.error or answer.partitions.get(told.key, ErrorCode.NONE)

    def tell(self, leader_epoch: int, leader: int | None = None) -> ErrorCode:
        """Send the partition's metadata to the broker."""
        who = self.here if leader is None else leader
        replicas = sorted({self.here, max(who, 0)} | self.followers)
        epoch = self.sender.controller_epoch
        told = KnownPartition(self.topic, 0, epoch, who, leader_epoch, replicas, 0, replicas)
        brokers = {self.here: self.broker, **self.others}
        return self.say(UpdateMetadata(self.sender, [told], {}, brokers)).error

    def stop(self, leader_epoch: int, *, delete: bool) -> ErrorCode:
        stopped = StoppedPartition(self.topic, 0, leader_epoch, delete)
        answer = self.say(StopReplica(self.sender, [stopped]))
        return answer.error or answer.partitions.get(stopped.key, ErrorCode.NONE)
