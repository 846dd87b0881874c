"""Listeners, connections and sockets."""

from __future__ import annotations

from kbroker.config.key import CLUSTER_WIDE, HIGH, INT, LATER, LONG, LOW, MEDIUM, STRING, Key
from kbroker.config.table.rules import HOST_COUNTS, PROTOCOL_MAP

# fmt: off
LISTENERS = (
    Key("listeners", STRING, None, HIGH,
        doc="Where the broker accepts connections, as NAME://host:port separated by commas. An "
            "empty host means every interface; port 0 lets the system choose.",
        deviation="without listeners or host.name only 127.0.0.1 is bound (Kafka: every "
                  "interface)"),
    Key("advertised.listeners", STRING, None, HIGH,
        doc="Addresses told to clients, as NAME://host:port, for machines behind NAT or in "
            "containers. When unset a client is told the address it reached.",
        deviation="when unset, the address the client reached (Kafka: listeners). Needs a "
                  "restart to change."),
    Key("listener.security.protocol.map", STRING,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL", LOW,
        check=PROTOCOL_MAP,
        doc="Security protocol of each listener name, as NAME:PROTOCOL pairs. Only PLAINTEXT is "
            "built.",
        deviation="needs a restart to change"),
    Key("host.name", STRING, "", HIGH,
        doc="Old way to name the address to bind; used when listeners is unset. Empty, if set "
            "so, means every interface.",
        deviation="when unset, 127.0.0.1"),
    Key("port", INT, 9092, HIGH, low=0, high=65535,
        doc="Old way to name the port; used when listeners is unset.",
        deviation="checked to be a port"),
    Key("advertised.host.name", STRING, None, HIGH,
        doc="Old way to name the host told to clients; used when advertised.listeners is unset."),
    Key("advertised.port", INT, None, HIGH, low=1, high=65535,
        doc="Old way to name the port told to clients; used when advertised.listeners is unset.",
        deviation="checked to be a port"),
    Key("control.plane.listener.name", STRING, None, HIGH, status=LATER,
        doc="Listener for requests of the controller alone, apart from the data."),
    Key("inter.broker.listener.name", STRING, None, MEDIUM, status=LATER,
        doc="Listener used between brokers."),
    Key("security.inter.broker.protocol", STRING, "PLAINTEXT", MEDIUM,
        one_of=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), status=LATER,
        doc="Security protocol used between brokers when inter.broker.listener.name is unset.",
        deviation="checked against the list of protocols"),
)

CONNECTIONS_AND_SOCKETS = (
    Key("socket.send.buffer.bytes", INT, 102_400, HIGH,
        doc="SO_SNDBUF of a client's socket; -1 leaves it to the operating system."),
    Key("socket.receive.buffer.bytes", INT, 102_400, HIGH,
        doc="SO_RCVBUF of a client's socket; -1 leaves it to the operating system."),
    Key("socket.request.max.bytes", INT, 104_857_600, HIGH, low=1,
        doc="Largest request accepted. A connection that announces more is closed before "
            "anything is allocated.",
        deviation="a request that lists more than 50,000 things, of all kinds together, is "
                  "refused as well, or more than three for each of partition.table.slots"),
    Key("socket.listen.backlog.size", INT, 1024, MEDIUM, low=1,
        doc="Connections the operating system holds until they are accepted, no more than its own "
            "limit (net.core.somaxconn). One above it tries again after a second.",
        deviation="1024 (Kafka: 50)"),
    Key("max.connections", INT, 15_000, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc="Most connections at once.",
        deviation="15,000 (Kafka: without bound), and at least 1"),
    Key("max.connections.per.ip", INT, 5000, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc="Most connections at once from one address; 0 only with "
            "max.connections.per.ip.overrides for those that may.",
        deviation="5,000 (Kafka: without bound)"),
    Key("max.connections.per.ip.overrides", STRING, "", MEDIUM, check=HOST_COUNTS,
        dynamic=CLUSTER_WIDE,
        doc="Exceptions to max.connections.per.ip, as address:number pairs separated by commas; "
            "host names are looked up at start and when the setting changes.",
        deviation="checked to be such pairs"),
    Key("max.connection.creation.rate", INT, 500, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc="Most new connections per second on each listener; more wait in the backlog.",
        deviation="500 per second (Kafka: without bound), and at least 1"),
    Key("connections.max.idle.ms", LONG, 600_000, MEDIUM,
        doc="A connection without a request for this long is closed; -1 never closes one."),
    Key("connection.failed.authentication.delay.ms", INT, 100, LOW, low=0, status=LATER,
        doc="How long the answer to a failed authentication is held back, against guessing."),
    Key("connections.max.reauth.ms", LONG, 0, MEDIUM, status=LATER,
        doc="Longest life of an authentication; 0 never asks again."),
    Key("socket.connection.setup.timeout.ms", LONG, 10_000, MEDIUM, status=LATER,
        doc="First timeout for connecting to another broker; it doubles with each failure."),
    Key("socket.connection.setup.timeout.max.ms", LONG, 127_000, MEDIUM, status=LATER,
        doc="Largest timeout for connecting to another broker."),
)

SECTIONS = (
    ("Listeners", LISTENERS),
    ("Connections and sockets", CONNECTIONS_AND_SOCKETS),
)
