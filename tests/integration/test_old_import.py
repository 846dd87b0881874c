"""``kbroker import-0.7``: logs of Kafka 0.7 fill topics, each message once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.brokers.zookeeper import path_of_its_own
from support.storage.messages_of_07 import compressed, message

from kbroker.cli import command
from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.batches.offsets import committed
from kbroker.client.connections.cluster import Cluster
from kbroker.legacy.offset_pairs import OffsetPairs
from kbroker.testing import Broker

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(num_io_threads=1) as started:
        yield started


@pytest.fixture
def run(broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs an action with ``--state``; what it prints, with stderr behind it."""

    def ran(action: str, *words: str, code: int = 0, connects: bool = True) -> str:
        given = ["import-0.7", action, *words, "--state", str(tmp_path / "state")]
        given += ["-b", broker.bootstrap] if connects else []
        assert command.main(given) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    return ran


def segment(home: Path, name: str, base: int, *messages: bytes) -> int:
    """Write one; where the next one begins."""
    (home / name).mkdir(parents=True, exist_ok=True)
    data = b"".join(messages)
    (home / name / f"{base:020}.kafka").write_bytes(data)
    return base + len(data)


def values(broker: Broker, topic: str, partition: int) -> list[bytes]:
    found: list[bytes] = []
    with KafkaConsumer(bootstrap_servers=broker.bootstrap) as consumer:
        key = (topic, partition)
        consumer.assign([key])
        end = consumer.end_offsets([key])[key]
        consumer.seek_to_beginning(key)
        while len(found) < end:
            found += [record.value for record in consumer.poll(1.0)]
    return found


def test_log_fills_a_topic_and_bad_messages_are_named(
    broker: Broker, tmp_path: Path, run: Callable[..., str]
) -> None:
    home, state = tmp_path / "old", tmp_path / "state"
    rows = [message(b"%d" % number) for number in range(1000)]
    bad = message(b"bad", crc=1)
    end = segment(home, "orders-0", 5000, *rows[:500], bad)
    end = segment(home, "orders-0", end, compressed(2, *rows[500:900]), *rows[900:])

    said = run("run", f"0={home}", "--compression", "lz4")

    assert (
        f"left out: orders/0-0, offset {5000 + sum(map(len, rows[:500]))}, 12 bytes: it does"
        in (said)
    )
    assert "imported 1,000 records" in said and "1 messages left out" in said
    assert values(broker, "orders", 0) == [b"%d" % number for number in range(1000)]
    pairs = OffsetPairs(str(state / "orders-0.offsets"))
    assert len(pairs) == 500 + 1 + 100 + 1
    assert [pairs.find(at) for at in (5000, 5000 + len(rows[0]), end, end + 1)] == [
        0,
        1,
        1000,
        None,
    ]
    assert pairs[500][1] == 500 and pairs[501][1] == 900
    pairs.close()
    assert "imported 0 records" in run("run", f"0={home}")
    assert len(values(broker, "orders", 0)) == 1000


def test_import_continues_after_a_kill_without_writing_twice(
    broker: Broker, tmp_path: Path, run: Callable[..., str]
) -> None:
    """What was written but not noted is found by the end of the target."""
    home, state = tmp_path / "old", tmp_path / "state"
    rows = [message(b"%d" % number) for number in range(300)]
    packed = compressed(1, *rows[100:200])
    end = segment(home, "killed-0", 0, *rows[:100], packed)
    run("run", f"0={home}")
    noted = shutil.copytree(state, tmp_path / "noted")
    segment(home, "killed-0", end, *rows[200:])
    run("run", f"0={home}")
    before = (state / "killed-0.offsets").read_bytes()
    shutil.copytree(noted, state, dirs_exist_ok=True)

    assert "imported 0 records" in run("run", f"0={home}")
    assert (state / "killed-0.offsets").read_bytes() == before
    row = json.loads((state / "killed-0.json").read_text())
    # A kill within a step: some records of a compressed message were written.
    (state / "killed-0.json").write_text(
        json.dumps(row | {"position": 0, "offset": 0, "pairs_bytes": 0})
    )
    run("run", f"0={home}")

    assert (state / "killed-0.offsets").read_bytes() == before
    assert values(broker, "killed", 0) == [b"%d" % number for number in range(300)]


