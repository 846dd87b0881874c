"""Requests that a network process forwards to coordinators undecoded, over a real lane."""

from __future__ import annotations

import random
import struct
import time
from collections import deque
from contextlib import suppress
from typing import Any

import pytest
from support.network.net_loop_harness import ENVELOPE, IO_WORKER, Harness, received

from kbroker._ext.network import express_path
from kbroker._ext.shared.quota_table import Quota, QuotaTable, region_size
from kbroker._ext.sockets.client_usage import ClientUsage
from kbroker.coordinator.partitioner import coordinator_partition
from kbroker.errors import ErrorCode
from kbroker.ipc.lane_calls import (
    REPEATED,
    Assembler,
    Response,
    is_express,
    pack,
    response_parts,
    unpack,
)
from kbroker.protocol import codec, header
from kbroker.protocol.api import ApiKey, response_class
from kbroker.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.security.principal import KafkaPrincipal

pytestmark = pytest.mark.unit

MSG_REQUEST, MSG_RESPONSE = 6, 7
SLOTS = [0, 1, 2]


class Bench(Harness):
    """A network loop with both internal topics; the test is client and io worker."""

    def __init__(self, **options: Any) -> None:
        super().__init__(arena_bytes=1 << 23, **options)
        self.fetch.put_topic("__consumer_offsets", b"o" * 16, SLOTS, [1, 2, 3])
        self.fetch.put_topic("__transaction_state", b"x" * 16, [3], [4])
        self.rejected: list[tuple[int, bytes, int, bytes]] = []
        self.others: list[bytes] = []
        self.loop.on_rejected = lambda c, *rest: self.rejected.append(rest)
        self.loop.on_response = lambda worker, message: self.others.append(message)
        self.assembler = Assembler()

    def asked(self) -> list[Any]:
        """The requests that the io worker got."""
        found = []
        while True:
            try:
                data = self.worker.recv(1 << 20)
            except BlockingIOError:
                return found
            assert ENVELOPE.unpack_from(data)[0] == MSG_REQUEST
            found += [self.assembler.request(part) for part in unpack(data[ENVELOPE.size :])]

    def reply(self, *answers: Response, sender: int = 5) -> None:
        outbox = deque(part for answer in answers for part in response_parts(answer))
        while outbox:
            message, count = pack(outbox)
            head = ENVELOPE.pack(MSG_RESPONSE, IO_WORKER, 0, sender, 3, 1)
            self.worker.send(head + message)
            for _ in range(count):
                outbox.popleft()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def frame(request: Any, version: int, client_id: str | None = "a client", number: int = 7) -> bytes:
    data = header.encode_request_header(request.API_KEY, version, number, client_id)
    data += codec.encode(request, version)
    return struct.pack(">i", len(data)) + data


def heartbeat(group: str = "g") -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=3, member_id="m")


def test_routes_are_those_of_the_protocol() -> None:
    expected = {
        ApiKey.OFFSET_COMMIT: (1, 10),
        ApiKey.HEARTBEAT: (0, 4),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
        ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
        ApiKey.END_TXN: (0, 5),
    }
    found = {ApiKey(key): rest for key, *rest in express_path.routes()}
    assert {key: tuple(rest[:2]) for key, rest in found.items()} == expected
    for key, (_, last, flexible, throttled) in found.items():
        assert last == key.versions[1]
        assert flexible == key.first_flexible
        first = response_class(key).STRUCT.fields[0]
        assert (first.name, first.versions[0]) == ("throttle_time_ms", throttled)


def test_request_names_its_principal_to_the_coordinator(bench: Bench) -> None:
    alice = bench.connect(principal=KafkaPrincipal("User", "alice"))
    anonymous = bench.connect()

    alice.send(frame(heartbeat(), 4))
    bench.turn()
    anonymous.send(frame(heartbeat(), 4))
    bench.turn()

    first, second = bench.asked()
    assert (str(first.principal), str(second.principal)) == ("User:alice", "User:ANONYMOUS")
    assert first.body == second.body


