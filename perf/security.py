"""kbroker beside Apache Kafka 3.9.1 over TLS and SASL: in turns, medians, ratios, bars.

    python perf/security.py                     every cell, medians of five
    python perf/security.py --cells tls_one16 --runs 3
    python perf/security.py --quick             toy size, to see that it all runs

As perf/compare.py does it, with an SSL and a SASL_SSL listener and P-256 certificates of one
authority (``kbroker certs``), TLS 1.3, and clients that check the broker's certificate. Topics are
created over a PLAINTEXT listener. Kafka has its three network threads; kbroker has its default,
and two network processes where connections are counted, as handshakes and logins are their work.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kbroker.client.admin import users as admin
from kbroker.client.connections.cluster import Cluster
from kbroker.security import certificates
from perf import secure_clients
from perf.bars import Cell, Figures, bars
from perf.brokers import Broker, KafkaBroker, KbrokerBroker, free_ports
from perf.cells import PLAIN, Size, measure_consume, measure_produce
from perf.compare import compare, options_of
from perf.frames import produce_frame, produce_response_prefix, random_values, record_batch
from perf.process_tree import Meter
from perf.topics import topic_of
from perf.waiting import wait_until

USER, PASSWORD = "perf", "perf-secret"
ITERATIONS = 4096
PRODUCE_VERSION = 9


class Listeners:
    """The ports and files of the secured listeners of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.tls_port, self.sasl_port = free_ports(2)
        authority = certificates.create_authority("perf")
        issued = authority.issue("broker", hosts=["127.0.0.1", "localhost"], server=True)
        self.ca_file, store = broker.home / "ca.crt", broker.home / "broker.pem"
        self.ca_file.write_bytes(authority.certificate)
        certificates.write_private(store, issued.pem)
        listeners = [
            f"SSL://127.0.0.1:{self.tls_port}",
            f"SASL_SSL://127.0.0.1:{self.sasl_port}",
        ]
        configuration = broker.configuration
        for name in ("listeners", "advertised.listeners"):
            if name in configuration:
                configuration[name] = ",".join([configuration[name], *listeners])
        if "listener.security.protocol.map" in configuration:
            configuration["listener.security.protocol.map"] += ",SSL:SSL,SASL_SSL:SASL_SSL"
        configuration |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca_file),
            "sasl.enabled.mechanisms": secure_clients.MECHANISM,
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "max.connection.creation.rate": "1000000",
            "max.connections.per.ip": "1000000",
        }
        if isinstance(broker, KbrokerBroker):
            configuration["max.connection.creation.rate.per.ip"] = "1000000"

    def settings(self) -> dict[str, str]:
        """Of librdkafka."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.tls_port}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.ca_file),
        }


class Secured(Broker):
    """A broker with such listeners, too."""

    def __init__(
        self, place: Path | str | None = None, overrides: dict[str, str] | None = None
    ) -> None:
        super().__init__(place, overrides)
        self.secured = Listeners(self)


class SecureKbroker(Secured, KbrokerBroker):
    pass


class SecureKafka(Secured, KafkaBroker):
    pass


BROKERS: dict[str, type[Broker]] = {"kbroker": SecureKbroker, "kafka": SecureKafka}


def listeners_of(broker: Broker) -> Listeners:
    assert isinstance(broker, Secured)
    return broker.secured


def with_tls(broker: Broker, parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a cell, with the settings of the TLS listener."""
    own = listeners_of(broker).settings()
    pairs = [f"{name}={value}" for name, value in own.items()]
    settings = [*parameters["settings"], *pairs]
    return {**parameters, "settings": settings, "consumer": own}


