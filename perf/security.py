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
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kbroker.client.admin import users as admin
from kbroker.client.connections.cluster import Cluster
from kbroker.security import certificates
from perf import compare, secure_clients
from perf.brokers import Broker, KafkaBroker, KbrokerBroker, free_ports
from perf.cells import (
    QUICK,
    Bar,
    Cell,
    Figures,
    Size,
    at_least,
    measure_consume,
    measure_produce,
)
from perf.frames import produce_frame, produce_response_prefix, random_values, record_batch
from perf.kafka_distribution import ROOT, VERSION
from perf.raw_client import wait_until_writable
from perf.topics import create_topic, delete_topic, fresh_name

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
        configuration = broker.configuration  # type: ignore[attr-defined]
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


class SecureKbroker(KbrokerBroker):
    def __init__(
        self, place: Path | str | None = None, overrides: dict[str, str] | None = None
    ) -> None:
        super().__init__(place, overrides)
        self.secured = Listeners(self)


class SecureKafka(KafkaBroker):
    def __init__(
        self, place: Path | str | None = None, overrides: dict[str, str] | None = None
    ) -> None:
        super().__init__(place, overrides)
        self.secured = Listeners(self)


BROKERS: dict[str, Any] = {"kbroker": SecureKbroker, "kafka": SecureKafka}


def listeners_of(broker: Broker) -> Listeners:
    found: Listeners = broker.secured  # type: ignore[attr-defined]
    return found


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
    secured, marks = listeners_of(broker), []
    topic = fresh_name("tls")
    leaders = create_topic(broker.bootstrap, topic, 1)
    batch = record_batch(random_values(1, 100, seed=1))
    try:
        wait_until_writable(leaders, topic)
        found = secure_clients.tls_load(
            ("127.0.0.1", secured.tls_port),
            secured.ca_file,
            [produce_frame(PRODUCE_VERSION, topic, 0, batch, acks=1)],
            produce_response_prefix(PRODUCE_VERSION, topic, 0),
            parameters["sockets"],
            size.seconds,
            size.warmup_s,
            lambda: marks.append(broker.cpu_seconds()),
        )
    finally:
        delete_topic(broker.bootstrap, topic)
    return {
        "requests_per_s": found["count"] / found["seconds"],
        "cpu_us_per_request": (marks[1] - marks[0]) / found["count"] * 1e6,
        "p50_us": found["p50_us"],
        "p99_us": found["p99_us"],
    }


