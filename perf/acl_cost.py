"""What ACLs cost: CPU time of Produce and Fetch of clients that 10,000 ACLs are asked for, and of
super users, for whom the hot paths test no more than without an authorizer.

    python perf/acl_cost.py                      both requests, the least of five
    python perf/acl_cost.py --acls 100 --runs 3
    python perf/acl_cost.py --beside             and a broker without an authorizer

Each of 200 principals has a connection that always has one request in flight: one record, of a
topic that an ACL lets it use. The other ACLs are of the same principals, for topics that nobody
asks for. The least of several runs counts: other load on the machine adds to CPU time and takes
nothing away. Both kinds of clients load the same broker, in turns: two brokers with the same
settings differ by more than what is looked for (up to 14 % in runs of 1 s on a busy machine).
"""

import struct
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kbroker.client.admin import acls as admin
from kbroker.client.connections.cluster import Cluster
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from perf.arguments import Arguments, positive
from perf.bars import Bar, Cell, Figures
from perf.brokers import KbrokerBroker, free_ports
from perf.frames import fetch_frame, produce_frame, record_batch, request_frame, text
from perf.quota import Client, cpu_us
from perf.raw_client import RawClient
from perf.runner import Report, measure_cell
from perf.topics import create_topic, fresh_name

TOPICS = 10
FETCH_BYTES = 200
ACLS_A_REQUEST = 1000
REFUSED = struct.pack(">h", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"


def name_of(principal: int) -> str:
    return f"user{principal}"


class Side(KbrokerBroker):
    """A broker whose second listener asks for a password."""

    def __init__(self, place: Path | None, principals: int, authorizes: bool) -> None:
        super().__init__(place)
        self._principals = principals
        (self.sasl_port,) = free_ports(1)
        users = " ".join(f'user_{name_of(number)}="secret"' for number in range(2 * principals))
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        self.configuration |= {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},"
            f"SASL_PLAINTEXT://127.0.0.1:{self.sasl_port}",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {users};",
            "max.connections.per.ip": "100000",
            "max.connection.creation.rate": "100000",
            "max.connection.creation.rate.per.ip": "100000",
        }
        if authorizes:
            self.configuration |= {
                "authorizer.class.name": AUTHORIZER,
                "super.users": ";".join(
                    ["User:ANONYMOUS"]
                    + [f"User:{name_of(number)}" for number in range(principals, 2 * principals)]
                ),
            }
        self.topics: list[str] = []

    def create_topics(self) -> None:
        batch = record_batch([b"x" * 100])
        for _ in range(TOPICS):
            topic = fresh_name("acl")
            create_topic(self.bootstrap, topic, 1)
            with RawClient(self.address) as filler:
                for _ in range(2):
                    filler.write(topic, 0, batch)
            self.topics.append(topic)

    def create_acls(self, count: int) -> None:
        allowed = admin.Acl(pattern="LITERAL", host="*", permission="ALLOW", resource_type="TOPIC")
        acls = []
        for number in range(count):
            principal, turn = number % self._principals, number // self._principals
            topic = self.topics[principal % TOPICS] if turn < 2 else f"other-{principal}-{turn}"
            acls.append(
                allowed._replace(
                    name=topic,
                    principal=f"User:{name_of(principal)}",
                    operation="WRITE" if turn % 2 else "READ",
                )
            )
        with Cluster(self.bootstrap) as cluster:
            for start in range(0, count, ACLS_A_REQUEST):
                admin.create_acls(cluster, acls[start : start + ACLS_A_REQUEST])

    def clients(self, frames: list[bytes], *, are_super: bool = False) -> list[Client]:
        """One for each principal, logged in."""
        first = self._principals if are_super else 0
        found = []
        for principal in range(self._principals):
            raw = RawClient(("127.0.0.1", self.sasl_port))
            raw.call(request_frame(ApiKey.SASL_HANDSHAKE, 1, text("PLAIN")))
            token = f"\0{name_of(first + principal)}\0secret".encode()
            body = struct.pack(">i", len(token)) + token
            response = raw.call(request_frame(ApiKey.SASL_AUTHENTICATE, 0, body))
            if response[4:6] != b"\0\0":
                raise RuntimeError(f"{name_of(principal)} cannot log in: {response!r}")
            found.append(Client(raw.socket, frames[principal % TOPICS]))
        return found

    def frames(self, kind: str) -> list[bytes]:
        batch = record_batch([b"x" * 100])
        if kind == "fetch":
            return [fetch_frame(topic, 0, 0, FETCH_BYTES) for topic in self.topics]
        return [produce_frame(9, topic, 0, batch, acks=1) for topic in self.topics]

    def refuses(self) -> bool:
        """Whether a principal may not write to a topic without an ACL for it."""
        frames = self.frames("produce")
        first, *others = self.clients([*frames[1:], frames[0]])
        for client in others:
            client.socket.close()
        first.socket.sendall(first.frame)
        response = first.socket.recv(1 << 16)
        first.socket.close()
        return REFUSED in response


def measure(side: Side, kind: str, seconds: float, *, are_super: bool) -> Figures:
    clients = side.clients(side.frames(kind), are_super=are_super)
    return {"cpu_us_per_request": cpu_us(side, clients, 0.5, seconds)}


SUPER, WITH, WITHOUT = "super users", "with ACLs", "no authorizer"
CELLS = tuple(
    Cell(
        kind,
        f"{kind} requests with and without ACLs",
        measure,
        (Bar("cpu_us_per_request", "<= 1.05x", ours=WITH, other=SUPER, middle=min),),
        {"kind": kind},
    )
    for kind in ("fetch", "produce")  # logs that have been written to are another load
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = Arguments(__doc__)
    options.add_argument("--acls", type=int, default=10_000)
    options.add_argument("--principals", type=int, default=200)
    options.add_argument("--runs", type=positive(int), default=5)
    options.add_argument("--seconds", type=float, default=3.0)
    options.add_place(None)
    options.add_argument("--beside", action="store_true", help="measure a broker without ACLs, too")
    options.add_output()
    chosen = options.parse(arguments)
    report = Report(chosen)
    with ExitStack() as stack:

        def side(authorizes: bool) -> Side:
            made = stack.enter_context(Side(chosen.place, chosen.principals, authorizes))
            made.create_topics()
            return made

        with_acls = side(True)
        with_acls.create_acls(chosen.acls)
        if not with_acls.refuses():
            raise RuntimeError("ACLs have no effect")
        sides = {SUPER: with_acls, WITH: with_acls}
        if chosen.beside:
            sides[WITHOUT] = side(False)

        def take(cell: Cell, name: str) -> Figures:
            kind = cell.parameters["kind"]
            return measure(sides[name], kind, chosen.seconds, are_super=name == SUPER)

        for cell in CELLS:
            measure_cell(cell, list(sides)[::-1], 1, take)  # warms up
            report.measure([cell], list(sides), chosen.runs, take)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
