"""Frames that no honest client sends, on the real socket (exam S1).

For every API and version the broker announces: a valid request cut short, with bytes flipped and
with counts of any size. A connection may be closed or the request be answered with an error; the
broker lives on, remembers nothing of it, and says in its log why it closed a connection.
"""

from __future__ import annotations

import itertools
import os
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.wire_client import WireClient, batch_of
from support.faults.hostile_harness import MIB, GoodClient, nothing_dies, refused_count
from support.network.codec_samples import random_message
from support.network.frames import request_frame
from support.running.pace import hold

from kbroker.protocol.api import ApiKey, find, request_class
from kbroker.protocol.header import encode_request_header
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.testing import Broker, wait_until

SCALE = max(1, int(os.environ.get("KBROKER_FAULT_SCALE", "1")))
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MUTATIONS = 2
# What a broker may grow by in the first round, in which its processes load codecs and handlers (19
# to 25 MiB), and in all later ones (3 in four, 10 to 13 in twenty). At any time in either, the
# exporter takes its first samples of the histograms of all APIs: 16 MiB.
FIRST_BYTES_MAX, LATER_BYTES_MAX = 48 * MIB, 32 * MIB
COUNTS = (2**31 - 1, -1, -2, 2**30, 0x01000000)
BAD_VARINTS = (b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff\xff", b"\x80\x80\x80\x80\x10")
PROBE = 0x5EED
# A response that does not arrive within this time: the request waits for something, as a fetch may.
PARKED_S = 0.25
TOPIC = "good"
REASON = "closed the connection of"
OWN_HOSTS = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": "false"}) as started:
        with client_of(started) as client:
            client.create_topic(TOPIC)
            for key_type in (0, 1):  # now, and not while memory is measured
                client.call(FindCoordinatorRequest(key="good", key_type=key_type), 1)
        yield started


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("KBROKER_FAULT_SEED") or random.SystemRandom().randrange(1 << 31))
    print(f"KBROKER_FAULT_SEED={seed}")
    return random.Random(seed)


def client_of(broker: Broker, timeout: float = 30, from_host: str = "") -> WireClient:
    return WireClient((broker.host, broker.port), timeout, from_host=from_host)


def announced(broker: Broker, every: bool) -> list[tuple[ApiKey, int]]:
    """Every API in its oldest and newest announced version, or in every one."""
    with client_of(broker) as client:
        response = client.call(ApiVersionsRequest(), 0)
    found = []
    for entry in response.api_keys:
        key = find(entry.api_key)
        assert key is not None, entry.api_key
        versions = range(entry.min_version, entry.max_version + 1)
        found += [
            (key, version) for version in (versions if every else {versions[0], versions[-1]})
        ]
    return found


def requests_of(key: ApiKey, version: int, chance: random.Random) -> list[bytes]:
    """Valid requests, without their length: with default values, and with something in them."""
    cls = request_class(key)
    made = [cls()]
    if version >= cls.VERSIONS[0]:
        made.append(calm(random_message(cls, version, chance)))
    frames = []
    for request in made:
        try:
            frames.append(request_frame(request, version, 1, "hostile")[4:])
        except ValueError:  # the default has no such version
            frames.append(encode_request_header(key, version, 1, "hostile"))
    return frames


def calm(request: Any) -> Any:
    """Without waits, which are legal and only make the test longer."""
    for name in ("max_wait_ms", "timeout_ms"):
        if hasattr(request, name):
            setattr(request, name, 0)
    return request


def mutations(frame: bytes, chance: random.Random, times: int = MUTATIONS) -> Iterator[bytes]:
    """Ways to break a request. times: of those that are by chance."""
    for _ in range(times):
        yield frame[: chance.randrange(len(frame))]
        broken = bytearray(frame)
        for _ in range(chance.choice((1, 1, 3))):
            broken[chance.randrange(4, len(frame))] ^= 1 << chance.randrange(8)
        yield bytes(broken)
        at = chance.randrange(8, len(frame) + 1)
        yield frame[:at] + struct.pack(">i", chance.choice(COUNTS)) + frame[at + 4 :]
        yield frame[:at] + chance.choice(BAD_VARINTS) + frame[at + 1 :]
    yield frame + b"\0" * 7
    yield frame[:8]


