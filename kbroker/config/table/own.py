"""Settings that kbroker has and Kafka does not."""

from __future__ import annotations

from kbroker.config.key import CLUSTER_WIDE, HIGH, INT, LONG, LOW, MEDIUM, STRING, Key

# fmt: off
KBROKER_S_OWN = (
    Key("metadata.store", STRING, "embedded", HIGH, one_of=("embedded",),
        doc='Where topics, settings and broker registrations are kept. "embedded" is a database '
            'file in the first data directory.'),
    Key("runtime.dir", STRING, None, LOW,
        doc="Directory for the sockets between the processes, private to the broker's user: "
            "another user's, or one that others can write to, is refused. "
            "Unset means one of its own for each data directory, below $XDG_RUNTIME_DIR (which goes"
            " with the user's last session), or else /run for root and /tmp for others. Nothing may"
            " tidy it up."),
    Key("metrics.port", INT, 9644, MEDIUM, low=-1, high=65535,
        doc="Port of the HTTP server for /metrics and /health; 0 lets the system choose, -1 "
            "turns it off. If nothing is set and 9644 is taken, the system chooses."),
    Key("metrics.host", STRING, "127.0.0.1", MEDIUM,
        doc="Address the HTTP server for metrics binds."),
    Key("max.decompressed.message.bytes", INT, 67_108_864, HIGH, low=1, dynamic=CLUSTER_WIDE,
        doc="Most bytes a compressed batch may unpack to; a batch that would exceed it is "
            "refused before it does."),
    Key("log.check.io.max.bytes.per.second", LONG, 4_194_304, LOW, low=0, dynamic=CLUSTER_WIDE,
        doc="How fast the io workers together check, in the background, batches that were written "
            "before the broker was started. What they have not checked yet is checked when it is "
            "first read. 0: only then."),
    Key("max.connection.creation.rate.per.ip", INT, 100, MEDIUM, low=1, dynamic=CLUSTER_WIDE,
        doc="Most new connections per second from one address; loopback is exempt."),
    Key("connection.first.request.timeout.ms", INT, 30_000, MEDIUM, low=1,
        doc="A new connection must have sent its first request by then."),
    Key("connection.request.timeout.ms", INT, 60_000, MEDIUM, low=1,
        doc="A request that has begun to arrive must be complete by then."),
    Key("connection.write.timeout.ms", INT, 60_000, MEDIUM, low=1,
        doc="A client that takes no byte of a waiting answer for this long is disconnected."),
    Key("partition.table.slots", INT, 16_384, LOW, low=1, high=1048576,
        doc="Most replicas this broker can hold. Each costs a fixed slot in shared memory, paid "
            "for only when used."),
    Key("worker.restart.backoff.ms", INT, 100, LOW, low=1,
        doc="Pause before a process that died is started again; it doubles while the process "
            "keeps dying. One that served rests for no longer than it served, or a second; after "
            "30 seconds of service the pauses begin anew."),
    Key("worker.restart.backoff.max.ms", INT, 10_000, LOW, low=1,
        doc="Longest such pause."),
    Key("shutdown.timeout.ms", INT, 1500, LOW, low=1,
        doc="How long the processes have for a clean stop before they are killed. A third of it is "
            "for answers to what producers have sent. Io workers that still sync logs have 300 ms "
            "more."),
)

SECTIONS = (
    ("kbroker's own", KBROKER_S_OWN),
)
