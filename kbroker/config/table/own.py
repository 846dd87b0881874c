"""Settings that kbroker has and Kafka does not."""

from __future__ import annotations

from kbroker.config.key import (
    BOOLEAN,
    CLUSTER_WIDE,
    HIGH,
    INT,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    PASSWORD,
    STRING,
    UNUSED,
    Key,
)

# fmt: off
KBROKER_S_OWN = (
    Key("cluster.features.enable", BOOLEAN, False, HIGH,
        doc=
            "Whether the controller of a new cluster through ZooKeeper enables the features that "
            "Kafka 2.7 does not know (consumer groups of KIP-848, transactions of KIP-890), once "
            "all its brokers are kbrokers. No Kafka 2.7 can join it afterwards. Without it, "
            "kafka-features.sh enables them. A single broker always has them."),
    Key("failover.fast", BOOLEAN, True, MEDIUM,
        doc=
            "Whether a broker of a cluster counts another one as gone before its session has "
            "ended: when its connections have been closed, nothing listens at its address any "
            "more, and all other kbrokers that can be asked agree. Without it, a broker that was "
            "killed is waited for as long as a session lasts."),
    Key("metadata.store", STRING, "embedded", HIGH, one_of=("embedded",), status=UNUSED,
        doc=
            "Topics, settings and broker registrations are kept in a database file in the first "
            "data directory, or in ZooKeeper with zookeeper.connect."),
    Key("java.security.auth.login.config", STRING, None, MEDIUM,
        doc=
            "JAAS file. Its section Client has the credentials for ZooKeeper: a "
            "DigestLoginModule with username and password, which needs the package pure-sasl. Its "
            "section KafkaServer, or LISTENER.KafkaServer in lower case, has what "
            "sasl.jaas.config would, where that is unset. Kafka takes this as an option of Java."),
    Key("sasl.oauthbearer.allowed.urls", LIST, (), MEDIUM,
        doc=
            "The URLs that sasl.oauthbearer.jwks.endpoint.url may have. Kafka 4.0 takes this as an "
            "option of Java."),
    Key("runtime.dir", STRING, None, LOW,
        doc=
            "Directory for the sockets between the processes, private to the broker's user: a "
            "directory that another user owns or can write to is refused. Unset means a separate "
            "one for each data directory, below $XDG_RUNTIME_DIR (which is removed with the "
            "user's last session), or else /run for root and /tmp for others. No cleanup job may "
            "remove files from it."),
    Key("metrics.port", INT, 9644, MEDIUM, low=-1, high=65535,
        doc=
            "Port of the HTTP server for /metrics and /health; 0 lets the operating system "
            "choose, -1 disables it. If the setting is unset and 9644 is in use, the operating "
            "system chooses."),
    Key("metrics.host", STRING, "127.0.0.1", MEDIUM,
        doc="Address the HTTP server for metrics binds."),
    Key("console.enable", STRING, "loopback", MEDIUM, one_of=("loopback", "true", "false"),
        doc=
            "Whether the HTTP server for metrics serves the web console and its API "
            "(docs/console.md), which need the extra console. loopback: only if metrics.host is a "
            "loopback address. Passwords of users cross the network in the clear: with true, let "
            "only a proxy with TLS reach metrics.port."),
    Key("console.hosts", LIST, (), LOW,
        doc=
            "Names by which browsers and scrapers reach metrics.port, besides IP addresses, "
            "localhost, the name of the machine and those of listeners: requests for other names "
            "are rejected, as a page of another site may have made them. * is any name."),
    Key("console.read.only", BOOLEAN, False, MEDIUM,
        doc=
            "Whether the console and its API only show: what would change anything, or write "
            "records, is rejected. Clients are not affected."),
    Key("console.schema.registry.url", STRING, None, MEDIUM,
        doc=
            "The schema registry whose schemas the console decodes keys and values with: Avro, "
            "Protobuf and JSON Schema, as Confluent's serializers write them. It needs the extra "
            "registry. Without it, they are shown as bytes."),
    Key("console.schema.registry.basic.auth.user.info", PASSWORD, None, LOW,
        doc=
            "The user name and the password for that registry, as name:password."),
    Key("metrics.names", LIST, ("jmx", "exporter", "native"), MEDIUM,
        one_of=("jmx", "exporter", "native", "confluent", "histograms"),
        doc=
            "The names that /metrics has: those of Prometheus' JMX exporter with its rules for "
            "Kafka (jmx; Strimzi's, too), of kafka_exporter (exporter), this broker's own "
            "(native), those of Confluent's dashboards where they differ (confluent), and the "
            "times of requests as histograms of Prometheus (histograms)."),
    Key("metrics.group.partitions.max", INT, 50_000, LOW, low=0,
        doc=
            "With more committed offsets on this broker, /metrics has sums by group and topic "
            "only, and no lag of single partitions."),
    Key("metrics.partitions.max", INT, 20_000, LOW, low=0,
        doc=
            "With more replicas on this broker, /metrics has sums by topic only, and no series of "
            "single partitions."),
    Key("log.format", STRING, "text", MEDIUM, one_of=("text", "json"),
        doc=
            "How the broker writes its own log to stderr: as text, or each line as a JSON object "
            "with ts, level, process, pid, logger, event (the same for all lines of a kind), "
            "message and args. What is written before the configuration is read, and the stacks "
            "of a process that has crashed, are text in any case."),
    Key("slow.request.log.ms", INT, -1, LOW, low=-1, dynamic=CLUSTER_WIDE,
        doc=
            "A request that takes longer than this is logged, with the time of its stages. The "
            "time for which a fetch waits for data does not count. At most 40 a second are logged "
            "by each network process, the slowest; of others the number is. -1: none."),
    Key("max.decompressed.message.bytes", INT, 67_108_864, HIGH, low=1, dynamic=CLUSTER_WIDE,
        doc=
            "Maximum size of a batch after decompression; a larger one is rejected before it is "
            "decompressed that far."),
    Key("log.check.io.max.bytes.per.second", LONG, 4_194_304, LOW, low=0, dynamic=CLUSTER_WIDE,
        doc=
            "How fast the io workers together check, in the background, batches that were "
            "written before the broker was started. Batches that they have not reached are "
            "checked when they are first read. 0: only then."),
    Key("max.connection.creation.rate.per.ip", INT, 100, MEDIUM, low=1, dynamic=CLUSTER_WIDE,
        doc="Maximum new connections per second from one address; loopback is exempt."),
    Key("connection.first.request.timeout.ms", INT, 30_000, MEDIUM, low=1,
        doc="How long a new connection may take to send its first request."),
    Key("connection.request.timeout.ms", INT, 60_000, MEDIUM, low=1,
        doc="How long a request may take to arrive completely."),
    Key("connection.write.timeout.ms", INT, 60_000, MEDIUM, low=1,
        doc="A client that reads nothing of a pending response for this long is disconnected."),
    Key("kbroker.tail.repair.wait.ms", INT, 10_000, MEDIUM, low=0,
        doc=
            "After a power failure, or with a log directory that was lost or restored, a broker "
            "that is elected asks the other replicas of a partition for its records before it "
            "leads. How long it waits for replicas that do not answer; then it leads with what it "
            "has, as Kafka does at once. "
            "If they may have records that min.insync.replicas replicas have acknowledged, it "
            "waits on, unless unclean.leader.election.enable is set."),
    Key("partition.table.slots", INT, 16_384, LOW, low=1, high=1048576,
        doc=
            "Maximum number of replicas on this broker. Each has a fixed slot in shared memory: "
            "0.5 KiB, and 64 bytes more for each network process."),
    Key("shared.memory.mode", STRING, None, LOW, one_of=("0600", "0640", "0644"),
        doc=
            "Who may look at this broker through /dev/shm with kbroker top, status --local and "
            "bundle: its user alone (0600), a group as well (0640), or every user of the machine "
            "(0644). They see settings without passwords, names of topics and clients, and "
            "figures, but no records. Unset means 0640 if shared.memory.group is set, or else "
            "0600."),
    Key("shared.memory.group", STRING, None, LOW,
        doc=
            "The group, by name or number, of the shared memory in /dev/shm, for a user who "
            "monitors this broker. The broker's user must be in it. Unset means the broker's own "
            "group."),
    Key("worker.restart.backoff.ms", INT, 100, LOW, low=1,
        doc=
            "Delay before a process that died is restarted; it doubles while the process keeps "
            "dying before it serves. After a process has served, the delay is one second at most; "
            "after 30 seconds of service there is none."),
    Key("worker.restart.backoff.max.ms", INT, 10_000, LOW, low=1,
        doc="Maximum of that delay."),
    Key("shutdown.timeout.ms", INT, 30_000, LOW, low=1,
        doc=
            "How long the processes may take for a clean stop before they are killed; an idle "
            "broker needs less than a second. A service manager must wait for longer "
            "(TimeoutStopSec, docker stop -t). A third of it is for responses to what producers "
            "have sent, and half of it for io workers, which sync the logs: one that is killed "
            "leaves no clean-shutdown marker, so that the next start recovers its logs. They get "
            "300 ms more, and a controller process that is still ending its ZooKeeper "
            "session 1.2 s: until that session has ended, other brokers count this one as live."),
)

SECTIONS = (
    ("kbroker's own", KBROKER_S_OWN),
)
