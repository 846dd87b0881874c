"""``kafka-mirror-maker`` between two brokers: order, later topics, kills, a target that is gone."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.clients.mirrors import Copy, Mirror, create, fill, in_order_from_restarts, write
from support.running.grids import some_of

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

# Short times, as a killed mirror is missed after them and a new topic is seen after its metadata.
SOURCE = {
    "auto.offset.reset": "earliest",
    "metadata.max.age.ms": "500",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
}


@pytest.fixture(scope="module")
def source() -> Iterator[Broker]:
    with Broker(num_partitions=3, group_initial_rebalance_delay_ms=0) as started:
        yield started


@pytest.fixture(scope="module")
def target() -> Iterator[Broker]:
    with Broker(num_partitions=2, group_initial_rebalance_delay_ms=0) as started:
        yield started


Start = Callable[..., Mirror]


@pytest.fixture
def start(tmp_path: Path, source: Broker, target: Broker) -> Iterator[Start]:
    """Starts mirrors of a group; settings of consumers and of the producer, and more words."""
    made: list[Mirror] = []

    def begin(
        *words: str,
        group: str = "",
        sources: tuple[Broker, ...] = (source,),
        to: Broker = target,
        consumer: dict[str, str] | None = None,
        producer: dict[str, str] | None = None,
    ) -> Mirror:
        given: list[str] = []
        for number, one in enumerate(sources):
            path = tmp_path / f"consumer-{len(made)}-{number}.properties"
            own = {"bootstrap.servers": one.bootstrap, "group.id": group or f"g-{words[1]}"}
            write(path, own | SOURCE | (consumer or {}))
            given += ["--consumer.config", str(path)]
        path = tmp_path / f"producer-{len(made)}.properties"
        write(path, {"bootstrap.servers": to.bootstrap} | (producer or {}))
        given += ["--producer.config", str(path), "--offset.commit.interval.ms", "200"]
        log = tmp_path / f"mirror-{len(made)}.log"
        made.append(Mirror(log, given + list(words)))
        return made[-1]

    yield begin
    for one in made:
        if one.running:
            one.kill()


@pytest.mark.parametrize("codec", some_of(["none", "zstd"], ["zstd"]))
def test_records_arrive_as_they_were_in_the_order_of_their_keys(
    source: Broker, target: Broker, start: Start, codec: str
) -> None:
    topic = f"orders-{codec}"
    create(source, topic, 3)
    fill(source, topic, 0, 2000, compression_type=codec)
    mirror = start("--whitelist", topic, "--report.interval.ms", "200", "--num.streams", "2")
    with Copy(target, topic) as copy:
        copy.await_all(range(2000), [mirror])
        fill(source, topic, 2000, 500, compression_type=codec)
        copy.await_all(range(2500), [mirror])

        assert set(copy.values().values()) == {1}
        for key, numbers in copy.by_key().items():
            assert numbers == sorted(numbers), key
        for record in copy.records:
            n = int(record.value)
            assert (record.timestamp, record.headers) == (1000 + n, (("n", record.value),))
        copy.assert_one_partition_per_key()
    wait_until(lambda: "records/s" in mirror.said, 20, "a line about progress")
    assert mirror.stop() == 128 + signal.SIGTERM
    lines = mirror.said.splitlines()
    assert lines[-1].startswith("mirrored 2,500 records (")
    assert lines[-1].endswith(" 0 dropped, lag 0")

    again = start("--whitelist", topic, "--num.streams", "2")
    fill(source, topic, 2500, 10)
    with Copy(target, topic) as copy:
        copy.await_all(range(2510), [again])
        assert set(copy.values().values()) == {1}, "what was committed is not copied again"
    assert again.stop(signal.SIGINT) == 128 + signal.SIGINT


@pytest.mark.slow
def test_topics_that_appear_later_are_copied_from_their_beginning(
    source: Broker, target: Broker, start: Start
) -> None:
    create(source, "later-0", 1)
    mirror = start(
        "--whitelist", "later-.*", "--blacklist", ".*-2", consumer={"auto.offset.reset": "latest"}
    )
    with Copy(target, "later-0") as copy:
        sent = iter(range(1_000_000))

        def reads() -> bool:
            fill(source, "later-0", next(sent), 1)
            return copy.read() > 0

        wait_until(reads, 60, "the mirror reads what comes")
    fill(source, "later-2", 0, 10)
    fill(source, "later-1", 0, 100)
    with Copy(target, "later-1") as copy:
        copy.await_all(range(100), [mirror])
    with KafkaConsumer(bootstrap_servers=target.bootstrap) as consumer:
        assert "later-2" not in consumer.list_topics()
    assert mirror.stop() == 143


def test_killed_mirror_is_taken_over_and_nothing_is_lost(
    source: Broker, target: Broker, start: Start
) -> None:
    create(source, "kills", 4)
    writer = threading.Thread(target=fill, args=(source, "kills", 0, 8000, 0.05))
    writer.start()
    mirrors = [start("--whitelist", "kills") for _ in range(2)]
    try:
        with Copy(target, "kills") as copy:
            copy.await_all(range(800), mirrors)
            mirrors[0].kill()
            copy.await_all(range(3200), mirrors)
            mirrors.append(start("--whitelist", "kills"))
            copy.await_all(range(4800), mirrors)
            mirrors[1].kill()
            copy.await_all(range(8000), mirrors)
            for key, numbers in copy.by_key().items():
                assert in_order_from_restarts(numbers), key
            copy.assert_one_partition_per_key()
    finally:
        writer.join()
    assert mirrors[2].stop() == 143


def test_target_that_is_gone_stops_reading_and_is_resumed(source: Broker, start: Start) -> None:
    create(source, "outage", 3)
    fill(source, "outage", 0, 1000)
    with Broker(num_partitions=2, group_initial_rebalance_delay_ms=0) as target:
        mirror = start("--whitelist", "outage", "--report.interval.ms", "200", to=target)
        with Copy(target, "outage") as copy:
            copy.await_all(range(1000), [mirror])
        target.stop()
        fill(source, "outage", 1000, 2000)
        wait_until(lambda: "cannot write to" in mirror.said, 30, "the mirror says it")
        fill(source, "outage", 3000, 2000)

        def since() -> list[tuple[str, str]]:
            """Records and lag, of each line since it was said."""
            _, _, later = mirror.said.partition("reading stops")
            line = r"^mirrored ([\d,]+) .* lag ([\d,]+), the target takes nothing for \d+ s now"
            return re.findall(line, later, re.MULTILINE)

        wait_until(lambda: len(since()) >= 12, 30, "the mirror tells of itself")
        assert {records for records, _ in since()} == {"3,000"}, "it reads nothing more"
        assert since()[-1][1] == "2,000"
        assert mirror.running and mirror.said.count("cannot write to") == 1
        assert target.bootstrap.rpartition(":")[2] in mirror.said
        target.start()
        with Copy(target, "outage") as copy:
            copy.await_all(range(5000), [mirror])
            for key, numbers in copy.by_key().items():
                assert numbers == sorted(set(numbers)), key
        wait_until(lambda: "again, after" in mirror.said, 10, "the mirror says that it goes on")
        assert mirror.stop() == 143


@pytest.mark.slow
def test_several_sources_are_copied_into_one(source: Broker, target: Broker, start: Start) -> None:
    with Broker(num_partitions=1, group_initial_rebalance_delay_ms=0) as other:
        fill(source, "merged", 0, 300)
        fill(other, "merged", 300, 300)
        mirror = start("--whitelist", "merged", "--num.producers", "2", sources=(source, other))
        with Copy(target, "merged") as copy:
            copy.await_all(range(600), [mirror])
            assert set(copy.values().values()) == {1}
        assert mirror.stop() == 143


@pytest.mark.slow
def test_source_that_is_not_there_yet_is_waited_for(target: Broker, start: Start) -> None:
    with Broker(num_partitions=1, group_initial_rebalance_delay_ms=0) as other:
        fill(other, "waited", 0, 10)
        other.stop()
        mirror = start(
            "--whitelist", "waited", sources=(other,), consumer={"default.api.timeout.ms": "1000"}
        )
        wait_until(lambda: "cannot read from" in mirror.said, 30, "the mirror says it")
        other.start()
        with Copy(target, "waited") as copy:
            copy.await_all(range(10), [mirror])
        assert mirror.said.count("cannot read from") == 1
        assert mirror.stop() == 143


@pytest.mark.parametrize(
    "words", [(), pytest.param(("--keep.partitions",), marks=pytest.mark.slow)]
)
def test_record_that_the_target_refuses_ends_the_mirror(
    source: Broker, target: Broker, start: Start, words: tuple[str, ...]
) -> None:
    topic = f"refused{len(words)}"
    create(source, topic, 1)
    create(target, topic, 1, **{"max.message.bytes": "1000"})
    with KafkaProducer(bootstrap_servers=source.bootstrap) as producer:
        producer.send(topic, b"x" * 200_000)
    mirror = start("--whitelist", topic, *words)
    assert mirror.wait() == 255
    assert "a record was not written" in mirror.said and "exited abnormally" in mirror.said

    other = start("--whitelist", topic, "--abort.on.send.failure", "false", *words)
    wait_until(lambda: "records are lost" in other.said, 30, "it is said")
    fill(source, topic, 0, 3)
    with Copy(target, topic) as copy:
        copy.await_all(range(3), [other])
    assert other.stop() == 143
    assert "1 dropped" in other.said.splitlines()[-1]


def test_message_handler_sees_each_record(
    source: Broker, target: Broker, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_handler.py").write_text(
        "from kbroker.client import ProducerRecord\n"
        "class Upper:\n"
        "    def __init__(self, prefix):\n"
        "        self.prefix = prefix\n"
        "    def handle(self, record):\n"
        "        if int(record.value) % 2 == 0:\n"
        "            yield ProducerRecord(self.prefix + record.topic, record.value, record.key)\n"
        "class Told:\n"
        "    def on_partitions_assigned(self, partitions):\n"
        "        open('told', 'a').write(f'{len(partitions)}')\n"
    )
    monkeypatch.chdir(tmp_path)
    fill(source, "handled", 0, 100)
    mirror = start(
        "--whitelist", "handled", "--message.handler", "own_handler.Upper",
        "--message.handler.args", "copy-of-", "--consumer.rebalance.listener", "own_handler.Told",
    )  # fmt: skip
    with Copy(target, "copy-of-handled") as copy:
        copy.await_all(range(0, 100, 2), [mirror])
        assert len(copy.records) == 50
    assert mirror.stop() == 143
    assert "3" in (tmp_path / "told").read_text()


def test_verb_for_people_copies_and_tells(source: Broker, target: Broker, tmp_path: Path) -> None:
    fill(source, "people-1", 0, 200)
    fill(source, "people-2", 0, 5)
    run = "import sys; from kbroker.cli.command import main; sys.exit(main())"
    words = ["people-.*", "-b", source.bootstrap, "--to", target.bootstrap]
    words += ["--exclude", "people-2", "--report", "1"]
    mirror = Mirror(tmp_path / "log", words, (sys.executable, "-c", run, "mirror"))
    try:
        with Copy(target, "people-1") as copy:
            copy.await_all(range(200), [mirror])
        wait_until(lambda: "records/s" in mirror.said, 20, "a line about progress")
        assert mirror.stop() == 0
    finally:
        if mirror.running:
            mirror.kill()
    assert mirror.said.splitlines()[-1].startswith("mirrored 200 records")
    with KafkaConsumer(bootstrap_servers=target.bootstrap) as consumer:
        assert "people-2" not in consumer.list_topics()


def test_mirror_onto_its_own_cluster_is_refused(source: Broker, start: Start) -> None:
    """By whatever name: each record would be copied into its own topic, for ever."""
    other_name = source.bootstrap.replace("127.0.0.1", "localhost")
    assert other_name != source.bootstrap
    for address in (source.bootstrap, other_name):
        mirror = start("--whitelist", "orders", producer={"bootstrap.servers": address})
        assert mirror.wait() == 1
        assert "are the same cluster" in mirror.said


def test_mirrors_that_face_each_other_are_refused(
    source: Broker, target: Broker, start: Start
) -> None:
    """The second one is."""
    for broker in (source, target):
        create(broker, "to-and-fro", 1)
    there = start("--whitelist", "to-.*")
    fill(source, "to-and-fro", 0, 10)
    with Copy(target, "to-and-fro") as copy:
        copy.await_all(range(10), [there])
    back = start("--whitelist", "to-and-fro", sources=(target,), to=source, group="back")
    assert back.wait() == 1
    assert "group g-to-.* at " in back.said
    assert "copies topic to-and-fro to " in back.said
    # Other topics may be copied the other way.
    create(target, "fro-only", 1)
    others = start("--whitelist", "fro-.*", sources=(target,), to=source, group="others")
    fill(target, "fro-only", 0, 10)
    with Copy(source, "fro-only") as copy:
        copy.await_all(range(10), [others])
    assert there.running and others.running


@pytest.mark.slow
def test_of_mirrors_that_face_each_other_from_the_beginning_one_is_refused(
    source: Broker, target: Broker, start: Start
) -> None:
    together = [
        start("--whitelist", "both-.*", group="g-both"),
        start("--whitelist", "both-.*", sources=(target,), to=source, group="g-both"),
    ]
    for broker in (source, target):
        create(broker, "both-ways", 1)
    # Either sees the other one at its start, or both a little later.
    wait_until(lambda: not all(mirror.running for mirror in together), 60, "one is refused")
    assert any("again and again" in mirror.said for mirror in together)
