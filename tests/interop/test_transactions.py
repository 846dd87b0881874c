"""Transactions of every client: commit, abort, isolation, fencing, offsets, timeouts.

KBROKER_EXAM_BOOTSTRAP=host:port runs these exams against another broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from interop.conftest import ALL, GROUP_JAVA, PYTHON, clients, combinations, slow
from support.drivers import AdminDriver, ClientError, Driver, Message, OffsetDriver, options
from support.drivers.groups import GroupAdmin
from support.drivers.members import Member
from support.drivers.transactions import Transactional

from kbroker.testing import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

# The possible errors of a fenced producer: INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, and
# librdkafka's _FENCED.
FENCED = {47, 90, -144}
# UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, STALE_MEMBER_EPOCH
STALE_MEMBER = {22, 25, 113}
WAIT_S = 20.0
# The first transaction protocol in librdkafka, the Python clients and Java 3.9; Java 4.3 uses the
# second one if transaction.version 2 is announced.
PRODUCERS = (*PYTHON, *GROUP_JAVA)
TRANSACTION_ADMINS = clients("kafka-python", *GROUP_JAVA)

Make = Callable[..., Transactional]
Join = Callable[..., Member]


@pytest.fixture
def made(topic: str, create: Callable[..., None]) -> str:
    create(topic)
    return topic


@pytest.fixture
def writer(driver_of: Callable[[str], Driver]) -> AdminDriver:
    return driver_of("confluent-kafka")  # type: ignore[return-value]


@pytest.fixture
def identity(group: str) -> str:
    """A transactional id unique to this test."""
    return f"tx-{group}"


def read(
    driver: Driver, topic: str, count: int, *, committed: bool = True, timeout_s: float = WAIT_S
) -> list[str]:
    soon = options(driver, fetch_max_wait_ms=50)  # for the sake of a quick close
    found = driver.fetch(topic, count, committed=committed, timeout_s=timeout_s, **soon)
    return [record.value.decode() for record in found if record.value is not None]


@pytest.mark.parametrize("name", [*clients(*PRODUCERS)])
def test_committed_records_are_read_and_aborted_ones_are_not(
    name: str, transactional: Make, writer: AdminDriver, made: str, identity: str
) -> None:
    producer = transactional(name, identity)
    producer.init()
    for number in range(6):
        producer.begin()
        offsets = producer.send(made, [f"{number}-{n}" for n in range(3)])
        assert offsets == [4 * number + n for n in range(3)]  # and a marker behind each three
        (producer.abort if number % 2 else producer.commit)()
    producer.begin()
    producer.abort()  # of nothing
    assert read(writer, made, 9) == [f"{k}-{n}" for k in (0, 2, 4) for n in range(3)]
    everything = [f"{k}-{n}" for k in range(6) for n in range(3)]
    assert read(writer, made, 18, committed=False) == everything
    assert writer.offset(made, "latest") == 24


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_every_client_reads_what_is_committed_only(
    driver: OffsetDriver, transactional: Make, writer: AdminDriver, made: str, identity: str
) -> None:
    """Aborted, committed and plain records in turns, and an open transaction at the end, which
    hides everything after its first record.
    """
    producer = transactional("confluent-kafka", identity)
    producer.init()
    expected, everything = [], []
    for number in range(4):
        values = [f"{number}-{n}" for n in range(50)]
        producer.begin()
        producer.send(made, values)
        plain = f"plain-{number}"
        writer.produce(made, [Message(plain.encode())])
        (producer.abort if number % 2 else producer.commit)()
        expected += [*([] if number % 2 else values), plain]
        everything += [*values, plain]
    producer.begin()
    producer.send(made, ["open"])
    writer.produce(made, [Message(b"behind")])
    assert read(driver, made, len(expected)) == expected
    assert read(driver, made, len(everything) + 2, committed=False) == [
        *everything,
        "open",
        "behind",
    ]
    stable = 4 * 52
    soon = options(driver, fetch_max_wait_ms=50)
    assert driver.fetch(made, 1, start=stable, committed=True, timeout_s=0.7, **soon) == []
    producer.commit()
    found = driver.fetch(made, 2, start=stable, committed=True)
    assert [record.value for record in found] == [b"open", b"behind"]


@pytest.mark.parametrize("name", clients(*PRODUCERS))
def test_second_producer_of_an_id_fences_the_first(
    name: str, transactional: Make, writer: AdminDriver, made: str, identity: str
) -> None:
    """Its open transaction is aborted, and it cannot continue."""
    zombie = transactional(name, identity)
    zombie.init()
    zombie.begin()
    zombie.send(made, ["zombie"])
    second = transactional(name, identity)
    second.init()
    second.begin()
    second.send(made, ["second"])
    with pytest.raises(ClientError) as refused:
        zombie.send(made, ["late"])
        zombie.commit()
    assert refused.value.code in FENCED, refused.value
    second.commit()
    assert read(writer, made, 1) == ["second"]
    assert "late" not in read(writer, made, 3, committed=False, timeout_s=1)


@pytest.mark.parametrize(
    ("first", "second"),
    combinations(
        ("confluent-kafka", "java 4.3.0"),
        ("java 4.3.0", "kafka-python"),
        ("java 3.9.1", "aiokafka"),
        ("aiokafka", "java 3.9.1"),
    ),
)
def test_id_passes_from_one_client_to_another(
    first: str, second: str, transactional: Make, writer: AdminDriver, made: str, identity: str
) -> None:
    """Also between the two versions of the transaction protocol."""
    one = transactional(first, identity)
    one.init()
    one.begin()
    one.send(made, ["one"])
    one.commit()
    one.begin()
    one.send(made, ["unfinished"])
    two = transactional(second, identity)
    two.init()
    for number in range(3):
        two.begin()
        two.send(made, [f"two-{number}"])
        two.commit()
    assert read(writer, made, 4) == ["one", "two-0", "two-1", "two-2"]


@pytest.mark.parametrize("name", clients(*PRODUCERS))
def test_read_process_write_is_exactly_once(
    name: str,
    transactional: Make,
    join: Join,
    writer: AdminDriver,
    groups_of: Callable[[str], GroupAdmin],
    create: Callable[..., None],
    made: str,
    identity: str,
    group: str,
) -> None:
    """The output and the offsets are committed together, or neither is."""
    output = f"{made}-out"
    create(output)
    inputs = [f"in-{number}" for number in range(30)]
    writer.produce(made, [Message(value.encode()) for value in inputs])
    member = join(name, group, made, isolation="read_committed", commit_on_revoke=False)
    wait_until(lambda: len(member.taken) == 30, WAIT_S)
    producer = transactional(name, identity)
    producer.init()
    admin: Any = groups_of("confluent-kafka")

    def committed() -> int:
        return int(admin.offsets(group).get((made, 0), (0, ""))[0])

    done = 0
    for number, size in enumerate((10, 10, 5, 5)):
        batch = [record.value for record in member.taken][done : done + size]
        for attempt in range(2 if number % 2 else 1):
            producer.begin()
            producer.send(output, [f"{value}-{attempt}" for value in batch])
            producer.send_offsets({(made, 0): done + size}, group, member)
            if number % 2 and attempt == 0:
                producer.abort()
                assert committed() == done
            else:
                producer.commit()
        done += size
        wait_until(lambda: committed() == done, what="the offset's marker is written")  # noqa: B023
    expected = [f"in-{number}-{int(10 <= number < 20 or number >= 25)}" for number in range(30)]
    assert read(writer, output, 30) == expected


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_offsets_of_a_past_generation_are_refused(
    protocol: str, transactional: Make, join: Join, writer: AdminDriver, made: str, group: str
) -> None:
    """KIP-447: a member's generation or epoch is sent with the offsets, and checked."""
    writer.produce(made, [Message(b"in")])
    options = {"protocol": protocol, "commit_on_revoke": False}
    member: Any = join("confluent-kafka", group, made, **options)
    wait_until(lambda: len(member.taken) == 1, WAIT_S)
    before = member.group_metadata()
    producer: Any = transactional("confluent-kafka", f"tx-{group}")
    producer.init()
    producer.begin()
    producer.send(made, ["before"])
    member.close()
    successor = join("confluent-kafka", group, made, **options)
    wait_until(lambda: successor.owned, WAIT_S)
    with pytest.raises(ClientError) as refused:
        producer.send_offsets({(made, 0): 1}, group, metadata=before)
    assert refused.value.code in STALE_MEMBER, refused.value
    producer.abort()


