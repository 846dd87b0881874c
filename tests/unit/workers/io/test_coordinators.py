"""The io worker's side of coordinators: shards for the internal topics, requests over lanes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.coordinators.coordinators_bench import ENVELOPE_BYTES, Bench, commit
from support.network.network_process import topic_document

from kbroker.cluster.changes import ImageChanges, TopicChange
from kbroker.config.loader import BrokerConfig
from kbroker.coordinator.machine import Call
from kbroker.coordinator.partitioner import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordinator.shard import ACTIVE, LOADING
from kbroker.errors import ErrorCode
from kbroker.ipc.lane_calls import unpack
from kbroker.ipc.process_table import Address
from kbroker.ipc.rpc import Pending
from kbroker.protocol import codec
from kbroker.protocol.api import response_class
from kbroker.protocol.messages.end_txn import EndTxnRequest
from kbroker.protocol.messages.heartbeat import HeartbeatRequest
from kbroker.protocol.messages.list_groups import ListGroupsRequest
from kbroker.protocol.messages.list_transactions import ListTransactionsRequest
from kbroker.protocol.messages.offset_commit import OffsetCommitResponse
from kbroker.security.principal import KafkaPrincipal
from kbroker.workers.io.coordinators import completed
from kbroker.workers.io.remote_verifications import RemoteVerifications, TransactionProducer

pytestmark = pytest.mark.unit


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_commit_completes_when_its_record_is_published(bench: Bench) -> None:
    token = bench.ask(commit(), 6)
    assert bench.responses() == []
    bench.end_turn()
    (answer,) = bench.responses()
    assert (answer.token, answer.error) == (token, 0)
    response = codec.decode_exact(OffsetCommitResponse, 6, answer.body)
    assert response.topics[0].partitions[0].error_code == 0


def test_machine_is_told_who_asks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Call] = []
    handle = bench.shard.handle
    monkeypatch.setattr(bench.shard, "handle", lambda call: calls.append(call) or handle(call))
    bench.principal = KafkaPrincipal("User", "alice")

    bench.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 3)

    assert [call.principal for call in calls] == [KafkaPrincipal("User", "alice")]


def test_responses_of_one_turn_share_a_message(bench: Bench) -> None:
    for n in range(20):
        bench.ask(commit(f"g{n}"), 6)
    bench.end_turn()
    data = bench.network.recv(1 << 20)
    assert len(list(unpack(data[ENVELOPE_BYTES:]))) == 20


def test_request_for_a_group_unknown_here_is_served_by_its_machine(bench: Bench) -> None:
    bench.ask(HeartbeatRequest(group_id="none", generation_id=1, member_id="m"), 3)
    bench.end_turn()
    (answer,) = bench.responses()
    assert answer.error == ErrorCode.UNKNOWN_MEMBER_ID
    assert answer.body.decode()


@pytest.mark.parametrize(("slot", "incarnation"), [(0, 2), (2, 1), (99, 1)])
def test_request_for_a_slot_without_coordinator_is_rejected(
    bench: Bench, slot: int, incarnation: int
) -> None:
    token = bench.ask(commit(), 6, slot, incarnation)
    bench.end_turn()
    (answer,) = bench.responses()
    assert (answer.token, answer.error) == (token, ErrorCode.NOT_COORDINATOR)


@pytest.mark.parametrize(
    ("slot", "asked", "version"), [(0, ListGroupsRequest(), 4), (1, ListTransactionsRequest(), 0)]
)
def test_lists_leave_out_what_is_gone_with_its_log_directory(
    bench: Bench, slot: int, asked: Any, version: int
) -> None:
    """Otherwise one dead disk of several would be all that an operator sees."""
    bench.on_storage_failure(slot)

    bench.ask(asked, version, slot)
    bench.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 3, slot)
    bench.end_turn()

    listed, rejected = bench.responses()
    assert (listed.error, rejected.error) == (0, ErrorCode.NOT_COORDINATOR)
    response = codec.decode_exact(response_class(asked.API_KEY), version, listed.body)
    assert response.error_code == 0


def test_request_of_a_network_process_that_is_gone_gets_no_response(bench: Bench) -> None:
    bench.ask(commit(), 6)
    bench.cells[0] = 6
    assert bench.lane.look()
    bench.end_turn()
    assert bench.responses() == []
    bench.ask(commit(), 6)
    bench.end_turn()
    assert len(bench.responses()) == 1


def test_responses_wait_for_room_on_the_lane(bench: Bench) -> None:
    wanted = 3000
    for n in range(wanted):
        bench.ask(commit(f"group-{n}-" + "x" * 200), 6)
    found = 0
    for _ in range(200):
        bench.end_turn()
        found += len(bench.responses())
    assert found == wanted


def test_topic_that_is_deleted_takes_its_coordinators_with_it(bench: Bench) -> None:
    bench.coordinators.close(0)
    bench.apply({OFFSETS_TOPIC: None})
    bench.ask(commit(), 6)
    bench.end_turn()
    (answer,) = bench.responses()
    assert answer.error == ErrorCode.NOT_COORDINATOR


def test_shards_are_loaded_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many large logs must not keep the process from its clients and its heartbeat."""
    bench = Bench(tmp_path)
    sleeps: list[Pending] = []
    bench.rpc.sleep = lambda delay_ms: sleeps.append(Pending()) or sleeps[-1]
    monkeypatch.setattr("kbroker.coordinator.shard.LOAD_STEP_MS", 0)
    monkeypatch.setattr("kbroker.workers.io.coordinators.LOAD_STEP_MS", 0)
    monkeypatch.setattr("kbroker.coordinator.loader.CHUNK_BYTES_MIN", 200)
    bench.config = BrokerConfig({"offsets.load.buffer.size": "200"})
    for n in range(10):
        bench.ask(commit(offset=n), 6)
        bench.end_turn()
    bench.coordinators = bench.make_coordinators()
    topics = {name: TopicChange(None, topic) for name, topic in bench.image.topics.items()}
    bench.coordinators.on_image(ImageChanges(topics))

    states = []
    while sleeps:
        states.append([shard.state for shard in bench.coordinators._shards.values()])
        sleeps.pop().resolve()

    assert len(states) > 3
    assert states[0] == [LOADING, LOADING]
    assert states[-1] == [ACTIVE, ACTIVE]
    assert [ACTIVE, LOADING] in states and [LOADING, ACTIVE] not in states


