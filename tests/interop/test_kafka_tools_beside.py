"""The tools under Kafka's names print what Kafka's own print, and end with the same exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.beside import BESIDE, Beside

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.testing import Broker

pytestmark = BESIDE

TOPICS = "kafka-topics", "org.apache.kafka.tools.TopicCommand"
OFFSETS = "kafka-get-offsets", "org.apache.kafka.tools.GetOffsetShell"
GROUPS = "kafka-consumer-groups", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
DELETE_RECORDS = "kafka-delete-records", "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "kafka-log-dirs", "org.apache.kafka.tools.LogDirsCommand"
API_VERSIONS = "kafka-broker-api-versions", "org.apache.kafka.tools.BrokerApiVersionsCommand"
CONFIGS = "kafka-configs", "kafka.admin.ConfigCommand"
ELECTION = "kafka-leader-election", "org.apache.kafka.tools.LeaderElectionCommand"
ACLS = "kafka-acls", "org.apache.kafka.tools.AclCommand"
TOPIC_ID = r"TopicId: \S+"


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    """Whose lists of topics and groups no other test changes."""
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def beside(own_broker: Broker) -> Iterator[Beside]:
    both = Beside(own_broker.bootstrap)
    yield both
    both.close()


@pytest.fixture(scope="module")
def orders(beside: Beside, own_broker: Broker) -> list[str]:
    """Topics with records."""
    names = ["orders", "orders.eu", "returns", "a-topic-with-a-rather-long-name"]
    for name in names:
        assert beside.ours(*_create(own_broker, name, "--partitions", "3")).code == 0
    with KafkaProducer(bootstrap_servers=own_broker.bootstrap) as producer:
        for number in range(30):
            for name in names:
                producer.send(
                    name, b"v", partition=number % 3, timestamp_ms=1_700_000_000_000 + number
                )
    return names


def _create(broker: Broker, name: str, *more: str) -> tuple[str, ...]:
    where = ("--bootstrap-server", broker.bootstrap)
    return (TOPICS[0], "--create", "--topic", name, *where, *more)


def test_topics_are_created_extended_described_and_deleted_alike(beside: Beside) -> None:
    def same(*words: str) -> str:
        return beside.same(*TOPICS, *words, masks=[TOPIC_ID]).stdout

    one = ("--topic", "new-@-topic")
    same("--create", *one, "--partitions", "2", "--config", "retention.ms=5000", "--config",
         "cleanup.policy=compact")  # fmt: skip
    assert "Configs: cleanup.policy=compact,retention.ms=5000" in same("--describe", *one)
    assert same("--create", *one) == (
        "Error while executing topic command : Topic 'new-@-topic' already exists.\n"
    )
    same("--create", *one, "--if-not-exists")
    same("--create", "--topic", "with.dots-@-and_more", "--replica-assignment", "0,0,0")
    same("--create", "--topic", "x-@-y", "--replica-assignment", "0:0")
    same("--create", "--topic", "x-@-y", "--replica-assignment", "0,0:1")
    same("--create", "--topic", "x-@-y", "--replication-factor", "3")
    same("--create", "--topic", "x-@-y", "--partitions", "0")
    same("--create", "--topic", "x-@-y", "--config", "bogus=1")
    same("--create", "--topic", "x-@-y", "--config", "bogus")
    same("--create", "--topic", "x-@-y/")
    same("--alter", *one, "--partitions", "3")
    same("--alter", *one, "--partitions", "3")
    same("--alter", "--topic", "no-@-such", "--partitions", "3")
    same("--alter", "--topic", "no-@-such", "--partitions", "3", "--if-exists")
    same("--alter", *one, "--partitions", "4", "--replica-assignment", "0,0,0,0")
    assert same("--describe", *one).count("\tLeader: 0\t") == 4
    same("--delete", *one)
    same("--delete", *one)
    same("--delete", *one, "--if-exists")
    same("--delete", "--topic", "with.dots-@-.*")


def test_topics_are_listed_and_described_alike(beside: Beside, orders: list[str]) -> None:
    def same(*words: str) -> str:
        return beside.same(*TOPICS, *words, masks=[]).stdout

    assert same("--list").split() == sorted(orders)
    same("--list", "--topic", "orders.*, returns")
    same("--list", "--topic", "nothing")
    same("--list", "--exclude-internal")
    described = same("--describe")
    assert all(f"Topic: {name}\tTopicId: " in described for name in orders)
    id_text = described.partition("TopicId: ")[2].partition("\t")[0]
    same("--describe", "--topic-id", id_text)
    same("--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAQ")
    same("--describe", "--topic", "nothing")
    same("--describe", "--topic", "nothing", "--if-exists")
    for report in ("under-replicated-partitions", "unavailable-partitions", "at-min-isr-partitions",
                   "under-min-isr-partitions", "topics-with-overrides"):  # fmt: skip
        same("--describe", f"--{report}")


def test_wrong_use_of_topics_has_the_same_exit_code_and_first_line(beside: Beside) -> None:
    for words in (
        (), ("--help",), ("--bogus",), ("--list", "--describe"), ("--create",), ("--topic",),
        ("--list", "--partitions", "x"), ("--alter", "--topic", "t"), ("--list", "--config", "a=b"),
        ("--list", "--topic", "a", "--topic", "b"), ("--create", "--topic", "t", "--partitions=1",
         "--replica-assignment=0"), ("--describe", "--if-not-exists"),

        ("--describe", "--topics-with-overrides", "--under-replicated-partitions"),
    ):  # fmt: skip
        where = ("--bootstrap-server", beside.bootstrap) if words else ()
        theirs, ours = (
            beside.kafka(TOPICS[1], *words, *where),
            beside.ours(TOPICS[0], *words, *where),
        )
        said = [line for line in theirs.stderr.splitlines() if not line.startswith("SLF4J")]
        assert (ours.code, ours.stdout) == (theirs.code, theirs.stdout), words
        if said:
            assert ours.stderr.splitlines()[0] == said[0], words


def test_offsets_are_printed_alike(beside: Beside, orders: list[str]) -> None:
    def same(*words: str) -> str:
        return beside.same(*OFFSETS, *words).stdout

    assert same("--topic", "orders") == "orders:0:10\norders:1:10\norders:2:10\n"
    same()
    for time in ("earliest", "-2", "max-timestamp", "-3", "1700000000005", "1700000000028", "soon"):
        same("--time", time, "--topic", "orders,returns")
    same("--topic-partitions", "orders:0,re.*:1-,:2,a.*:-1")
    same("--topic-partitions", "orders:0-2", "--exclude-internal-topics")
    same("--topic", "ord.*", "--partitions", "0,2")
    same("--topic", "ord.*", "--partitions", "x")
    same("--topic", "nothing")
    same("--topic", "a", "--topic-partitions", "a")


def test_groups_are_listed_described_and_reset_alike(
    beside: Beside, orders: list[str], own_broker: Broker, tmp_path: Path
) -> None:
    def same(*words: str) -> str:
        return beside.same(*GROUPS, *words).stdout

    def reset(group: str, *words: str) -> str:
        return same("--reset-offsets", "--group", group, *words)

    reset("billing-@-1", "--topic", "orders", "--to-offset", "3", "--execute")
    reset("billing-@-1", "--all-topics", "--shift-by", "2", "--execute")
    reset("billing-@-1", "--topic", "orders:0,2", "--topic", "returns", "--to-latest", "--dry-run")
    reset("billing-@-1", "--topic", "orders", "--to-earliest")
    reset("billing-@-1", "--topic", "orders", "--topic", "returns", "--to-current", "--execute")
    reset("billing-@-1", "--all-topics", "--to-datetime", "2023-11-14T22:13:20.005")
    # With more topics, Java's own order of these warnings changes from run to run.
    reset("billing-@-1", "--topic", "orders", "--to-datetime", "2033-11-14T22:13:20.005")
    reset("billing-@-1", "--topic", "orders", "--by-duration", "PT1H")
    reset("billing-@-1", "--topic", "orders", "--by-duration", "1h")
    reset("billing-@-1", "--all-topics", "--to-offset", "999")
    reset("billing-@-1", "--topic", "nothing", "--to-earliest")
    reset("billing-@-1", "--topic", "nothing:0", "--to-earliest")
    reset("billing-@-1", "--topic", "orders:7", "--to-earliest")
    reset("billing-@-1", "--topic", "orders:x", "--to-earliest")
    reset("billing-@-1", "--topic", "orders")
    reset("billing-@-1", "--to-earliest")
    reset("nobody-@-1", "--topic", "orders", "--shift-by", "1")
    same("--describe", "--group", "billing-@-1")
    same("--describe", "--group", "billing-@-1", "--offsets", "--verbose")
    same("--describe", "--group", "billing-@-1", "--members")
    same("--describe", "--group", "billing-@-1", "--state", "--verbose")
    same("--describe", "--group", "nobody-@-1")
    same("--describe", "--group", "nobody-@-1", "--state")
    same("--delete-offsets", "--group", "billing-@-1", "--topic", "orders:1", "--topic", "returns")
    same("--delete-offsets", "--group", "billing-@-1", "--topic", "nothing")
    same("--delete-offsets", "--group", "nobody-@-1", "--topic", "orders")
    exported = reset("billing-@-1", "--all-topics", "--to-current", "--export")
    path = tmp_path / "offsets.csv"
    path.write_text(exported)
    # Kafka's own tool cannot: the libraries beside it are of versions that do not fit.
    words = ("--reset-offsets", "--group", "billing-@-1", "--from-file", str(path), "--execute")
    where = ("--bootstrap-server", own_broker.bootstrap)
    assert "orders          2          5\n" in beside.ours(GROUPS[0], *words, *where).stdout
    same("--list")
    for words in (("--state",), ("--type",), ("--state", "empty"), ("--state", "stable", "--type",
                  "classic"), ("--state", "bogus")):  # fmt: skip
        same("--list", *words)
    same("--describe", "--all-groups")
    same("--describe", "--all-groups", "--state")
    same("--delete", "--group", "nobody-@-1", "--group", "billing-@-1")
    same("--delete", "--group", "nobody-@-1")
    same("--validate-regex", "a.*")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_with_members_are_described_alike(
    beside: Beside, orders: list[str], own_broker: Broker, protocol: str
) -> None:
    group = f"read-by-{protocol}"

    def same(*words: str) -> str:
        return beside.same(*GROUPS, *words, "--group", group).stdout

    consumer = KafkaConsumer(
        bootstrap_servers=own_broker.bootstrap,
        group_id=group,
        group_protocol=protocol,
        auto_offset_reset="earliest",
    )
    with consumer:
        consumer.subscribe(["orders", "a-topic-with-a-rather-long-name"])
        seen = 0
        while seen < 60:
            seen += len(consumer.poll(1.0))
        consumer.commit_sync()
        for more in ((), ("--members",), ("--state",)):
            assert group in same("--describe", *more)
            same("--describe", *more, "--verbose")
        same("--reset-offsets", "--topic", "orders", "--to-earliest")
        same("--delete")
        same("--delete-offsets", "--topic", "orders", "--topic", "returns")


CONSOLES = (
    "kafka-console-producer",
    "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer",
    "org.apache.kafka.tools.consumer.ConsoleConsumer",
)
LINES = "h1:v1,h2:NULL\tkey\tvalue\nNULL\tNULL\tNULL\r\nh3:x\tk\tgrüße € 𝄞\n"


def test_lines_become_the_same_records_and_print_alike(beside: Beside, own_broker: Broker) -> None:
    """Either producer writes; either consumer prints what the other's producer wrote."""
    topic = "lines"
    assert beside.ours(*_create(own_broker, topic)).code == 0
    reader = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true",
              "--reader-property", "null.marker=NULL")  # fmt: skip
    for more in (
        (),
        ("--sync",),
        ("--compression-codec", "zstd"),
        ("--property", "parse.key=false"),
    ):
        words = (*((*reader, *more) if more[:1] != ("--property",) else more), "--topic", topic)
        beside.same(*CONSOLES[:2], *words, stdin=LINES)
    beside.same(*CONSOLES[:2], "--topic", topic, *reader, stdin="no separator\n")
    beside.same(*CONSOLES[:2], "--topic", topic, "--reader-property", "key.separator=,",
                "--reader-property", "null.marker=,", stdin="x\n")  # fmt: skip
    count = ("--max-messages", "24", "--timeout-ms", "20000")
    where = ("--topic", topic, "--partition", "0", "--from-beginning", *count)
    shows = ("timestamp", "partition", "offset", "epoch", "headers", "key", "value", "delivery")
    times = [r"CreateTime:\d+"]
    every = [word for name in shows for word in ("--formatter-property", f"print.{name}=true")]
    for words in (
        (), every, every[:6], ("--formatter-property", "print.value=false"),
        (*every, "--formatter-property", "key.separator=|", "--formatter-property",
         "headers.separator=;", "--formatter-property", "null.literal=<null>",
         "--formatter-property", "line.separator=;;"),
        ("--formatter", "org.apache.kafka.tools.consumer.NoOpMessageFormatter"),
        (*every, "--key-deserializer", "org.apache.kafka.common.serialization.StringDeserializer"),
        ("--property", "print.key=true"),
    ):  # fmt: skip
        beside.same(*CONSOLES[2:], *where, *words, masks=times)
    offset = ("--topic", topic, "--partition", "0", "--offset")
    beside.same(*CONSOLES[2:], *offset, "5", "--max-messages", "3")
    beside.same(*CONSOLES[2:], *offset, "latest", "--timeout-ms", "500")
    beside.same(*CONSOLES[2:], *offset, "-5")


