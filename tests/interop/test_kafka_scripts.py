"""The main classes behind Apache Kafka's own scripts, each a JVM of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.drivers import Driver, Message
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing, libraries
from support.drivers.kafka_tools import run_tool
from support.drivers.members import Member
from support.drivers.transactions import Transactional

from kbroker.testing import Broker, wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

VERSION, NEWEST = "3.9.1", "4.3.0"
TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
CONFIG_COMMAND = "kafka.admin.ConfigCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
CONSOLE_PRODUCER = "kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
API_VERSIONS = "kafka.admin.BrokerApiVersionsCommand"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
SUBCOMMANDS = (TRANSACTIONS, QUORUM, FEATURES)

Script = Callable[..., str]


@pytest.fixture(scope="module")
def script(broker: Broker) -> Script:
    """Runs a main class with ``--bootstrap-server``; returns its output."""
    return scripts_of(VERSION, broker)


@pytest.fixture
def newest_script(broker: Broker) -> Script:
    """The same, of the newest Kafka."""
    return scripts_of(NEWEST, broker)


def scripts_of(version: str, broker: Broker) -> Script:
    jars = libraries(version, "kafka-tools")

    def run(main: str, *arguments: str, stdin: str = "", bootstrap: bool = True) -> str:
        where = ("--bootstrap-server", broker.bootstrap) if bootstrap else ()
        if main in SUBCOMMANDS:  # this option must come before the command
            return run_tool(jars, main, *where, *arguments, stdin=stdin)
        return run_tool(jars, main, *arguments, *where, stdin=stdin)

    return run


def test_topic_command_creates_describes_extends_and_deletes(script: Script, topic: str) -> None:
    create = ("--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=5000")
    assert f"Created topic {topic}" in script(TOPIC_COMMAND, *create)
    script(TOPIC_COMMAND, "--alter", "--topic", topic, "--partitions", "3")
    text = script(TOPIC_COMMAND, "--describe", "--topic", topic)
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1", text)
    assert "retention.ms=5000" in text
    assert len(re.findall(r"Leader: 0\s+Replicas: 0\s+Isr: 0", text)) == 3
    script(TOPIC_COMMAND, "--delete", "--topic", topic)
    assert topic not in script(TOPIC_COMMAND, "--list").split()


@pytest.mark.slow
def test_console_producer_and_consumer_pass_lines_on(script: Script, made: str) -> None:
    """The consumer names partition and offset, so it needs no group."""
    lines = [f"key{n}:value {n}" for n in range(100)]
    send = ("--topic", made, "--property", "parse.key=true", "--property", "key.separator=:")
    script(CONSOLE_PRODUCER, *send, "--compression-codec", "zstd", stdin="\n".join(lines) + "\n")
    read = ("--topic", made, "--partition", "0", "--max-messages", "90", "--offset", "10")
    show = ("--property", "print.key=true", "--property", "key.separator=:")
    assert script(CONSOLE_CONSUMER, *read, *show).splitlines() == lines[10:]


@pytest.mark.slow
def test_config_command_alters_topic_and_broker(script: Script, made: str) -> None:
    of_topic = ("--entity-type", "topics", "--entity-name", made)
    change = ("--alter", "--add-config", "segment.bytes=1048576,cleanup.policy=[compact,delete]")
    script(CONFIG_COMMAND, *of_topic, *change)
    text = script(CONFIG_COMMAND, *of_topic, "--describe")
    assert "segment.bytes=1048576" in text and "cleanup.policy=compact,delete" in text
    of_broker = ("--entity-type", "brokers", "--entity-name", "0")
    script(CONFIG_COMMAND, *of_broker, "--alter", "--add-config", "log.cleaner.threads=2")
    assert "log.cleaner.threads=2" in script(CONFIG_COMMAND, *of_broker, "--describe")
    script(CONFIG_COMMAND, *of_broker, "--alter", "--delete-config", "log.cleaner.threads")
    assert "log.cleaner.threads=2" not in script(CONFIG_COMMAND, *of_broker, "--describe")


@pytest.mark.slow
def test_config_command_lists_and_alters_groups(newest_script: Script, group: str) -> None:
    one, script = ("--entity-type", "groups", "--entity-name", group), newest_script
    own = "consumer.session.timeout.ms=50000"
    assert "45000" in script(CONFIG_COMMAND, *one, "--describe", "--all")
    script(CONFIG_COMMAND, *one, "--alter", "--add-config", own)
    assert own in script(CONFIG_COMMAND, *one, "--describe")
    listed = script(CONFIG_COMMAND, "--entity-type", "groups", "--describe")
    assert group in listed and own in listed
    with pytest.raises(AssertionError, match="from 45000 to 60000"):
        refused = "consumer.session.timeout.ms=1000"
        script(CONFIG_COMMAND, *one, "--alter", "--add-config", refused)
    script(CONFIG_COMMAND, *one, "--alter", "--delete-config", "consumer.session.timeout.ms")
    assert group not in script(CONFIG_COMMAND, "--entity-type", "groups", "--describe")


@pytest.mark.slow
def test_offsets_records_and_directories_by_script(
    script: Script, driver_of: Callable[[str], Driver], made: str, tmp_path: Path
) -> None:
    messages = [Message(b"v", timestamp_ms=1_700_000_000_000 + n) for n in range(50)]
    driver_of("confluent-kafka").produce(made, messages)
    cut = {"partitions": [{"topic": made, "partition": 0, "offset": 20}], "version": 1}
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(cut))
    assert "low_watermark: 20" in script(DELETE_RECORDS, "--offset-json-file", str(path))
    for time, offset in (("earliest", 20), ("latest", 50), ("max-timestamp", 49)):
        assert script(OFFSETS, "--topic", made, "--time", time).strip() == f"{made}:0:{offset}"
    assert f'"partition":"{made}-0"' in script(LOG_DIRS, "--describe", "--topic-list", made)


@pytest.mark.slow
def test_producer_performance_sends_all(
    script: Script, driver_of: Callable[[str], Driver], broker: Broker, made: str
) -> None:
    arguments = ["--topic", made, "--num-records", "100000", "--record-size", "100"]
    arguments += ["--throughput", "-1", "--producer-props", f"bootstrap.servers={broker.bootstrap}"]
    assert "100000 records sent" in script(PRODUCER_PERFORMANCE, *arguments, bootstrap=False)
    assert driver_of("confluent-kafka").offset(made, "latest") == 100_000  # type: ignore[attr-defined]


def test_api_versions_command_knows_every_api(script: Script) -> None:
    """The client lists the versions that both sides support; the broker must announce nothing
    unusable.
    """
    text = script(API_VERSIONS)
    for api in ("Produce(0): 0 to", "Fetch(1): ", "Metadata(3): 0 to", "CreateTopics(19): "):
        assert api in text, text
    assert re.search(r"Produce\(0\): .*\[usable: 11\]", text)
    assert re.search(r"Fetch\(1\): .*\[usable: 17\]", text)


@pytest.mark.slow
def test_consumer_groups_command_describes_resets_and_deletes(
    script: Script,
    driver_of: Callable[[str], Driver],
    join: Callable[..., Member],
    made: str,
    group: str,
) -> None:
    driver_of("confluent-kafka").produce(made, [Message(b"v") for _ in range(10)])
    member = join("confluent-kafka", group, made, protocol="consumer")
    wait_until(lambda: len(member.taken) == 10, 20)
    member.commit()
    of_group = ("--group", group)
    text = script(CONSUMER_GROUPS, *of_group, "--describe")
    assert re.search(rf"{group}\s+{made}\s+0\s+10\s+10\s+0\s+\S", text), text
    text = script(CONSUMER_GROUPS, *of_group, "--describe", "--members", "--verbose")
    assert re.search(rf"^{group}\s.*\s1\s+\S*\(0\)", text, re.MULTILINE), text
    member.close()
    text = script(CONSUMER_GROUPS, "--list", "--state", "Empty,Stable")
    assert re.search(rf"^{group}\s+Empty", text, re.MULTILINE), text
    to = ("--reset-offsets", "--to-offset", "3", "--topic", made, "--execute")
    assert re.search(rf"{made}\s+0\s+3", script(CONSUMER_GROUPS, *of_group, *to))
    text = script(CONSUMER_GROUPS, *of_group, "--describe")
    assert re.search(rf"{made}\s+0\s+3\s+10\s+7", text), text
    gone = script(CONSUMER_GROUPS, *of_group, "--delete-offsets", "--topic", made)
    assert "Request succeed" in gone, gone
    assert "successful" in script(CONSUMER_GROUPS, *of_group, "--delete")


@pytest.mark.slow
def test_transactions_command_lists_describes_and_aborts(
    script: Script,
    driver_of: Callable[[str], Driver],
    transactional: Callable[..., Transactional],
    made: str,
    group: str,
) -> None:
    # Four JVMs start while it is open.
    producer = transactional("confluent-kafka", f"tx-{group}", timeout_ms=600_000)
    producer.init()
    producer.begin()
    producer.send(made, ["a", "b"])
    text = script(TRANSACTIONS, "list")
    assert re.search(rf"tx-{group}\s+0\s+\d+\s+Ongoing", text), text
    text = script(TRANSACTIONS, "describe", "--transactional-id", f"tx-{group}")
    assert f"{made}-0" in text and "Ongoing" in text
    text = script(TRANSACTIONS, "describe-producers", "--topic", made, "--partition", "0")
    assert re.search(r"^\d+\s+\d+\s+-?\d+\s+1\s+\d+\s+0\s*$", text, re.MULTILINE), text
    where = ("--topic", made, "--partition", "0", "--start-offset", "0")
    script(TRANSACTIONS, "abort", *where)
    driver_of("confluent-kafka").produce(made, [Message(b"behind")])
    (found,) = driver_of("confluent-kafka").fetch(made, 1, committed=True)
    assert found.value == b"behind"


@pytest.mark.slow
@pytest.mark.parametrize("version", [VERSION, NEWEST])
def test_what_this_broker_does_not_have_is_described_as_none(broker: Broker, version: str) -> None:
    """Until they are supported: no stack trace, and no false statement."""
    script = scripts_of(version, broker)
    for entity in ("users", "clients", "ips", "client-metrics"):
        assert script(CONFIG_COMMAND, "--describe", "--entity-type", entity).strip() == ""


@pytest.mark.slow
@pytest.mark.parametrize("version", [VERSION, NEWEST])
def test_levels_of_loggers_are_described_and_changed(broker: Broker, version: str) -> None:
    script = scripts_of(version, broker)
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "0")
    assert re.search(r"root=INFO", script(CONFIG_COMMAND, "--describe", *loggers))
    script(CONFIG_COMMAND, "--alter", *loggers, "--add-config", "kbroker.ipc.rpc=WARN")
    assert "kbroker.ipc.rpc=WARN" in script(CONFIG_COMMAND, "--describe", *loggers)
    script(CONFIG_COMMAND, "--alter", *loggers, "--delete-config", "kbroker.ipc.rpc")
    assert "kbroker.ipc.rpc=INFO" in script(CONFIG_COMMAND, "--describe", *loggers)


@pytest.mark.slow
@pytest.mark.parametrize("version", [VERSION, NEWEST])
def test_quorum_is_this_node_alone(broker: Broker, version: str) -> None:
    script = scripts_of(version, broker)
    status = script(QUORUM, "describe", "--status")
    assert re.search(r"LeaderId:\s+0\n", status)
    assert re.search(r"MaxFollowerLag:\s+0\n", status)
    assert re.search(r"CurrentVoters:\s+\[.*0.*\]", status)
    assert re.search(r"CurrentObservers:\s+\[\]", status)
    replication = script(QUORUM, "describe", "--replication")
    assert re.search(r"^0\s.*Leader", replication, re.MULTILINE)


@pytest.mark.slow
def test_features_are_those_of_the_release_whose_behaviour_this_is(
    script: Script, newest_script: Script
) -> None:
    text = newest_script(FEATURES, "describe")
    assert re.search(r"metadata.version.*FinalizedVersionLevel: 4\.3-IV0", text), text
    assert re.search(r"group.version.*FinalizedVersionLevel: 1", text)
    assert "transaction.version" in script(FEATURES, "describe")
    newest_script(FEATURES, "upgrade", "--feature", "group.version=1")