def measure_tls_produce(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    return measure_produce(broker, with_tls(broker, parameters), size)


def measure_tls_consume(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    return measure_consume(broker, with_tls(broker, parameters), size)


def measure_tls_requests(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """1-record requests by tls_load.c, each socket on a topic with a partition of its own."""
    batch = record_batch(random_values(1, 100, seed=1))
    with topic_of(broker, 1, "tls") as (topic, _):
        frames = [produce_frame(PRODUCE_VERSION, topic, 0, batch, acks=1)]
        prefix = produce_response_prefix(PRODUCE_VERSION, topic, 0)
        load, used = tls_load(broker, size, frames, prefix, parameters["sockets"])
    return {
        "requests_per_s": load["count"] / load["seconds"],
        "cpu_us_per_request": used.cpu_s / load["count"] * 1e6,
        "p50_us": load["p50_us"],
        "p99_us": load["p99_us"],
    }


def tls_load(
    broker: Broker,
    size: Size,
    frames: list[bytes],
    prefix: bytes,
    count: int,
    what: str = "load",
    user: str = "",
) -> tuple[dict[str, float], Meter]:
    """One run of tls_load.c, and what the broker used meanwhile. user: for logins."""
    secured, used = listeners_of(broker), Meter(broker.cpu_seconds)
    address = ("127.0.0.1", secured.sasl_port if user else secured.tls_port)
    load = secure_clients.tls_load(
        address, secured.ca_file, frames, prefix, count, size.seconds, size.warmup_s, used.mark,
        what=what, user=user,
    )  # fmt: skip
    return load, used


def per_connection(load: dict[str, float], used: Meter) -> Figures:
    return {
        "connections_per_s": load["count"] / load["seconds"],
        "cpu_ms_per_connection": used.cpu_s / load["count"] * 1e3,
        "client_cpu_ms": load["cpu_s"] / load["count"] * 1e3,
    }


def measure_handshakes(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """Connections with a full handshake and one ApiVersions request, by tls_load.c, which leaves
    out what only clients compute: it shares the processors with the broker.
    """
    frames = [secure_clients.api_versions_frame()]
    return per_connection(*tls_load(broker, size, frames, b"", parameters["threads"], "connect"))


def measure_logins(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """Connections over TLS with a login by SCRAM-SHA-512, by tls_load.c."""
    secured = listeners_of(broker)
    with Cluster(broker.bootstrap) as cluster:
        admin.set_password(cluster, USER, PASSWORD, [secure_clients.MECHANISM], ITERATIONS)
    login = secure_clients.Login(("127.0.0.1", secured.sasl_port), secured.ca_file, USER, PASSWORD)
    await_login(login)
    frames = [secure_clients.sasl_handshake_frame()]
    threads = parameters["threads"]
    return per_connection(*tls_load(broker, size, frames, login.salted, threads, "login", USER))


def await_login(login: secure_clients.Login) -> None:
    """A new credential takes a moment to be known. Raises TimeoutError."""
    last = ""

    def is_known() -> bool:
        nonlocal last
        try:
            login.run()
        except ValueError as error:
            last = str(error)
            return False
        return True

    wait_until(is_known, lambda: f"a login succeeds: {last}", pause_s=0.05)


# Of kbroker.
NETWORK = {"num.network.threads": "2"}
PER_CONNECTION = ("cpu_ms_per_connection", "client_cpu_ms")

CELLS = (
    Cell(
        "tls_produce100",
        "TLS 1.3: produce 100 B, acks=1, librdkafka's batches",
        measure_tls_produce,
        bars("records_per_s >= 1x", "cpu_s_per_gb <= 0.6x", "mb_per_s"),
        PLAIN,
    ),
    Cell(
        "tls_consume100",
        "TLS 1.3: consume 100 B from the page cache",
        measure_tls_consume,
        bars("records_per_s >= 1x", "cpu_s_per_gb <= 0.6x", "mb_per_s"),
        PLAIN,
    ),
    Cell(
        "tls_one16",
        "TLS 1.3: 1-record requests, 16 sockets with 1 in flight",
        measure_tls_requests,
        bars("requests_per_s >= 1.5x", "cpu_us_per_request", "p50_us", "p99_us"),
        {"sockets": 16},
    ),
    Cell(
        "tls_connect",
        "connections with a TLS 1.3 handshake and one request, 64 threads",
        measure_handshakes,
        bars("connections_per_s >= 2x", *PER_CONNECTION),
        {"threads": 64},
        NETWORK,
    ),
    Cell(
        "scram_connect",
        "connections over TLS 1.3 with SCRAM-SHA-512, 64 threads",
        measure_logins,
        bars("connections_per_s >= 1.5x", *PER_CONNECTION),
        {"threads": 64},
        NETWORK,
    ),
)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    return options_of(__doc__, CELLS, BROKERS).parse(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when nothing failed and, both brokers measured, every bar was cleared."""
    return compare(parse_arguments(arguments), CELLS, BROKERS, "-security")


if __name__ == "__main__":
    sys.exit(main())