def test_wrong_use_of_consoles_has_the_same_exit_code(beside: Beside) -> None:
    where = ("--bootstrap-server", beside.bootstrap)
    for words in (("--bogus",), (), ("--topic", "t", "--batch-size", "x")):
        theirs, ours = beside.kafka(CONSOLES[1], *words), beside.ours(CONSOLES[0], *words)
        assert (ours.code, ours.stdout) == (theirs.code, theirs.stdout), words
    for words in (
        ("--bogus",), (), ("--topic", "t", "--include", "t"), ("--partition", "1"), ("--topic", "t",
         "--offset", "1"), ("--topic", "t", "--partition", "0", "--group", "g"), ("--topic", "t",
         "--from-beginning", "--command-property", "auto.offset.reset=latest"), ("--topic", "t",
         "--group", "a", "--command-property", "group.id=b"), ("--topic", "t", "--formatter", "X"),
    ):  # fmt: skip
        theirs = beside.kafka(CONSOLES[3], *words, *where)
        ours = beside.ours(CONSOLES[2], *words, *where)
        assert (ours.code, ours.stdout) == (theirs.code, theirs.stdout), words


def test_wrong_use_of_groups_has_the_same_exit_code(beside: Beside) -> None:
    for words in (
        (), ("--bogus",), ("--list", "--describe", "--all-groups"), ("--describe",), ("--members",),
        ("--list", "--group", "g"), ("--describe", "--group", "g", "--members", "--state"),
        ("--delete", "--group", "g", "--topic", "t"), ("--delete-offsets", "--group", "g"),
        ("--reset-offsets", "--group", "g", "--to-latest", "--to-earliest"), ("--type",),
    ):  # fmt: skip
        where = ("--bootstrap-server", beside.bootstrap) if words else ()
        theirs, ours = (
            beside.kafka(GROUPS[1], *words, *where),
            beside.ours(GROUPS[0], *words, *where),
        )
        assert (ours.code, ours.stdout) == (theirs.code, theirs.stdout), words


