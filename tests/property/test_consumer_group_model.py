"""Random lives of a consumer group, checked at every step.

Members join, leave, crash, hold on to partitions for a while, change what they want; topics come,
grow and go; answers get lost; the shard crashes and loads again, from a compacted log as well.

Always: no partition is consumed by two members, a member consumes only what the coordinator has
noted down as its own, epochs never go back. When nothing happens any more: after a bounded number
of heartbeats everyone has the target's epoch, and every partition of every subscribed topic has an
owner that subscribes to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from support.coordinators.consumer_member import FakeConsumer, describe, make_host, settle

from kbroker.coordinator.group.consumer.consumer_group import subscribed_names
from kbroker.errors import ErrorCode, WireError

pytestmark = pytest.mark.property

TOPICS = ["a", "b", "c", "d"]
PATTERNS = ["", "a|b", "[cd]", ".*"]
STEPS = 120
# Rounds of heartbeats: one to compute a target, one to revoke, one to take; the rest for members
# that had to start over. Sessions of crashed members expire before.
ROUNDS = 6


class Life:
    """A group and everything around it."""

    def __init__(self, seed: int) -> None:
        print(f"seed {seed}")
        self.random = random.Random(seed)
        interval_ms = "1000" if seed % 2 else "0"  # from one target to the next
        self.host = make_host(group_consumer_assignment_interval_ms=interval_ms)
        self.sizes: dict[str, int] = {}
        self.made = 0
        self.members: list[FakeConsumer] = []
        self.away: dict[str, FakeConsumer] = {}  # static members that left for a while
        self.epochs: dict[str, int] = {}
        self.group_epoch = 0

    # -- what happens ----------------------------------------------------------------------------

    def step(self) -> None:
        happenings: list[tuple[int, Callable[[], None]]] = [
            (12, self.beat),
            (3, self.join),
            (1, self.leave),
            (1, self.leave_for_a_while),
            (2, self.come_back),
            (1, self.crash),
            (2, self.hold_on),
            (2, self.lose_a_response),
            (1, self.resubscribe),
            (1, self.change_topic),
            (1, self.reload),
            (1, self.too_few),
            (2, self.wait),
            (1, self.repeat_join),
        ]
        weights = [weight for weight, _ in happenings]
        _, happening = self.random.choices(happenings, weights)[0]
        happening()
        self.check()

    def pick(self) -> FakeConsumer | None:
        return self.random.choice(self.members) if self.members else None

    def beat(self) -> None:
        for member in self.random.sample(self.members, len(self.members)):
            self.beat_of(member)
            self.check()

    def beat_of(self, member: FakeConsumer) -> None:
        if member.epoch > 0 and not member.lets_go and self.random.random() < 0.3:
            member.lets_go = True
        if member.beat_or_fenced():
            self.epochs.pop(member.member_id, None)

    def join(self) -> None:
        if len(self.members) >= 6:
            return
        self.made += 1
        options = {}
        if self.random.random() < 0.4:
            options["instance_id"] = f"i{self.made}"
        if self.random.random() < 0.3:
            options["server_assignor"] = self.random.choice(["range", "uniform"])
        if self.random.random() < 0.3:
            options["subscribed_topic_regex"] = self.random.choice(PATTERNS)
        member = FakeConsumer(self.host, f"m{self.made}", self.some_topics(), **options)
        member.join()
        self.members.append(member)

    def some_topics(self) -> list[str]:
        if self.random.random() < 0.6:
            return TOPICS[:2]
        return self.random.sample(TOPICS, self.random.randint(0, len(TOPICS)))

    def leave(self) -> None:
        member = self.pick()
        if member is not None and member.epoch > 0:
            self.members.remove(member)
            self.swallow(member.leave)

    def leave_for_a_while(self) -> None:
        member = self.pick()
        if member is not None and member.epoch > 0 and member.options.get("instance_id"):
            self.members.remove(member)
            if self.swallow(lambda: member.leave(-2)):
                self.away[member.options["instance_id"]] = member

    def come_back(self) -> None:
        if not self.away or len(self.members) >= 6:
            return
        instance = self.random.choice(sorted(self.away))
        left = self.away.pop(instance)
        self.made += 1
        back = FakeConsumer(self.host, f"m{self.made}", left.topics, **left.options)
        back.join()
        self.members.append(back)

    def crash(self) -> None:
        """Its process dies at once and stops consuming; the coordinator finds out later."""
        member = self.pick()
        if member is not None:
            self.members.remove(member)

    def hold_on(self) -> None:
        member = self.pick()
        if member is not None:
            member.lets_go = False

    def lose_a_response(self) -> None:
        member = self.pick()
        if member is not None and member.epoch > 0:
            self.swallow(member.send)
            member.is_unsure = True

    def repeat_join(self) -> None:
        member = self.pick()
        if member is not None and member.epoch > 0:
            self.epochs.pop(member.member_id, None)
            member.join()

    def resubscribe(self) -> None:
        member = self.pick()
        if member is None or member.epoch <= 0:
            return
        member.topics = self.some_topics()
        if self.random.random() < 0.3:
            member.options["subscribed_topic_regex"] = self.random.choice(PATTERNS)
        regex = member.options.get("subscribed_topic_regex")
        try:
            member.beat(subscribed_topic_names=member.topics, subscribed_topic_regex=regex)
        except WireError:
            self.epochs.pop(member.member_id, None)
            member.epoch, member.owned, member.assigned = 0, set(), set()

    def change_topic(self) -> None:
        name = self.random.choice(TOPICS)
        if name in self.sizes and self.random.random() < 0.3:
            del self.sizes[name]
            self.host.set_topics(**{name: None})
            return
        self.made += 1
        known = self.host.image.topics.get(name)
        topic_id = known.topic_id if known else f"{name}{self.made}".encode().ljust(16)
        self.sizes[name] = self.sizes.get(name, 0) + self.random.randint(1, 5)
        self.host.add_topic(name, self.sizes[name], topic_id)

    def reload(self) -> None:
        if self.random.random() < 0.5:
            self.host.compact()
        self.host.reload()

    def too_few(self) -> None:
        """Too few replicas are in sync for a while: nothing is written, and nothing is lost."""
        before = len(self.host.written), self.host.loads
        self.host.is_refusing = True
        for _ in range(self.random.randint(1, 4)):
            for member in self.members:
                member.beat_or_fenced()
                self.check()
            self.host.advance(9_000)
        self.host.is_refusing = False
        assert (len(self.host.written), self.host.loads) == before

    def wait(self) -> None:
        """Time passes; a member that was silent for too long knows that it was removed, as a client
        does.
        """
        for _ in range(self.random.randint(1, 3)):
            self.host.advance(9_000)
            for member in self.members:
                self.beat_of(member)

    def swallow(self, function: Callable[[], object]) -> bool:
        """Call and lose the response; returns whether there was one without an error."""
        try:
            function()
        except WireError as error:
            codes = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
            assert error.code in codes, error
            return False
        return True

    # -- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        group = self.host.machine.groups.get("g")
        if group is None:
            assert not self.members
            return
        owners: dict[tuple[bytes, int], str] = {}
        for member in self.members:
            if member.member_id not in group.members:
                continue  # removed because it did not revoke in time; it learns of that next
            for topic_id, partition in member.owned:
                other = owners.setdefault((topic_id, partition), member.member_id)
                assert other == member.member_id, "two members consume one partition"
                assert group.owners[topic_id][partition] == member.member_id
            if member.epoch > 0:
                known = group.members[member.member_id].epoch
                assert known >= self.epochs.get(member.member_id, 0), "a member's epoch went back"
                self.epochs[member.member_id] = known
        noted = [
            (topic_id, partition)
            for member in group.members.values()
            for owned in (member.assigned, member.revoking)
            for topic_id, partitions in owned.items()
            for partition in partitions
        ]
        assert len(noted) == len(set(noted)), "two members have one partition"
        assert group.epoch >= self.group_epoch, "the group's epoch went back"
        self.group_epoch = group.epoch

    def check_end(self) -> None:
        """No more events: all members reach their target."""
        self.host.advance(2_000)
        for member in self.members:
            member.lets_go = True
        for _ in range(5):  # the sessions of the crashed run out
            for member in self.members:
                member.beat_or_fenced()
            self.host.advance(9_000)
        for _ in range(ROUNDS):
            for member in self.members:
                member.beat_or_fenced()
                self.check()
            self.host.advance(1_000)
        if not self.members:
            return
        shown = describe(self.host)
        group = self.host.machine.groups["g"]
        assert shown.group_state == "Stable", shown
        assert len(shown.members) == len(self.members)
        assert {member.epoch for member in self.members} == {group.target_epoch}
        topics = self.host.image.topics
        wanted = set()
        for member in group.members.values():
            for name in subscribed_names(member, group.resolved) & topics.keys():
                wanted |= {(topics[name].topic_id, p) for p in range(len(topics[name].partitions))}
        owned = {partition: member for member in self.members for partition in member.owned}
        assert owned.keys() == wanted, "partitions without an owner"
        for (topic_id, _), owner in owned.items():
            name = self.host.image.topics_by_id[topic_id].name
            assert name in subscribed_names(group.members[owner.member_id], group.resolved)
        written = len(self.host.written)
        settle(*self.members, rounds=2)
        assert len(self.host.written) == written, "it writes though nothing happens"


@pytest.mark.parametrize("seed", range(60))
def test_group_keeps_its_promises_whatever_happens(seed: int) -> None:
    life = Life(seed)
    for name in TOPICS[:2]:
        life.sizes[name] = 4
        life.host.add_topic(name, 4)
    for _ in range(STEPS):
        life.step()

    life.check_end()
