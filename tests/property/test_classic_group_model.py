"""Random lives of consumers in one group of the classic protocol, checked against its invariants.

What must hold: a partition has one owner in a generation; a generation has one leader; every
request is answered in bounded time; nobody is obeyed with a generation whose successor has been
assigned; and left in peace, the group comes to rest with every living consumer in it.

A failure prints its seed; KBROKER_SEED=<seed> runs that one alone.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest
from support.clients.group_clients import DELAY_MS, Client, classic_host, code_of, subscription
from support.coordinators.coordinator_host import CoordinatorHost

from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.rpc import Pending

pytestmark = pytest.mark.property

SEEDS = [int(os.environ["KBROKER_SEED"])] if "KBROKER_SEED" in os.environ else range(60)
STEPS = 400
PARTITIONS = 7
REBALANCE_MS, SESSION_MS = 20_000, 6_000
# A rebalance lasts no longer than the longest rebalance timeout, after the delay of a new group;
# so does the wait for an assignment.
RESPONSE_MS_MAX = REBALANCE_MS + DELAY_MS

JOINING, SYNCING, MEMBER, OUT = "joining", "syncing", "member", "out"
GO_BACK = {
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


class Group:
    """The shard, and all that clients have been told."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        delay = self.random.choice(["0", "3000"])
        self.host = classic_host(group_initial_rebalance_delay_ms=delay)
        self.waiting: list[tuple[int, Pending]] = []
        self.leaders: dict[tuple[int, int], str] = {}  # (load, generation) -> who
        self.owners: dict[tuple[int, int], str] = {}  # (generation, partition) -> member
        self.assigned = 0  # the newest generation with an assignment

    def wait(self, pending: Pending) -> Pending:
        self.waiting.append((self.host.now_ms(), pending))
        return pending

    def check_waiting(self) -> None:
        self.waiting = [(since, p) for since, p in self.waiting if not p.done]
        if not self.host.is_holding:
            for since, _ in self.waiting:
                assert self.host.now_ms() - since <= RESPONSE_MS_MAX, "a request waits for ever"

    def watch_leader(self, done: Pending) -> None:
        """A join has a response. A load may take back a generation without an assignment."""
        if done.error is None and done.value.error_code == 0:
            for member in done.value.members:
                if member.member_id == done.value.leader:
                    who = member.group_instance_id or member.member_id
                    self.tell_leader(done.value.generation_id, who)

    def tell_leader(self, generation: int, who: str) -> None:
        known = self.leaders.setdefault((self.host.loads, generation), who)
        assert known == who, f"generation {generation} has two leaders"

    def watch_owner(self, done: Pending, generation: int, who: str) -> None:
        """A sync has a response."""
        if code_of(done) != 0:
            return
        self.check_fresh(generation)
        self.assigned = max(self.assigned, generation)
        for partition in json.loads(done.value.assignment or b"[]"):
            known = self.owners.setdefault((generation, partition), who)
            assert known == who, f"partition {partition} has two owners in {generation}"

    def check_fresh(self, generation: int) -> None:
        assert generation >= self.assigned, "obeyed with a stale generation"