def test_records_are_deleted_and_directories_described_alike(
    beside: Beside, own_broker: Broker, tmp_path: Path
) -> None:
    """Both delete below the same offset. The order in Kafka's output changes from run to run."""
    topic = "shortened"
    assert beside.ours(*_create(own_broker, topic, "--partitions", "3")).code == 0
    with KafkaProducer(bootstrap_servers=own_broker.bootstrap) as producer:
        for number in range(30):
            producer.send(topic, b"v", partition=number % 3)
    path = tmp_path / "cut.json"

    def same(rows: list[tuple[str, int, int]] | None, **more: object) -> str:
        named = [{"topic": t, "partition": p, "offset": o} for t, p, o in rows or ()]
        document = {"partitions": named, "version": 1, **more}
        path.write_text(json.dumps(document) if rows is not None else "{")
        where = ("--offset-json-file", str(path))
        return beside.same(*DELETE_RECORDS, *where, ordered=False).stdout

    assert f"partition: {topic}-2\tlow_watermark: 5" in same([(topic, 2, 5), (topic, 0, 3)])
    same([(topic, 1, -1)])
    same([(topic, 0, 99)])
    same([(topic, 0, 1), (topic, 0, 2)])
    same([(topic, 0, 1)], version=2)
    same(None)
    beside.same(*LOG_DIRS, "--describe")
    beside.same(*LOG_DIRS, "--describe", "--topic-list", f"{topic},nothing", "--broker-list", "0")
    beside.same(*LOG_DIRS, "--describe", "--broker-list", "0,7")
    beside.same(*LOG_DIRS)