def test_import_is_refused_where_something_else_has_written(
    broker: Broker, tmp_path: Path, run: Callable[..., str]
) -> None:
    home, state = tmp_path / "old", tmp_path / "state"
    segment(home, "taken-0", 0, message(b"1"))
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send("taken", b"x").result(30)

    assert "taken-0 is not empty (offsets 0 to 1)" in run("run", f"0={home}", code=1)

    shutil.rmtree(home)
    segment(home, "later-0", 0, message(b"1"))
    run("run", f"0={home}")
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send("later", b"x").result(30)
    assert "later-0 has 1 records more than later/0-0" in run("run", f"0={home}", code=1)
    row = json.loads((state / "later-0.json").read_text())
    (state / "later-0.json").write_text(json.dumps(row | {"offset": 9}))
    assert "ends at offset 2, but 9 records were imported" in run("run", f"0={home}", code=1)
    (state / "layout.json").unlink()
    assert "is about later/0-0, not later/1-0" in run("run", f"1={home}", code=1)
    (state / "later-0.json").write_text("{")
    assert "later-0.json is damaged" in run("run", f"0={home}", code=1)
    assert "say of which broker it is" in run("run", str(home), code=2)


def test_message_that_the_topic_refuses_ends_the_import(
    broker: Broker, tmp_path: Path, run: Callable[..., str]
) -> None:
    home = tmp_path / "old"
    segment(home, "small-0", 0, message(b"1"), message(bytes(5000)))
    with Cluster(broker.bootstrap) as cluster:
        create_topics(cluster, [NewTopic("small", 1, configs={"max.message.bytes": "2000"})])

    said = run("run", f"0={home}", code=1)

    assert "raise max.message.bytes of the topic" in said
    with Cluster(broker.bootstrap) as cluster:
        from kbroker.client.admin.configs import TOPIC, alter_configs

        alter_configs(cluster, TOPIC, "small", {"max.message.bytes": "9000"})
    run("run", f"0={home}")
    assert values(broker, "small", 0) == [b"1", bytes(5000)]


@pytest.fixture
def old_zookeeper() -> str:
    """With nodes of two brokers, and of a group."""
    place = path_of_its_own()
    nodes = KazooClient(place)
    nodes.start()
    one = message(b"0-0 first")
    for path, data in {
        "/brokers/ids/0": b"10.0.0.1-1310000000000:host-a:9092",
        "/brokers/ids/1": b"10.0.0.2-1310000000000:host-b:9092",
        "/brokers/topics/spread/0": b"2",
        "/brokers/topics/spread/1": b"1",
        "/consumers/readers/offsets/spread/0-0": b"%d" % len(one),
        "/consumers/readers/offsets/spread/1-0": b"0",
        "/consumers/readers/offsets/other/0-0": b"7",
    }.items():
        nodes.create(path, data, makepath=True)
    nodes.stop()
    nodes.close()
    return place


def test_partitions_and_groups_of_two_brokers_are_those_of_zookeeper(
    broker: Broker, tmp_path: Path, run: Callable[..., str], old_zookeeper: str
) -> None:
    """Broker 0 has two partitions, of which one has no directory yet."""
    where = ("--zookeeper", old_zookeeper)
    assert run("layout", *where, connects=False) == "spread: 3 partitions (2 at 0, 1 at 1)\n"
    for number in (0, 1):
        rows = (message(b"%d-0 %s" % (number, which)) for which in (b"first", b"second"))
        segment(tmp_path / f"old-{number}", "spread-0", 0, *rows)
    sources = [f"{number}={tmp_path}/old-{number}" for number in (0, 1)]
    plan = json.loads(run("plan", *sources, "-o", "json", connects=False))
    assert [(row["old"], row["partition"]) for row in plan] == [
        ("spread/0-0", 0),
        ("spread/1-0", 2),
    ]

    for source in sources:  # as on their own machines, one after the other
        run("run", source)

    assert [values(broker, "spread", number) for number in range(3)] == [
        [b"0-0 first", b"0-0 second"],
        [],
        [b"1-0 first", b"1-0 second"],
    ]
    shown = run("offsets", *where, "--commit", "-o", "json").split("committed")[0]
    assert [row["offset"] for row in json.loads(shown)] == [None, 1, 0]
    with Cluster(broker.bootstrap) as cluster:
        found = committed(cluster, "readers")
    assert {key: row.offset for key, row in found.items()} == {("spread", 0): 1, ("spread", 2): 0}