class Consumer:
    """A client that behaves like a real one, when it gets its turn."""

    def __init__(self, group: Group, number: int) -> None:
        chance = group.random
        self.group = group
        self.instance_id = f"i{number}" if chance.random() < 0.4 else None
        self.version = 9 if self.instance_id else chance.choice([2, 4, 9])
        self.number = number
        self.is_alive = True
        self.start()

    def start(self) -> None:
        topics = self.group.random.choice([["t"], ["t", "u"]])
        self.client = Client(
            self.group.host,
            f"c{self.number}",
            instance_id=self.instance_id,
            protocols={"range": subscription(*topics), "other": b""},
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            version=self.version,
        )
        self.state = OUT
        self.pending: Pending | None = None

    @property
    def who(self) -> str:
        return self.instance_id or self.client.member_id

    def act(self) -> None:
        """Do the next step: take a response, or send a request."""
        if not self.is_alive:
            return
        if self.pending is not None:
            if self.pending.done:
                pending, self.pending = self.pending, None
                self.take(pending)
            return
        if self.state == OUT:
            self.join()
        elif self.state == MEMBER:
            self.beat()

    def join(self) -> None:
        self.state = JOINING
        self.pending = self.group.wait(self.client.send_join())
        self.pending.then(self.group.watch_leader)

    def beat(self) -> None:
        self.pending = self.group.wait(self.client.send_beat())
        if self.pending.done and code_of(self.pending) == 0:
            self.group.check_fresh(self.client.generation)
            self.commit()

    def commit(self) -> None:
        """A member whose heartbeat was just accepted may commit, once it has an assignment."""
        client = self.client
        found = self.group.host.machine.groups["g"]
        if found.state == "Stable":
            found.check_commit(client.member_id, client.instance_id, client.generation, version=8)

    def take(self, pending: Pending) -> None:
        code = code_of(pending)
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            assert self.instance_id is None and self.version >= 4
            self.client.member_id = pending.value.member_id
            self.join()
        elif code != 0:
            self.rejected(code)
        elif self.state == JOINING:
            self.take_generation(pending.value)
        elif self.state == SYNCING:
            self.state = MEMBER

    def take_generation(self, response: Any) -> None:
        client = self.client
        client.member_id, client.generation = response.member_id, response.generation_id
        client.protocol = response.protocol_name
        assignments: dict[str, bytes] = {}
        if response.leader == client.member_id:
            if not response.skip_assignment:
                members = [m.member_id for m in response.members]
                assert client.member_id in members
                for number, member_id in enumerate(members):
                    share = list(range(number, PARTITIONS, len(members)))
                    assignments[member_id] = json.dumps(share).encode()
        self.state = SYNCING
        self.pending = self.group.wait(client.send_sync(assignments))
        generation, who = client.generation, self.who
        self.pending.then(lambda done: self.group.watch_owner(done, generation, who))

    def rejected(self, code: int) -> None:
        """Join again, with or without the member id, depending on the error."""
        self.state = OUT
        self.pending = None
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.client.member_id = ""
        else:
            assert code in {*GO_BACK, ErrorCode.ILLEGAL_GENERATION}, ErrorCode(code)

    def stale_beat(self) -> None:
        """A heartbeat of a member that was suspended: an older generation is never accepted."""
        client = self.client
        older = self.group.random.randrange(-1, max(self.group.assigned, 0))
        for pending in (
            client.send_beat(generation_id=older),
            client.send_sync({}, generation_id=older),
        ):
            assert not pending.done or code_of(pending) != 0, "obeyed with a stale generation"

    def leave(self) -> None:
        self.group.wait(self.client.send_leave())
        self.start()

    def crash(self) -> None:
        self.is_alive = False
        self.pending = None

    def revive(self) -> None:
        self.start()
        self.is_alive = True


def run_step(group: Group, consumers: list[Consumer]) -> None:
    """One random event."""
    chance, host = group.random, group.host
    consumer = chance.choice(consumers)
    kind = chance.random()
    if kind < 0.70:
        consumer.act()
    elif kind < 0.86:
        host.advance(chance.choice([1, 100, 1_000, 2_500, SESSION_MS]))
    elif kind < 0.88:
        consumer.stale_beat()
    elif kind < 0.90 and consumer.is_alive:
        consumer.leave()
    elif kind < 0.92:
        consumer.crash()
    elif kind < 0.95 and not consumer.is_alive:
        consumer.revive()
    elif kind < 0.96:
        consumer.start()  # a bounce: it has forgotten everything
        consumer.is_alive = True
    elif kind < 0.97:
        host.reload()
    elif kind < 0.98:
        host.is_holding = True
    elif kind < 0.985:
        host.commit()
    elif kind < 0.99:
        # Too few replicas are in sync, from now on or not any more.
        host.is_refusing = not host.is_refusing
    else:
        host.fail_with = WireError(ErrorCode.NOT_COORDINATOR)
        for other in consumers:
            other.act()
        host.fail_with = None


def settle(group: Group, consumers: list[Consumer]) -> None:
    """All members behave, for longer than every timeout."""
    host = group.host
    host.commit()
    host.is_refusing = False
    for _ in range(8 * (REBALANCE_MS + SESSION_MS) // 1_000):
        for _ in range(4):
            for consumer in consumers:
                consumer.act()
        host.advance(1_000)
        group.check_waiting()


def check_rest(group: Group, host: CoordinatorHost, consumers: list[Consumer]) -> None:
    alive = [c for c in consumers if c.is_alive]
    found = host.machine.groups.get("g")
    if not alive:
        assert found is None or found.state == "Empty"
        return
    assert isinstance(found, ClassicGroup) and found.state == "Stable", found
    assert {c.state for c in alive} == {MEMBER}
    assert set(found.members) == {c.client.member_id for c in alive}
    assert {c.client.generation for c in alive} == {found.generation}
    owned = [json.loads(m.assignment or b"[]") for m in found.members.values()]
    assert sorted(p for share in owned for p in share) == list(range(PARTITIONS))


@pytest.mark.parametrize("seed", SEEDS)
def test_group_under_random_clients_and_crashes_keeps_its_promises(seed: int) -> None:
    print(f"KBROKER_SEED={seed}")
    group = Group(seed)
    consumers = [Consumer(group, number) for number in range(group.random.randint(1, 6))]

    for _ in range(STEPS):
        run_step(group, consumers)
        group.check_waiting()

    settle(group, consumers)
    check_rest(group, group.host, consumers)