def test_versions_of_requests_are_printed_alike(beside: Beside) -> None:
    text = beside.same(*API_VERSIONS).stdout
    assert "\tFetch(1): " in text and "[usable: 18]" in text


def test_settings_are_altered_and_described_alike(
    beside: Beside, orders: list[str], own_broker: Broker
) -> None:
    def same(*words: str) -> str:
        return beside.same(*CONFIGS, *words).stdout

    assert beside.ours(*_create(own_broker, "set-k-up")).code == 0
    assert beside.ours(*_create(own_broker, "set-j-up")).code == 0
    one = ("--entity-type", "topics", "--entity-name", "set-@-up")
    values = "retention.ms=5000,cleanup.policy=[compact,delete],flush.ms=7"
    same(*one, "--alter", "--add-config", values)
    assert "cleanup.policy=compact,delete sensitive=false" in same(*one, "--describe")
    same(*one, "--describe", "--all")
    same(*one, "--alter", "--delete-config", "flush.ms,retention.ms")
    same("--topic", "set-@-up", "--describe")
    same("--topic", "nothing", "--describe")
    same("--topic", "nothing", "--alter", "--add-config", "flush.ms=7")
    same("--topic", "set-@-up", "--alter", "--add-config", "flush.ms")
    same("--topic", "set-@-up", "--alter", "--add-config", "bogus=1")
    # Of keys in one bucket of Java's hash map the order differs.
    beside.same(*CONFIGS, "--entity-type", "topics", "--describe", ordered=False)
    for who in (("--broker", "0"), ("--broker-defaults",)):
        same(*who, "--alter", "--add-config", "log.cleaner.threads=2")
        same(*who, "--describe")
        # Which both have set: the second one would find none, which is an error of ours alone.
        where = ("--bootstrap-server", beside.bootstrap)
        gone = ("--alter", "--delete-config", "log.cleaner.threads")
        assert beside.ours(CONFIGS[0], *where, *who, *gone).code == 0
    same("--broker", "0", "--describe", "--all")
    same("--broker", "7", "--describe")
    same("--entity-type", "brokers", "--describe")
    same("--broker-logger", "0", "--describe")
    same("--group", "set-@-up", "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    same("--group", "set-@-up", "--describe")
    same("--group", "set-@-up", "--describe", "--all")
    same("--group", "set-@-up", "--alter", "--delete-config", "consumer.session.timeout.ms")
    same("--group", "set-@-up", "--describe")
    same("--client-metrics", "nothing", "--describe")


def test_quotas_and_users_are_altered_and_described_alike(beside: Beside) -> None:
    def same(*words: str) -> str:
        return beside.same(*CONFIGS, *words).stdout

    rates = "producer_byte_rate=1024,consumer_byte_rate=2.5e8,request_percentage=12.5"
    for who in (
        ("--user", "al-@-ice"), ("--client", "app-@-1"), ("--user-defaults",), ("--user", "bo-@-b",
         "--client", "app-@-2"), ("--user", "bo-@-b", "--client-defaults"),
    ):  # fmt: skip
        same(*who, "--alter", "--add-config", rates)
        same(*who, "--describe")
        if "--user-defaults" not in who:  # which there is one of: the second one finds none
            same(*who, "--alter", "--delete-config", "request_percentage")
    same("--entity-type", "users", "--entity-name", "al-@-ice", "--describe")
    same("--ip", "127.0.0.1", "--alter", "--add-config", "connection_creation_rate=100")
    same("--entity-type", "ips", "--describe")
    same("--user", "al-@-ice", "--alter", "--add-config",
         "SCRAM-SHA-256=[iterations=8192,password=x],SCRAM-SHA-512=[password=y]")  # fmt: skip
    assert "SCRAM-SHA-256=iterations=8192, SCRAM" in same("--user", "al-@-ice", "--describe")
    same("--user", "al-@-ice", "--alter", "--add-config", "SCRAM-SHA-256=[iterations=1,password=x]")
    same("--user", "al-@-ice", "--alter", "--delete-config", "SCRAM-SHA-256")
    same("--user", "al-@-ice", "--describe")
    same("--user", "nobo-@-dy", "--describe")
    same("--user", "al-@-ice", "--alter", "--add-config", "bogus=1")
    same("--user", "al-@-ice", "--alter", "--delete-config", "request_percentage")


def test_wrong_use_of_configs_has_the_same_exit_code_and_first_line(beside: Beside) -> None:
    for words in (
        (), ("--bogus",), ("--describe",), ("--describe", "--alter"), ("--topic", "t", "--alter"),
        ("--describe", "--entity-type", "x"), ("--describe", "--broker", "x"), ("--describe",
         "--topic", "t", "--entity-type", "topics"), ("--alter", "--entity-type", "topics",
         "--add-config", "a=b"), ("--describe", "--topic", "t", "--user", "u"), ("--describe",
         "--entity-type", "topics", "--entity-default"), ("--alter", "--user", "u", "--add-config",
         "a=b", "--add-config-file", "x"), ("--alter", "--entity-type", "users", "--add-config",
         "request_percentage=5"),
    ):  # fmt: skip
        where = ("--bootstrap-server", beside.bootstrap) if words else ()
        theirs = beside.kafka(CONFIGS[1], *words, *where)
        ours = beside.ours(CONFIGS[0], *words, *where)
        assert (ours.code, ours.stdout) == (theirs.code, theirs.stdout), words
        said = [line for line in theirs.stderr.splitlines() if not line.startswith("SLF4J")]
        assert ours.stderr.splitlines()[:1] == said[:1], words


def test_elections_are_reported_alike(beside: Beside, orders: list[str], tmp_path: Path) -> None:
    """One broker leads everything already: the words for that, for errors and for wrong use."""
    path = tmp_path / "partitions.json"

    def same(*words: str) -> str:
        return beside.same(*ELECTION, *words).stdout

    def of_file(rows: list[tuple[str, int]], kind: str = "preferred") -> str:
        named = [{"topic": topic, "partition": number} for topic, number in rows]
        path.write_text(json.dumps({"partitions": named}))
        return same("--election-type", kind, "--path-to-json-file", str(path))

    assert of_file([("orders", 2), ("orders", 0)]) == (
        "Valid replica already elected for partitions orders-0, orders-2\n"
    )
    of_file([("orders", 1)], "UNCLEAN")
    of_file([("orders", 7), ("nothing", 0)])
    of_file([("orders", 1), ("orders", 1)])
    for words in (
        ("--topic", "orders", "--partition", "0"), ("--all-topic-partitions",), ("--topic", "t"),
        ("--partition", "0", "--all-topic-partitions"), (), ("--topic", "orders", "--partition",
         "0", "--all-topic-partitions"), ("--topic", "orders", "--partition", "x"),
    ):  # fmt: skip
        same("--election-type", "preferred", *words)
    same("--election-type", "other", "--all-topic-partitions")
    same("--all-topic-partitions")


def test_acls_are_added_listed_and_removed_alike() -> None:
    """In any order: that of Kafka's tool changes from run to run."""
    settings = {
        "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
        "super_users": "User:ANONYMOUS",
    }
    with Broker(**settings) as broker:
        both = Beside(broker.bootstrap)

        def same(*words: str) -> str:
            return both.same(*ACLS, *words, ordered=False).stdout

        one = ("--topic", "t-@-x", "--allow-principal", "User:al-@-ice")
        same("--add", *one, "--operation", "Read", "--operation", "DescribeConfigs")
        assert "already exists." in same("--add", *one, "--operation", "Read")
        same("--add", *one, "--allow-host", "10.0.0.1", "--deny-principal", "User:e-@-ve")
        same("--add", *one, "--producer", "--idempotent", "--transactional-id", "x-@-y")
        same("--add", *one, "--consumer", "--group", "g-@-h", "--resource-pattern-type", "prefixed")
        same("--add", *one, "--operation", "ClusterAction")
        same("--add", "--topic", "t-@-x", "--operation", "Read")
        same("--add", "--topic", "t-@-x", "--allow-principal", "alice")
        same("--add", *one, "--resource-pattern-type", "any")
        same("--add", *one, "--resource-pattern-type", "bogus")
        same("--add", "--allow-principal", "User:alice")
        assert "Current ACLs for resource" in same("--list", "--topic", "t-@-x")
        same("--list", "--topic", "t-@-xyz", "--resource-pattern-type", "match")
        same("--list", "--topic", "t-@-x", "--principal", "User:al-@-ice", "--principal", "User:n")
        same("--list", "--cluster")
        same("--list")
        same("--remove", *one, "--operation", "Read", "--force")
        same("--list", "--topic", "t-@-x")
        same("--remove", "--topic", "t-@-x", "--force")
        same("--remove", "--group", "g-@-h", "--resource-pattern-type", "prefixed", "--force")
        same("--list", "--topic", "t-@-x", "--group", "g-@-h")
        for words in (("--bogus",), ("--list", "--add"), ("--producer", "--add"), ("--principal",)):
            same(*words)
        same("--list", "--producer")
        same("--add", "--consumer", "--topic", "t")
        both.close()


def test_acls_without_an_authorizer_are_the_same_error(beside: Beside) -> None:
    theirs = beside.kafka(ACLS[1], "--list", "--bootstrap-server", beside.bootstrap)
    ours = beside.ours(ACLS[0], "--list", "--bootstrap-server", beside.bootstrap)

    assert ours.code == theirs.code == 1
    assert ours.stdout.splitlines()[0] == theirs.stdout.splitlines()[0]
