"""ZooKeeper, and the KRaft settings that a newer file may hold."""

from __future__ import annotations

from kbroker.config.key import (
    BOOLEAN,
    HIGH,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    LOW,
    MEDIUM,
    PASSWORD,
    STRING,
    UNUSED,
    Key,
)

# fmt: off
ZOOKEEPER = (
    Key("zookeeper.connect", STRING, None, HIGH,
        doc=
            "Addresses of a ZooKeeper ensemble, host:port separated by commas, with an optional "
            "path at the end, which is created. Unset: the broker keeps its metadata in its own "
            "data directory, and is alone.",
        deviation="optional; without it the embedded store is used (Kafka: required)"),
    Key("zookeeper.session.timeout.ms", INT, 18_000, HIGH,
        doc="ZooKeeper session timeout; a broker without contact for longer is considered dead.",
        deviation="unset means 6000 if all brokers that are registered at the start are kbrokers"),
    Key("zookeeper.connection.timeout.ms", INT, None, HIGH,
        doc="Longest wait for a connection at the start; unset means the session timeout."),
    Key("zookeeper.sync.time.ms", INT, 2000, LOW, status=UNUSED,
        doc="How far a ZooKeeper follower may be behind. Kafka does not use it either."),
    Key("zookeeper.set.acl", BOOLEAN, False, HIGH,
        doc=
            "Create znodes that only this broker's identity in ZooKeeper may change. Needs TLS "
            "with a key store, or java.security.auth.login.config."),
    Key("zookeeper.max.in.flight.requests", INT, 10, HIGH, low=1,
        doc="Maximum requests in flight to ZooKeeper."),
    Key("zookeeper.ssl.client.enable", BOOLEAN, False, MEDIUM,
        doc="Connect to ZooKeeper over TLS."),
    Key("zookeeper.clientCnxnSocket", STRING, None, MEDIUM, status=UNUSED,
        doc="Java class of the connection. Java classes are never loaded."),
    Key("zookeeper.ssl.keystore.location", STRING, None, MEDIUM,
        doc="PEM file with the key and the certificate that this broker shows to ZooKeeper."),
    Key("zookeeper.ssl.keystore.password", PASSWORD, None, MEDIUM,
        doc="Password of that key."),
    Key("zookeeper.ssl.keystore.type", STRING, None, MEDIUM,
        doc="Format of that key store: PEM.",
        deviation="JKS and PKCS12 cannot be read"),
    Key("zookeeper.ssl.truststore.location", STRING, None, MEDIUM,
        doc=
            "PEM file with the certificates that ZooKeeper's are checked against. Unset means the "
            "authorities that the operating system trusts."),
    Key("zookeeper.ssl.truststore.password", PASSWORD, None, MEDIUM, status=UNUSED,
        doc="Password of that trust store. A PEM file with certificates has none."),
    Key("zookeeper.ssl.truststore.type", STRING, None, MEDIUM,
        doc="Format of that trust store: PEM.",
        deviation="JKS and PKCS12 cannot be read"),
    Key("zookeeper.ssl.protocol", STRING, "TLSv1.2", LOW,
        doc="TLS version offered to ZooKeeper: TLSv1.2 or TLSv1.3."),
    Key("zookeeper.ssl.enabled.protocols", LIST, None, LOW,
        doc="TLS versions offered to ZooKeeper; unset means zookeeper.ssl.protocol."),
    Key("zookeeper.ssl.cipher.suites", LIST, None, LOW,
        doc="Cipher suites offered to ZooKeeper.", deviation="must be unset: OpenSSL chooses"),
    Key("zookeeper.ssl.endpoint.identification.algorithm", STRING, "HTTPS", LOW,
        doc="Whether ZooKeeper's certificates must carry its host names."),
    Key("zookeeper.ssl.crl.enable", BOOLEAN, False, LOW,
        doc="Check ZooKeeper's certificates against revocation lists.",
        deviation="must be false"),
    Key("zookeeper.ssl.ocsp.enable", BOOLEAN, False, LOW,
        doc="Check ZooKeeper's certificates by OCSP.", deviation="must be false"),
    Key("zookeeper.metadata.migration.enable", BOOLEAN, False, HIGH, status=UNUSED,
        doc="Kafka's switch for moving from ZooKeeper to KRaft."),
    Key("zookeeper.metadata.migration.min.batch.size", INT, 200, MEDIUM, low=1, status=UNUSED,
        doc="Batch size of that move."),
)

