"""A blocking connection for the steps around a benchmark: metadata, leaders, one record."""

import socket
import struct
import sys
import time
from contextlib import ExitStack
from types import TracebackType

from perf.frames import (
    TopicMetadata,
    metadata_frame,
    parse_metadata,
    produce_frame,
    produce_response_prefix,
    record_batch,
)

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

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
    deadline = time.monotonic() + timeout
    last = "no response"
    while time.monotonic() < deadline:
        try:
            with RawClient(address) as client:
                found = client.metadata(topic, auto_create=auto_create)
            leaders = {p: leader for p, leader in found.leaders.items() if leader is not None}
            if found.error_code == 0 and leaders and len(leaders) == len(found.leaders):
                return leaders
            last = f"topic error {found.error_code}, leaders {found.leaders}"
        except OSError as error:
            last = str(error)
        time.sleep(0.05)
    raise TimeoutError(f"no leaders for {topic} within {timeout} s: {last}")


def wait_until_writable(
    leaders: dict[int, tuple[str, int]], topic: str, timeout: float = 30.0
) -> None:
    """Write one small record to each partition until it is accepted.

    A Kafka leader is in the metadata some milliseconds before it takes records; with acks=0 it
    would close the connection of whoever comes too early.
    """
    batch = record_batch([b"x"])
    deadline = time.monotonic() + timeout
    with ExitStack() as stack:
        clients = {
            address: stack.enter_context(RawClient(address)) for address in set(leaders.values())
        }
        for partition, address in leaders.items():
            while (code := clients[address].produce(topic, partition, batch)) != 0:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{topic}-{partition} refuses records with error {code}")
                time.sleep(0.02)
