"""A blocking connection for the steps around a benchmark: metadata, leaders, one record."""

import socket
import struct
import sys
import time
from contextlib import ExitStack
from typing import Self

from perf.frames import (
    TopicMetadata,
    metadata_frame,
    parse_metadata,
    produce_frame,
    produce_response_prefix,
    record_batch,
)
from perf.waiting import wait_until

# BOUND: a metadata response for a topic of some thousand partitions is below this.
MAX_RESPONSE_BYTES = 4 << 20
# Its metadata is requested only to see that a broker responds; it is not created.
_NO_TOPIC = "perf-is-there-a-broker"


def parse_address(text: str) -> tuple[str, int]:
    """host:port, the first one of a comma-separated list; [::1]:port for IPv6.

    A scheme in front, as librdkafka takes it, is left out. Raises ValueError.
    """
    address = text.split(",")[0].strip().rpartition("://")[2]
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{text!r} is not host:port")
    return host.strip("[]"), int(port)


class RawClient:
    """Requests one at a time; any trouble is an OSError (ConnectionError, TimeoutError)."""

    def __init__(self, address: tuple[str, int], timeout: float = 5.0) -> None:
        self.socket = socket.create_connection(address, timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def call(self, frame: bytes) -> bytes:
        """Send a whole frame; the response without its length."""
        self.socket.sendall(frame)
        (size,) = struct.unpack(">i", self._read(4))
        if not 4 <= size <= MAX_RESPONSE_BYTES:
            raise ConnectionError(f"the response claims {size} bytes")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts += part
        return bytes(parts)

    def metadata(self, topic: str, *, auto_create: bool = False) -> TopicMetadata:
        return parse_metadata(self.call(metadata_frame(topic, auto_create=auto_create)))

    def produce(self, topic: str, partition: int, batch: bytes, *, acks: int = 1) -> int:
        """One batch with Produce 7; the error code."""
        response = self.call(produce_frame(7, topic, partition, batch, acks=acks))
        prefix = produce_response_prefix(7, topic, partition)
        if response[4 : 4 + len(prefix)] != prefix:
            raise ConnectionError(f"not a response about {topic}-{partition}: {response[:64]!r}")
        (code,) = struct.unpack_from(">h", response, 4 + len(prefix))
        return int(code)

    def write(self, topic: str, partition: int, batch: bytes, timeout: float = 30.0) -> None:
        """Produce the batch until it is accepted. Raises TimeoutError.

        A Kafka leader is in the metadata some milliseconds before it takes records.
        """
        code = -1

        def is_accepted() -> bool:
            nonlocal code
            code = self.produce(topic, partition, batch)
            return code == 0

        wait_until(is_accepted, lambda: f"{topic}-{partition}: refused with {code}", timeout)


def paced(client: RawClient, topic: str, batch: bytes, rate: float, seconds: float) -> list[float]:
    """Produce the batch at that rate; the seconds from each request to its response. Raises
    RuntimeError for one that is rejected.
    """
    taken: list[float] = []
    began = time.monotonic()
    for number in range(int(seconds * rate)):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        sent = time.perf_counter()
        code = client.produce(topic, 0, batch)
        taken.append(time.perf_counter() - sent)
        if code:
            raise RuntimeError(f"a record is refused with error {code}")
    return taken


def connect(
    address: tuple[str, int], count: int, *, is_blocking: bool = True
) -> list[socket.socket]:
    """So many connections, which the caller closes."""
    sockets = []
    for _ in range(count):
        one = socket.create_connection(address, timeout=10)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not is_blocking:
            one.setblocking(False)
        sockets.append(one)
    return sockets


def require_broker(tool: str, bootstrap: str, *, plaintext: bool = True) -> None:
    """End the tool with one line and exit code 1 if none of the addresses responds.

    A client would try for minutes and print a line for each attempt. plaintext: what takes the
    connection must also respond to a request; with TLS or SASL that is left to the client.
    """
    tried = []
    for entry in filter(None, map(str.strip, bootstrap.split(","))):
        try:
            with RawClient(parse_address(entry)) as client:
                if plaintext:
                    client.metadata(_NO_TOPIC)
            return
        except (OSError, ValueError, struct.error) as error:
            tried.append(f"{entry}: {error}")
    sys.exit(f"{tool}: no broker can be reached: {'; '.join(tried) or repr(bootstrap)}")


def wait_for_leaders(
    address: tuple[str, int], topic: str, *, auto_create: bool, timeout: float = 30.0
) -> dict[int, tuple[str, int]]:
    """Request metadata until every partition of the topic has a leader; {partition: address}."""
    last = "no response"
    leaders: dict[int, tuple[str, int]] = {}

    def are_there() -> bool:
        nonlocal last, leaders
        try:
            with RawClient(address) as client:
                found = client.metadata(topic, auto_create=auto_create)
        except OSError as error:
            last = str(error)
            return False
        leaders = {p: leader for p, leader in found.leaders.items() if leader is not None}
        last = f"topic error {found.error_code}, leaders {found.leaders}"
        return found.error_code == 0 and 0 < len(leaders) == len(found.leaders)

    wait_until(are_there, lambda: f"leaders for {topic}: {last}", timeout, 0.05)
    return leaders


def wait_until_writable(
    leaders: dict[int, tuple[str, int]], topic: str, timeout: float = 30.0
) -> None:
    """Write one small record to each partition until it is accepted.

    With acks=0 a Kafka leader would close the connection of whoever comes too early.
    """
    batch = record_batch([b"x"])
    deadline = time.monotonic() + timeout
    with ExitStack() as stack:
        clients = {
            address: stack.enter_context(RawClient(address)) for address in set(leaders.values())
        }
        for partition, address in leaders.items():
            clients[address].write(topic, partition, batch, deadline - time.monotonic())
