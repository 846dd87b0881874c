"""Groups of every client: join, share, commit, continue, restart, hand over.

KBROKER_EXAM_BOOTSTRAP=host:port runs these exams against another broker.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from interop.conftest import GROUP_JAVA, PYTHON, combinations, slow
from support.drivers import AdminDriver, Driver, Message
from support.drivers.groups import GroupAdmin
from support.drivers.members import Member, Partition, overlaps

from kbroker.testing import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(150)]

JOIN_S = 30.0
PARTITIONS = 6
CLASSIC = [(name, "classic", "range") for name in (*PYTHON, "kcat", *GROUP_JAVA)]
COOPERATIVE = [
    (name, "classic", "cooperative-sticky")
    for name in ("confluent-kafka", "kafka-python", *GROUP_JAVA)
]
# group.protocol=consumer in librdkafka and Java; the broker assigns.
SERVER_SIDE = [(name, "consumer", "uniform") for name in ("confluent-kafka", "java 4.3.0")]
# Each client hands over with this assignor in a test of its own.
MODES = [
    *combinations(*CLASSIC, *SERVER_SIDE),
    *slow(combinations(*COOPERATIVE)),
]
FAMILIES = [
    pytest.param(one.values, marks=one.marks, id=one.id)  # type: ignore[attr-defined]
    for one in combinations(
        ("confluent-kafka", "kafka-python"),
        ("kcat", "java 4.3.0"),
        ("kafka-python", "aiokafka", "confluent-kafka", "java 4.3.0"),
    )
]

Join = Callable[..., Member]


@pytest.fixture
def writer(driver_of: Callable[[str], Driver]) -> AdminDriver:
    return driver_of("confluent-kafka")  # type: ignore[return-value]


@pytest.fixture
def topic6(topic: str, create: Callable[..., None]) -> str:
    create(topic, PARTITIONS)
    return topic


def partitions_of(topic: str) -> frozenset[Partition]:
    return frozenset((topic, number) for number in range(PARTITIONS))


def write(writer: Driver, topic: str, prefix: str, each: int = 10) -> list[str]:
    """Write some records to every partition; returns their values."""
    values = []
    for partition in range(PARTITIONS):
        here = [f"{prefix}-{partition}-{number}" for number in range(each)]
        writer.produce(topic, [Message(value.encode()) for value in here], partition=partition)
        values += here
    return values


def values_of(members: Iterable[Member]) -> list[str]:
    return sorted(record.value for member in members for record in member.taken)


def wait_for(members: Iterable[Member], values: list[str]) -> None:
    """Wait until the members have got as many records; then check that they are the same, once."""
    expected = sorted(values)
    members = list(members)

    def enough() -> bool:
        return len(values_of(members)) >= len(expected)

    wait_until(enough, JOIN_S, "all records are taken")
    assert values_of(members) == expected


def wait_shared(topic: str, members: list[Member], at_least: int = 1) -> None:
    """Wait until the members own all partitions, each at least some, none twice."""

    def shared() -> bool:
        owned = [member.owned for member in members]
        count = Counter(where for one in owned for where in one)
        assert all(len(one) >= at_least for one in owned), [len(one) for one in owned]
        assert set(count) == partitions_of(topic), sorted(count)
        return max(count.values()) == 1

    wait_until(shared, JOIN_S, "the members share all partitions")


def assert_offsets_rise(members: Iterable[Member]) -> None:
    """Each member sees increasing offsets of a partition, within an assignment and across."""
    for member in members:
        last: dict[Partition, int] = {}
        for record in member.taken:
            assert record.offset > last.get(record.where, -1), record
            last[record.where] = record.offset


@pytest.mark.parametrize(("name", "protocol", "assignor"), MODES)
def test_member_commits_and_its_successor_continues_there(
    name: str,
    protocol: str,
    assignor: str,
    join: Join,
    writer: AdminDriver,
    groups_of: Callable[[str], GroupAdmin],
    topic6: str,
    group: str,
) -> None:
    options = {"protocol": protocol, "assignor": assignor}
    first = write(writer, topic6, "first")
    member = join(name, group, topic6, **options)
    wait_for([member], first)
    assert member.owned == partitions_of(topic6)
    member.commit()
    admin = groups_of("confluent-kafka")
    offsets = {where: offset for where, (offset, _) in admin.offsets(group).items()}
    assert offsets == dict.fromkeys(partitions_of(topic6), 10)
    described = admin.describe(group)
    assert described.state == "Stable"
    assert list(described.owned.values()) == [partitions_of(topic6)]
    member.close()
    wait_until(lambda: admin.describe(group).state == "Empty", what="the group is empty")
    second = write(writer, topic6, "second", 3)
    successor = join(name, group, topic6, **options)
    wait_for([successor], second)
    assert_offsets_rise([member, successor])


@pytest.mark.parametrize(("name", "protocol", "assignor"), MODES)
def test_members_share_partitions_and_take_over(
    name: str,
    protocol: str,
    assignor: str,
    join: Join,
    writer: AdminDriver,
    topic6: str,
    group: str,
) -> None:
    options = {"protocol": protocol, "assignor": assignor}
    one = join(name, group, topic6, **options)
    wait_shared(topic6, [one], PARTITIONS)
    values = write(writer, topic6, "alone", 3)
    wait_for([one], values)
    two = join(name, group, topic6, **options)
    wait_shared(topic6, [one, two], 3)
    values += write(writer, topic6, "both", 3)
    wait_for([one, two], values)
    if name == "kcat":
        two.commit()
    one.close()
    wait_shared(topic6, [two], PARTITIONS)
    values += write(writer, topic6, "other", 3)
    wait_for([one, two], values)
    if name != "kcat":  # whose moves are seen a little later than they happen
        assert overlaps([one, two]) == []


@pytest.mark.parametrize("names", FAMILIES)
def test_clients_of_several_families_share_a_group(
    names: tuple[str, ...], join: Join, writer: AdminDriver, topic6: str, group: str
) -> None:
    """The leader assigns for all members; each takes its turn, because members leave in the order
    they joined.
    """
    members: list[Member] = []
    values: list[str] = []
    for number, name in enumerate(names):
        members.append(join(name, group, topic6))
        wait_shared(topic6, members)
        values += write(writer, topic6, f"join{number}", 3)
        wait_for(members, values)
    left: list[Member] = []
    while len(members) > 1:
        gone = members.pop(0)
        gone.commit()
        gone.close()
        left.append(gone)
        wait_shared(topic6, members)
        values += write(writer, topic6, f"leave{len(left)}", 3)
        wait_for([*left, *members], values)


@pytest.mark.parametrize(
    ("name", "protocol"),
    combinations(
        *((name, "classic") for name in (*PYTHON, *GROUP_JAVA)),
        ("confluent-kafka", "consumer"),
        ("java 4.3.0", "consumer"),
    ),
)
def test_static_member_bounces_without_a_rebalance(
    name: str,
    protocol: str,
    join: Join,
    writer: AdminDriver,
    groups_of: Callable[[str], GroupAdmin],
    topic6: str,
    group: str,
) -> None:
    options = {"protocol": protocol, "session_ms": 20_000}
    stays = join(name, group, topic6, instance="stays", **options)
    bounces = join(name, group, topic6, instance="bounces", **options)
    wait_shared(topic6, [stays, bounces], 3)
    values = write(writer, topic6, "before", 3)
    wait_for([stays, bounces], values)
    owned, before = bounces.owned, stays.moves
    assert groups_of("confluent-kafka").describe(group).instances == {"stays", "bounces"}
    bounces.close()
    values += write(writer, topic6, "between", 3)
    again = join(name, group, topic6, instance="bounces", **options)
    wait_until(lambda: again.owned == owned, JOIN_S, "it has its partitions again")
    wait_for([stays, bounces, again], values)
    assert stays.moves == before


@pytest.mark.parametrize(("name", "protocol", "assignor"), combinations(*COOPERATIVE, *SERVER_SIDE))
def test_cooperative_hand_over_stops_only_what_moves(
    name: str,
    protocol: str,
    assignor: str,
    join: Join,
    writer: AdminDriver,
    topic6: str,
    group: str,
) -> None:
    options = {"protocol": protocol, "assignor": assignor}
    one = join(name, group, topic6, **options)
    wait_shared(topic6, [one], PARTITIONS)
    before = len(one.moves)
    two = join(name, group, topic6, **options)
    deadline = time.monotonic() + JOIN_S
    values: list[str] = []
    while len(two.owned) < 3 or len(one.owned) != 3:
        assert time.monotonic() < deadline, (one.owned, two.owned)
        values += write(writer, topic6, f"t{len(values)}", 1)
    kept = one.owned
    wait_for([one, two], values)
    moved = [move for move in one.moves[before:] if move.kind != "assigned"]
    assert frozenset().union(*(move.partitions for move in moved)) == two.owned
    assert not any(move.partitions & kept for move in one.moves[before:])
    assert overlaps([one, two]) == []


def test_classic_and_consumer_protocol_meet_in_one_group(
    join: Join,
    writer: AdminDriver,
    groups_of: Callable[[str], GroupAdmin],
    topic6: str,
    group: str,
) -> None:
    """The first member of the new protocol converts the group with its classic members; the last
    one to leave converts it back.
    """
    old = join("confluent-kafka", group, topic6)
    wait_shared(topic6, [old], PARTITIONS)
    values = write(writer, topic6, "old", 3)
    wait_for([old], values)
    new = join("confluent-kafka", group, topic6, protocol="consumer")
    wait_shared(topic6, [old, new], 3)
    values += write(writer, topic6, "both", 3)
    wait_for([old, new], values)
    new.close()
    wait_shared(topic6, [old], PARTITIONS)
    values += write(writer, topic6, "back", 3)
    wait_for([old, new], values)
    second = join("kafka-python", group, topic6)
    wait_shared(topic6, [old, second], 3)
    newer = join("confluent-kafka", group, topic6, protocol="consumer")
    wait_shared(topic6, [old, second, newer], 2)
    old.close()
    second.close()
    wait_shared(topic6, [newer], PARTITIONS)
    values += write(writer, topic6, "new", 3)
    wait_for([old, new, second, newer], values)
    assert overlaps([old, new, second, newer]) == []


@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        *combinations(
            ("confluent-kafka", "classic"),
            ("kafka-python", "classic"),
            ("java 3.9.1", "classic"),
            ("confluent-kafka", "consumer"),
            ("java 4.3.0", "consumer"),
        ),
        *slow(combinations(("aiokafka", "classic"))),
    ],
)
def test_subscription_by_pattern_sees_a_new_topic(
    name: str,
    protocol: str,
    join: Join,
    writer: AdminDriver,
    create: Callable[..., None],
    topic: str,
    group: str,
) -> None:
    """Classic clients match names themselves; in the consumer protocol the broker does."""
    first, second = f"{topic}.a", f"{topic}.b"
    create(first, 2)
    create(f"other-{topic}.a", 2)
    member = join(name, group, pattern=rf"{topic}\.[ab]", protocol=protocol)
    wait_until(lambda: member.owned == {(first, 0), (first, 1)}, JOIN_S, "the first topic is read")
    create(second, 2)
    both = {(one, number) for one in (first, second) for number in (0, 1)}
    wait_until(lambda: member.owned == both, JOIN_S, "the new topic is read")
    writer.produce(second, [Message(b"there")], partition=1)
    wait_until(lambda: values_of([member]) == ["there"], JOIN_S, "its record comes")


def test_killed_member_is_replaced_after_its_session(
    join: Join, writer: AdminDriver, topic6: str, group: str
) -> None:
    from support.drivers.kcat import Kcat

    if Kcat.missing():
        pytest.skip("kcat is not installed")
    killed = join("kcat", group, topic6, session_ms=2000)
    stays = join("confluent-kafka", group, topic6)
    wait_shared(topic6, [killed, stays], 3)
    began = time.monotonic()
    killed._process.kill()  # type: ignore[attr-defined]
    wait_until(lambda: stays.owned == partitions_of(topic6), JOIN_S, "the other takes over")
    assert time.monotonic() - began > 1.0
    values = write(writer, topic6, "after", 1)
    wait_for([stays], values)


def test_member_sees_partitions_that_are_added(
    join: Join, writer: AdminDriver, made: str, group: str
) -> None:
    classic = join("confluent-kafka", group + "c", made)
    server_side = join("confluent-kafka", group + "s", made, protocol="consumer")
    for member in (classic, server_side):
        wait_until(lambda m=member: m.owned == {(made, 0)}, JOIN_S)
    writer.create_partitions(made, 3)
    for member in (classic, server_side):
        wait_until(lambda m=member: len(m.owned) == 3, JOIN_S, "the new partitions are assigned")