class Attacker:
    """Sends broken frames, reconnecting whenever the broker closes the connection."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._client: WireClient | None = None
        self.answered = self.closed = self.parked = 0

    def send_all(self, chance: random.Random, every: bool) -> None:
        """Break requests of every API and of these versions (see ``announced``)."""
        for key, version in announced(self._broker, every):
            for frame in requests_of(key, version, chance):
                for broken in mutations(frame, chance, MUTATIONS if every else 1):
                    self.send(broken)

    def send(self, frame: bytes) -> None:
        """Send one frame and a probe after it; then the connection is closed or the probe has a
        response.
        """
        if self._client is None:
            self._client = client_of(self._broker)
            self._client.socket.settimeout(PARKED_S)
        probe = request_frame(ApiVersionsRequest(), 0, PROBE, None)
        try:
            self._client.socket.sendall(struct.pack(">i", len(frame)) + frame + probe)
            while True:
                response = self._client.receive()
                if struct.unpack_from(">i", response)[0] == PROBE:
                    self.answered += 1
                    return
        except TimeoutError:
            self.parked += 1
        except OSError:
            self.closed += 1
        self._client.close()
        self._client = None


@pytest.mark.parametrize(
    "every",
    [
        pytest.param(False, id="the oldest and the newest"),
        pytest.param(True, id="every", marks=pytest.mark.slow),
    ],
)
def test_broken_requests_of_versions_harm_nobody(
    broker: Broker, chance: random.Random, every: bool
) -> None:
    attacker = Attacker(broker)
    log_before = len(broker.log_text)
    refused = refused_count(broker)
    with GoodClient(broker, TOPIC):
        with nothing_dies(broker, FIRST_BYTES_MAX):
            attacker.send_all(chance, every)
        with nothing_dies(broker, LATER_BYTES_MAX):
            for _ in range(SCALE - 1):
                attacker.send_all(chance, every)

    closed = attacker.closed - attacker.parked
    wait_until(lambda: refused_count(broker) - refused >= closed, 30, "all have reasons")
    log = broker.log_text[log_before:]
    assert attacker.closed > 100 and attacker.answered > 100, vars(attacker)
    assert attacker.parked < (attacker.closed + attacker.answered) / 50, vars(attacker)
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
    assert REASON in log
    assert "a request to which there is no response" not in log


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "an HTTP request on a Kafka listener"),
        (b"POST /topics HTTP/1.1\r\n\r\n", "an HTTP request on a Kafka listener"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "an HTTP request on a Kafka listener"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x5a" * 64, "a TLS handshake"),
        (struct.pack(">i", -1), "a negative request length (-1)"),
        (struct.pack(">i", -(2**31)), "a negative request length"),
        (struct.pack(">i", 2**31 - 1), "more than socket.request.max.bytes"),
        (struct.pack(">i", 104857601), "a request of 104857601 bytes, more than"),
        (struct.pack(">i", 0), "a request of 0 bytes"),
        (struct.pack(">i", 7) + b"1234567", "a request of 7 bytes"),
        (struct.pack(">ihhih", 10, 999, 0, 1, -1), "API key 999 does not exist"),
        (struct.pack(">ihhih", 10, -1, 0, 1, -1), "API key -1 does not exist"),
        (struct.pack(">ihhihb", 11, 58, 0, 1, -1, 0), "Envelope is not served"),
        (struct.pack(">ihhihb", 11, 3, 99, 1, -1, 0), "Metadata version 99 is not served"),
        (struct.pack(">ihhihb", 11, 0, 99, 1, -1, 0), "Produce version 99 is not served"),
        (struct.pack(">ihhihb", 11, 1, 99, 1, -1, 0), "Fetch version 99 is not served"),
        (struct.pack(">ihhih", 10933, 3, 1, 1, 10923) + b"\xff" * 10923, "UTF-8"),
    ],
)
def test_foreign_protocol_or_length_is_closed_with_its_reason(
    broker: Broker, sent: bytes, reason: str
) -> None:
    before = broker.log_text.count(reason)
    host = f"127.0.1.{next(OWN_HOSTS)}"  # the reasons of one host are limited
    with nothing_dies(broker), client_of(broker, from_host=host) as client:
        client.socket.sendall(sent)

        assert client.is_closed(30)

    wait_until(lambda: broker.log_text.count(reason) > before, 30, f"{reason!r} in the log")


def test_requests_behind_a_broken_one_are_not_served(broker: Broker) -> None:
    """Requests before it get a response, those after it are dropped with the connection."""
    with client_of(broker) as client:
        good = request_frame(ApiVersionsRequest(), 0, 7, None)
        client.socket.sendall(good + struct.pack(">i", -5) + good)

        assert struct.unpack_from(">i", client.receive())[0] == 7
        assert client.is_closed(30)


def test_random_bytes_harm_nobody(broker: Broker, chance: random.Random) -> None:
    log_before = len(broker.log_text)
    with nothing_dies(broker), GoodClient(broker, TOPIC):
        for _ in range(100 * SCALE):
            with client_of(broker) as client:
                body = chance.randbytes(chance.randrange(8, 300))
                head = chance.choice((b"", struct.pack(">i", len(body))))
                key = chance.choice((b"", struct.pack(">hh", chance.randrange(93), 0)))
                try:
                    client.socket.sendall(head + key + body[len(key) :])
                except OSError:
                    continue
        hold(1)  # they are accepted at max.connection.creation.rate

    assert "Traceback" not in broker.log_text[log_before:]


def test_produce_with_broken_inner_lengths_harms_nobody(
    broker: Broker, chance: random.Random
) -> None:
    """The same for produces with records: the hot path has its own decoder."""
    from support.clients.wire_client import produce_request

    attacker = Attacker(broker)
    with nothing_dies(broker), GoodClient(broker, TOPIC):
        for version in range(3, 13):
            request = produce_request(TOPIC, {0: batch_of([b"x" * 30]), 1: batch_of([b"y"])})
            frame = request_frame(request, version, 1, "hostile")[4:]
            for _ in range(5 * SCALE):
                for broken in mutations(frame, chance):
                    attacker.send(broken)

    assert attacker.closed > 100 and attacker.answered > 100, vars(attacker)
    assert "Traceback" not in broker.log_text
