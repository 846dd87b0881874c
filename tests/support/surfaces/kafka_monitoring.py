"""The MBeans of brokers that Kafka's pages on monitoring name, of 2.7 and of 4.3.

As ``type.name`` below their domain, ``type.attribute`` of those that have attributes. Left out are
those of clients, Connect, Streams and the JVM, which no broker has.
"""

from __future__ import annotations

BOTH = {
    "kafka.server": """
        BrokerTopicMetrics.MessagesInPerSec BrokerTopicMetrics.BytesInPerSec
        BrokerTopicMetrics.ReplicationBytesInPerSec BrokerTopicMetrics.BytesOutPerSec
        BrokerTopicMetrics.ReplicationBytesOutPerSec BrokerTopicMetrics.BytesRejectedPerSec
        BrokerTopicMetrics.TotalProduceRequestsPerSec BrokerTopicMetrics.TotalFetchRequestsPerSec
        BrokerTopicMetrics.FailedProduceRequestsPerSec BrokerTopicMetrics.FailedFetchRequestsPerSec
        BrokerTopicMetrics.ProduceMessageConversionsPerSec
        BrokerTopicMetrics.FetchMessageConversionsPerSec
        BrokerTopicMetrics.NoKeyCompactedTopicRecordsPerSec
        BrokerTopicMetrics.InvalidMagicNumberRecordsPerSec
        BrokerTopicMetrics.InvalidMessageCrcRecordsPerSec
        BrokerTopicMetrics.InvalidOffsetOrSequenceRecordsPerSec
        ReplicaManager.UnderReplicatedPartitions ReplicaManager.UnderMinIsrPartitionCount
        ReplicaManager.AtMinIsrPartitionCount ReplicaManager.PartitionCount
        ReplicaManager.LeaderCount ReplicaManager.IsrShrinksPerSec ReplicaManager.IsrExpandsPerSec
        ReplicaManager.FailedIsrUpdatesPerSec ReplicaManager.OfflineReplicaCount
        ReplicaFetcherManager.MaxLag FetcherLagMetrics.ConsumerLag
        DelayedOperationPurgatory.PurgatorySize KafkaRequestHandlerPool.RequestHandlerAvgIdlePercent
        socket-server-metrics.expired-connections-killed-count
        Produce.byte-rate Produce.throttle-time Fetch.byte-rate Fetch.throttle-time
        Request.request-time Request.throttle-time Request.exempt-throttle-time
        group-coordinator-metrics.partition-load-time-max
        group-coordinator-metrics.partition-load-time-avg
        transaction-coordinator-metrics.partition-load-time-max
        transaction-coordinator-metrics.partition-load-time-avg
        KafkaServer.linux-disk-read-bytes KafkaServer.linux-disk-write-bytes
    """,
    "kafka.network": """
        RequestMetrics.RequestsPerSec RequestMetrics.ErrorsPerSec RequestMetrics.RequestBytes
        RequestMetrics.TemporaryMemoryBytes RequestMetrics.MessageConversionsTimeMs
        RequestMetrics.TotalTimeMs RequestMetrics.RequestQueueTimeMs RequestMetrics.LocalTimeMs
        RequestMetrics.RemoteTimeMs RequestMetrics.ResponseQueueTimeMs
        RequestMetrics.ResponseSendTimeMs RequestChannel.RequestQueueSize
        SocketServer.NetworkProcessorAvgIdlePercent SocketServer.ExpiredConnectionsKilledCount
    """,
    "kafka.controller": """
        ControllerStats.LeaderElectionRateAndTimeMs ControllerStats.UncleanLeaderElectionsPerSec
        KafkaController.ActiveControllerCount KafkaController.TopicsToDeleteCount
        KafkaController.ReplicasToDeleteCount KafkaController.TopicsIneligibleToDeleteCount
        KafkaController.ReplicasIneligibleToDeleteCount
        ControllerEventManager.EventQueueSize ControllerEventManager.EventQueueTimeMs
        ControllerChannelManager.RequestRateAndQueueTimeMs
        KafkaController.OfflinePartitionsCount KafkaController.PreferredReplicaImbalanceCount
        KafkaController.GlobalTopicCount KafkaController.GlobalPartitionCount
    """,
    "kafka.log": "LogFlushStats.LogFlushRateAndTimeMs LogManager.OfflineLogDirectoryCount",
}
OF_2_7 = {
    "kafka.server": """
        ZooKeeperClientMetrics.ZooKeeperRequestLatencyMs SessionExpireListener.SessionState
        SessionExpireListener.ZooKeeperExpiresPerSec
    """,
}
OF_4_3 = {
    "kafka.server": """
        ReplicaManager.ProducerIdCount
        group-coordinator-metrics.num-partitions group-coordinator-metrics.event-queue-size
        group-coordinator-metrics.event-queue-time-ms
        group-coordinator-metrics.event-processing-time-ms
        group-coordinator-metrics.event-purgatory-time-ms
        group-coordinator-metrics.batch-flush-time-ms
        group-coordinator-metrics.thread-idle-ratio-min
        group-coordinator-metrics.thread-idle-ratio-avg
        group-coordinator-metrics.group-count group-coordinator-metrics.consumer-group-count
        group-coordinator-metrics.consumer-group-rebalance-rate
        group-coordinator-metrics.consumer-group-rebalance-count
        group-coordinator-metrics.offset-commit-rate group-coordinator-metrics.offset-commit-count
        group-coordinator-metrics.offset-expiration-rate
        group-coordinator-metrics.offset-expiration-count
        BrokerTopicMetrics.RemoteFetchBytesPerSec BrokerTopicMetrics.RemoteCopyBytesPerSec
        broker-metadata-metrics.last-applied-record-offset
        broker-metadata-metrics.metadata-load-error-count
        raft-metrics.current-state raft-metrics.current-leader raft-metrics.high-watermark
        MetadataLoader.CurrentMetadataVersion
        ShareGroupMetrics.PartitionLoadTimeMs share-coordinator-metrics.write-rate
    """,
    "kafka.controller": """
        KafkaController.ActiveBrokerCount KafkaController.FencedBrokerCount
        KafkaController.MetadataErrorCount KafkaController.LastAppliedRecordOffset
        KafkaController.LastCommittedRecordOffset KafkaController.TimedOutBrokerHeartbeatCount
        KafkaController.NewActiveControllersCount
        ControllerEventManager.EventQueueProcessingTimeMs
        ControllerStats.ElectionFromEligibleLeaderReplicasPerSec
    """,
    "kafka.coordinator.group": "GroupMetadataManager.NumOffsets",
    "kafka.log.remote": "RemoteLogManager.RemoteLogManagerTasksAvgIdlePercent",
}


def names() -> set[str]:
    """All of them, as ``domain:type=TYPE,name=NAME``."""
    return {
        f"{domain}:type={place.partition('.')[0]},name={place.partition('.')[2]}"
        for some in (BOTH, OF_2_7, OF_4_3)
        for domain, text in some.items()
        for place in text.split()
    }