@pytest.fixture
def starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A newly started io worker; its logs are not open yet."""
    bench = Bench(tmp_path)
    bench.has_joined = False
    bench.coordinators = bench.make_coordinators()
    return bench


def open_all(bench: Bench) -> None:
    bench.has_joined = True
    topics = {name: TopicChange(None, topic) for name, topic in bench.image.topics.items()}
    bench.coordinators.on_image(ImageChanges(topics))


def test_request_for_a_coordinator_that_is_about_to_be_there_waits(starting: Bench) -> None:
    """The network process sends it again when an io worker dies; clients must not notice."""
    tokens = [starting.ask(commit(offset=n), 6) for n in range(3)]
    starting.end_turn()
    assert starting.responses() == []

    open_all(starting)
    starting.end_turn()

    assert [(a.token, a.error) for a in starting.responses()] == [(token, 0) for token in tokens]


def test_request_that_waits_until_its_coordinator_is_loaded(
    starting: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps: list[Pending] = []
    starting.rpc.sleep = lambda delay_ms: sleeps.append(Pending()) or sleeps[-1]
    monkeypatch.setattr("kbroker.workers.io.coordinators.LOAD_STEP_MS", 0)
    monkeypatch.setattr("kbroker.coordinator.shard.LOAD_STEP_MS", 0)
    open_all(starting)
    assert starting.coordinators.loading > 0
    token = starting.ask(
        EndTxnRequest(transactional_id="tx", producer_id=1, committed=True), 3, slot=1
    )
    starting.end_turn()
    assert starting.responses() == []

    while sleeps:
        sleeps.pop().resolve()
    starting.end_turn()

    (answer,) = starting.responses()
    assert answer.token == token
    assert answer.error not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


def test_request_does_not_wait_forever(starting: Bench) -> None:
    starting.ask(commit(), 6)
    starting.clock.advance(4_999)
    starting.end_turn()
    assert starting.responses() == []
    starting.clock.advance(1)
    starting.end_turn()

    assert [a.error for a in starting.responses()] == [ErrorCode.NOT_COORDINATOR]


def test_request_whose_log_could_not_be_opened_is_rejected(starting: Bench) -> None:
    starting.ask(commit(), 6, slot=7)
    starting.end_turn()
    assert starting.responses() == []

    open_all(starting)
    starting.end_turn()

    assert [a.error for a in starting.responses()] == [ErrorCode.NOT_COORDINATOR]


def test_coordinator_that_is_led_elsewhere_and_here_again_is_loaded_again(bench: Bench) -> None:
    bench.ask(commit(), 6)
    bench.end_turn()
    assert [answer.error for answer in bench.responses()] == [0]
    bench.ask(commit("other"), 6)
    first = bench.shard

    bench.coordinators.close(0)

    bench.ask(commit(), 6)
    bench.end_turn()
    assert [answer.error for answer in bench.responses()] == [ErrorCode.NOT_COORDINATOR] * 2
    bench.apply({OFFSETS_TOPIC: topic_document(b"\1" * 16, [0], internal=True, leader_epoch=5)})
    bench.end_turn()
    assert bench.shard is not first
    assert (bench.shard.state, len(bench.shard.machine.offsets.store)) == (ACTIVE, 2)
    bench.ask(commit(), 6)
    bench.end_turn()
    assert [answer.error for answer in bench.responses()] == [0]


def test_coordinator_that_waits_for_replicas_does_not_hold_up_the_next(bench: Bench) -> None:
    bench.ask(commit(), 6)
    bench.end_turn()
    bench.responses()
    log = bench.logs.log(0)
    for slot in (0, 1):
        bench.coordinators.close(slot)
    log.set_high_watermark(0)

    bench.apply(
        {
            OFFSETS_TOPIC: topic_document(b"\1" * 16, [0], internal=True, leader_epoch=5),
            TRANSACTIONS_TOPIC: topic_document(b"\2" * 16, [1], internal=True, leader_epoch=5),
        }
    )

    states = {shard.slot: shard.state for shard in bench.coordinators._shards.values()}
    assert states == {0: LOADING, 1: ACTIVE}
    bench.ask(commit("other"), 6)
    bench.end_turn()
    assert bench.responses() == []  # it waits for its coordinator
    log.set_high_watermark(log.log_end_offset)
    bench.loop.touch(log.appender)
    bench.end_turn()
    assert bench.shard.state == ACTIVE
    log.set_high_watermark(log.log_end_offset)
    bench.loop.touch(log.appender)
    bench.end_turn()
    assert [answer.error for answer in bench.responses()] == [0]


class TestVerify:
    def test_transaction_nobody_began_is_rejected(self, bench: Bench) -> None:
        bench.store.open(topic="t", slot=2)
        bench.coordinators.verify(2, 7, 0, "tx", 11, 44)
        bench.end_turn()
        ((token, code),) = bench.loop.verdicts
        assert token == 44
        assert code != 0

    def test_log_that_is_gone_is_rejected(self, bench: Bench) -> None:
        bench.coordinators.verify(9, 7, 0, "tx", 11, 44)
        assert bench.loop.verdicts == [(44, int(ErrorCode.INVALID_TXN_STATE))]

    def test_coordinator_of_another_io_worker_is_asked_by_call(self, bench: Bench) -> None:
        bench.store.open(topic="t", slot=2)
        bench.worker_count = 2
        asked: list[Any] = []

        def answer(to: Address, **call: Any) -> int:
            asked.append((to, call))
            return 0

        bench.rpc.responses["verify_transaction"] = answer
        bench.coordinators.verify(2, 7, 3, "tx", 12, 45)
        assert bench.loop.verdicts == [(45, 0)]
        ((to, call),) = asked
        assert (to.index, call["slot"], call["add"], call["producer_epoch"]) == (1, 1, True, 3)

    @pytest.mark.parametrize(("version", "adds"), [(11, False), (12, True)])
    def test_coordinator_on_another_broker_is_asked(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, version: int, adds: bool
    ) -> None:
        bench.coordinators.close(1)
        bench.apply({TRANSACTIONS_TOPIC: topic_document(b"\2" * 16, [-1], leader=2)})
        bench.store.open(topic="t", slot=2)
        asked: list[Any] = []

        def verify(
            self: RemoteVerifications, to: int, producer: TransactionProducer, partition: Any
        ) -> Pending[int]:
            asked.append((to, producer, partition))
            return completed(int(ErrorCode.PRODUCER_FENCED))

        monkeypatch.setattr(RemoteVerifications, "verify", verify)
        bench.coordinators.verify(2, 7, 3, "tx", version, 47)
        assert asked == [(2, TransactionProducer("tx", 7, 3, adds), ("t", 0))]
        assert bench.loop.verdicts == [(47, int(ErrorCode.PRODUCER_FENCED))]

    def test_coordinator_that_is_nowhere_is_waited_for(self, bench: Bench) -> None:
        bench.coordinators.close(1)
        bench.apply({TRANSACTIONS_TOPIC: topic_document(b"\2" * 16, [-1], leader=-1)})
        bench.store.open(topic="t", slot=2)
        bench.coordinators.verify(2, 7, 0, "tx", 11, 48)
        assert bench.loop.verdicts == [(48, int(ErrorCode.NOT_COORDINATOR))]

    def test_no_transactions_topic_is_not_coordinator(self, bench: Bench) -> None:
        bench.coordinators.close(1)
        bench.apply({TRANSACTIONS_TOPIC: None})
        bench.store.open(topic="t", slot=2)
        bench.coordinators.verify(2, 7, 0, "tx", 11, 46)
        assert bench.loop.verdicts == [(46, int(ErrorCode.NOT_COORDINATOR))]


def test_timer_has_a_deadline_and_runs_at_the_end_of_a_turn(bench: Bench) -> None:
    seen: list[str] = []
    (shard,) = [s for s in bench.coordinators._shards.values() if s.topic == OFFSETS_TOPIC]
    shard.set_timer("mine", 50, lambda op: seen.append("ran"))
    assert bench.coordinators.next_deadline_ms <= bench.clock.monotonic_ms() + 50
    bench.clock.advance(49)
    bench.end_turn()
    assert seen == []
    bench.clock.advance(1)
    bench.end_turn()
    assert seen == ["ran"]
