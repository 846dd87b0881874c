"""Client quotas on the hot paths: who is looked up when, what is counted, and who is muted."""

from __future__ import annotations

import struct
import time
from itertools import pairwise
from typing import Any

import pytest
from support.network.net_loop_harness import (
    METADATA,
    SMALLEST_BATCH,
    Harness,
    answers,
    fetch,
    framed,
    produce,
    received,
    result,
    serving,
)

from kbroker._ext.network.connection import HANDSHAKE, SERVING, SESSION
from kbroker._ext.shared.partition_table import LEADER, ONLINE
from kbroker._ext.shared.quota_table import Quota, QuotaTable, region_size
from kbroker._ext.sockets.client_usage import ClientUsage
from kbroker.protocol import codec, header
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.security.principal import KafkaPrincipal
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit

SLOW, FAST = 0.001, 1e12
VERSION = 9
NS_A_SECOND = 1e9
HOURS_MS = 3_000_000
BURST_MS = 1000

Rates = dict[str, float]


class Limited(Harness):
    """Its clients have these quotas: by kind, of every client id by itself."""

    def __init__(self, **rates: float) -> None:
        super().__init__(quotas=QuotaTable(bytearray(region_size(64)), 2, BURST_MS))
        serving(self)
        self.table.reset(0, state=ONLINE, role=LEADER, slot_incarnation=7)
        self.found: list[tuple[str, bytes]] = []
        self.rates: Rates = rates
        self.loop.limits.find = self.find
        self.loop.forget_quotas(True)

    def find(self, access: Any, client_id: bytes) -> ClientUsage:
        self.found.append((access.principal.name, client_id))

        def quota(kind: str) -> Quota | None:
            rate = self.rates.get(kind)
            key = hash((kind, client_id))
            return None if rate is None else Quota(self.loop.limits.table, key, rate)

        return ClientUsage(client_id, quota("produce"), quota("fetch"), quota("request"))

    def muted(self) -> bool:
        return self.connection.muted_until_ms > 0

    def produced(self, client: Any, frame: bytes) -> int:
        """The throttle time in the response to a Produce."""
        client.send(frame)
        self.turn()
        [descriptor] = self.descriptors()
        self.answer(result(descriptor))
        self.turn()
        [(_, response)] = answers(received(client), VERSION)
        return int(response.throttle_time_ms)


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def fetch_by(client_id: str, replica_id: int = -1) -> bytes:
    partition = FetchRequest.FetchPartition(partition=0, partition_max_bytes=1000)
    topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
    request = FetchRequest(replica_id=replica_id, max_wait_ms=0, min_bytes=1, topics=[topic])
    head = header.encode_request_header(ApiKey.FETCH, 4, 1, client_id)
    return framed(head + codec.encode(request, 4))


def throttle_of_fetch(client: Any) -> int:
    data = received(client)
    (size,) = struct.unpack_from(">i", data)
    _, at = header.decode_response_header(data[4 : 4 + size], ApiKey.FETCH, 4)
    response = codec.decode_exact(FetchResponse, 4, data[4 + at : 4 + size])
    return int(response.throttle_time_ms)


def test_produce_within_the_quota_is_not_throttled() -> None:
    limited = Limited(produce=FAST)
    assert limited.produced(limited.connect(), produce(VERSION)) == 0
    assert not limited.muted()


def test_produce_beyond_the_quota_mutes_its_connection() -> None:
    limited = Limited(produce=SLOW)
    client = limited.connect()
    assert limited.produced(client, produce(VERSION)) > HOURS_MS
    client.send(METADATA)
    limited.turn()
    assert limited.dispatched == [], "it is not even read"


def test_throttle_time_is_that_of_the_bytes_behind_the_header() -> None:
    """A batch of 61 bytes, and what the request has around it."""
    limited = Limited(produce=10.0)
    records = SMALLEST_BATCH * 100
    frame = produce(VERSION, records={0: records}, client_id="c" * 100)
    body = len(frame) - 4 - 8 - 2 - 100 - 1
    told = limited.produced(limited.connect(), frame)
    assert told == pytest.approx(body * 100 - BURST_MS, abs=50)


def test_pipelined_produces_count_when_they_begin() -> None:
    """The first one exceeds the quota: the second stays in the buffer."""
    limited = Limited(produce=SLOW)
    client = limited.connect()
    client.send(produce(VERSION) + produce(VERSION, correlation_id=2))
    limited.turn()
    assert len(limited.descriptors()) == 1


