"""The fast path of offset commits: when it is used, what waits, and failures."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.coordinators.coordinators_bench import (
    ENVELOPE_BYTES,
    Bench,
    LoopBench,
    ShortBench,
    commit,
)
from support.coordinators.offsets_host import FakeGroup
from support.storage.log_store import break_file, stored_values

from kbroker._ext.shared.quota_table import Quota, QuotaTable, region_size
from kbroker.coordinator.shard import ACTIVE, LOADING
from kbroker.errors import ErrorCode
from kbroker.ipc.lane_calls import unpack
from kbroker.ipc.rpc import Pending
from kbroker.protocol import codec
from kbroker.protocol.messages.heartbeat import HeartbeatRequest
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

pytestmark = pytest.mark.unit


@pytest.fixture
def bench(tmp_path: Path) -> ShortBench:
    return ShortBench(tmp_path)


@pytest.fixture
def real(tmp_path: Path) -> LoopBench:
    return LoopBench(tmp_path)


def codes(body: bytes, version: int = 6) -> list[int]:
    response = codec.decode_exact(OffsetCommitResponse, version, body)
    return [p.error_code for topic in response.topics for p in topic.partitions]


def waiting(bench: Bench) -> int:
    """The responses that wait for a commit."""
    log = bench.logs.log(0)
    assert log is not None
    return log.appender.committed.count


def records(bench: Bench) -> int:
    log = bench.logs.log(0)
    assert log is not None
    return len(stored_values(log))


def test_commit_completes_when_its_record_is_published(bench: ShortBench) -> None:
    token = bench.ask(commit(), 6)
    assert bench.responses() == [] and records(bench) == 1
    assert waiting(bench) == 1

    bench.end_turn()

    (answer,) = bench.responses()
    assert (answer.token, answer.error, codes(answer.body)) == (token, 0, [0])
    assert bench.left == 0
    assert waiting(bench) == 0


def test_commit_is_rejected_while_too_few_replicas_are_in_sync(real: LoopBench) -> None:
    log = real.logs.log(0)
    assert log is not None
    log.appender.committed.is_under_min_isr = True
    token = real.ask(commit(), 6)
    real.read()
    real.end_turn()

    (answer,) = real.responses()

    assert (answer.token, answer.error) == (token, 0)
    assert codes(answer.body) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert log.log_end_offset == 0


def test_commit_that_too_few_replicas_have_is_not_acknowledged(bench: ShortBench) -> None:
    log = bench.logs.log(0)
    assert log is not None
    log.set_high_watermark(0)
    token = bench.ask(commit(), 6)
    bench.end_turn()
    log.appender.committed.is_maximal_under_min_isr = True

    log.appender.committed.advance(1)
    bench.end_turn()

    (answer,) = bench.responses()
    assert (answer.token, answer.error) == (token, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def test_loop_serves_commits_without_the_long_way(real: LoopBench) -> None:
    real.loop.on_request = None
    for n in range(20):
        real.ask(commit(f"g{n}"), 8)
    real.read()
    assert real.responses() == []
    assert real.loop.end_turn() is False
    data = real.network.recv(1 << 20)
    parts = list(unpack(data[ENVELOPE_BYTES:]))
    answers = [real.assembler.response(part) for part in parts]
    assert [a.token for a in answers if a] == list(range(1, 21))
    assert all(codes(a.body, 8) == [0] for a in answers if a)
    commit_path = real.coordinators.commit_path
    assert (commit_path.commits, commit_path.offsets_committed) == (20, 20)
    assert commit_path.commit_ns > 0


def test_loop_hands_what_is_left_to_the_long_way_in_order(real: LoopBench) -> None:
    messages: list[bytes] = []
    send, real.send = real.send, messages.append  # type: ignore[method-assign]
    real.ask(commit(offset=1), 6)
    real.ask(HeartbeatRequest(group_id="none", generation_id=1, member_id="m"), 3)
    real.ask(commit("größe"), 6)
    real.ask(commit(offset=2), 6)
    send(b"".join(messages))
    real.read()
    real.end_turn()
    found = sorted(real.responses())
    assert [(a.token, a.error) for a in found] == [
        (1, 0), (2, ErrorCode.UNKNOWN_MEMBER_ID), (3, 0), (4, 0),
    ]  # fmt: skip
    assert real.coordinators.commit_path.commits == 2 and real.coordinators.commits == 1
    store = real.shard.machine.offsets.store  # type: ignore[attr-defined]
    assert store.get("g", "t", 0)[0] == 2 and store.get("größe", "t", 0)[0] == 5


def test_damaged_message_is_a_line_of_the_log_and_the_next_one_is_served(
    real: LoopBench, caplog: pytest.LogCaptureFixture
) -> None:
    """It must not end the process, which serves others, too."""
    real.send(b"\xff\xff\0\0rest")
    real.read()
    assert "a message that is damaged: a part of 65535 bytes" in caplog.text

    token = real.ask(commit(), 6)
    real.read()
    real.end_turn()
    assert [answer.token for answer in real.responses()] == [token]


def test_fetch_behind_a_commit_completes_once_that_is_published(bench: ShortBench) -> None:
    """It has seen an offset that is not published yet."""
    bench.ask(commit(offset=9), 6)
    fetch = OffsetFetchRequest(
        group_id="g",
        topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
    )
    token = bench.ask(fetch, 5)
    assert waiting(bench) == 2
    bench.end_turn()
    answer = next(a for a in bench.responses() if a.token == token)
    response = codec.decode_exact(OffsetFetchResponse, 5, answer.body)
    assert response.topics[0].partitions[0].committed_offset == 9


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda r: setattr(r.topics[0], "name", "nobody"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (
            lambda r: setattr(r.topics[0].partitions[0], "partition_index", 7),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        (
            lambda r: setattr(r.topics[0].partitions[0], "committed_metadata", "x" * 5000),
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ),
        (lambda r: setattr(r, "generation_id_or_member_epoch", 3), ErrorCode.ILLEGAL_GENERATION),
        (lambda r: setattr(r, "group_id", "fenced"), ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_commit_with_an_error_takes_the_long_way(
    bench: ShortBench, change: Callable[[OffsetCommitRequest], None], expected: ErrorCode
) -> None:
    machine: Any = bench.shard.machine
    machine.groups["fenced"] = FakeGroup("fenced", reject=ErrorCode.FENCED_INSTANCE_ID)
    request = commit()
    change(request)
    bench.ask(request, 6)
    bench.end_turn()
    (answer,) = bench.responses()
    assert (bench.left, codes(answer.body), records(bench)) == (1, [expected], 0)


@pytest.mark.parametrize(("slot", "incarnation"), [(0, 2), (2, 1), (99, 1)])
def test_commit_for_a_slot_without_coordinator_takes_the_long_way(
    bench: ShortBench, slot: int, incarnation: int
) -> None:
    bench.ask(commit(), 6, slot, incarnation)
    bench.end_turn()
    (answer,) = bench.responses()
    assert (bench.left, answer.error) == (1, ErrorCode.NOT_COORDINATOR)


def test_commit_of_a_member_is_checked_and_starts_its_session(bench: ShortBench) -> None:
    machine: Any = bench.shard.machine
    group = machine.groups["g"] = FakeGroup("g")
    request = commit()
    request.member_id, request.generation_id_or_member_epoch = "m", 4
    bench.ask(request, 6)
    bench.end_turn()
    (answer,) = bench.responses()
    assert (bench.left, codes(answer.body)) == (0, [0])
    assert group.checked == [("m", None, 4, 6, False)]


def test_timer_that_is_due_earlier_ends_the_turns_of_the_loop(bench: ShortBench) -> None:
    commit_path = bench.coordinators.commit_path
    commit_path.timer_set = False
    bench.shard.set_timer("far", 1000, lambda op: None)
    assert commit_path.timer_set
    commit_path.timer_set = False
    bench.shard.set_timer("farther", 2000, lambda op: None)
    assert not commit_path.timer_set


def test_commit_that_sets_a_timer_ends_the_turns_of_the_loop(real: LoopBench) -> None:
    """Otherwise the process would wait beyond a deadline that it did not know."""

    class Timed(FakeGroup):
        def check_commit(self, *asked: Any, **more: Any) -> None:
            real.shard.set_timer("soon", 1000, lambda op: None)

    machine: Any = real.shard.machine
    machine.groups["g"] = Timed("g")
    request = commit()
    request.member_id, request.generation_id_or_member_epoch = "m", 4
    real.ask(request, 6)

    began = time.monotonic()
    with select.epoll() as epoll:
        epoll.register(real.lane.fd, select.EPOLLIN)
        assert real.loop.turns(epoll.fileno(), 60_000) == []

    assert time.monotonic() - began < 30
    assert real.coordinators.commit_path.commits == 1


def test_shard_that_loads_or_is_closed_leaves_commits_to_the_long_way(bench: ShortBench) -> None:
    bench.shard.state = LOADING
    bench.ask(commit(), 6)
    bench.end_turn()
    assert [a.error for a in bench.responses()] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    bench.shard.state = ACTIVE
    bench.coordinators.close(0)
    bench.ask(commit(), 6)
    bench.end_turn()
    assert [a.error for a in bench.responses()] == [ErrorCode.NOT_COORDINATOR]
    assert bench.left == 2


def test_commit_whose_shard_goes_before_it_is_published_gets_an_error(bench: ShortBench) -> None:
    token = bench.ask(commit(), 6)
    assert bench.coordinators.next_deadline_ms > 0
    bench.coordinators.close(0)
    assert bench.coordinators.next_deadline_ms == 0
    bench.end_turn()
    assert bench.coordinators.next_deadline_ms > 0
    ((found, error, text),) = bench.responses()
    assert (found, error) == (token, ErrorCode.NOT_COORDINATOR) and text


@pytest.mark.parametrize("at_write", [True, False])
def test_failing_disk_is_not_coordinator_and_takes_the_directory_offline(
    real: LoopBench, at_write: bool
) -> None:
    log = real.logs.log(0)
    assert log is not None
    log.appender.configure(**{**log_limits(), "flush_messages": 1})
    if at_write:
        break_file(log)
    token = real.ask(commit(), 6)
    real.read()
    if not at_write:
        break_file(log)
    real.end_turn()
    real.end_turn()
    ((found, error, _),) = real.responses()
    assert (found, error) == (token, ErrorCode.NOT_COORDINATOR)
    assert real.logs.log(0) is None and 0 not in real.coordinators._shards


def log_limits() -> dict[str, Any]:
    return {
        "message_bytes_max": 1 << 20,
        "decompressed_bytes_max": 1 << 20,
        "segment_bytes": 1 << 30,
        "segment_ms": 1 << 40,
        "index_interval_bytes": 4096,
        "timestamp_before_max_ms": (1 << 63) - 1,
        "timestamp_after_max_ms": (1 << 63) - 1,
        "log_append_time": False,
        "compacted": True,
    }


def test_batch_the_log_rejects_gets_the_error_of_the_long_way(bench: ShortBench) -> None:
    log = bench.logs.log(0)
    assert log is not None
    log.appender.configure(**{**log_limits(), "message_bytes_max": 50, "flush_messages": 1 << 40})
    bench.ask(commit(), 6)
    bench.end_turn()
    (answer,) = bench.responses()
    assert (bench.left, answer.error) == (1, ErrorCode.UNKNOWN_SERVER_ERROR)


def test_record_that_cannot_be_replayed_has_the_shard_loaded_again(bench: ShortBench) -> None:
    sleeps: list[Pending] = []
    bench.rpc.sleep = lambda delay_ms: sleeps.append(Pending()) or sleeps[-1]
    machine: Any = bench.shard.machine
    machine.offsets.count = lambda: 1 // 0
    token = bench.ask(commit(), 6)
    bench.end_turn()
    ((found, error, _),) = bench.responses()
    assert (found, error) == (token, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert bench.shard.state == LOADING
    sleeps.pop().resolve()
    assert bench.shard.state == ACTIVE and bench.shard.machine is not machine

    bench.ask(commit(offset=6), 6)
    bench.end_turn()
    assert [codes(a.body) for a in bench.responses()] == [[0]]
    store = bench.shard.machine.offsets.store  # type: ignore[attr-defined]
    assert bench.left == 0 and store.get("g", "t", 0)[0] == 6


def test_responses_wait_for_room_on_the_lane(bench: ShortBench) -> None:
    for n in range(3000):
        bench.ask(commit(f"group-{n}-" + "x" * 200), 6)
    found: list[int] = []
    for _ in range(200):
        bench.end_turn()
        found += [answer.token for answer in bench.responses()]
    assert found == list(range(1, 3001)) and bench.left == 0


def test_commit_of_a_network_process_that_is_gone_gets_no_response(real: LoopBench) -> None:
    real.ask(commit(), 6)
    real.read()
    real.cells[0] = 6
    real.end_turn()
    assert real.responses() == [] and records(real) == 1


def test_responses_wait_for_the_high_watermark(bench: ShortBench) -> None:
    """Some of a shard's responses are sent, the others wait."""
    log = bench.logs.log(0)
    assert log is not None
    for n in range(4):
        bench.ask(commit(f"g{n}"), 6)
    log.appender.set_high_watermark(3, 0, 0)
    bench.end_turn()
    assert [a.token for a in bench.responses()] == [1, 2, 3]
    bench.ask(commit("more"), 6)
    log.appender.set_high_watermark(5, 0, 0)
    bench.end_turn()
    found = bench.responses()
    assert [a.token for a in found] == [4, 5]
    assert all(codes(a.body) == [0] for a in found)


