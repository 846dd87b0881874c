"""A shard with a small machine on a real log: operations, responses, loading, damage, failure."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from support.storage.log_store import LogStore, break_file, end_turn

from kbroker.cluster.changes import ImageChanges, TopicChange
from kbroker.cluster.image import ClusterImage
from kbroker.coordinator.machine import Call, CoordinatorOperation
from kbroker.coordinator.records.offsets_topic import (
    RECORDS,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kbroker.coordinator.shard import ACTIVE, CLOSED, LOADING, Shard
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.rpc import Pending, run
from kbroker.protocol.api import ApiKey
from kbroker.record.builder import BatchBuilder
from kbroker.storage.log.partition_log import PartitionLog

pytestmark = pytest.mark.unit


def changes(**topics: Any) -> ImageChanges:
    """name=(old, new)"""
    return ImageChanges({name: TopicChange(*both) for name, both in topics.items()})


class Register:
    """Keeps a number per name. Heartbeat sets one; SyncGroup waits until it is set."""

    records = RECORDS

    def __init__(self, host: Any) -> None:
        self.host = host
        self.values: dict[str, int] = {}
        self.replayed: list[tuple[int, int, str, int | None]] = []
        self.markers: list[tuple[int, int, int, bool]] = []
        self.waiting: dict[str, list[Pending]] = {}
        self.closed_with: Exception | None = None
        self.images: list[Any] = []
        self.loads = 0
        self.handlers = {
            ApiKey.HEARTBEAT: lambda op, call: self.set(op, *call.request),
            ApiKey.SYNC_GROUP: lambda op, call: self.wait(op, call.request),
        }
        self.tasks = {ApiKey.LEAVE_GROUP: self.set_later}

    def set(self, op: CoordinatorOperation, name: str, value: int, *, touch: bool = False) -> Any:
        if value < 0:
            raise WireError(ErrorCode.INVALID_REQUEST)
        if touch:
            op.touch()
        key = OffsetCommitKey(group="g", topic=name, partition=0)
        op.append(key, OffsetCommitValue(offset=value, commit_timestamp=1))
        for pending in self.waiting.pop(name, []):
            op.touch()
            op.respond(pending, value)
        return f"{name} was {self.values.get(name)}"

    def wait(self, op: CoordinatorOperation, name: str) -> Pending:
        op.touch()
        pending = Pending()
        self.waiting.setdefault(name, []).append(pending)
        return pending

    async def set_later(self, call: Call) -> Any:
        await self.host.rpc.sleep(1)
        return await self.host.execute(self.set, *call.request)

    def replay(self, offset: int, producer_id: int, key: Any, value: Any) -> None:
        number = None if value is None else value.offset
        if number == 666:
            raise RuntimeError("a machine with a bug")
        self.replayed.append((offset, producer_id, key.topic, number))
        if value is None:
            self.values.pop(key.topic, None)
        else:
            self.values[key.topic] = value.offset

    def replay_chunk(self, data: bytes, position: int) -> tuple[int, int, int]:
        return position, 0, -1

    def replay_marker(self, offset: int, producer_id: int, epoch: int, commit: bool) -> None:
        self.markers.append((offset, producer_id, epoch, commit))

    def loaded(self, op: CoordinatorOperation) -> None:
        self.loads += 1

    def on_image(self, op: CoordinatorOperation, changed: ImageChanges) -> None:
        self.images.append(changed)

    def close(self, error: Exception) -> None:
        self.closed_with = error
        for waiting in self.waiting.values():
            for pending in waiting:
                pending.resolve(error=error)


class Sleeps:
    """The part of ``Rpc`` used by a shard; sleeps end on command."""

    def __init__(self) -> None:
        self.sleepers: list[Pending] = []

    def sleep(self, delay_ms: int) -> Pending:
        self.sleepers.append(Pending())
        return self.sleepers[-1]

    def wake(self) -> None:
        sleepers, self.sleepers = self.sleepers, []
        for pending in sleepers:
            pending.resolve()


class Process:
    """The io worker of a shard."""

    load_bytes = 1 << 20

    def __init__(self, path: Path, **config: Any) -> None:
        self.store = LogStore(path)
        self.log: PartitionLog = self.store.open(cleanup_policy=("compact",), **config)
        self.rpc: Any = Sleeps()
        self.image = ClusterImage()
        self.config: Any = {}
        self.clock = self.store.clock
        self.published: list[PartitionLog] = []
        self.verified: list[Any] = []
        self.failed_slots: list[int] = []
        self.shard = Shard(self, self.log, Register, 0, self.load_bytes)

    def appended(self, source: PartitionLog, records: int, size: int) -> None:
        self.published.append(source)

    def storage_failed(self, slot: int) -> None:
        self.failed_slots.append(slot)
        self.shard.close()

    def timer_set(self, deadline_ms: int) -> None: ...

    def count(self, metric: Any, amount: int) -> None: ...

    def io_worker(self, slot: int) -> Any: ...

    def verify_partition(self, *call: Any) -> Pending:
        self.verified.append(call)
        pending = Pending()
        pending.resolve(0)
        return pending

    def load(self) -> Register:
        outcome = run(self.shard.load())
        assert outcome.done and outcome.error is None, outcome.error
        return self.machine

    @property
    def machine(self) -> Any:
        return self.shard.machine

    def end_turn(self) -> None:
        published, self.published = self.published, []
        for source in published:
            end_turn(source)

    def reload(self) -> Register:
        """A new shard on the same log, as after a restart of the process."""
        self.end_turn()
        self.shard.close()
        self.shard = Shard(self, self.log, Register, 0, self.load_bytes)
        return self.load()


@pytest.fixture
def process(tmp_path: Path) -> Process:
    made = Process(tmp_path)
    made.load()
    return made


def call(key: ApiKey, request: Any) -> Call:
    return Call(key, 0, request)


def result(pending: Pending) -> Any:
    assert pending.done
    if pending.error is not None:
        raise pending.error
    return pending.value


def code(pending: Pending) -> int:
    assert pending.done and isinstance(pending.error, WireError), pending.error
    return int(pending.error.code)


class TestReplicas:
    """A log whose high watermark depends on other replicas."""

    @pytest.fixture
    def held(self, process: Process) -> Process:
        """A read of one uncommitted record."""
        process.shard.execute(process.machine.set, "a", 1)
        process.end_turn()
        process.shard.close()
        process.log.set_high_watermark(0)
        process.shard = Shard(process, process.log, Register, 0, process.load_bytes)
        self.loading = run(process.shard.load())
        return process

    def commit(self, process: Process) -> None:
        process.log.set_high_watermark(process.log.log_end_offset)
        end_turn(process.log)

    def test_shard_serves_when_all_that_it_has_read_is_committed(self, held: Process) -> None:
        assert held.machine.values == {"a": 1}
        outcome = held.shard.handle(call(ApiKey.HEARTBEAT, ("a", 2)))
        assert code(outcome) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self.commit(held)
        assert self.loading.done and self.loading.error is None
        assert (held.shard.state, held.machine.loads) == (ACTIVE, 1)

    def test_marker_behind_what_was_read_is_not_missed(self, held: Process) -> None:
        held.shard.on_marker(1, 7, 0, True)
        assert held.machine.markers == [(1, 7, 0, True)]

    def test_lead_that_is_lost_before_the_commit_ends_the_load(self, held: Process) -> None:
        held.shard.close()
        held.log.appender.committed.fail(WireError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        assert self.loading.done and self.loading.error is None
        assert held.shard.state == CLOSED
        self.commit(held)
        assert held.machine.loads == 0

    def test_log_that_will_not_commit_has_no_coordinator(self, held: Process) -> None:
        held.log.appender.committed.fail(WireError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        assert isinstance(self.loading.error, WireError)
        held.shard.on_loaded(self.loading)
        assert held.shard.state == CLOSED


class TestTooFewInSync:
    """Fewer replicas than min.insync.replicas are in sync."""

    @pytest.fixture
    def refusing(self, process: Process) -> Process:
        process.log.appender.committed.is_under_min_isr = True
        return process

    def test_request_that_writes_is_rejected_and_changes_nothing(self, refusing: Process) -> None:
        outcome = refusing.shard.handle(call(ApiKey.HEARTBEAT, ("a", 1)))

        assert code(outcome) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (refusing.log.log_end_offset, refusing.machine.values) == (0, {})
        assert refusing.shard.state == ACTIVE
        assert refusing.shard.execute(lambda op: 5).value == 5, "reads are served"

    def test_request_is_served_when_enough_are_in_sync_again(self, refusing: Process) -> None:
        refusing.shard.handle(call(ApiKey.HEARTBEAT, ("a", 1)))
        refusing.log.appender.committed.is_under_min_isr = False
        outcome = refusing.shard.handle(call(ApiKey.HEARTBEAT, ("a", 1)))
        refusing.end_turn()
        assert result(outcome) == "a was None"

    def test_log_says_once_that_requests_are_rejected(
        self, refusing: Process, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO):
            for _ in range(10):
                refusing.shard.handle(call(ApiKey.HEARTBEAT, ("a", 1)))
            refusing.log.appender.committed.is_under_min_isr = False
            refusing.shard.handle(call(ApiKey.HEARTBEAT, ("a", 1)))
        levels = [record.levelno for record in caplog.records]
        assert levels == [logging.WARNING, logging.INFO], caplog.text

    def test_timer_runs_again_until_it_may_write(self, refusing: Process) -> None:
        refusing.shard.set_timer("t", 50, refusing.machine.set, "a", 9)
        for _ in range(10):
            refusing.clock.advance(1_000)
            refusing.shard.run_timers()
        assert refusing.machine.values == {}
        refusing.log.appender.committed.is_under_min_isr = False
        refusing.clock.advance(500)
        refusing.shard.run_timers()
        assert refusing.machine.values == {"a": 9}

    def commit(self, process: Process) -> None:
        process.log.set_high_watermark(process.log.log_end_offset)
        end_turn(process.log)

    def test_what_too_few_have_is_not_acknowledged_and_has_no_consequences_yet(
        self, process: Process
    ) -> None:
        """A transaction that is prepared on one disk must not commit: the disk may be lost."""
        process.log.set_high_watermark(0)
        committed, seen = process.log.appender.committed, []

        def operation(op: CoordinatorOperation) -> str:
            process.machine.set(op, "a", 1)
            op.then(lambda: seen.append("followed"))
            return "set"

        outcome = process.shard.execute(operation)
        committed.is_under_min_isr = committed.is_maximal_under_min_isr = True
        self.commit(process)

        assert code(outcome) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert process.machine.values == {"a": 1}, "it is in the log"
        process.clock.advance(10_000)
        process.shard.run_timers()
        assert seen == []
        committed.is_under_min_isr = committed.is_maximal_under_min_isr = False
        process.clock.advance(500)
        process.shard.run_timers()
        assert seen == ["followed"]

    def test_load_ends_with_too_few(self, process: Process) -> None:
        """What a coordinator has read may be served; another one would read the same."""
        process.shard.execute(process.machine.set, "a", 1)
        process.end_turn()
        committed = process.log.appender.committed
        committed.is_under_min_isr = committed.is_maximal_under_min_isr = True
        process.reload()
        assert process.shard.state == ACTIVE


class TestOperations:
    def test_response_waits_until_the_record_is_published(self, process: Process) -> None:
        outcome = process.shard.handle(call(ApiKey.HEARTBEAT, ("a", 1)))
        assert process.machine.values == {"a": 1}
        assert not outcome.done
        process.end_turn()
        assert result(outcome) == "a was None"

    def test_response_of_a_reader_waits_for_what_it_has_read(self, process: Process) -> None:
        process.shard.execute(process.machine.set, "a", 1)
        read = process.shard.execute(lambda op: dict(process.machine.values))
        assert not read.done
        process.end_turn()
        assert result(read) == {"a": 1}
        assert process.shard.execute(lambda op: 5).done, "nothing is unpublished"

    def test_pending_completed_by_another_operation(self, process: Process) -> None:
        waits = process.shard.handle(call(ApiKey.SYNC_GROUP, "a"))
        process.end_turn()
        assert not waits.done
        process.shard.handle(call(ApiKey.HEARTBEAT, ("a", 7)))
        assert not waits.done
        process.end_turn()
        assert result(waits) == 7

    def test_operation_asked_for_inside_another_runs_after_it(self, process: Process) -> None:
        seen: list[Any] = []

        def outer(op: CoordinatorOperation) -> str:
            inner = process.shard.execute(process.machine.set, "a", 2)
            inner.then(lambda done: seen.append(done.value))
            process.machine.set(op, "a", 1)
            return "outer"

        process.shard.execute(outer)
        process.end_turn()
        assert process.machine.values == {"a": 2}
        assert seen == ["a was 1"]

    def test_rejected_operation_writes_nothing(self, process: Process) -> None:
        end = process.log.log_end_offset
        outcome = process.shard.handle(call(ApiKey.HEARTBEAT, ("a", -1)))
        assert code(outcome) == ErrorCode.INVALID_REQUEST
        assert process.log.log_end_offset == end
        assert process.shard.state == ACTIVE

    def test_task_comes_back_as_an_operation(self, process: Process) -> None:
        outcome = process.shard.handle(call(ApiKey.LEAVE_GROUP, ("a", 3)))
        process.rpc.wake()
        process.end_turn()
        assert result(outcome) == "a was None"

    def test_request_nobody_serves_is_unsupported(self, process: Process) -> None:
        outcome = process.shard.handle(call(ApiKey.JOIN_GROUP, None))
        assert code(outcome) == ErrorCode.UNSUPPORTED_VERSION

    def test_callback_runs_after_the_commit_only(self, process: Process) -> None:
        seen = []

        def operation(op: CoordinatorOperation) -> None:
            process.machine.set(op, "a", 1)
            op.then(lambda: seen.append(process.log.high_watermark))

        process.shard.execute(operation)
        assert seen == []
        process.end_turn()
        assert seen == [1]

    def test_timer_runs_as_an_operation(self, process: Process) -> None:
        process.shard.set_timer("t", 50, process.machine.set, "a", 9)
        process.clock.advance(49)
        process.shard.run_timers()
        assert process.machine.values == {}
        process.clock.advance(1)
        process.shard.run_timers()
        assert process.machine.values == {"a": 9}
        process.shard.set_timer("t", 50, process.machine.set, "a", 10)
        process.shard.cancel_timer("t")
        process.clock.advance(50)
        process.shard.run_timers()
        assert process.machine.values == {"a": 9}

    def test_transactional_records_carry_their_producer(self, process: Process) -> None:
        def operation(op: CoordinatorOperation) -> None:
            op.producer = (77, 2)
            process.machine.set(op, "a", 1)

        outcome = process.shard.execute(operation)
        process.end_turn()
        assert outcome.error is None
        assert process.machine.replayed == [(0, 77, "a", 1)]
        assert process.reload().replayed == [(0, 77, "a", 1)]


class TestFailure:
    def test_record_too_large_fails_its_operation_alone(self, tmp_path: Path) -> None:
        process = Process(tmp_path, max_message_bytes=200)
        process.load()
        outcome = process.shard.execute(process.machine.set, "x" * 300, 1)
        assert code(outcome) == ErrorCode.UNKNOWN_SERVER_ERROR
        assert process.shard.state == ACTIVE
        process.shard.execute(process.machine.set, "a", 1)
        process.end_turn()
        assert process.machine.values == {"a": 1}

    def test_failure_after_soft_state_changed_loads_the_shard_again(self, tmp_path: Path) -> None:
        process = Process(tmp_path, max_message_bytes=200)
        process.load()
        process.shard.execute(process.machine.set, "a", 1)
        process.end_turn()
        old = process.machine
        waits = process.shard.handle(call(ApiKey.SYNC_GROUP, "b"))
        outcome = process.shard.execute(lambda op: old.set(op, "x" * 300, 1, touch=True))
        assert code(outcome) == ErrorCode.UNKNOWN_SERVER_ERROR
        assert code(waits) == ErrorCode.COORDINATOR_NOT_AVAILABLE  # Java dies of the other
        assert process.shard.state == LOADING
        rejected = process.shard.handle(call(ApiKey.HEARTBEAT, ("a", 1)))
        assert code(rejected) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        process.rpc.wake()
        assert process.machine is not old
        assert process.machine.values == {"a": 1}
        assert process.shard.state == ACTIVE

    def test_failed_write_takes_the_directory_offline_and_ends_the_shard(
        self, process: Process
    ) -> None:
        waits = process.shard.handle(call(ApiKey.SYNC_GROUP, "b"))
        break_file(process.log)
        outcome = process.shard.execute(lambda op: process.machine.set(op, "a", 1, touch=True))
        assert code(outcome) == ErrorCode.NOT_COORDINATOR
        assert code(waits) == ErrorCode.NOT_COORDINATOR
        assert process.failed_slots == [process.log.slot]
        assert process.shard.state == CLOSED
        assert not process.rpc.sleepers

    def test_shard_that_cannot_be_loaded_again_is_closed(
        self, process: Process, caplog: pytest.LogCaptureFixture
    ) -> None:
        process.shard.execute(process.machine.set, "a", 666)
        (segment,) = Path(process.log.path).glob("*.log")
        segment.rename(segment.with_suffix(".gone"))
        process.rpc.wake()
        rejected = process.shard.handle(call(ApiKey.HEARTBEAT, ("a", 1)))
        assert code(rejected) == ErrorCode.NOT_COORDINATOR
        assert "cannot be loaded" in caplog.text

    def test_bug_in_an_operation_costs_its_caller(self, process: Process) -> None:
        outcome = process.shard.execute(lambda op: 1 // 0)
        assert code(outcome) == ErrorCode.UNKNOWN_SERVER_ERROR
        assert process.shard.state == ACTIVE

    def test_bug_in_a_replay_loads_the_shard_again(self, process: Process) -> None:
        outcome = process.shard.execute(process.machine.set, "a", 666)
        assert code(outcome) == ErrorCode.UNKNOWN_SERVER_ERROR
        assert process.shard.state == LOADING

    def test_close_completes_everything(self, process: Process) -> None:
        written = process.shard.execute(process.machine.set, "a", 1)
        waits = process.shard.handle(call(ApiKey.SYNC_GROUP, "b"))
        process.shard.close()
        assert code(written) == ErrorCode.NOT_COORDINATOR
        assert code(waits) == ErrorCode.NOT_COORDINATOR
        rejected = process.shard.execute(process.machine.set, "a", 1)
        assert code(rejected) == ErrorCode.NOT_COORDINATOR


class TestLoad:
    def test_load_rebuilds_what_was_written(self, process: Process) -> None:
        for n in range(50):
            process.shard.execute(process.machine.set, f"k{n % 7}", n)
        process.end_turn()
        before = dict(process.machine.values)
        loaded = process.reload()
        assert loaded.values == before
        assert [row[0] for row in loaded.replayed] == list(range(50))
        assert loaded.loads == 1

    def test_load_reads_every_segment(self, tmp_path: Path) -> None:
        process = Process(tmp_path, segment_bytes=300)
        process.load()
        for n in range(40):
            process.shard.execute(process.machine.set, "k", n)
        process.end_turn()
        assert len(process.log.segments) > 5
        assert process.reload().values == {"k": 39}

    def test_load_gives_way_and_then_continues(self, process: Process, monkeypatch: Any) -> None:
        monkeypatch.setattr("kbroker.coordinator.loader.CHUNK_BYTES_MIN", 200)
        process.load_bytes = 200
        monkeypatch.setattr("kbroker.coordinator.shard.LOAD_STEP_MS", 0)
        for n in range(20):
            process.shard.execute(process.machine.set, "k", n)
        process.end_turn()
        process.shard.close()
        process.shard = Shard(process, process.log, Register, 0, process.load_bytes)
        outcome = run(process.shard.load())
        steps = 0
        while not outcome.done:
            rejected = process.shard.handle(call(ApiKey.HEARTBEAT, ("a", 1)))
            assert code(rejected) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            process.rpc.wake()
            steps += 1
        assert steps > 5
        assert process.machine.values == {"k": 19}

    def test_load_ends_where_the_shard_is_closed(self, process: Process, monkeypatch: Any) -> None:
        monkeypatch.setattr("kbroker.coordinator.loader.CHUNK_BYTES_MIN", 200)
        process.load_bytes = 200
        monkeypatch.setattr("kbroker.coordinator.shard.LOAD_STEP_MS", 0)
        for n in range(20):
            process.shard.execute(process.machine.set, "k", n)
        process.end_turn()
        process.shard = Shard(process, process.log, Register, 0, process.load_bytes)
        outcome = run(process.shard.load())
        process.shard.close()
        replayed = len(process.machine.replayed)
        process.rpc.wake()
        assert outcome.done and outcome.error is None
        assert len(process.machine.replayed) == replayed < 20

    def test_machine_is_told_of_images_that_came_while_it_was_loaded(
        self, process: Process
    ) -> None:
        """A topic deleted meanwhile would leave its offsets to the next one of that name."""
        old, new, newer = "old", "new", "newer"
        shard: Any = process.shard
        shard.execute(process.machine.set, "a", 666)  # fails, and the shard is reloaded
        shard.on_image(changes(t=(old, new), u=(None, new)))
        shard.on_image(changes(t=(new, None), v=(old, newer)))
        machine = process.machine
        assert machine.images == []
        machine.replay = lambda *_: None
        process.rpc.wake()
        assert shard.state == ACTIVE
        assert machine.images == [changes(t=(old, None), u=(None, new), v=(old, newer))]
        shard.on_image(changes(w=(None, new)))
        assert machine.images[1:] == [changes(w=(None, new))]

    def test_tombstone_deletes(self, process: Process) -> None:
        process.shard.execute(process.machine.set, "a", 1)
        key = OffsetCommitKey(group="g", topic="a", partition=0)
        process.shard.execute(lambda op: op.append(key, None))
        process.end_turn()
        assert process.machine.values == {}
        assert process.reload().values == {}

    @pytest.mark.parametrize(
        ("key", "value", "says"),
        [
            (b"\0\x01", b"\0\x03", "damaged"),
            (None, b"value", "damaged"),
            (b"\0\x63rest", b"\0\0", "newer broker"),
            (b"\0\x01\0\x01g\0\x01t\0\0\0\0", b"\0\x63", "newer broker"),
        ],
    )
    def test_record_that_cannot_be_read_is_named_and_left_out(
        self,
        process: Process,
        caplog: pytest.LogCaptureFixture,
        key: bytes | None,
        value: bytes,
        says: str,
    ) -> None:
        process.shard.execute(process.machine.set, "a", 1)
        if key is not None:
            builder = BatchBuilder()
            builder.append(value, key, 1)
            process.log.appender.append_batch(builder.build(), 1)
        process.shard.execute(process.machine.set, "b", 2)
        process.end_turn()
        with caplog.at_level(logging.WARNING):
            assert process.reload().values == {"a": 1, "b": 2}
        if key is not None:
            assert says in caplog.text and "offset 1" in caplog.text and "t-0" in caplog.text

    def test_record_that_cannot_be_replayed_costs_itself(
        self, process: Process, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It fails in every load: the groups after it would never be served again."""
        process.shard.execute(process.machine.set, "a", 1)
        process.shard.execute(process.machine.set, "b", 666)
        with caplog.at_level(logging.ERROR):
            process.rpc.wake()
        assert process.shard.state == ACTIVE
        assert process.machine.values == {"a": 1}
        assert "t-0: skipping the record at offset 1, which cannot be replayed" in caplog.text

        process.shard.execute(process.machine.set, "c", 3)
        process.end_turn()
        assert process.reload().values == {"a": 1, "c": 3}

    def test_batch_with_a_wrong_checksum_costs_itself(
        self, process: Process, caplog: pytest.LogCaptureFixture
    ) -> None:
        positions = self.write(process, 5)
        self.flip(process, positions[2] + 70)
        with caplog.at_level(logging.ERROR):
            assert sorted(process.reload().values) == ["k0", "k1", "k3", "k4"]
        assert caplog.text.count("skipping") == 1

    def test_batch_with_a_wrong_length_costs_itself(
        self, process: Process, caplog: pytest.LogCaptureFixture
    ) -> None:
        positions = self.write(process, 5)
        self.flip(process, positions[2] + 8)
        with caplog.at_level(logging.ERROR):
            assert sorted(process.reload().values) == ["k0", "k1", "k3", "k4"]
        assert "offset 1" in caplog.text

    def test_damage_at_the_end_ends_the_load(
        self, process: Process, caplog: pytest.LogCaptureFixture
    ) -> None:
        positions = self.write(process, 3)
        self.flip(process, positions[2] + 8)
        assert sorted(process.reload().values) == ["k0", "k1"]
        process.shard.execute(process.machine.set, "new", 1)
        process.end_turn()
        assert process.machine.values["new"] == 1

    def write(self, process: Process, count: int) -> list[int]:
        positions = []
        for n in range(count):
            positions.append(process.log.appender.position)
            process.shard.execute(process.machine.set, f"k{n}", n)
        process.end_turn()
        return positions

    def flip(self, process: Process, position: int) -> None:
        path = process.store.path(f"{0:020d}.log")
        data = bytearray(path.read_bytes())
        data[position] ^= 0x41
        with path.open("r+b") as file:
            file.write(data)


def test_shard_knows_the_open_transactions_of_its_log(process: Process) -> None:
    def operation(op: CoordinatorOperation) -> None:
        op.producer = (77, 2)
        process.machine.set(op, "a", 1)

    process.shard.execute(operation)
    assert process.shard.has_transaction(77, 2)
    assert not process.shard.has_transaction(77, 1)
    assert not process.shard.has_transaction(78, 2)
    assert process.shard.verify("tx", 77, 2, True).value == 0
    assert process.verified == [("t", 0, "tx", 77, 2, True)]


def test_shard_shows_what_a_machine_needs(process: Process) -> None:
    host = process.shard
    assert (host.topic, host.partition) == ("t", 0)
    assert host.wall_ms() == process.clock.now_ms()
    assert host.image is process.image