def test_produce_without_a_response_mutes_too() -> None:
    limited = Limited(produce=SLOW)
    client = limited.connect()
    client.send(produce(VERSION, acks=0))
    limited.turn()
    assert limited.muted()


def test_muted_connection_holds_no_memory() -> None:
    """Its time may be hours, and others need the arena."""
    limited = Limited(produce=SLOW)
    limited.produced(limited.connect(), produce(VERSION))
    limited.turn()
    assert limited.muted()
    assert limited.arena.allocated == 0


def test_connections_of_one_client_share_its_quota() -> None:
    limited = Limited(produce=500.0)
    told = [limited.produced(limited.connect(), produce(VERSION)) for _ in range(12)]
    assert told[0] == 0
    assert told[-1] > 0
    assert limited.produced(limited.connect(), produce(VERSION, client_id="other")) == 0


def test_client_is_looked_up_once() -> None:
    limited = Limited(produce=FAST, fetch=FAST, request=FAST)
    client = limited.connect()
    for _ in range(3):
        limited.produced(client, produce(VERSION))
        client.send(METADATA)
        limited.turn()
        received(client)
    assert limited.found == [("ANONYMOUS", b"me")]


@pytest.mark.parametrize("client_id", ["", "you", "mee", "m"])
def test_client_is_looked_up_again_under_another_id(client_id: str) -> None:
    limited = Limited(produce=FAST)
    client = limited.connect()
    for name in ("me", client_id, client_id, "me"):
        limited.produced(client, produce(VERSION, client_id=name))
    ids = [found for _, found in limited.found]
    assert ids == [b"me", client_id.encode(), b"me"]


def test_client_without_an_id_has_an_empty_one() -> None:
    limited = Limited(produce=FAST)
    limited.produced(limited.connect(), produce(VERSION, client_id=None))
    assert limited.found == [("ANONYMOUS", b"")]


def test_client_is_looked_up_again_when_its_principal_or_the_quotas_change() -> None:
    limited = Limited(produce=FAST)
    client = limited.connect()
    limited.produced(client, produce(VERSION))
    limited.connection.identify(limited.accesses.of(KafkaPrincipal("User", "alice"), "test"))
    limited.produced(client, produce(VERSION))
    limited.rates = {"produce": SLOW}
    limited.loop.forget_quotas(True)
    assert limited.produced(client, produce(VERSION)) > HOURS_MS
    assert [user for user, _ in limited.found] == ["ANONYMOUS", "alice", "alice"]


def test_without_quotas_nobody_is_looked_up() -> None:
    limited = Limited(produce=SLOW)
    limited.loop.forget_quotas(False)
    assert limited.produced(limited.connect(), produce(VERSION)) == 0
    assert limited.found == []


def test_client_is_nobody_before_it_has_authenticated() -> None:
    limited = Limited(produce=SLOW, request=SLOW)
    client = limited.connect(HANDSHAKE)
    client.send(framed(header.encode_request_header(ApiKey.API_VERSIONS, 0, 2, "me")))
    limited.turn()
    assert limited.found == []
    limited.connection.phase = SERVING
    received(client)
    client.send(METADATA)
    limited.turn()
    assert limited.found == [("ANONYMOUS", b"me")]


def test_client_of_a_session_that_ends_has_its_quotas() -> None:
    """SASL with ``connections.max.reauth.ms``, tokens: it has authenticated like any other."""
    limited = Limited(produce=SLOW, request=SLOW)
    client = limited.connect(SESSION)
    limited.connection.session_end_ms = monotonic_ms() + 1_000_000
    assert limited.produced(client, produce(VERSION)) > HOURS_MS
    assert limited.muted()
    assert limited.found == [("ANONYMOUS", b"me")]


def test_header_that_lies_about_its_client_id_is_somebody_without_one() -> None:
    limited = Limited(produce=FAST)
    client = limited.connect()
    client.send(framed(struct.pack(">hhih", ApiKey.METADATA, 1, 2, 30_000)))
    limited.turn()
    assert limited.found == [("ANONYMOUS", b"")]


def test_fetch_beyond_the_quota_mutes_its_connection() -> None:
    """The first one is answered, whatever its size: it would never be smaller."""
    limited = Limited(fetch=SLOW)
    told = []
    for _ in range(2):
        client = limited.connect()
        client.send(fetch_by("c"))
        limited.turn()
        told.append(throttle_of_fetch(client))
    assert told[0] == 0
    assert told[1] > HOURS_MS
    assert limited.muted()


