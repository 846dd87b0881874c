"""Whether clients are kept to a quota that they share: bytes over 30 s, at 1, 10 and 100 clients.

    python perf/quota.py                          produce and fetch, against a broker of its own
    python perf/quota.py --clients 10 --seconds 5 --rate 4000000

The clients are sockets that send their next request as soon as they have the response to the last
one; they do not obey throttle times, so it is the broker that keeps them to the quota. Measured
after they have used up what a client may use at once. ``--cost`` compares the CPU time of
one-record requests without a quota, with one of another client, and with one of their own that is
not reached.
"""

import selectors
import socket
import struct
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kbroker.client.connections.connection import Connection
from kbroker.protocol.api import ApiKey, request_class
from perf.arguments import Arguments
from perf.bars import OURS, Bar, Cell, Figures
from perf.brokers import KbrokerBroker
from perf.frames import fetch_frame, produce_frame, random_values, record_batch
from perf.process_tree import Meter
from perf.raw_client import RawClient, connect, parse_address
from perf.runner import Report, measure_cell
from perf.topics import create_topic, fresh_name

CLIENTS = (1, 10, 100)
BATCH_VALUES, VALUE_BYTES = 20, 1000
FETCH_BYTES = 100_000
DEADLINE_S = 30.0
NETWORK_PROCESSES = 4
BURST_S = 10  # a client may use what it gets in this time at once
COST_S, COST_SOCKETS = 3.0, 8
# The client id of perf/frames: taken from a frame, behind its key, version and correlation id.
CLIENT_ID_AT = 4 + 8
PRODUCE_KEY = struct.pack(">h", ApiKey.PRODUCE)


@dataclass(slots=True)
class Client:
    """One socket. received: of the present response, length included."""

    socket: socket.socket
    frame: bytes
    need: int = 4
    received: bytearray = field(default_factory=bytearray)


def connected(address: tuple[str, int], frame: bytes, count: int) -> list[Client]:
    return [Client(one, frame) for one in connect(address, count)]


def client_id_in(frame: bytes) -> str:
    (size,) = struct.unpack_from(">h", frame, CLIENT_ID_AT)
    return frame[CLIENT_ID_AT + 2 : CLIENT_ID_AT + 2 + size].decode()


def set_quota(bootstrap: str, client_id: str, key: str, rate: float | None) -> None:
    cls = request_class(ApiKey.ALTER_CLIENT_QUOTAS)
    entity = [cls.EntityData(entity_type="client-id", entity_name=client_id)]
    op = cls.OpData(key=key, value=rate or 0.0, remove=rate is None)
    deadline = time.monotonic() + DEADLINE_S
    connection = Connection(*parse_address(bootstrap), client_id="quota-admin", deadline=deadline)
    asked = cls(entries=[cls.EntryData(entity=entity, ops=[op])])
    (outcome,) = connection.call(asked, deadline).entries
    connection.close()
    if outcome.error_code:
        raise RuntimeError(f"{key} of {client_id}: {outcome.error_message}")