KRAFT = (
    Key("process.roles", LIST, (), HIGH, status=UNUSED,
        doc=
            "Roles of a KRaft node. kbroker has no KRaft: with broker,controller it keeps its "
            "metadata in its own data directory and is alone; without zookeeper.connect, other "
            "roles are refused."),
    Key("controller.listener.names", LIST, (), HIGH, status=UNUSED,
        doc="Listeners of a KRaft controller. Listeners named here are not opened."),
    Key("controller.quorum.voters", LIST, (), HIGH, status=UNUSED,
        doc=
            "Voters of a KRaft quorum. Without zookeeper.connect, others than this node are "
            "refused."),
    Key("controller.quorum.bootstrap.servers", LIST, (), HIGH, status=UNUSED,
        doc=
            "Addresses for finding a KRaft quorum. Without zookeeper.connect, more than one is "
            "refused, and one that is none of this node's listeners for controllers."),
    Key("controller.quorum.election.timeout.ms", INT, 1000, HIGH, status=UNUSED,
        doc="KRaft election timeout."),
    Key("controller.quorum.fetch.timeout.ms", INT, 2000, HIGH, status=UNUSED,
        doc="KRaft fetch timeout."),
    Key("controller.quorum.election.backoff.max.ms", INT, 1000, HIGH, status=UNUSED,
        doc="KRaft backoff between elections."),
    Key("controller.quorum.append.linger.ms", INT, 25, MEDIUM, status=UNUSED,
        doc="KRaft linger time for appends."),
    Key("controller.quorum.request.timeout.ms", INT, 2000, MEDIUM, status=UNUSED,
        doc="KRaft request timeout."),
    Key("controller.quorum.retry.backoff.ms", INT, 20, LOW, status=UNUSED,
        doc="KRaft retry backoff."),
    Key("controller.quorum.auto.join.enable", BOOLEAN, False, LOW, status=UNUSED,
        doc="Whether a KRaft controller joins its quorum by itself."),
    Key("metadata.log.dir", STRING, None, HIGH, status=UNUSED,
        doc="Directory of KRaft's metadata log."),
    Key("metadata.log.segment.bytes", INT, 1_073_741_824, HIGH, low=12, status=UNUSED,
        doc="Segment size of KRaft's metadata log."),
    Key("metadata.log.segment.min.bytes", INT, 8_388_608, HIGH, low=12, status=UNUSED,
        doc="Minimum segment size of KRaft's metadata log."),
    Key("metadata.log.segment.ms", LONG, 604_800_000, HIGH, status=UNUSED,
        doc="Segment age of KRaft's metadata log."),
    Key("metadata.log.max.record.bytes.between.snapshots", LONG, 20_971_520, HIGH, low=1,
        status=UNUSED,
        doc="Bytes of metadata between two KRaft snapshots."),
    Key("metadata.log.max.snapshot.interval.ms", LONG, 3_600_000, HIGH, low=0, status=UNUSED,
        doc="Time between two KRaft snapshots."),
    Key("metadata.max.retention.bytes", LONG, 104_857_600, HIGH, status=UNUSED,
        doc="Size kept of KRaft's metadata log."),
    Key("metadata.max.retention.ms", LONG, 604_800_000, HIGH, status=UNUSED,
        doc="Age kept of KRaft's metadata log."),
    Key("metadata.max.idle.interval.ms", INT, 500, LOW, low=0, status=UNUSED,
        doc="How often an idle KRaft controller writes a no-op."),
    Key("broker.heartbeat.interval.ms", INT, 2000, MEDIUM, status=UNUSED,
        doc="Heartbeat interval of a KRaft broker."),
    Key("broker.session.timeout.ms", INT, 9000, MEDIUM, status=UNUSED,
        doc="Session timeout of a KRaft broker."),
    Key("initial.broker.registration.timeout.ms", INT, 60_000, MEDIUM, status=UNUSED,
        doc="Longest wait of a KRaft broker for its registration."),
    Key("server.max.startup.time.ms", LONG, LONG_MAX, MEDIUM, low=0, status=UNUSED,
        doc="Longest start of a KRaft broker."),
    Key("unstable.api.versions.enable", BOOLEAN, False, HIGH,
        doc=
            "Announce request versions that are still in development: InitProducerId 6, which "
            "two-phase commit needs."),
    Key("unstable.feature.versions.enable", BOOLEAN, False, HIGH, status=UNUSED,
        doc="Kafka's switch for features that are still in development."),
)

SECTIONS = (
    ("ZooKeeper", ZOOKEEPER),
    ("KRaft", KRAFT),
)