@pytest.mark.parametrize("version", range(5))
def test_heartbeat_of_every_version_goes_there_and_comes_back(bench: Bench, version: int) -> None:
    client = bench.connect()
    client.send(frame(heartbeat("a-group"), version))
    bench.turn()
    (request,) = bench.asked()
    partition = coordinator_partition("a-group", 3)
    assert (request.slot, request.slot_incarnation) == (SLOTS[partition], partition + 1)
    assert (request.api_key, request.version) == (ApiKey.HEARTBEAT, version)
    assert (request.client_id, request.client_host) == ("a client", "test")
    assert codec.decode_exact(HeartbeatRequest, version, request.body) == heartbeat("a-group")
    body = codec.encode(HeartbeatResponse(error_code=27), version)
    bench.reply(Response(request.token, 0, body))
    bench.turn()
    data = client.recv(1000)
    assert struct.unpack_from(">i", data)[0] == len(data) - 4
    number, at = header.decode_response_header(data[4:], ApiKey.HEARTBEAT, version)
    assert number == 7
    assert codec.decode_exact(HeartbeatResponse, version, data[4:], at).error_code == 27
    assert bench.dispatched == []
    assert bench.loop.express.frames == {}


@pytest.mark.parametrize("group", ["g", "my-group", "group-that-moves", "polygenelubricants"])
def test_group_with_any_hash_goes_where_the_others_look_for_it(bench: Bench, group: str) -> None:
    """Positive and negative hashes, and the smallest one."""
    client = bench.connect()
    client.send(frame(heartbeat(group), 3))
    bench.turn()
    assert [r.slot for r in bench.asked()] == [SLOTS[coordinator_partition(group, 3)]]


def messages_for_four(bench: Bench) -> int:
    """The number of messages for four requests that arrive before a turn begins."""
    clients = [bench.connect() for _ in range(4)]
    for n, client in enumerate(clients):
        client.send(frame(heartbeat(f"g{n}"), 3, number=n))
    requests, messages = [], 0
    while len(requests) < len(clients):
        bench.turn(1)
        with suppress(BlockingIOError):
            data = bench.worker.recv(1 << 20)
            messages += 1
            requests += [bench.assembler.request(part) for part in unpack(data[ENVELOPE.size :])]
    bench.reply(*(Response(r.token, 0, b"\0\0\0\0\0\0") for r in requests))
    bench.turn()
    for n, client in enumerate(clients):
        assert client.recv(1000) == struct.pack(">iiih", 10, n, 0, 0)
    return messages


def test_requests_of_one_turn_share_a_message(bench: Bench) -> None:
    """A stalled machine may end a turn early, but not every time."""
    assert any(messages_for_four(bench) == 1 for _ in range(20))


def test_transactional_id_finds_the_other_topic(bench: Bench) -> None:
    from kbroker.protocol.messages.end_txn import EndTxnRequest

    client = bench.connect()
    request = EndTxnRequest(transactional_id="tx", producer_id=1, producer_epoch=0, committed=True)
    client.send(frame(request, 3))
    bench.turn()
    assert [r.slot for r in bench.asked()] == [3]


@pytest.mark.parametrize(
    ("request_", "version", "client_id"),
    [
        (heartbeat("ä"), 3, "c"),
        # The bytes of a text are looked at in eights.
        (heartbeat("ä-group-of-16-by"), 3, "c"),
        (heartbeat("group-äof-16-byt"), 3, "c"),
        (heartbeat("group-of-16-byää"), 3, "c"),
        (heartbeat("group-of-18-bytesä"), 3, "c"),
        (heartbeat("g"), 4, "ä"),
        (heartbeat(""), 3, "c"),
        (heartbeat("g" * 32_767), 1, "c"),
        (heartbeat("g"), 3, "c" * 2000),
        (OffsetCommitRequest(group_id="g"), 0, "c"),
    ],
)
def test_what_is_unusual_goes_through_its_handler(
    bench: Bench, request_: Any, version: int, client_id: str
) -> None:
    client = bench.connect()
    sent = frame(request_, version, client_id)
    client.send(sent)
    for _ in range(5):
        bench.turn()
    assert bench.asked() == []
    assert [f for _, f in bench.dispatched] == [sent[4:]]


