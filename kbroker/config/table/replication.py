"""Replication, leadership and quotas."""

from __future__ import annotations

from kbroker.config.key import (
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    HIGH,
    INT,
    INT_MAX,
    LATER,
    LONG,
    LONG_MAX,
    LOW,
    MEDIUM,
    STRING,
    UNUSED,
    Key,
)
from kbroker.config.table.rules import REPLICA_SELECTOR

# fmt: off
REPLICATION = (
    Key("num.replica.fetchers", INT, 1, HIGH, dynamic=CLUSTER_WIDE,
        doc="Connections of each io worker to each leader, over which it fetches."),
    Key("replica.lag.time.max.ms", LONG, 30_000, HIGH,
        doc="A follower that has not caught up for this long leaves the in-sync replicas."),
    Key("replica.lag.max.messages", LONG, 4000, HIGH, status=UNUSED,
        doc=
            "Limit of Kafka 0.8 on how many records a follower may be behind. Later versions go "
            "by time only."),
    Key("replica.socket.timeout.ms", INT, 30_000, HIGH,
        doc="Network timeout of replication requests; at least replica.fetch.wait.max.ms."),
    Key("replica.socket.receive.buffer.bytes", INT, 65_536, HIGH,
        doc="SO_RCVBUF of replication sockets; -1 for the operating system's choice."),
    Key("replica.fetch.max.bytes", INT, 1_048_576, MEDIUM, low=0,
        doc="Bytes that a follower requests per partition."),
    Key("replica.fetch.wait.max.ms", INT, 500, HIGH,
        doc=
            "Longest wait of a follower's fetch at the leader; below replica.lag.time.max.ms. Up "
            "to ten times as long, a sixth of that at most, if nothing was written for 5 s and "
            "replica.fetch.min.bytes is 1."),
    Key("replica.fetch.backoff.ms", INT, 1000, MEDIUM, low=0,
        doc="Backoff after a failed replication fetch."),
    Key("replica.fetch.min.bytes", INT, 1, HIGH,
        doc="Fewest bytes a follower's fetch waits for."),
    Key("replica.fetch.response.max.bytes", INT, 10_485_760, MEDIUM, low=0,
        doc="Bytes that a follower requests in one fetch, over all partitions."),
    Key("replica.selector.class", STRING, None, MEDIUM, check=REPLICA_SELECTOR,
        doc=
            "Rule by which the leader directs consumers to another replica. "
            "RackAwareReplicaSelector: to an in-sync one whose broker.rack is the consumer's "
            "client.rack. Without a value, consumers read from the leader.",
        deviation="Java classes are never loaded: others than Kafka's own selector are refused"),
    Key("num.replica.alter.log.dirs.threads", INT, None, HIGH, status=UNUSED,
        doc=
            "Threads that move replicas between data directories. Each io worker has one thread "
            "for the replicas it owns."),
    Key("unclean.leader.election.enable", BOOLEAN, False, HIGH, dynamic=CLUSTER_WIDE,
        doc=
            "Whether a replica that is not in sync may become leader when no other is left. This "
            "loses records but keeps the partition available."),
    Key("unclean.leader.election.interval.ms", LONG, 300_000, MEDIUM, low=1, status=LATER,
        doc="How often such elections are attempted."),
    Key("auto.leader.rebalance.enable", BOOLEAN, True, HIGH,
        doc="Whether leadership returns to the preferred replicas automatically."),
    Key("leader.imbalance.per.broker.percentage", INT, 10, HIGH,
        doc=
            "Percentage of a broker's partitions that may be led elsewhere before leadership is "
            "moved back."),
    Key("leader.imbalance.check.interval.seconds", LONG, 300, HIGH,
        doc="How often that percentage is checked."),
    Key("eligible.leader.replicas.enable", BOOLEAN, False, HIGH, status=LATER,
        doc="Keep track of replicas that left the ISR but hold all acknowledged records."),
    Key("inter.broker.protocol.version", STRING, "2.7-IV2", MEDIUM,
        doc=
            "Kafka version whose requests brokers use among themselves. It must be the same in "
            "all brokers of a cluster, except while it is being raised: 1.1 to 2.7-IV2. A broker "
            "without zookeeper.connect has no use for it.",
        deviation="other versions are refused in a cluster"),
    Key("controller.socket.timeout.ms", INT, 30_000, MEDIUM,
        doc="Network timeout of requests from the controller to brokers."),
    Key("controller.message.queue.size", INT, INT_MAX, LOW, status=UNUSED,
        doc="Queue length of Kafka 0.8 between controller and brokers."),
    Key("controlled.shutdown.enable", BOOLEAN, True, MEDIUM,
        doc=
            "Hand leadership over before stopping. A broker without zookeeper.connect has nobody "
            "to hand it to."),
    Key("controlled.shutdown.max.retries", INT, 3, MEDIUM,
        doc="Attempts at handing leadership over before stopping anyway."),
    Key("controlled.shutdown.retry.backoff.ms", LONG, 5000, MEDIUM,
        doc="Backoff between these attempts."),
)

QUOTAS = (
    Key("quota.producer.default", LONG, LONG_MAX, HIGH, low=1,
        doc=
            "Bytes per second that the producers of one client id may send if no other quota "
            "applies to them."),
    Key("quota.consumer.default", LONG, LONG_MAX, HIGH, low=1,
        doc=
            "Bytes per second that the consumers of one client id may read if no other quota "
            "applies to them."),
    Key("quota.window.num", INT, 11, LOW, low=1,
        doc="Samples of client quotas: a client may use at once what it gets in all but one."),
    Key("quota.window.size.seconds", INT, 1, LOW, low=1,
        doc="Length of one sample for client quotas."),
    Key("replication.quota.window.num", INT, 11, LOW, low=1,
        doc="Samples kept for replication quotas, at most 100."),
    Key("replication.quota.window.size.seconds", INT, 1, LOW, low=1,
        doc="Length of one sample for replication quotas."),
    Key("alter.log.dirs.replication.quota.window.num", INT, 11, LOW, low=1, status=UNUSED,
        doc="Samples kept for the quota on moves between directories."),
    Key("alter.log.dirs.replication.quota.window.size.seconds", INT, 1, LOW, low=1, status=UNUSED,
        doc="Length of one sample for the quota on moves between directories."),
    Key("controller.quota.window.num", INT, 11, LOW, low=1,
        doc=
            "Samples for the quota of changes to topics: a client may save up what it gets in "
            "them."),
    Key("controller.quota.window.size.seconds", INT, 1, LOW, low=1,
        doc="Length of one sample for the quota of changes to topics."),
    Key("client.quota.callback.class", CLASS, None, LOW, status=UNUSED,
        doc=
            "Java class that decides on quotas. Java classes are never loaded, so a start with "
            "one is refused."),
    Key("leader.replication.throttled.rate", LONG, LONG_MAX, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc="Bytes per second that the broker sends to followers of throttled replicas. While it "
            "has sent more, followers that are not in sync get no records of these."),
    Key("follower.replication.throttled.rate", LONG, LONG_MAX, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc="Bytes per second that the broker fetches for throttled replicas. While it has fetched "
            "more, it does not fetch those that are behind."),
    Key("replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX, MEDIUM, low=1,
        dynamic=CLUSTER_WIDE,
        doc="Bytes per second for moves of replicas between data directories. Each io worker has "
            "an equal share."),
)

SECTIONS = (
    ("Replication", REPLICATION),
    ("Quotas", QUOTAS),
)