@pytest.mark.parametrize("name", clients("confluent-kafka", "kafka-python", *GROUP_JAVA))
@pytest.mark.slow
def test_transaction_past_its_timeout_is_aborted(
    name: str, transactional: Make, writer: AdminDriver, made: str, identity: str
) -> None:
    # Long enough for a machine that stalls while the record is sent.
    timeout_s = 4.0
    producer = transactional(name, identity, timeout_ms=int(timeout_s * 1000))
    producer.init()
    began = time.monotonic()
    producer.begin()
    producer.send(made, ["too late"])
    writer.produce(made, [Message(b"behind")])
    assert read(writer, made, 1) == ["behind"]
    assert time.monotonic() - began > timeout_s / 2
    with pytest.raises(ClientError) as refused:
        producer.send(made, ["still"])
        producer.commit()
    assert refused.value.code != -1
    successor = transactional(name, identity)
    successor.init()
    successor.begin()
    successor.send(made, ["next"])
    successor.commit()
    assert read(writer, made, 2) == ["behind", "next"]


@pytest.mark.parametrize("name", TRANSACTION_ADMINS)
def test_transactions_and_producers_are_described(
    name: str,
    transactional: Make,
    groups_of: Callable[[str], GroupAdmin],
    made: str,
    identity: str,
) -> None:
    admin: Any = groups_of(name)
    producer = transactional("confluent-kafka", identity, timeout_ms=45_000)
    producer.init()
    assert admin.transactions()[identity] == "Empty"
    producer.begin()
    producer.send(made, ["a", "b"])
    assert admin.transactions()[identity] == "Ongoing"
    found = admin.transaction(identity)
    assert (found["state"], found["timeout_ms"]) == ("Ongoing", 45_000)
    assert found["partitions"] == {(made, 0)}
    ((producer_id, epoch, sequence, start),) = admin.producers(made, 0)
    assert (producer_id, epoch) == (found["producer_id"], found["producer_epoch"])
    assert (sequence, start) == (1, 0)
    producer.commit()
    wait_until(lambda: admin.transactions()[identity] == "CompleteCommit")
    assert admin.transaction(identity)["partitions"] == set()
    ((_, _, _, start),) = admin.producers(made, 0)
    assert start == -1


