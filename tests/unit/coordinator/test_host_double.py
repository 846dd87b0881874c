"""The test double that all tests of coordinators rely on."""

from __future__ import annotations

from typing import Any

import pytest
from support.coordinators.coordinator_host import CoordinatorHost, value_of

from kbroker.coordinator.group.machine import GroupMachine, Part
from kbroker.coordinator.machine import Call, CoordinatorOperation
from kbroker.coordinator.records.offsets_topic import GroupMetadataKey, GroupMetadataValue
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.rpc import Pending
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

pytestmark = pytest.mark.unit


class Counting(Part):
    """Each heartbeat writes the group's next generation and returns it 10 ms later."""

    def __init__(self, machine: GroupMachine) -> None:
        super().__init__(machine)
        self.generations: dict[str, int] = {}
        self.waiting: list[Pending] = []
        self.handlers = {ApiKey.HEARTBEAT: self.beat}
        self.replayers = {GroupMetadataKey: self.replay}

    def beat(self, op: CoordinatorOperation, call: Call) -> Any:
        group_id = call.request.group_id
        if group_id == "bad":
            raise WireError(ErrorCode.INVALID_GROUP_ID)
        op.touch()
        generation = self.generations.get(group_id, 0) + 1
        value = GroupMetadataValue(protocol_type="", generation=generation, members=[])
        op.append(GroupMetadataKey(group=group_id), value)
        pending = Pending()
        self.waiting.append(pending)
        self.host.set_timer(group_id, 10, self.answer, pending, group_id)
        return pending

    def answer(self, op: CoordinatorOperation, pending: Pending, group_id: str) -> None:
        self.waiting.remove(pending)
        op.respond(pending, HeartbeatResponse(error_code=self.generations[group_id]))

    def replay(self, offset: int, producer_id: int, key: Any, value: Any) -> None:
        self.generations[key.group] = value.generation

    def close(self, error: Exception) -> None:
        for pending in self.waiting:
            pending.resolve(error=error)


def make_host() -> tuple[CoordinatorHost, list[Counting]]:
    parts: list[Counting] = []

    def make(host: Any) -> GroupMachine:
        machine = GroupMachine(host)
        parts.append(Counting(machine))
        machine.add(parts[-1])
        return machine

    return CoordinatorHost(make), parts


def beat(host: CoordinatorHost, group_id: str = "g") -> Pending:
    return host.send(HeartbeatRequest(group_id=group_id), 4)


def test_operation_writes_replays_and_responds_by_timer() -> None:
    host, parts = make_host()

    first, second = beat(host), beat(host, "h")
    host.advance(9)
    assert not first.done
    host.advance(1)

    assert value_of(first).error_code == value_of(second).error_code == 1
    assert parts[-1].generations == {"g": 1, "h": 1}
    assert len(host.log) == 2


def test_rejection_is_the_error_of_the_response() -> None:
    host, _ = make_host()

    with pytest.raises(WireError, match="INVALID_GROUP_ID"):
        host.ask(HeartbeatRequest(group_id="bad"), 4)


def test_reload_replays_the_log_and_ends_whoever_waits() -> None:
    host, parts = make_host()
    waiting = beat(host)

    host.reload()

    assert waiting.error is not None
    assert len(parts) == 2 and parts[-1].generations == {"g": 1}


def test_failed_write_after_a_touch_costs_the_shard() -> None:
    host, parts = make_host()
    other = beat(host)
    host.fail_with = WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    failed = beat(host)

    assert failed.error is host.fail_with and other.error is host.fail_with
    assert parts[-1].generations == {"g": 1} and host.loads == 2


def test_uncommitted_response_waits_for_the_commit() -> None:
    host, parts = make_host()
    host.is_holding = True
    outcome = beat(host)
    host.advance(10)
    assert not outcome.done and parts[-1].generations == {"g": 1}

    host.commit()

    assert value_of(outcome).error_code == 1
