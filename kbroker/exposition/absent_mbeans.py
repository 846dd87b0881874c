"""MBeans that Kafka's pages on monitoring name (2.7 and 4.3), and this broker does not have."""

from __future__ import annotations

from typing import NamedTuple


class Absent(NamedTuple):
    """names: patterns of ``domain:type=TYPE,name=NAME`` with ``*``. reason: why, and what says the
    same instead.
    """

    names: tuple[str, ...]
    reason: str


ABSENT = (
    Absent(
        ("kafka.server:type=BrokerTopicMetrics,name=*MessageConversionsPerSec",
         "kafka.network:type=RequestMetrics,name=TemporaryMemoryBytes",
         "kafka.network:type=RequestMetrics,name=MessageConversionsTimeMs"),
        "Conversions between formats of messages are not counted.",
    ),
    Absent(
        ("kafka.server:type=BrokerTopicMetrics,name=NoKeyCompactedTopicRecordsPerSec",
         "kafka.server:type=BrokerTopicMetrics,name=Invalid*"),
        "Batches are rejected as a whole: FailedProduceRequestsPerSec, and by error ErrorsPerSec.",
    ),
    Absent(
        ("kafka.server:type=ReplicaManager,name=FailedIsrUpdatesPerSec",),
        "An update that fails is tried again until it succeeds; UnderReplicatedPartitions stays.",
    ),
    Absent(
        ("kafka.server:type=ReplicaManager,name=OfflineReplicaCount",
         "kafka.server:type=ReplicaManager,name=ProducerIdCount"),
        "Not counted. OfflineLogDirectoryCount says of failed directories, kafka-transactions.sh "
        "lists producers of a partition.",
    ),
    Absent(
        ("kafka.server:type=Produce,*", "kafka.server:type=Fetch,*", "kafka.server:type=Request,*"),
        "kbroker top and the console's page Quotas say what clients use and who has to wait; "
        "kbroker_throttled_responses_total counts.",
    ),
    Absent(
        ("kafka.server:type=*-coordinator-metrics,name=partition-load-time-*",),
        "kbroker_coordinator_load_microseconds_total by kbroker_coordinator_loads_total.",
    ),
    Absent(
        ("kafka.server:type=group-coordinator-metrics,name=*-rate",),
        "Prometheus makes rates of the counts: rate() of what ends in -count.",
    ),
    Absent(
        ("kafka.server:type=group-coordinator-metrics,name=num-partitions",
         "kafka.server:type=group-coordinator-metrics,name=event-*",
         "kafka.server:type=group-coordinator-metrics,name=batch-flush-time-ms",
         "kafka.server:type=group-coordinator-metrics,name=thread-idle-ratio-*",
         "kafka.controller:type=ControllerEventManager,*",
         "kafka.controller:type=ControllerChannelManager,*"),
        "Coordinators and the controller are no threads with queues of their own here: idle shares "
        "and RequestQueueTimeMs of their requests say how busy they are.",
    ),
    Absent(
        ("kafka.network:type=RequestMetrics,name=RequestBytes",),
        "kbroker_request_bytes_total has the sum of all APIs.",
    ),
    Absent(
        ("kafka.controller:type=KafkaController,name=*ToDeleteCount",
         "kafka.controller:type=KafkaController,name=*IneligibleToDeleteCount"),
        "Topics are deleted at once; what is left of one on a broker that is gone goes when it is "
        "back.",
    ),
    Absent(
        ("kafka.server:type=SessionExpireListener,name=SessionState",),
        "A word, of which Prometheus can make no number: kbroker_zookeeper_disconnected.",
    ),
    Absent(
        ("kafka.controller:type=KafkaController,name=FencedBrokerCount",
         "kafka.controller:type=KafkaController,name=MetadataErrorCount",
         "kafka.controller:type=KafkaController,name=Last*",
         "kafka.controller:type=KafkaController,name=TimedOutBrokerHeartbeatCount",
         "kafka.controller:type=KafkaController,name=NewActiveControllersCount",
         "kafka.server:type=broker-metadata-metrics,*", "kafka.server:type=raft-metrics,*",
         "kafka.server:type=MetadataLoader,*"),
        "Of KRaft, which this broker does not have: its metadata are in ZooKeeper, or in SQLite.",
    ),
    Absent(
        ("kafka.controller:type=ControllerStats,name=ElectionFromEligibleLeaderReplicasPerSec",
         "kafka.server:type=ShareGroupMetrics,*", "kafka.server:type=share-coordinator-metrics,*",
         "kafka.server:type=BrokerTopicMetrics,name=Remote*", "kafka.log.remote:*"),
        "Of eligible leader replicas, share groups and tiered storage, which this broker does not "
        "have.",
    ),
)  # fmt: skip
