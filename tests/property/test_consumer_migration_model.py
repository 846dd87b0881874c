"""Random lives of a group whose members use either protocol, and switch.

The group moves up when a consumer joins it, and down when the last one goes; meanwhile members
come, go, crash and hold on to partitions, and the shard loads again. Never do two members of the
group consume one partition, and in the end every partition is consumed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from support.clients.classic_consumer import ClassicConsumer, both_host
from support.coordinators.consumer_member import FakeConsumer

from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.errors import ErrorCode, WireError

pytestmark = pytest.mark.property

TOPICS = ["a", "b"]
STEPS = 100
MEMBERS_MAX = 5


class MixedLife:
    """A group and its clients."""

    def __init__(self, seed: int) -> None:
        print(f"seed {seed}")
        self.random = random.Random(seed)
        interval_ms = "1000" if seed % 2 else "0"  # from one target to the next
        self.host = both_host(group_consumer_assignment_interval_ms=interval_ms)
        self.made = 0
        self.consumers: list[FakeConsumer] = []
        self.classics: list[ClassicConsumer] = []
        for name in TOPICS:
            self.host.add_topic(name, 4)

    @property
    def count(self) -> int:
        return len(self.consumers) + len(self.classics)

    def step(self) -> None:
        happenings: list[tuple[int, Callable[[], None]]] = [
            (14, self.beat),
            (2, self.join),
            (2, self.join_classic),
            (1, self.leave),
            (1, self.leave_classic),
            (1, self.crash),
            (1, self.hold_on),
            (1, self.grow),
            (1, self.reload),
            (1, self.too_few),
            (1, self.change_over),
        ]
        weights = [weight for weight, _ in happenings]
        self.random.choices(happenings, weights)[0][1]()
        self.check()

    def beat(self) -> None:
        members = [*self.consumers, *self.classics]
        for member in self.random.sample(members, len(members)):
            self.beat_of(member)
            self.check()
        self.host.advance(3_000)

    def beat_of(self, member: FakeConsumer | ClassicConsumer) -> None:
        if isinstance(member, ClassicConsumer):
            member.beat()
            return
        if not member.lets_go and self.random.random() < 0.3:
            member.lets_go = True
        try:
            member.beat()
        except WireError as error:
            if error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE and self.host.is_refusing:
                return
            codes = (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.GROUP_ID_NOT_FOUND,
                ErrorCode.UNRELEASED_INSTANCE_ID,
            )
            assert error.code in codes, error
            member.epoch, member.owned, member.assigned = 0, set(), set()

    def instance(self) -> str | None:
        return f"i{self.made}" if self.random.random() < 0.4 else None

    def join(self) -> None:
        if self.count < MEMBERS_MAX:
            self.made += 1
            options = {"instance_id": self.instance()}
            member = FakeConsumer(self.host, f"m{self.made}", self.some_topics(), **options)
            self.consumers.append(member)
            self.beat_of(member)

    def join_classic(self) -> None:
        if self.count < MEMBERS_MAX:
            self.made += 1
            # A cooperative member cannot be in a classic group with eager ones.
            member = ClassicConsumer(
                self.host,
                self.some_topics(),
                client_id=f"c{self.made}",
                instance_id=self.instance(),
            )
            self.classics.append(member)
            member.beat()

    def some_topics(self) -> list[str]:
        return TOPICS if self.random.random() < 0.7 else TOPICS[:1]

    def leave(self) -> None:
        if self.consumers:
            member = self.consumers.pop(self.random.randrange(len(self.consumers)))
            if member.epoch > 0:
                try:
                    member.leave()
                except WireError as error:
                    assert error.code == ErrorCode.UNKNOWN_MEMBER_ID, error

    def leave_classic(self) -> None:
        if self.classics:
            member = self.classics.pop(self.random.randrange(len(self.classics)))
            if member.member_id and member.pending is None:
                member.leave()

    def crash(self) -> None:
        kind = self.random.choice([self.consumers, self.classics])
        if kind:
            kind.pop(self.random.randrange(len(kind)))

    def hold_on(self) -> None:
        if self.consumers:
            self.random.choice(self.consumers).lets_go = False

    def grow(self) -> None:
        name = self.random.choice(TOPICS)
        count = len(self.host.image.topics[name].partitions)
        if count < 12:
            self.host.add_topic(name, count + 1)

    def reload(self) -> None:
        if self.random.random() < 0.5:
            self.host.compact()
        self.host.reload()

    def too_few(self) -> None:
        """Too few replicas are in sync for a while."""
        before = len(self.host.written), self.host.loads
        self.host.is_refusing = True
        for _ in range(self.random.randint(1, 4)):
            self.beat()
        self.host.is_refusing = False
        assert (len(self.host.written), self.host.loads) == before

    def change_over(self) -> None:
        """A rolling upgrade or downgrade: a static member is restarted with the other protocol."""
        static = [m for m in self.classics if m.client.instance_id and m.pending is None]
        if static:
            old = self.random.choice(static)
            self.classics.remove(old)
            self.made += 1
            options = {"instance_id": old.client.instance_id}
            new = FakeConsumer(self.host, f"m{self.made}", old.topics, **options)
            self.consumers.append(new)
            self.beat_of(new)

    # -- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        group = self.host.machine.groups.get("g")
        owners: dict[tuple[bytes, int], str] = {}
        for member in self.present(group):
            for partition in member.owned:
                other = owners.setdefault(partition, member.member_id)
                assert other == member.member_id, (other, member.member_id, partition)

    def present(self, group: object) -> list[FakeConsumer | ClassicConsumer]:
        """The clients that are members; others find out that they are not."""
        found: list[FakeConsumer | ClassicConsumer] = []
        if isinstance(group, ConsumerGroup):
            found += [m for m in self.consumers if m.member_id in group.members]
            for member in self.classics:
                known = group.members.get(member.member_id)
                if known is not None and known.epoch == member.generation:
                    found.append(member)
        elif isinstance(group, ClassicGroup):
            for member in self.classics:
                if member.member_id in group.members and member.generation == group.generation:
                    found.append(member)
        return found

    def check_end(self) -> None:
        for member in self.consumers:
            member.lets_go = True
        for _ in range(60):  # sessions of crashed members expire, and what waits for them completes
            for member in [*self.consumers, *self.classics]:
                self.beat_of(member)
            self.host.advance(3_000)
            self.check()
        if not self.count:
            return
        group = self.host.machine.groups["g"]
        assert group.kind == ("consumer" if self.consumers else "classic")
        assert group.state == "Stable", [m.member_id for m in group.members.values()]
        assert len(self.present(group)) == self.count == len(group.members)
        topics = self.host.image.topics
        wanted = {
            (topics[name].topic_id, partition)
            for member in [*self.consumers, *self.classics]
            for name in member.topics or []
            for partition in range(len(topics[name].partitions))
        }
        owned = {p for member in self.present(group) for p in member.owned}
        if isinstance(group, ClassicGroup):
            # Classic members detect added partitions themselves, which these do not.
            wanted = {(t, p) for t, p in wanted if p < 4}
            owned = {(t, p) for t, p in owned if p < 4}
        assert owned == wanted


@pytest.mark.parametrize("seed", range(25))
def test_group_keeps_its_promises_while_it_moves(seed: int) -> None:
    life = MixedLife(seed)
    for _ in range(STEPS):
        life.step()

    life.check_end()
