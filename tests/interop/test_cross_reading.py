"""Every client reads what all the others wrote, mixed in the same partitions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from interop.conftest import ALL, PYTHON, QUICK_JAVA, java_names
from support.drivers import CODECS, AdminDriver, Driver, Message
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing
from support.drivers.kcat import Kcat
from support.running.selection import is_without_slow

# The first test starts every client, and may have to download libraries.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(FIRST_TEST_TIMEOUT_S)]

TOPIC = "cross-reading"
PARTITIONS = 2
ROUNDS = 3
BATCH = 15


def _writers(slow: bool) -> list[str]:
    names = list(PYTHON)
    if not Kcat.missing():
        names.append("kcat")
    if not java_missing():
        names += java_names() if slow else [QUICK_JAVA]
    return names


@pytest.fixture(scope="module")
def written(
    request: pytest.FixtureRequest, driver_of: Callable[[str], Driver]
) -> dict[int, list[Message]]:
    """The content of each partition: batches of all clients in turns, each round with other
    codecs.
    """
    slow = not is_without_slow(request.config)
    admin: AdminDriver = driver_of("confluent-kafka")  # type: ignore[assignment]
    admin.create_topic(TOPIC, PARTITIONS)
    expected: dict[int, list[Message]] = {n: [] for n in range(PARTITIONS)}
    for round_number in range(ROUNDS):
        for index, name in enumerate(_writers(slow)):
            writer = driver_of(name)
            partition = index % PARTITIONS
            headers = (("writer", name.encode()), ("round", b"%d" % round_number))
            messages = [
                Message(f"{name} {round_number} {n} ".encode() * 5, b"key-%d" % n, headers)
                for n in range(BATCH)
            ]
            messages.append(Message(None, b"gone", headers))
            codec = CODECS[(index + round_number) % len(CODECS)]
            idempotent = round_number == 1
            offsets = writer.produce(
                TOPIC, messages, partition=partition, codec=codec, idempotent=idempotent
            )
            if offsets:
                first = len(expected[partition])
                assert offsets == list(range(first, first + len(messages)))
            expected[partition] += messages
    return expected


@pytest.mark.parametrize("partition", range(PARTITIONS))
@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_each_client_reads_what_all_wrote(
    driver: Driver, written: dict[int, list[Message]], partition: int
) -> None:
    expected = written[partition]
    records = driver.fetch(TOPIC, len(expected), partition=partition)
    assert [record.offset for record in records] == list(range(len(expected)))
    assert [(record.key, record.value, record.headers) for record in records] == [
        (message.key, message.value, message.headers) for message in expected
    ]


@pytest.mark.parametrize("driver", ALL[1:], indirect=True)
def test_clients_agree_on_timestamps(
    driver: Driver,
    driver_of: Callable[[str], Driver],
    written: dict[int, list[Message]],
) -> None:
    count = len(written[0])
    others = driver_of("confluent-kafka").fetch(TOPIC, count)
    assert driver.fetch(TOPIC, count) == others