def test_clients_that_fetch_beyond_a_quota_wait_in_turn() -> None:
    """Each waits for those before it; else all would come back at once, and all but one in vain."""
    limited = Limited(fetch=100.0)  # an empty response with a partition counts 62 bytes
    told = []
    for _ in range(6):
        client = limited.connect()
        client.send(fetch_by("c"))
        limited.turn()
        told.append(throttle_of_fetch(client))
    assert told[0] == 0
    steps = [later - earlier for earlier, later in pairwise(told[2:])]
    assert all(500 < step <= 620 for step in steps), told


def test_fetch_that_has_waited_is_not_counted_again() -> None:
    limited = Limited(fetch=100.0)
    for _ in range(2):
        client = limited.connect()
        client.send(fetch_by("c"))
        limited.turn()
        told = throttle_of_fetch(client)
    assert told > 0
    usage = Quota(limited.loop.limits.table, hash(("fetch", b"c")), 100.0)
    ahead_ms = usage.ahead_ms(monotonic_ms())
    client.send(fetch_by("c"))

    def served() -> bool:
        limited.turn()
        return not limited.muted()

    wait_until(served, 60)
    assert throttle_of_fetch(client) == 0
    assert usage.ahead_ms(monotonic_ms()) <= ahead_ms


def test_followers_have_no_quota() -> None:
    limited = Limited(fetch=SLOW, request=SLOW)
    for _ in range(3):
        client = limited.connect()
        client.send(fetch_by("c", replica_id=7))
        limited.turn()
        assert throttle_of_fetch(client) == 0
        assert not limited.muted()


@pytest.mark.parametrize(
    "frame", [fetch(0), METADATA, produce(VERSION)], ids=["fetch", "metadata", "produce"]
)
def test_time_of_requests_is_counted(frame: bytes) -> None:
    limited = Limited(request=SLOW)
    client = limited.connect()
    client.send(frame)
    limited.turn()
    usage = Quota(limited.loop.limits.table, hash(("request", b"me")), SLOW)
    assert usage.ahead_ms(0) > 0


def test_time_beyond_the_quota_mutes_for_a_sample_at_most() -> None:
    limited = Limited(request=SLOW)
    client = limited.connect()
    limited.produced(client, produce(VERSION))
    told = limited.produced(limited.connect(), produce(VERSION))
    assert 0 < told <= limited.loop.limits.table.sample_ms


def test_handler_that_responds_is_charged_its_time() -> None:
    limited = Limited(request=NS_A_SECOND / 1000)
    client = limited.connect()
    client.send(METADATA)
    limited.turn()
    now_ms = time.monotonic_ns() // 1_000_000 + 1_000_000  # long after the turn
    limited.loop.limits.charge_handler(limited.connection, 500_000, now_ms)
    assert not limited.muted()
    limited.loop.limits.charge_handler(limited.connection, 50_000_000, now_ms)
    assert limited.connection.muted_until_ms == now_ms + 1000


def test_io_worker_is_told_in_which_quota_its_time_counts() -> None:
    key = hash(("request", b"me"))
    limited = Limited(request=NS_A_SECOND)
    limited.produced(limited.connect(), produce(VERSION))
    other = Limited(produce=FAST)
    other.produced(other.connect(), produce(VERSION))
    assert limited.quotas_sent == [(key & 0xFFFFFFFFFFFFFFFF, NS_A_SECOND)]
    assert other.quotas_sent == [(0, 0.0)]


def test_time_of_an_io_worker_shows_in_the_response() -> None:
    """It is counted while the request waits for its result."""
    limited = Limited(request=NS_A_SECOND)
    client = limited.connect()
    client.send(produce(VERSION))
    limited.turn()
    [descriptor] = limited.descriptors()
    usage = Quota(limited.loop.limits.table, hash(("request", b"me")), NS_A_SECOND)
    usage.add(int(3 * NS_A_SECOND), monotonic_ms())  # as the io worker does
    limited.answer(result(descriptor))
    limited.turn()
    [(_, response)] = answers(received(client), VERSION)
    assert 0 < response.throttle_time_ms <= limited.loop.limits.table.sample_ms
    assert limited.muted()