def test_no_client_id_is_an_empty_one(bench: Bench) -> None:
    bench.connect().send(frame(heartbeat(), 3, None))
    bench.turn()
    assert [r.client_id for r in bench.asked()] == [""]


def test_topic_that_is_not_there_goes_through_its_handler(bench: Bench) -> None:
    bench.fetch.remove_topic("__consumer_offsets")
    bench.connect().send(frame(heartbeat(), 3))
    bench.turn()
    assert len(bench.dispatched) == 1


def test_error_of_a_coordinator_is_put_by_the_handler(bench: Bench) -> None:
    client = bench.connect()
    sent = frame(heartbeat(), 3)
    client.send(sent)
    bench.turn()
    (request,) = bench.asked()
    bench.reply(Response(request.token, int(ErrorCode.NOT_COORDINATOR), b"why"))
    bench.turn()
    ((token, kept, code, text),) = bench.rejected
    assert (kept, code, text) == (sent[4:], ErrorCode.NOT_COORDINATOR, b"why")
    bench.loop.respond(token, b"\0\0\0\x07put")
    bench.turn()
    assert client.recv(100) == b"\0\0\0\x07\0\0\0\x07put"


def test_restarted_io_worker_is_asked_again_what_the_last_one_did_not_complete(
    bench: Bench,
) -> None:
    client = bench.connect()
    client.send(frame(heartbeat("one"), 3))
    bench.turn()
    (first,) = bench.asked()
    bench.cells[0] = 6
    bench.turn()
    assert bench.asked() == [first]
    assert bench.rejected == []
    bench.reply(Response(first.token, 0, b"of the last one"), sender=5)
    bench.turn()
    assert received(client) == b""
    bench.reply(Response(first.token, 0, b"answer"), sender=6)
    bench.turn()
    assert client.recv(100)[8:] == b"answer"
    assert (bench.loop.express.frames, bench.loop.requests_in_flight) == ({}, 0)


def test_restarted_io_worker_ends_what_would_not_mean_the_same_again(bench: Bench) -> None:
    """A member's heartbeat says what has changed since the last one."""
    bench.connect().send(frame(ConsumerGroupHeartbeatRequest(group_id="g", member_id="m"), 1))
    bench.turn()
    (first,) = bench.asked()
    bench.cells[0] = 6
    bench.turn()
    assert [code for _, _, code, _ in bench.rejected] == [ErrorCode.NOT_COORDINATOR]
    bench.reply(Response(first.token, 0, b"late"), sender=6)
    bench.turn()
    bench.connect().send(frame(heartbeat("two"), 3))
    bench.turn()
    assert len(bench.asked()) == 1


def test_what_is_asked_again_is_the_same_on_both_ways() -> None:
    ways = {key for key, *_ in express_path.routes()}
    assert set(express_path.repeated()) == REPEATED & ways
    names = {ApiKey(key).name for key in REPEATED - ways}
    assert names == {"ADD_PARTITIONS_TO_TXN", "TXN_OFFSET_COMMIT"}


def test_coordinator_that_is_silent_is_given_up(bench: Bench) -> None:
    bench.connect().send(frame(heartbeat(), 3))
    bench.turn()
    bench.loop.expire_at(time.monotonic_ns() + 29_000_000_000)
    assert bench.rejected == []
    bench.loop.expire_at(time.monotonic_ns() + 31_000_000_000)
    assert [code for _, _, code, _ in bench.rejected] == [ErrorCode.NOT_COORDINATOR]


def test_late_response_reaches_nobody(bench: Bench) -> None:
    client = bench.connect()
    client.send(frame(heartbeat(), 3))
    bench.turn()
    (request,) = bench.asked()
    bench.loop.expire_at(time.monotonic_ns() + 31_000_000_000)
    bench.loop.respond(bench.rejected.pop()[0], None)
    bench.turn()
    assert bench.loop.requests_in_flight == 0
    assert bench.loop.express.frames == {}
    other = bench.connect()
    other.send(frame(heartbeat(), 3))
    bench.turn()
    (second,) = bench.asked()
    assert second.token != request.token
    bench.reply(Response(request.token, 0, b"stale!"), Response(second.token, 0, b"fresh!"))
    bench.turn()
    assert other.recv(100)[8:] == b"fresh!"
    assert bench.rejected == []