@pytest.mark.parametrize("name", clients("java 3.9.1", "java 4.3.0"))
def test_stable_end_is_told_to_who_asks_for_it(
    name: str, driver_of: Callable[[str], Any], transactional: Make, made: str, identity: str
) -> None:
    java = driver_of(name)
    producer = transactional(name, identity)
    producer.init()
    producer.begin()
    producer.send(made, ["a", "b"])
    assert java.offset(made, "latest") == 2
    assert java.call("groups_stable_end", topic=made, partition=0) == 0
    producer.commit()
    wait_until(lambda: java.call("groups_stable_end", topic=made, partition=0) == 3)


@pytest.mark.parametrize(
    "name",
    [
        *clients("confluent-kafka", *GROUP_JAVA),
        *slow(clients("kafka-python", "aiokafka")),
    ],
)
def test_transaction_spans_topics_and_partitions(
    name: str,
    transactional: Make,
    writer: AdminDriver,
    create: Callable[..., None],
    topic: str,
    identity: str,
) -> None:
    """More than one partition of each io worker."""
    create(f"{topic}-a", 5)
    create(f"{topic}-b", 3)
    places = [(f"{topic}-a", number) for number in range(5)]
    places += [(f"{topic}-b", number) for number in range(3)]
    producer = transactional(name, identity)
    producer.init()
    for number, end in enumerate((producer.commit, producer.abort, producer.commit)):
        producer.begin()
        for where, partition in places:
            producer.send(where, [f"{number}"], partition)
        end()
    for name_of, count in ((f"{topic}-a", 5), (f"{topic}-b", 3)):
        found = writer.fetch(name_of, 2 * count, partition=range(count), committed=True)
        assert sorted((record.partition, record.value) for record in found) == sorted(
            (number, value) for number in range(count) for value in (b"0", b"2")
        )