def measure_handshakes(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """Connections with a full handshake and one ApiVersions request, by tls_load.c, which leaves
    out what only clients compute: it shares the processors with the broker.
    """
    secured, marks = listeners_of(broker), []
    found = secure_clients.tls_load(
        ("127.0.0.1", secured.tls_port),
        secured.ca_file,
        [secure_clients.api_versions_frame()],
        b"",
        parameters["threads"],
        size.seconds,
        size.warmup_s,
        lambda: marks.append(broker.cpu_seconds()),
        what="connect",
    )
    return {
        "connections_per_s": found["count"] / found["seconds"],
        "cpu_ms_per_connection": (marks[1] - marks[0]) / found["count"] * 1e3,
        "client_cpu_ms": found["cpu_s"] / found["count"] * 1e3,
    }


def measure_logins(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """Connections over TLS with a login by SCRAM-SHA-512, by tls_load.c."""
    secured, marks = listeners_of(broker), []
    with Cluster(broker.bootstrap) as cluster:
        admin.set_password(cluster, USER, PASSWORD, [secure_clients.MECHANISM], ITERATIONS)
    login = secure_clients.Login(("127.0.0.1", secured.sasl_port), secured.ca_file, USER, PASSWORD)
    await_login(login)
    found = secure_clients.tls_load(
        ("127.0.0.1", secured.sasl_port),
        secured.ca_file,
        [secure_clients.sasl_handshake_frame()],
        login.salted,
        parameters["threads"],
        size.seconds,
        size.warmup_s,
        lambda: marks.append(broker.cpu_seconds()),
        what="login",
        user=USER,
    )
    return {
        "connections_per_s": found["count"] / found["seconds"],
        "cpu_ms_per_connection": (marks[1] - marks[0]) / found["count"] * 1e3,
        "client_cpu_ms": found["cpu_s"] / found["count"] * 1e3,
    }


def await_login(login: secure_clients.Login, seconds: float = 30.0) -> None:
    """A new credential takes a moment to be known. Raises what the last login failed with."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            login.run()
            return
        except ValueError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


CPU_PER_GB = Bar("cpu_s_per_gb", "CPU s/GB", 0.6)
# Of kbroker, in a cell's parameters.
NETWORK = "num.network.threads"
PER_CONNECTION = (
    ("cpu_ms_per_connection", "CPU ms/connection"),
    ("client_cpu_ms", "client's CPU ms/connection"),
)
LIBRDKAFKA = {"record_size": 100, "partitions": 4, "settings": ["acks=1"]}

CELLS = (
    Cell(
        "tls_produce100",
        "TLS 1.3: produce 100 B, acks=1, librdkafka's batches",
        measure_tls_produce,
        (at_least("records_per_s", "records/s", 1.0), CPU_PER_GB),
        LIBRDKAFKA,
        (("mb_per_s", "MB/s"),),
    ),
    Cell(
        "tls_consume100",
        "TLS 1.3: consume 100 B from the page cache",
        measure_tls_consume,
        (at_least("records_per_s", "records/s", 1.0), CPU_PER_GB),
        LIBRDKAFKA,
        (("mb_per_s", "MB/s"),),
    ),
    Cell(
        "tls_one16",
        "TLS 1.3: 1-record requests, 16 sockets with 1 in flight",
        measure_tls_requests,
        (at_least("requests_per_s", "requests/s", 1.5),),
        {"sockets": 16},
        (("cpu_us_per_request", "CPU us/request"), ("p50_us", "p50 us"), ("p99_us", "p99 us")),
    ),
    Cell(
        "tls_connect",
        "connections with a TLS 1.3 handshake and one request, 64 threads",
        measure_handshakes,
        (at_least("connections_per_s", "connections/s", 2.0),),
        {"threads": 64, NETWORK: "2"},
        PER_CONNECTION,
    ),
    Cell(
        "scram_connect",
        "connections over TLS 1.3 with SCRAM-SHA-512, 64 threads",
        measure_logins,
        (at_least("connections_per_s", "connections/s", 1.5),),
        {"threads": 64, NETWORK: "2"},
        PER_CONNECTION,
    ),
)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    names = [cell.name for cell in CELLS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cells", default=",".join(names), help="of: " + ", ".join(names))
    parser.add_argument("--runs", type=int, help="per cell and broker; 5, or 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="toy size; writes no result")
    parser.add_argument("--warm-seconds", type=float, help="30, or 1 with --quick")
    parser.add_argument("--brokers", default="kbroker,kafka", help="one of them, for a look")
    parser.add_argument("--place", default="/tmp", help="where the data directories go")
    parser.add_argument("--kbroker-override", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--output", help="default: perf/results/<date>-<commit>-security.json")
    chosen = parser.parse_args(arguments)
    chosen.cells = [name.strip() for name in chosen.cells.split(",") if name.strip()]
    chosen.brokers = chosen.brokers.split(",")
    for given, known in ((chosen.cells, names), (chosen.brokers, list(BROKERS))):
        if unknown := sorted(set(given) - set(known)):
            parser.error(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    if chosen.runs is None:
        chosen.runs = 1 if chosen.quick else 5
    if chosen.warm_seconds is None:
        chosen.warm_seconds = 1.0 if chosen.quick else 30.0
    return chosen


def warm(broker: Broker, seconds: float, cells: list[Cell]) -> None:
    """Short runs of these cells until the time is over; failures will show when they count."""
    size = Size(1.5, 0.1, 500_000, 200_000) if seconds > 5 else QUICK
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for cell in cells:
            if time.monotonic() < deadline:
                compare.attempt(cell, broker, size)


def groups(cells: list[Cell]) -> list[tuple[dict[str, str], list[Cell]]]:
    """The cells of each setting of kbroker, which have brokers of their own."""
    found: dict[str | None, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.parameters.get(NETWORK), []).append(cell)
    return [({NETWORK: count} if count else {}, group) for count, group in found.items()]


def main(arguments: list[str] | None = None) -> int:
    """0 when nothing failed and, both brokers measured, every bar was cleared."""
    options = parse_arguments(arguments)
    size = QUICK if options.quick else Size()
    cells = [cell for cell in CELLS if cell.name in options.cells]
    own = dict(pair.split("=", 1) for pair in options.kbroker_override)
    results: dict[str, Any] = {}
    print(compare.ROW.format("cell", "figure", "kbroker", f"Kafka {VERSION}", "ratio", "bar", ""))
    for settings, group in groups(cells):
        with ExitStack() as stack:
            running: dict[str, Broker] = {}
            for name in options.brokers:
                overrides = compare.OVERRIDES | (settings | own if name == "kbroker" else {})
                running[name] = stack.enter_context(BROKERS[name](options.place, overrides))
            for name, broker in running.items():
                seconds = options.warm_seconds
                warm(broker, seconds if name == "kafka" else min(3, seconds), group)
            results |= compare.measure_cells(group, running, options.runs, size)
    written = compare.report(options, size, results, CELLS)
    if not options.quick or options.output:
        stem = f"{written['date'][:10]}-{written['commit']}-security.json"
        path = Path(options.output) if options.output else ROOT / "perf" / "results" / stem
        path.write_text(json.dumps(written, indent=1) + "\n")
        print(f"written to {path}")
    failed = any(found["failures"] for result in results.values() for found in result.values())
    missed = any(bar["pass"] is False for cell in written["cells"].values() for bar in cell["bars"])
    return 1 if failed or missed else 0


if __name__ == "__main__":
    sys.exit(main())