class Load:
    """Clients that always have one request in flight."""

    def __init__(self, clients: Iterable[Client]) -> None:
        self._selector = selectors.DefaultSelector()
        self.used = 0  # bytes of requests with a response, or of responses
        self.responses = 0
        for client in clients:
            self._selector.register(client.socket, selectors.EVENT_READ, client)
            client.socket.sendall(client.frame)

    def run(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                self._read(key.data)

    def _read(self, client: Client) -> None:
        data = client.socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the broker closed a connection")
        client.received += data
        if client.need == 4 and len(client.received) >= 4:
            client.need = 4 + struct.unpack_from(">i", client.received)[0]
        if client.need == 4 or len(client.received) < client.need:
            return
        self.responses += 1
        is_produce = client.frame[4:6] == PRODUCE_KEY
        self.used += len(client.frame) - 4 if is_produce else client.need
        client.need, client.received = 4, bytearray()
        client.socket.sendall(client.frame)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.socket.close()
        self._selector.close()


def cpu_us(
    broker: KbrokerBroker, clients: Iterable[Client], warmup_s: float, seconds: float
) -> float:
    """CPU time of a request of these clients, which are closed."""
    load = Load(clients)
    load.run(time.monotonic() + warmup_s)
    responses = load.responses
    with Meter(broker.cpu_seconds) as used:
        load.run(time.monotonic() + seconds)
    load.close()
    return used.cpu_s / (load.responses - responses) * 1e6


def measure_kept(bootstrap: str, key: str, count: int, rate: int, seconds: float) -> Figures:
    """What clients that share a quota use of it, as a multiple."""
    topic = fresh_name("quota")
    ((_, address),) = create_topic(bootstrap, topic, 1).items()
    batch = record_batch(random_values(BATCH_VALUES, VALUE_BYTES, 1))
    frame = produce_frame(9, topic, 0, batch, acks=1)
    if key == "consumer_byte_rate":
        with RawClient(address) as filler:
            for _ in range(2 * FETCH_BYTES // len(batch)):
                filler.call(frame)
        frame = fetch_frame(topic, 0, 0, FETCH_BYTES)
    set_quota(bootstrap, client_id_in(frame), key, rate)
    load = Load(connected(address, frame, count))
    # At full speed at first, then at the quota.
    warm_until = time.monotonic() + DEADLINE_S
    while load.used < 1.1 * BURST_S * rate and time.monotonic() < warm_until:
        load.run(time.monotonic() + 0.1)
    load.run(time.monotonic() + 1)
    used, responses, began = load.used, load.responses, time.monotonic()
    load.run(began + seconds)
    share = (load.used - used) / (time.monotonic() - began) / rate
    load.close()
    set_quota(bootstrap, client_id_in(frame), key, None)
    return {"share": share, "off": abs(share - 1), "responses": load.responses - responses}


def measure_cost(broker: KbrokerBroker, frame: bytes, quotas: Sequence[str]) -> Figures:
    """CPU of the broker for a one-record Produce. quotas: client ids that have one."""
    for client_id in quotas:
        set_quota(broker.bootstrap, client_id, "producer_byte_rate", 1e15)
    spent = cpu_us(broker, connected(broker.address, frame, COST_SOCKETS), 0.3, COST_S)
    for client_id in quotas:
        set_quota(broker.bootstrap, client_id, "producer_byte_rate", None)
    return {"cpu_us_per_request": spent}


COST = Cell("cost", "one-record requests, by the quotas there are", measure_cost, ())


def report_cost(report: Report, broker: KbrokerBroker, runs: int) -> None:
    topic = fresh_name("quota")
    create_topic(broker.bootstrap, topic, 1)
    frame = produce_frame(9, topic, 0, record_batch([b"x" * 100]), acks=1)
    quotas = {"none": (), "of another": ("other",), "own": (client_id_in(frame),)}

    def take(_: Cell, name: str) -> Figures:
        return measure_cost(broker, frame, quotas[name])

    measure_cell(COST, list(quotas), 1, take)  # warms up
    report.measure([COST], list(quotas), runs, take)


def main(arguments: Sequence[str] | None = None) -> int:
    options = Arguments(__doc__)
    options.add_argument("--clients", type=int, nargs="+", default=list(CLIENTS))
    options.add_argument("--seconds", type=float, default=30.0)
    options.add_argument("--rate", type=int, default=5_000_000, help="bytes a second")
    options.add_place(None)
    options.add_argument("--cost", type=int, default=0, metavar="RUNS", help="measure CPU instead")
    options.add_output()
    chosen = options.parse(arguments)
    settings = {
        "num.network.threads": str(NETWORK_PROCESSES),
        "max.connection.creation.rate": "5000",
    }
    report = Report(chosen)
    with KbrokerBroker(chosen.place, settings) as broker:
        if chosen.cost:
            report_cost(report, broker, chosen.cost)
            return report.end()
        for key in ("producer_byte_rate", "consumer_byte_rate"):
            for count in chosen.clients:
                load = {"key": key, "count": count, "rate": chosen.rate, "seconds": chosen.seconds}
                cell = Cell(
                    f"{key}_{count}",
                    f"{key} shared by {count} clients",
                    partial(measure_kept, broker.bootstrap),
                    (Bar("off", "<= 0.05", "off the quota, of it"),),
                    load,
                )
                report.measure([cell], [OURS], 1, lambda one, _: one.measure(**one.parameters))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
