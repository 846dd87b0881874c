"""The broker itself, requests and topics."""

from __future__ import annotations

from kbroker.config.key import (
    BOOLEAN,
    CLASS,
    CLUSTER_WIDE,
    HIGH,
    INT,
    LATER,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    STRING,
    UNUSED,
    Key,
)
from kbroker.config.table.rules import GZIP_LEVEL, IO_BY_CORES, NETWORK_BY_CORES

# fmt: off
GENERAL = (
    Key("broker.id", INT, -1, HIGH, synonyms=("broker.id", "node.id"),
        doc=
            "Id of this broker, unique in its cluster and stored permanently in meta.properties. "
            "-1 lets the broker choose one at its first start."),
    Key("node.id", INT, -1, HIGH, synonyms=("node.id", "broker.id"),
        doc=
            "Newer name of broker.id, as found in files written for KRaft. If both are set, they "
            "must agree."),
    Key("broker.id.generation.enable", BOOLEAN, True, MEDIUM,
        doc=
            "Whether a broker with broker.id -1 gets an id above reserved.broker.max.id. When "
            "false, broker.id must be set."),
    Key("reserved.broker.max.id", INT, 1000, MEDIUM, low=0,
        doc="Highest value that may be set as broker.id; generated ids start above it."),
    Key("broker.rack", STRING, None, MEDIUM,
        doc="Name of the rack or zone of this broker, as clients see it."),
    Key("num.network.threads", INT, NETWORK_BY_CORES, HIGH, low=1,
        doc="Number of network processes. Each owns its connections and serves every fetch; "
            "more of them help when many clients read, up to about half of the cores.",
        deviation=
            "by cores: half of them, at least 1, at most 8 (Kafka: 3). A thread costs Kafka "
            "little; each process here can use a whole core. A change needs a restart."),
    Key("num.io.threads", INT, IO_BY_CORES, HIGH, low=1,
        doc=
            "Number of io workers. Each owns its share of the partitions and does every append "
            "to them; more of them help when many partitions are written at once, up to the "
            "number of cores.",
        deviation=
            "by cores: one each, at most 8 (Kafka: 8). A change needs a restart, because "
            "partitions are distributed by this number."),
    Key("background.threads", INT, 10, HIGH, low=1, dynamic=CLUSTER_WIDE, status=UNUSED,
        doc=
            "Kafka's pool for background jobs such as file deletion. Here the io worker that "
            "owns a partition does them."),
    Key("num.recovery.threads.per.data.dir", INT, 1, HIGH, low=1, dynamic=CLUSTER_WIDE,
        doc=
            "How many logs of one data directory are recovered at once after an unclean stop. "
            "Each io worker recovers one of its logs per directory; a number above "
            "num.io.threads gives it threads for more, which helps where one reader does not "
            "keep the disk busy.",
        deviation=
            "at least one in each io worker; without effect at shutdown, when a whole file "
            "system is synced at once."),
    Key("early.start.listeners", STRING, None, HIGH, status=LATER,
        doc="Listeners that accept connections before the broker has joined its cluster."),
    Key("config.providers", LIST, (), LOW, status=UNUSED,
        doc=
            "Kafka's hook for reading values from elsewhere. kbroker's configuration never reads "
            "other files or runs code."),
    Key("request.timeout.ms", INT, 30_000, HIGH,
        doc=
            "How long one broker waits for the response of another, and how long a transaction "
            "waits for its replicas."),
    Key("message.max.bytes", INT, 1_048_588, HIGH, low=0, dynamic=CLUSTER_WIDE,
        doc=
            "Maximum size of a record batch as sent (compressed, with its header). A topic "
            "overrides it with max.message.bytes. Keep it below socket.request.max.bytes."),
    Key("fetch.max.bytes", INT, 57_671_680, MEDIUM, low=1024,
        doc=
            "Maximum bytes in one fetch response, whatever the client asks for. At least one "
            "batch is returned, even if it is larger."),
    Key("max.incremental.fetch.session.cache.slots", INT, 1000, MEDIUM, low=0,
        doc=
            "Maximum number of incremental fetch sessions. Clients without one send every "
            "partition in each fetch."),
    Key("max.request.partition.size.limit", INT, 2000, MEDIUM, low=1,
        doc="Maximum number of partitions in one response that describes topic partitions."),
    Key("queued.max.requests", INT, 500, HIGH, low=1, status=UNUSED,
        doc=
            "Kafka's limit on queued requests. kbroker limits their bytes: "
            "queued.max.request.bytes."),
    Key("queued.max.request.bytes", LONG, 268_435_456, MEDIUM,
        doc=
            "Maximum bytes of requests that a network process keeps in memory, rounded up to a "
            "power of two, plus an eighth for requests of up to 64 KiB. When it is reached, "
            "sockets are not read until responses have been sent. Never less than two requests "
            "of socket.request.max.bytes; -1 means the default.",
        deviation="256 MiB (Kafka: -1, no limit)"),
    Key("compression.type", STRING, "producer", HIGH,
        one_of=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), dynamic=CLUSTER_WIDE,
        doc=
            'How batches are stored: "producer" keeps them as they were sent, "uncompressed" '
            'decompresses them, a codec name recompresses them.',
        deviation="validated against the list of codecs"),
    Key("compression.gzip.level", INT, -1, MEDIUM, check=GZIP_LEVEL, dynamic=CLUSTER_WIDE,
        doc=
            "Level for batches that are recompressed with gzip: 1 (fast) to 9 (small), -1 for "
            "the codec's own choice."),
    Key("compression.lz4.level", INT, 9, MEDIUM, low=1, high=17, dynamic=CLUSTER_WIDE,
        doc="Level for batches that are recompressed with lz4: 1 to 17, where 9 is its fast mode."),
    Key("compression.zstd.level", INT, 3, MEDIUM, low=-131072, high=22, dynamic=CLUSTER_WIDE,
        doc=
            "Level for batches that are recompressed with zstd: 22 is smallest, negative values "
            "trade size for speed."),
    Key("fetch.purgatory.purge.interval.requests", INT, 1000, MEDIUM, status=UNUSED,
        doc=
            "Kafka purges completed fetches from purgatory after this many requests. Here a "
            "completed one is removed at once."),
    Key("producer.purgatory.purge.interval.requests", INT, 1000, MEDIUM, status=UNUSED,
        doc=
            "Kafka purges completed produces from purgatory after this many requests. Here a "
            "completed one is removed at once."),
    Key("delete.records.purgatory.purge.interval.requests", INT, 1, MEDIUM, status=UNUSED,
        doc=
            "Kafka purges completed record deletions from purgatory after this many requests. "
            "Here a completed one is removed at once."),
)