def test_compressed_offsets_take_the_long_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.workers.io.coordinators.Coordinators._codec", lambda *_: 4)
    bench = ShortBench(tmp_path)
    bench.ask(commit(), 6)
    bench.end_turn()
    assert bench.shard.commits is None and bench.left == 1
    assert [codes(a.body) for a in bench.responses()] == [[0]]


@pytest.mark.parametrize(
    ("request_", "version"),
    [(commit(), 6), (HeartbeatRequest(group_id="none", generation_id=1, member_id="m"), 3)],
    ids=["undecoded", "decoded"],
)
def test_time_of_a_request_counts_for_the_quota_of_its_client(
    real: LoopBench, request_: Any, version: int
) -> None:
    table = QuotaTable(bytearray(region_size(64)), 11, 1000)
    real.loop.quotas = table
    quota = Quota(table, 7, 1e9, forgets=True)
    real.quota = (7, 1e9)
    began = time.monotonic_ns()
    real.ask(request_, version)
    real.read()
    spent = time.monotonic_ns() - began
    now = time.monotonic_ns() // 1_000_000

    used = quota.used(now)
    assert 0 < used < spent

    real.quota = (0, 0.0)
    real.ask(request_, version)
    real.read()
    assert quota.used(now) == used, "that of a client without a quota"
