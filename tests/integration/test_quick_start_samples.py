"""The sample runs of Kafka's documents of 0.8.2 (SMP-01 to SMP-09), as they are typed, in a new
checkout. What differs: the lines of the broker's log are those of kbroker, ``ps`` of Linux needs
``aux`` to show a command line, and broker 1 may not lead at first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.checkout import Checkout, Terminal
from support.brokers.zookeeper import skip_without_zookeeper

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

ZOOKEEPER = "--zookeeper localhost:2181"
TOPIC = "my-replicated-topic"
DESCRIBE = f"bin/kafka-topics.sh --describe {ZOOKEEPER} --topic"
CONSUME = f"bin/kafka-console-consumer.sh {ZOOKEEPER} --from-beginning --topic"
PRODUCE = "bin/kafka-console-producer.sh --broker-list localhost:9092 --topic"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """With ZooKeeper and broker 0."""
    skip_without_zookeeper()
    made = Checkout(tmp_path_factory.mktemp("checkout"))
    try:
        zookeeper = made.open("bin/zookeeper-server-start.sh config/zookeeper.properties")
        made.open("bin/kafka-server-start.sh config/server.properties")
        registered(made, 0)
        assert zookeeper.process.poll() is None
        yield made
    finally:
        made.close()


def registered(checkout: Checkout, number: int, chroot: str = "") -> None:
    """Wait for a broker."""
    checkout.until(
        f"bin/zookeeper-shell.sh localhost:2181{chroot} ls /brokers/ids",
        lambda text: re.search(rf"[\[ ]{number}[],]", text) is not None,
    )


def copied(checkout: Checkout, number: int, **more: str) -> str:
    """config/server-1.properties, as SMP-04 shows it."""
    text = (checkout.home / "config" / "server.properties").read_text()
    text += (
        f"broker.id={number}\nport={9092 + number}\nlog.dir={checkout.home}/kafka-logs-{number}\n"
    )
    path = checkout.home / "config" / f"server-{number}.properties"
    path.write_text(text + "".join(f"{name}={value}\n" for name, value in more.items()))
    return f"config/server-{number}.properties"


@pytest.fixture(scope="module")
def brokers(checkout: Checkout) -> Checkout:
    """SMP-04: with brokers 1 and 2, too."""
    for number in (1, 2):
        checkout.open(f"bin/kafka-server-start.sh {copied(checkout, number)}")
    for number in (1, 2):
        registered(checkout, number)
    return checkout


def consumed(checkout: Checkout, topic: str, *lines: str) -> None:
    """Read what is there, until Ctrl-C."""
    terminal = checkout.open(f"{CONSUME} {topic}")
    terminal.wait_for(*(f"{line}\n" for line in lines))
    checkout.interrupt(terminal)
    assert terminal.text == "".join(f"{line}\n" for line in lines) + (
        f"Processed a total of {len(lines)} messages\n"
    )


def test_one_broker_a_topic_a_producer_and_a_consumer(checkout: Checkout) -> None:
    """SMP-02, SMP-03, and of SMP-05 the topic of one broker."""
    created = checkout.run(
        f"bin/kafka-topics.sh --create {ZOOKEEPER} --replication-factor 1 --partitions 1 "
        "--topic test"
    )
    assert created == 'Created topic "test".\n'
    assert checkout.run(f"bin/kafka-topics.sh --list {ZOOKEEPER}") == "test\n"

    lines = ("This is a message", "This is another message")
    assert checkout.run(f"{PRODUCE} test ", stdin="\n".join(lines)) == ""
    consumed(checkout, "test", *lines)
    assert checkout.run(f"{DESCRIBE} test") == (
        "Topic:test\tPartitionCount:1\tReplicationFactor:1\tConfigs:\n"
        "\tTopic: test\tPartition: 0\tLeader: 0\tReplicas: 0\tIsr: 0\n"
    )


def lead_by_one(checkout: Checkout) -> str:
    """Let broker 1 lead, as in the sample; a new topic begins with any. What is described then."""
    row = f'{{"topic":"{TOPIC}","partition":0,"replicas":[1,2,0]}}'
    (checkout.home / "move.json").write_text(f'{{"version":1,"partitions":[{row}]}}')
    move = f"bin/kafka-reassign-partitions.sh {ZOOKEEPER} --reassignment-json-file move.json"
    checkout.run(f"{move} --execute")
    checkout.until(f"{move} --verify", lambda text: "completed successfully" in text)
    checkout.run(f"bin/kafka-preferred-replica-election.sh {ZOOKEEPER}")
    return checkout.until(f"{DESCRIBE} {TOPIC}", lambda text: "Leader: 1" in text)


def test_topic_of_three_brokers_outlives_its_leader(brokers: Checkout) -> None:
    """SMP-04 to SMP-06."""
    brokers.run(
        f"bin/kafka-topics.sh --create {ZOOKEEPER} --replication-factor 3 --partitions 1 "
        f"--topic {TOPIC}"
    )
    head = f"Topic:{TOPIC}\tPartitionCount:1\tReplicationFactor:3\tConfigs:\n"
    lead_by_one(brokers)
    described = brokers.until(f"{DESCRIBE} {TOPIC}", lambda text: text.count(",") == 4)
    assert re.fullmatch(
        rf"{re.escape(head)}\tTopic: {TOPIC}\tPartition: 0\tLeader: 1\tReplicas: 1,2,0\t"
        r"Isr: (\d),(\d),(\d)\n",
        described,
    )

    lines = ("my test message 1", "my test message 2")
    producer = brokers.open(f"{PRODUCE} {TOPIC}")
    producer.type("\n".join([*lines, ""]))
    consumed(brokers, TOPIC, *lines)
    assert brokers.interrupt(producer) == 130

    (found,) = brokers.run("ps aux | grep server-1.properties | grep -v grep").splitlines()
    brokers.run(f"kill -9 {found.split()[1]}")
    described = brokers.until(f"{DESCRIBE} {TOPIC}", lambda text: "Leader: 1" not in text)
    described = brokers.until(f"{DESCRIBE} {TOPIC}", lambda text: text.count(",") == 3)
    lead = f"{head}\tTopic: {TOPIC}\tPartition: 0\tLeader: 2\tReplicas: 1,2,0\t"
    assert described in (f"{lead}Isr: 2,0\n", f"{lead}Isr: 0,2\n")
    consumed(brokers, TOPIC, *lines)


def test_topic_configuration_of_one_broker(checkout: Checkout) -> None:
    """SMP-07, the first part."""
    topics = f" bin/kafka-topics.sh {ZOOKEEPER}"
    checkout.run(
        f"{topics} --create --topic my-topic --partitions 1 \\\n        --replication-factor 1 "
        "--config max.message.bytes=64000 --config flush.messages=1"
    )

    def configs() -> str:
        return checkout.run(f"{DESCRIBE} my-topic").split("\n")[0].partition("Configs:")[2]

    assert set(configs().split(",")) == {"max.message.bytes=64000", "flush.messages=1"}
    checkout.run(f"{topics} --alter --topic my-topic \\\n    --config max.message.bytes=128000")
    assert set(configs().split(",")) == {"max.message.bytes=128000", "flush.messages=1"}
    checkout.run(f"{topics} --alter --topic my-topic \\\n    --deleteConfig max.message.bytes")
    assert configs() == "flush.messages=1"


def chrooted(checkout: Checkout, *numbers: int) -> None:
    """Brokers of another cluster, at a path."""
    more = {
        "zookeeper.connect": "localhost:2181/chroot",
        "offsets.topic.replication.factor": "1",
        "num.io.threads": "1",
    }
    for number in numbers:
        name = copied(checkout, number, **more)
        checkout.open(f"bin/kafka-server-start.sh {name}")
    for number in numbers:
        registered(checkout, number, "/chroot")


def test_topic_of_a_cluster_at_a_path_is_changed_and_deleted(checkout: Checkout) -> None:
    """SMP-07, the second part, with a setting that exists for x=y."""
    chrooted(checkout, 11, 12, 13)
    topics = " bin/kafka-topics.sh --zookeeper localhost:2181/chroot"
    name = "my_topic_name"
    checkout.run(
        f"{topics} --create --topic {name} \\\n       --partitions 20 --replication-factor 3 "
        "--config segment.bytes=1048576"
    )
    head = f"Topic:{name}\tPartitionCount:20\tReplicationFactor:3\tConfigs:segment.bytes=1048576\n"
    assert checkout.run(f"{topics} --describe --topic {name}").startswith(head)

    checkout.run(f"{topics} --alter --topic {name} \\\n       --partitions 40 ")
    described = checkout.run(f"{topics} --describe --topic {name}")
    assert described.count("\tPartition: ") == 40
    checkout.run(f"{topics} --alter --topic {name} --config flush.messages=7")
    assert "flush.messages=7" in checkout.run(f"{topics} --describe --topic {name}")
    checkout.run(f"{topics} --alter --topic {name} --deleteConfig flush.messages")
    assert "flush.messages" not in checkout.run(f"{topics} --describe --topic {name}")
    checkout.run(f"{topics} --delete --topic {name}")
    checkout.until(f"{topics} --list", lambda text: name not in text)
    checkout.run("bin/kafka-server-stop.sh kafka-logs-11")
    checkout.run("bin/kafka-server-stop.sh kafka-logs-12")
    checkout.run("bin/kafka-server-stop.sh kafka-logs-13")


def mirror_files(checkout: Checkout, *sources: str) -> None:
    """Settings with the names of 0.8."""
    for number, connect in enumerate(sources, 1):
        (checkout.home / f"consumer-{number}.properties").write_text(
            f"zookeeper.connect={connect}\ngroup.id=mirror\nauto.offset.reset=smallest\n"
        )
    (checkout.home / "producer.properties").write_text(
        "metadata.broker.list=localhost:9092\nproducer.type=async\nrequest.required.acks=-1\n"
    )


def test_topic_of_two_clusters_is_mirrored(checkout: Checkout) -> None:
    """SMP-08."""
    for number, path in ((21, "/one"), (22, "/two")):
        more = {
            "zookeeper.connect": f"localhost:2181{path}",
            "offsets.topic.replication.factor": "1",
        }
        checkout.open(f"bin/kafka-server-start.sh {copied(checkout, number, **more)}")
        registered(checkout, number, path)
        checkout.run(
            f"bin/kafka-console-producer.sh --broker-list localhost:{9092 + number} "
            "--topic my-mirrored",
            stdin=f"first from {path}\nsecond from {path}\n",
        )
    mirror_files(checkout, "localhost:2181/one", "localhost:2181/two")
    mirror = checkout.open(
        "bin/kafka-run-class.sh kafka.tools.MirrorMaker \\\n"
        "       --consumer.config consumer-1.properties --consumer.config consumer-2.properties "
        "\\\n       --producer.config producer.properties --whitelist my-mirrored"
    )
    reader: Terminal = checkout.open(f"{CONSUME} my-mirrored --max-messages 4")
    assert reader.process.wait(60) == 0
    lines = [line for line in reader.text.splitlines() if " from " in line]
    assert sorted(lines) == [f"{which} from {path}" for which in ("first", "second")
                             for path in ("/one", "/two")]  # fmt: skip
    for path in ("/one", "/two"):
        assert lines.index(f"first from {path}") < lines.index(f"second from {path}")
    assert checkout.interrupt(mirror) == 130
    assert "mirrored 4 records" in mirror.text


def test_offset_checker_shows_a_group(checkout: Checkout) -> None:
    """SMP-09."""
    checkout.run(f"{PRODUCE} checked", stdin="one\ntwo\n")
    reader = checkout.open(
        "bin/kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic checked "
        "--group my-group --from-beginning"
    )
    reader.wait_for("one\ntwo\n")
    assert checkout.interrupt(reader) == 130  # it commits when it ends
    line = (
        " bin/kafka-run-class.sh kafka.tools.ConsumerOffsetChecker --zkconnect localhost:2181 "
        "--group my-group"
    )
    assert checkout.run(line).splitlines() == [
        "Group           Topic                          Pid Offset          logSize         "
        "Lag             Owner",
        "my-group        checked                        0   2               2               "
        "0               none",
    ]


def test_single_broker_of_the_readme_keeps_its_directory(tmp_path: Path) -> None:
    """A directory of a single broker is not used with ZooKeeper, nor the other way round."""
    skip_without_zookeeper()
    made = Checkout(tmp_path)
    try:
        start = "bin/kafka-server-start.sh config/server.properties"
        alone = made.open(".venv/bin/python -m kbroker.cli.start -c config/server.properties")
        alone.wait_for("metadata store: embedded", "processes are ready")
        made.interrupt(alone)
        made.open("bin/zookeeper-server-start.sh config/zookeeper.properties")
        made.until("bin/zookeeper-shell.sh localhost:2181 ls /", lambda text: "zookeeper" in text)
        still = made.open(start)
        still.wait_for("holds the metadata of a single broker", "metadata store: embedded")
        made.interrupt(still)

        joined = made.open(f"{start} --override log.dirs=other")
        joined.wait_for("metadata store: ZooKeeper localhost:2181", "processes are ready")
        made.interrupt(joined)
        made.run("bin/zookeeper-server-stop.sh")
        made.until("bin/zookeeper-server-stop.sh", lambda text: "No zookeeper" in text)
        refused = made.open(f"{start} --override log.dirs=other")
        assert refused.process.wait(30) == 1
        assert "was written by a broker with ZooKeeper" in refused.text
    finally:
        made.close()