TOPICS = (
    Key("auto.create.topics.enable", BOOLEAN, True, HIGH,
        doc=
            "Create a topic when a client that allows it requests one that does not exist, with "
            "num.partitions and default.replication.factor."),
    Key("num.partitions", INT, 1, MEDIUM, low=1,
        doc="Partitions of a topic that is created without a partition count."),
    Key("default.replication.factor", INT, 1, MEDIUM,
        doc=
            "Replicas of a topic that is created without a replication factor. A topic cannot "
            "have more replicas than there are brokers."),
    Key("min.insync.replicas", INT, 1, HIGH, low=1, dynamic=CLUSTER_WIDE,
        doc="Replicas that must be in sync for a write with acks=all to be accepted: all, if "
            "there are fewer than this."),
    Key("delete.topic.enable", BOOLEAN, True, HIGH,
        doc="Whether topics may be deleted."),
    Key("create.topic.policy.class.name", CLASS, None, LOW,
        doc="Python class that may reject a new topic, as package.module.Class. Java classes are "
            "never loaded."),
    Key("alter.config.policy.class.name", CLASS, None, LOW,
        doc="Python class that may reject a configuration change, as package.module.Class. Java "
            "classes are never loaded."),
)

SECTIONS = (
    ("General", GENERAL),
    ("Topics", TOPICS),
)
