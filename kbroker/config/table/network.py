"""Listeners, connections and sockets."""

from __future__ import annotations

from kbroker.config.key import CLUSTER_WIDE, HIGH, INT, LATER, LONG, LOW, MEDIUM, STRING, Key
from kbroker.config.table.rules import HOST_COUNTS, PROTOCOL_MAP

# fmt: off
LISTENERS = (
    Key("listeners", STRING, None, HIGH,
        doc=
            "Where the broker accepts connections, as NAME://host:port separated by commas. An "
            "empty host means every interface; port 0 lets the operating system choose.",
        deviation="without listeners or host.name only 127.0.0.1 is bound (Kafka: every "
                  "interface)"),
    Key("advertised.listeners", STRING, None, HIGH,
        doc=
            "Addresses that clients are given, as NAME://host:port, for machines behind NAT or "
            "in containers. When unset, a client is given the address it connected to.",
        deviation=
            "when unset, the address that the client connected to (Kafka: listeners). A change "
            "needs a restart."),
    Key("listener.security.protocol.map", STRING,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL", LOW,
        check=PROTOCOL_MAP,
        doc=
            "Security protocol of each listener name, as NAME:PROTOCOL pairs. A protocol is "
            "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
        deviation="needs a restart to change"),
    Key("host.name", STRING, "", HIGH,
        doc=
            "Deprecated: the address to bind when listeners is unset. An empty value means every "
            "interface.",
        deviation="when unset, 127.0.0.1"),
    Key("port", INT, 9092, HIGH, low=0, high=65535,
        doc="Deprecated: the port to bind when listeners is unset.",
        deviation="validated as a port"),
    Key("advertised.host.name", STRING, None, HIGH,
        doc="Deprecated: the host that clients are given when advertised.listeners is unset."),
    Key("advertised.port", INT, None, HIGH, low=1, high=65535,
        doc="Deprecated: the port that clients are given when advertised.listeners is unset.",
        deviation="validated as a port"),
    Key("control.plane.listener.name", STRING, None, HIGH,
        doc=
            "Listener by which a controller reaches brokers, if it is another one than "
            "inter.broker.listener.name."),
    Key("inter.broker.listener.name", STRING, None, MEDIUM,
        doc="Listener used between brokers."),
    Key("security.inter.broker.protocol", STRING, "PLAINTEXT", MEDIUM,
        one_of=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        doc=
            "When inter.broker.listener.name is unset, the listener of this name is used between "
            "brokers.",
        deviation="validated against the list of protocols"),
)

CONNECTIONS_AND_SOCKETS = (
    Key("socket.send.buffer.bytes", INT, 102_400, HIGH,
        doc="SO_SNDBUF of a client's socket; -1 leaves it to the operating system."),
    Key("socket.receive.buffer.bytes", INT, 102_400, HIGH,
        doc="SO_RCVBUF of a client's socket; -1 leaves it to the operating system."),
    Key("socket.request.max.bytes", INT, 104_857_600, HIGH, low=1,
        doc="Largest request accepted. A connection that announces more is closed before "
            "anything is allocated.",
        deviation=
            "a request with more than 50,000 items in total, or more than three for each of "
            "partition.table.slots, is rejected as well"),
    Key("socket.listen.backlog.size", INT, 1024, MEDIUM, low=1,
        doc=
            "Connections that the operating system queues until they are accepted, up to its own "
            "limit (net.core.somaxconn). A client above that retries after a second.",
        deviation="1024 (Kafka: 50)"),
    Key("max.connections", INT, 15_000, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc="Maximum number of connections.",
        deviation="15,000 (Kafka: no limit), and at least 1"),
    Key("max.connections.per.ip", INT, 5000, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc=
            "Maximum number of connections from one address; 0 only together with "
            "max.connections.per.ip.overrides for the addresses that may connect.",
        deviation="5,000 (Kafka: no limit)"),
    Key("max.connections.per.ip.overrides", STRING, "", MEDIUM, check=HOST_COUNTS,
        dynamic=CLUSTER_WIDE,
        doc=
            "Exceptions to max.connections.per.ip, as address:number pairs separated by commas; "
            "host names are resolved at start and when the setting changes.",
        deviation="validated as such pairs"),
    Key("max.connection.creation.rate", INT, 500, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc=
            "Maximum new connections per second on each listener; further ones wait in the "
            "backlog.",
        deviation="500 per second (Kafka: no limit), and at least 1"),
    Key("connections.max.idle.ms", LONG, 600_000, MEDIUM,
        doc="A connection without a request for this long is closed; -1 never closes one."),
    Key("connection.failed.authentication.delay.ms", INT, 100, LOW, low=0,
        doc="How long the response to a failed authentication is delayed, to slow down guessing."),
    Key("connections.max.reauth.ms", LONG, 0, MEDIUM,
        doc="Maximum lifetime of an authenticated session; 0 never re-authenticates."),
    Key("socket.connection.setup.timeout.ms", LONG, 10_000, MEDIUM, low=1,
        doc="Timeout for connecting to another broker.",
        deviation="does not grow with failures"),
    Key("socket.connection.setup.timeout.max.ms", LONG, 127_000, MEDIUM, status=LATER,
        doc="Maximum timeout for connecting to another broker."),
)

SECTIONS = (
    ("Listeners", LISTENERS),
    ("Connections and sockets", CONNECTIONS_AND_SOCKETS),
)