def test_connection_that_is_closed_leaves_nothing_behind(bench: Bench) -> None:
    client = bench.connect()
    client.send(frame(heartbeat(), 3))
    bench.turn()
    (request,) = bench.asked()
    bench.loop.stop_reading()
    bench.loop.close_all()
    assert bench.loop.express.frames == {}
    assert bench.loop.requests_in_flight == 0
    assert is_express(next(response_parts(Response(request.token, 0, b""))))


def test_responses_to_handlers_continue_to_them(bench: Bench) -> None:
    bench.connect().send(frame(heartbeat(), 3))
    bench.turn()
    (request,) = bench.asked()
    bench.reply(Response(5, 0, b"theirs"), Response(request.token, 0, b"ours!!"))
    bench.turn()
    (message,) = bench.others
    assert [is_express(part) for part in unpack(message)] == [False, True]


def test_full_lane_sends_requests_through_their_handlers_and_loses_none(bench: Bench) -> None:
    clients = [bench.connect() for _ in range(60)]
    for n, client in enumerate(clients):
        client.send(frame(heartbeat("g" * 20_000), 1, number=n))
    for _ in range(10):
        bench.turn()
    handed_on = 0
    for _ in range(100):
        handed_on += len(bench.asked())
        bench.turn()
    assert handed_on + len(bench.dispatched) == 60
    assert handed_on > 5


def test_damaged_requests_are_handed_on_or_dispatched_never_lost() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    bench = Bench()
    for _ in range(400):
        sent = bytearray(frame(heartbeat("group"), random_.randrange(5)))
        for _ in range(random_.randrange(1, 6)):
            sent[random_.randrange(8, len(sent))] = random_.randrange(256)
        client = bench.connect()
        client.send(sent)
        bench.turn()
        asked, dispatched = bench.asked(), [token for token, _ in bench.dispatched]
        bench.dispatched.clear()
        assert len(asked) + len(dispatched) == 1 or bench.loop.connection_count == 0
        bench.reply(*(Response(request.token, 0, b"fine") for request in asked))
        for token in dispatched:
            bench.loop.respond(token, None)
        client.close()
        for _ in range(3):
            bench.turn()
    assert bench.loop.express.frames == {}
    assert bench.loop.requests_in_flight == 0


@pytest.mark.parametrize("version", range(5))
def test_response_says_how_long_a_muted_client_should_wait(bench: Bench, version: int) -> None:
    """The coordinator, which wrote the response, does not know."""
    client = bench.connect()
    client.send(frame(heartbeat(), version))
    bench.turn()
    (request,) = bench.asked()
    bench.loop.mute(bench.connection, time.monotonic_ns() // 1_000_000 + 60_000)

    bench.reply(Response(request.token, 0, codec.encode(HeartbeatResponse(error_code=27), version)))
    bench.turn()

    data = client.recv(1000)[4:]
    _, at = header.decode_response_header(data, ApiKey.HEARTBEAT, version)
    response = codec.decode_exact(HeartbeatResponse, version, data, at)
    assert response.error_code == 27
    if version:
        assert 50_000 < response.throttle_time_ms <= 60_000


def test_quota_of_the_clients_time_goes_along() -> None:
    """The io worker counts what the coordinator takes of it."""
    bench = Bench(quotas=QuotaTable(bytearray(region_size(64)), 2, 1000))
    quota = Quota(bench.loop.limits.table, 77, 1e9)
    bench.loop.limits.find = lambda access, name: ClientUsage(
        name, None, None, quota if name == b"limited" else None
    )
    bench.loop.forget_quotas(True)
    bench.connect().send(frame(heartbeat(), 4, "limited"))
    bench.turn()
    bench.connect().send(frame(heartbeat(), 4, "free"))
    bench.turn()

    assert [request.quota for request in bench.asked()] == [(77, 1e9), (0, 0.0)]
